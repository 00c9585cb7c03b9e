"""Tutorials and pages that need Trieste run; tests/integration looks at the notebooks."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tutorials"
PAGE = ROOT / "docs" / "guide" / "optimisation.md"
NAMES = [path.stem for path in FOLDER.glob("*.py") if "from trieste" in path.read_text()]


@pytest.mark.parametrize("name", NAMES)
def test_tutorial_runs(name, tmp_path):
    environment = {
        **os.environ,
        "GPFLOW_COOL_SMALL": "1",
        "MPLBACKEND": "Agg",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, str(FOLDER / f"{name}.py")]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]


def test_there_is_one():
    assert "14_two_objectives" in NAMES


def test_code_of_the_page_runs():
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    exec(compile("\n".join(blocks), str(PAGE), "exec"), {})
