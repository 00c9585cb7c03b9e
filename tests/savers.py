"""Processes that save again and again, to be killed; `python tests/savers.py 60` kills 60."""

import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SAVE = """
import sys
import numpy as np
from gpflow_cool.saving.folder import Content, write_folder

number = int(sys.argv[2])
content = Content({"class": str(number)}, {"X": np.full(300_000, float(number))})
print("ready", flush=True)
for _ in range(int(sys.argv[3])):
    write_folder(sys.argv[1], content, force=True)
print("done", flush=True)
"""
"""Saves a folder whose document and whose array hold the same number."""


def start_saver(folder, number, times):
    """A process that saves; returned once it is about to begin."""
    command = [sys.executable, "-c", SAVE, str(folder), str(number), str(times)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def kill_savers(place, kills, seed=0):
    """
    Kill processes while they save; after each kill, a whole model must be there.

    :return: The numbers that were found.
    """
    from gpflow_cool.saving.folder import read_folder

    folder, chance, found = Path(place) / "model", random.Random(seed), []
    assert start_saver(folder, 0, 1).communicate() == ("done\n", "")
    for number in range(1, kills + 1):
        process = start_saver(folder, number, 10**6)
        time.sleep(chance.uniform(0.0, 0.1))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        content = read_folder(folder)
        found.append(int(content.document["class"]))
        assert (content.arrays["X"] == found[-1]).all()
    assert start_saver(folder, 0, 1).communicate() == ("done\n", "")
    assert sorted(file.name for file in Path(place).iterdir()) == ["model"]
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        found = kill_savers(place, int(sys.argv[1]))
    print(f"{len(found)} kills: no model was lost, and nothing is left behind.")
