"""
Two worker processes train one model, each on half of the rows, through TensorFlow's distribution.

    python examples/two_workers.py

This starts both workers on one machine. To use several machines, start this file yourself on each
one, with `--worker --folder FOLDER` and with TF_CONFIG as in docs/scaling.md; the folder holds
X.npy and Y.npy. After an interruption run the same command with the same --folder: training goes
on from the checkpoint.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def launch(arguments: argparse.Namespace) -> int:
    """Start the workers and wait for them."""
    workers = [f"127.0.0.1:{port}" for port in free_ports(arguments.workers)]
    processes = []
    for index in range(arguments.workers):
        config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        command = [sys.executable, __file__, "--worker", "--rows", str(arguments.rows)]
        command += ["--folder", str(arguments.folder), "--steps", str(arguments.steps)]
        environment = {**os.environ, "TF_CONFIG": json.dumps(config)}
        processes.append(subprocess.Popen(command, env=environment))
    return max(process.wait() for process in processes)


def write_data(folder: Path, rows: int) -> None:
    """Noisy sines in files that every worker maps into memory."""
    import numpy as np

    rng = np.random.default_rng(0)
    X = rng.uniform(0.0, 6.0, size=(rows, 1))
    F = np.hstack([np.sin(X), np.cos(X), np.sin(X) + np.cos(X)])
    np.save(folder / "X.npy", X)
    np.save(folder / "Y.npy", F + 0.1 * rng.normal(size=F.shape))


def work(folder: Path, steps: int) -> None:
    """Train as one worker: all run the same program, each on its share of the rows."""
    import numpy as np
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else

    import gpflow

    from gpflow_cool import SparseCoolMTGP
    from gpflow_cool.callbacks import Checkpoint, load_checkpoint

    index = strategy.cluster_resolver.task_id
    data = tuple(np.load(folder / f"{name}.npy", mmap_mode="r") for name in "XY")
    model = SparseCoolMTGP(
        data,
        gpflow.kernels.SquaredExponential(),
        np.linspace(0.0, 6.0, 20)[:, None],
        chunk_rows=1000,
        strategy=strategy,
    )
    checkpoint = folder / "checkpoint.npz"
    if checkpoint.exists():
        load_checkpoint(model, checkpoint)
    callbacks = [Checkpoint(checkpoint, overwrite=True)] if index == 0 else []
    history = model.fit(steps=steps, callbacks=callbacks, verbose=int(index == 0))
    result = {
        "loss": history.history["loss"][-1],
        "steps": len(history.epoch),
        "lengthscale": float(model.kernel.lengthscales.numpy()),
    }
    (folder / f"worker_{index}.json").write_text(json.dumps(result))
    print(f"worker {index}: {result}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=200, help="at most")
    parser.add_argument("--folder", type=Path, help="for data, checkpoint and results")
    parser.add_argument("--worker", action="store_true", help="be one worker, told by TF_CONFIG")
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.folder, arguments.steps)
        return 0
    arguments.folder = arguments.folder or Path(tempfile.mkdtemp())
    if not (arguments.folder / "Y.npy").exists():
        write_data(arguments.folder, arguments.rows)
    return launch(arguments)


if __name__ == "__main__":
    sys.exit(main())
