# %% [markdown]
# # Watching training in TensorBoard
#
# At the end you have a log folder with the loss, the likelihood of every task, all parameters, the
# exact evidence, and pictures of C and Sigma as they change in training. You also know how to get
# the same from a loop of your own.

# %%
import io
import os
import tempfile
import textwrap
from pathlib import Path

import gpflow
import matplotlib.pyplot as plt
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
monitor = gpflow.monitor.Monitor(
    *tensorboard_tasks(model, folder / "loop", image_period=STEPS // 4)
)
optimizer = tf_keras.optimizers.Adam(0.05)
loss = tf.function(model.training_loss)
for step in range(STEPS):
    optimizer.minimize(loss, model.trainable_variables)
    monitor(step)

# %% [markdown]
# ## What was written
# TensorBoard's own reader shows it without a browser. TensorFlow writes numbers and pictures
# alike as tensors; a picture is its width, its height and a PNG.


# %%
def read(name):
    """The log of a fit: TensorBoard's reader, and the names of its curves and of its pictures."""
    (events,) = {path.parent for path in (folder / name).rglob("events.out.tfevents.*")}
    reader = EventAccumulator(str(events), size_guidance={"tensors": 0})
    reader.Reload()
    kinds = {
        tag: reader.SummaryMetadata(tag).plugin_data.plugin_name for tag in reader.Tags()["tensors"]
    }
    pictures = [tag for tag, kind in kinds.items() if kind == "images"]
    return reader, [*reader.Tags()["scalars"], *(set(kinds) - set(pictures))], pictures


logs = {name: read(name) for name in ("adam", "loop")}
for name, (_, curves, pictures) in logs.items():
    for kind, names in [("curves", curves), ("pictures", pictures)]:
        print(textwrap.fill(f"{name}, {len(names)} {kind}: {', '.join(sorted(names))}", 90))

# %% [markdown]
# Here are some pictures of the first fit as TensorBoard shows them, before the first step and after
# the last.

# %%
reader, _, _ = logs["adam"]
shown = ["matrices/C", "matrices/Sigma_correlation", "predictions/sin"]
fig, axes = plt.subplots(2, 3, figsize=(10, 5.5), layout="constrained")
for column, tag in enumerate(shown):
    written = reader.Tensors(tag)
    for row, event in enumerate([written[0], written[-1]]):
        ax = axes[row, column]
        ax.imshow(plt.imread(io.BytesIO(event.tensor_proto.string_val[2])))
        ax.set_title(f"{tag}, step {event.step}", fontsize="small")
        ax.axis("off")

# %% [markdown]
# ## What we claim
# Both ways write curves and pictures, the pictures change while the model learns, and the loss
# falls.

# %%
for name, (reader, curves, pictures) in logs.items():
    assert len(curves) > 8 and "matrices/C" in pictures, name
    first, last = reader.Tensors("matrices/C")[0], reader.Tensors("matrices/C")[-1]
    assert first.step < last.step
    assert first.tensor_proto.string_val[2] != last.tensor_proto.string_val[2]
assert min(history.history["loss"]) < history.history["loss"][0]
