# %% [markdown]
# # Which kernel? Which inputs matter?
#
# Nobody knows beforehand whether a table wants a smooth kernel, a rough one or a plane, and which
# of its columns are worth measuring. At the end you have let the data answer for two sets, you know
# how the answer was found, and you have checked it on rows that were held out.
#
# Both sets come with scikit-learn: 178 wines, of which we predict three groups of phenols, and 442
# patients with diabetes, of whom we predict five measurements of their blood serum. To the wines we
# add three columns of random numbers: a method that finds out what matters must not fall for them.

# %%
import os
import textwrap

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.datasets import load_diabetes, load_wine

from gpflow_cool import CoolMTGPRegressor
from gpflow_cool.plotting import plot_kernel_table, plot_relevance

SMALL = os.environ.get("GPFLOW_COOL_SMALL") == "1"  # set by the tests
rng = np.random.default_rng(3)
wine = load_wine(as_frame=True).data
wine = wine.rename(columns={"od280/od315_of_diluted_wines": "od280/od315"})
phenols = ["total_phenols", "flavanoids", "proanthocyanins"]
X, Y = wine.drop(columns=phenols), wine[phenols]
rows = rng.permutation(len(X))
train, test = rows[:130], rows[130:]
noise = ["noise 1", "noise 2", "noise 3"]
X[noise] = rng.normal(size=[len(X), 3])
print(textwrap.fill("inputs: " + ", ".join(X.columns), 90))

# %% [markdown]
# ## Which kernel?
# `CoolMTGPRegressor()` fits eight kernels with one lengthscale each, and predicts every row from
# all the others. This is leave-one-out, in closed form: no model is trained again for it. Two of
# the kernels then get one lengthscale per input, and stand in the same table.


# %%
def kernels_of(regressor):
    """The table of kernels; `print(regressor.kernel_choice_)` also tells how long each took."""
    columns = ["name", "log_density", "rmse", "score", "num_parameters"]
    table = pd.DataFrame(regressor.kernel_choice_.candidates)[columns].round(3)
    return table.to_string(index=False, na_rep="-")


wines = CoolMTGPRegressor().fit(X.iloc[train], Y.iloc[train])
print(kernels_of(wines))

# %%
_, ax = plt.subplots(figsize=(7.0, 3.0), layout="constrained")
plot_kernel_table(wines.kernel_choice_, ax)
plt.show()

# %% [markdown]
# More log density is better. Differences between kernels that are smaller than two standard errors
# are chance. Of the kernels that are left, the one is taken whose *score* is highest,
#
# $$ J - \tfrac{1}{2} p \log N, $$
#
# the training objective charged for its $p$ parameters. Where the data cannot tell, the simpler
# kernel wins.
#
# ## Which inputs matter?
# The kernel that was taken and the next best one then get one lengthscale per input,
#
# $$ \log l_d \sim N(\log l_0, \tau^2), \qquad \tau = 1, $$
#
# pulled towards the common one $l_0$. An input about which the data say nothing keeps it, one that
# does not matter gets a longer one. These lengthscales are kept if the data decide them more than
# the prior does, and if they predict rows that are left out better.
#
# `relevance_` is the part of the variance of the predictions
# that moves if this input alone is exchanged with that of another wine. It is small for the random
# columns, though not zero: 130 wines cannot rule out that they matter a little.

# %%
_, ax = plt.subplots(figsize=(7.0, 3.6), layout="constrained")
plot_relevance(wines.relevance_, list(wines.relevance_.index), ax)
plt.show()

# %% [markdown]
# ## Does it pay?
# What counts are wines that were held out. Before, one had to type a kernel:

# %%
plain = CoolMTGPRegressor("se", ard=False).fit(X.iloc[train], Y.iloc[train])
held_out = X.iloc[test], Y.iloc[test]
for name, model in {"squared exponential": plain, "chosen": wines}.items():
    density, score = model.log_density(*held_out).mean(), model.score(*held_out)
    print(f"{name:20s} log density of a wine {density:.3f}, R^2 {score:.3f}")

# %% [markdown]
# ## Sometimes a plane is enough
# The same for the patients. Body mass index, blood pressure, age and sex tell little about their
# serum, and what they tell is nearly linear.

# %%
table = load_diabetes(as_frame=True, scaled=False).data.rename(columns={"s3": "hdl", "s6": "glu"})
serum = ["s1", "s2", "hdl", "s5", "glu"]
table = table.sample(120 if SMALL else 300, random_state=0)
patients = CoolMTGPRegressor().fit(table[["age", "sex", "bmi", "bp"]], table[serum])
print(kernels_of(patients))
print(patients.relevance_.round(2).to_string())

# %% [markdown]
# All kernels are nearly equal by leave-one-out, and the score takes one with a linear part. Where a
# squared exponential kernel is added to it, the lengthscale may become so short that it is one more
# noise, and the function is a plane all the same. The body mass index matters most, although a
# plane has no lengthscales: relevance is a property of the predictions.
#
# To see what the *whole procedure* is worth, the choice included, let `gpflow-cool evaluate` or
# scikit-learn's `cross_validate` make it anew in every fold: scores of the kernel that has won are
# always a little too good.
#
# ## What we claim
# The three most relevant inputs of the wines matter more than any random column, the first of them
# ten times as much. Wines that were held out are predicted better than with the kernel that one
# would have typed. For the patients a kernel with a linear part is taken, and the body mass index
# matters most.

# %%
relevance = wines.relevance_.sort_values(ascending=False)
assert relevance.iloc[2] > relevance[noise].max()
assert relevance.iloc[0] > 10.0 * relevance[noise].max()
assert wines.log_density(*held_out).mean() > plain.log_density(*held_out).mean()
assert "per input" in wines.kernel_choice_.chosen
assert "linear" in patients.kernel_choice_.chosen
assert patients.relevance_.idxmax() == "bmi"
