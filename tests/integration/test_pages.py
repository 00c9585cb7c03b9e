"""Code on pages and in README runs and draws what they show; files that they link to are there."""

import re
from pathlib import Path

import gpflow
import numpy as np
import pandas as pd
import pytest

from docs.draw_pages import code_of, pictures_of

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [DOCS / "index.md", DOCS / "start.md", *sorted((DOCS / "guide").glob("*.md"))]
LINK = re.compile(r"!?\[[^]]*\]\(([^)\s]+)\)")


def test_pages_are_found_and_have_code():
    assert len([page for page in PAGES if code_of(page)]) >= 10


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if "from trieste" not in code_of(page)],  # see tests/trieste
    ids=lambda page: page.stem,
)
def test_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code_of(page), str(page), "exec"), {})
    drawn = {path.name for path in tmp_path.glob("*.png")}
    assert set(pictures_of(page)) == drawn  # what a page shows is what its code draws


def test_code_of_readme_runs(tmp_path, monkeypatch, capsys, rng):
    """README leaves out where some of its data come from; what it says is printed is printed."""
    monkeypatch.chdir(tmp_path)
    x = rng.uniform(size=[20, 1])
    y = np.hstack([np.sin(6 * x), np.cos(6 * x)]) + 0.1 * rng.normal(size=[20, 2])
    holes = np.where(rng.uniform(size=y.shape) < 0.1, np.nan, y)
    given = {
        "base_kernel": gpflow.kernels.SquaredExponential(active_dims=[0]),
        "X_aug": np.vstack([np.hstack([x, np.full_like(x, t)]) for t in (0.0, 1.0)]),
        "Y_aug": y.T.reshape(-1, 1),
        "X_frame": pd.DataFrame(x, columns=["x"]),
        "Y_frame": pd.DataFrame(holes, columns=["a", "b"]),
        "X_new": pd.DataFrame(x[:3], columns=["x"]),
    }
    code = code_of(ROOT / "README.md")
    code = code.replace("Coregion(...)", "Coregion(2, 1, active_dims=[1])")
    code = re.sub(r"steps=\d+", "steps=5", code)
    code = code.replace("Regressor()", "Regressor('se', ard=False)")  # seven kernels take long
    told = re.findall(r"  # prints ([^;\n]+)", code)
    exec(compile(code, "README.md", "exec"), given)
    printed = capsys.readouterr().out.splitlines()
    assert told == ["0.34"] and set(told) <= set(printed)


@pytest.mark.parametrize(
    "page",
    [*ROOT.glob("*.md"), *(path for path in DOCS.rglob("*.md") if "api" not in path.parts)],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_linked_files_are_there(page):
    addresses = [link.split("#")[0] for link in LINK.findall(page.read_text())]
    inside = [address for address in addresses if address and "://" not in address]
    missing = [address for address in inside if not (page.parent / address).exists()]
    assert missing == []
