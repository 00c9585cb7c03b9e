"""
One rule: the folders of the package stand in one order, and each imports only from those before it.

Imports inside functions count as well, so that no cycle hides there.
"""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "gpflow_cool"

ORDER = """
checks linalg graphs metrics variation
gaussian
kernels
systems
chain
joint
grid
saving
callbacks
plotting
monitoring
training
coregion
models
selection
table
loading
report datasets trieste
studies
cli
__main__
__init__
""".split()
"""Folders, and modules outside folders. No module imports the package itself."""


def imported_parts(source, around):
    """
    The folders and modules of the package that a source imports from.

    :param around: Names of the folders around the source, the package first.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            targets = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = around[: len(around) - node.level + 1] if node.level else []
            base = base + (node.module.split(".") if node.module else [])
            targets = [[*base, alias.name] for alias in node.names]
        else:
            continue
        for package, *names in targets:
            if package == PACKAGE.name:
                yield names[0] if names and names[0] in ORDER else "__init__"


def violations(path, source):
    """What the file of this path inside the package imports although it is not listed before it."""
    parts = path.removesuffix(".py").split("/")
    allowed = ORDER[: ORDER.index(parts[0]) + (len(parts) > 1)]
    return sorted(set(imported_parts(source, [PACKAGE.name, *parts[:-1]])) - set(allowed))


def test_all_folders_are_listed_once():
    parts = {path.relative_to(PACKAGE).with_suffix("").parts[0] for path in PACKAGE.rglob("*.py")}
    assert sorted(ORDER) == sorted(parts)


@pytest.mark.parametrize("part", ORDER)
def test_imports_go_one_way(part):
    for path in [PACKAGE / f"{part}.py", *(PACKAGE / part).rglob("*.py")]:
        if path.exists():
            name = path.relative_to(PACKAGE).as_posix()
            assert violations(name, path.read_text()) == [], name


@pytest.mark.parametrize(
    "path, source, bad",
    [
        ("chain/terms.py", "from .optimum import best_terms\nimport gpflow", []),
        ("chain/terms.py", "from ..systems.spectrum import System", []),
        ("systems/eigen.py", "from ..chain import terms", ["chain"]),
        ("chain/terms.py", "from ..joint import kronecker", ["joint"]),
        ("joint/missing.py", "from ..training.fit import fit", ["training"]),
        ("metrics.py", "import gpflow_cool.plotting", ["plotting"]),
        ("metrics.py", "from gpflow_cool.plotting import level_curve", ["plotting"]),
        ("metrics.py", "def f():\n    from .models.cool import CoolMTGP", ["models"]),
        ("models/cool.py", "from gpflow_cool import CoolMTGP, datasets", ["__init__", "datasets"]),
        ("cli/demo.py", "from .. import CoolMTGP", ["__init__"]),
    ],
)
def test_the_rule_finds_violations(path, source, bad):
    assert violations(path, source) == bad
