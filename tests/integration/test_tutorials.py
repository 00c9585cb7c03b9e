"""Every tutorial runs at small size and holds what it claims; its notebook is there and agrees."""

import json
import re
import runpy
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

FOLDER = Path(__file__).parents[2] / "tutorials"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
NEED_TRIESTE = [name for name in NAMES if "from trieste" in (FOLDER / f"{name}.py").read_text()]
"""They run where Trieste is: tests/trieste."""


def test_every_script_has_a_notebook():
    assert len(NAMES) >= 8
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == NAMES


def test_every_tutorial_ends_with_an_assertion_of_its_claim():
    """A picture may follow."""
    for name in NAMES:
        script = (FOLDER / f"{name}.py").read_text()
        code = [block for block in script.split("# %%") if not block.startswith(" [markdown]")]
        assert re.search(r"^\s*assert ", "".join(code[-2:]), flags=re.MULTILINE), name


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", [name for name in NAMES if name not in NEED_TRIESTE])
def test_tutorial_runs(name, tmp_path, monkeypatch):
    """In this process, which has loaded TensorFlow already."""
    monkeypatch.setenv("GPFLOW_COOL_SMALL", "1")
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent))  # for commands that a tutorial runs
    monkeypatch.chdir(tmp_path)
    try:
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    finally:
        plt.close("all")


def source_of_cells(script: str) -> list[str]:
    """The cells of a script in percent format, markdown without its comment marks."""
    cells = []
    for block in script.split("# %%")[1:]:
        header, _, body = block.partition("\n")
        if "[markdown]" in header:
            lines = [line.removeprefix("#").removeprefix(" ") for line in body.splitlines()]
            body = "\n".join(lines)
        cells.append(body.strip())
    return cells


@pytest.mark.parametrize("name", NAMES)
def test_notebook_is_executed_and_says_what_the_script_says(name):
    notebook = json.loads((FOLDER / f"{name}.ipynb").read_text())
    cells = ["".join(cell["source"]).strip() for cell in notebook["cells"]]
    assert cells == source_of_cells((FOLDER / f"{name}.py").read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in code)
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not any(output["output_type"] == "error" for output in outputs)
    assert any("image/png" in output.get("data", {}) for output in outputs)
