# %% [markdown]
# # Watching training in TensorBoard
#
# At the end you have a log folder with the loss, the likelihood of every task, all parameters, the
# exact evidence, and pictures of C and Sigma as they change in training. You also know how to get
# the same from a loop of your own.

# %%
import os
import tempfile
from pathlib import Path

import gpflow
import tensorflow as tf
from gpflow.keras import tf_keras
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gpflow_cool import CoolMTGP
from gpflow_cool.datasets import clustered_two_task
from gpflow_cool.monitoring import tensorboard_tasks

SMALL = os.environ.get("GPFLOW_COOL_SMALL") == "1"  # set by the tests
STEPS = 12 if SMALL else 200
X, Y, _ = clustered_two_task(num_rows=40)
folder = Path(tempfile.mkdtemp())


def new_model():
    return CoolMTGP((X, Y), gpflow.kernels.SquaredExponential(), task_names=["cos", "sin"])


# %% [markdown]
# ## With `fit`
# Pass the folder to `fit`. Then run `tensorboard --logdir FOLDER` in a terminal, or
# `%load_ext tensorboard` and `%tensorboard --logdir FOLDER` in a notebook.

# %%
model = new_model()
history = model.fit("adam", steps=STEPS, tensorboard=folder / "adam", verbose=0)
print(f"loss {history.history['loss'][0]:.1f} to {min(history.history['loss']):.1f}")

# %% [markdown]
# ## With Keras callbacks
# `fit` takes Keras callbacks as they are. Each step of the optimizer is an epoch to them.

# %%
stop = tf_keras.callbacks.EarlyStopping(monitor="loss", min_delta=0.1, patience=5)
model = new_model()
history = model.fit("adam", steps=STEPS, callbacks=[stop], verbose=0)
print(history.message)

# %% [markdown]
# ## In a loop of your own
# `tensorboard_tasks` gives monitoring tasks for GPflow's `Monitor`, as in GPflow's own tutorials.

# %%
model = new_model()
monitor = gpflow.monitor.Monitor(*tensorboard_tasks(model, folder / "loop", image_period=50))
optimizer = tf_keras.optimizers.Adam(0.05)
loss = tf.function(model.training_loss)
for step in range(STEPS):
    optimizer.minimize(loss, model.trainable_variables)
    monitor(step)

# %% [markdown]
# ## What was written
# TensorBoard's own reader lists what the folders hold. TensorFlow writes pictures as tensors, so
# the reader counts them among the series (`matrices/C` is one), and its list of pictures stays
# empty.

# %%
for name in ("adam", "loop"):
    (events,) = {path.parent for path in (folder / name).rglob("events.out.tfevents.*")}
    reader = EventAccumulator(str(events))
    reader.Reload()
    tags = reader.Tags()
    found = sorted({*tags["scalars"], *tags["tensors"]})
    print(name, len(found), "series, for example", found[:6], "and pictures", tags["images"][:3])
    assert len(found) > 8
