# %% [markdown]
# # From a CSV to a report
#
# How do I get from a file to a model, to predictions of new rows, and to a page that I can send to
# a colleague? At the end you have done all this with five commands, and you have seen how much some
# known targets tell about the others.
#
# The data are 442 patients with diabetes, which come with scikit-learn (`load_diabetes`). From age,
# sex, body mass index and blood pressure we predict five measurements of their blood serum.

# %%
import os
import re
import tempfile
import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from click.testing import CliRunner
from sklearn.datasets import load_diabetes

from gpflow_cool.cli.commands import main

SMALL = os.environ.get("GPFLOW_COOL_SMALL") == "1"  # set by the tests
os.chdir(tempfile.mkdtemp())
names = {"s1": "tc", "s2": "ldl", "s3": "hdl", "s5": "ltg", "s6": "glu"}
table = load_diabetes(as_frame=True, scaled=False).data.drop(columns="s4").rename(columns=names)
table = table.sample(90 if SMALL else None, frac=None if SMALL else 1.0, random_state=0)
inputs, targets = ["age", "sex", "bmi", "bp"], list(names.values())
num_new = len(table) // 4
table[num_new:].to_csv("patients.csv", index=False)
table[:num_new].to_csv("new.csv", index=False)
table.head(3)


# %% [markdown]
# ## Commands
# In a shell you would type `gpflow-cool fit patients.csv ...`. Here a function does the typing. It
# leaves out how many seconds a command took, and the folder of its files.


# %%
SECONDS = r" +(seconds|\d+\.\d)$| in \d+\.\d s\b"


def run(command):
    """Call the program with the words of a command, and print its answer."""
    plain = ["--kernel", "se", "--no-ard"] if SMALL and "--targets" in command else []
    answer = CliRunner().invoke(main, command.split()[1:] + plain)
    assert answer.exit_code == 0, answer.output
    print(f"$ {command}")
    shown = answer.stdout.replace(os.getcwd() + os.sep, "")
    for line in re.sub(SECONDS, "", shown, flags=re.MULTILINE).splitlines():
        print(textwrap.fill(line, 100) if len(line) > 110 and "  " not in line else line)
    return answer.stdout


answer = run("gpflow-cool fit patients.csv --targets tc,ldl,hdl,ltg,glu --out model")

# %% [markdown]
# `fit` has found the inputs by itself: all other columns. It prints how well each row is predicted
# from all the others. Age, sex, body mass index and blood pressure explain little: the errors are
# only about a tenth below those of predicting the mean (relative RMSE).
#
# ## Predict new rows
# The answers are in the units of the file. `NAME_std` is the standard deviation of a new
# observation.

# %%
run("gpflow-cool predict model new.csv --out predictions.csv")
predictions = pd.read_csv("predictions.csv")
predictions.head(3).round(2)

# %% [markdown]
# ## Predict some targets from others
# Say that total cholesterol and HDL are known for the new patients, because they are cheap to
# measure. `--given` names the columns of the file that may be used.

# %%
run("gpflow-cool predict model new.csv --given tc,hdl --out given.csv")
given = pd.read_csv("given.csv")
truth = pd.read_csv("new.csv")
errors = pd.DataFrame(
    {
        "from the inputs": [np.sqrt(np.mean((predictions[t] - truth[t]) ** 2)) for t in targets],
        "tc and hdl known": [np.sqrt(np.mean((given[t] - truth[t]) ** 2)) for t in targets],
    },
    index=targets,
)
errors.round(2)

# %%
fig, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained", sharex=True, sharey=True)
for ax, frame, title in [
    (axes[0], predictions, "from the inputs"),
    (axes[1], given, "tc and hdl known"),
]:
    ax.errorbar(truth.ldl, frame.ldl, 2 * frame.ldl_std, fmt="o", ms=3, ecolor="0.8")
    ax.axline((115, 115), slope=1, color="k", ls="--", lw=1)
    ax.set(title=f"LDL cholesterol, {title}", xlabel="measured", ylabel="predicted, two sigma")

# %% [markdown]
# ## Does the coupling pay?
# `evaluate` cross-validates the model beside one Gaussian process per target and beside a model
# with independent noise (Std-MT).

# %%
comparison = run("gpflow-cool evaluate patients.csv --targets tc,ldl,hdl,ltg,glu --folds 2")

# %% [markdown]
# The errors of the means (aRRMSE) are about those of one Gaussian process per target. The joint
# density of a row's targets (joint NLPD: the lower, the better) is much better: only a model whose
# noises correlate knows that `tc` and `ldl` go up and down together.
#
# ## A report
# The report is one HTML page that needs no other file and no network. Move a slider for an input,
# and the predictions follow.
#
# ![The first part of the report](../docs/images/report.png)

# %%
run("gpflow-cool report model")
report = Path("model_report.html").read_text()
print("\n".join(re.findall(r"<h2[^>]*>(.*?)</h2>", report)))

# %% [markdown]
# ## What we claim
# Known targets halve the error of LDL cholesterol at least, the bands tell the truth about it, and
# the joint density of held-out rows is clearly better than that of one Gaussian process per target.

# %%
within = np.mean(np.abs(given.ldl - truth.ldl) < 2 * given.ldl_std)
print(f"LDL within two sigma, tc and hdl known: {within:.0%}")
assert errors.loc["ldl", "tc and hdl known"] < 0.5 * errors.loc["ldl", "from the inputs"]
assert 0.85 < within <= 1
assert "Cool-MTGP against independent GPs: better" in comparison
assert "Calibration" in report and 'src="http' not in report
