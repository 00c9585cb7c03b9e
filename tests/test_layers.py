"""
A module imports only lower layers, and nothing inside imports the package's own ``__init__``.

The table below is the rule; CONTRIBUTING.md says what each module holds.
"""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "gpflow_cool"

LAYERS = [
    ["checks", "linalg", "datasets", "metrics", "archive", "scaling", "frames", "costs"]
    + ["named_kernels"],
    ["spectrum", "chain", "recovery", "kronecker", "observed", "starting", "covariances"]
    + ["inner", "orders", "coregion", "plotting", "tables", "statistics", "rows", "features"]
    + ["leaving", "distribution"],
    ["likelihoods", "posteriors", "outer", "profile", "em", "callbacks", "monitoring", "training"]
    + ["missing", "rounds", "history", "optimizers", "specification", "saving", "streaming"],
    ["models"],
    ["restoring", "evaluation", "summaries"],
    ["estimator"],
    ["persistence", "report", "studies", "console"],
    ["demo", "cli", "__main__"],
]

# Within one of these a later module may import an earlier one; other siblings are strangers.
ORDERED = [
    ["spectrum", "chain", "recovery", "kronecker", "observed"],
    ["spectrum", "chain", "recovery", "inner", "orders"],
    ["spectrum", "chain", "recovery", "kronecker", "statistics"],
    ["kronecker", "leaving"],
    ["rows", "distribution"],
    ["starting", "covariances"],
    ["likelihoods", "posteriors", "missing"],
    ["outer", "profile", "em", "callbacks", "monitoring", "rounds", "history", "optimizers"]
    + ["training"],
    ["outer", "profile", "streaming"],
    ["specification", "saving"],
    ["demo", "cli", "__main__"],
]

INIT = "__init__"


def layer(module):
    """Number of the layer of a module, or of the subpackage that it is in."""
    for number, modules in enumerate(LAYERS):
        if module in modules:
            return number
    raise LookupError(
        f"gpflow_cool.{module} is in no layer. Decide where it belongs, and add it to LAYERS in"
        " tests/test_layers.py and to the table in CONTRIBUTING.md."
    )


def may_import(importer, imported):
    """Whether the rule lets one module import the other."""
    if imported == INIT:
        return False
    if importer == imported:  # within a subpackage such as models
        return True
    if layer(importer) != layer(imported):
        return layer(importer) > layer(imported)
    orders = [order for order in ORDERED if importer in order and imported in order]
    return any(order.index(imported) < order.index(importer) for order in orders)


def imported_modules(source, parents):
    """
    First-level modules of the package that a source imports; INIT for the package itself.

    :param parents: Names of the packages around the source, e.g. ["gpflow_cool", "models"].
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            targets = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = parents[: len(parents) - node.level + 1] if node.level else []
            base = base + (node.module.split(".") if node.module else [])
            targets = [[*base, alias.name] for alias in node.names]
        else:
            continue
        yield from (first_level(target) for target in targets if target[0] == PACKAGE.name)


def first_level(target):
    """The module right below the package that a dotted name leads to."""
    if len(target) > 1 and is_module(target[1]):
        return target[1]
    return INIT


def is_module(name):
    """Whether the package has a module or subpackage of this name, now or by the table."""
    return any(name in modules for modules in LAYERS) or any(
        (PACKAGE / path).exists() for path in (f"{name}.py", name)
    )


def violations(importer, source, parents=(PACKAGE.name,)):
    """Modules that `importer` imports against the rule."""
    imported = imported_modules(source, list(parents))
    return sorted({module for module in imported if not may_import(importer, module)})


SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def test_sources_are_found():
    assert {"datasets.py", "metrics.py", "plotting.py", "demo.py"} <= {p.name for p in SOURCES}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_module_imports_only_lower_layers(path):
    relative = path.relative_to(PACKAGE)
    importer = relative.parts[0].removesuffix(".py")
    layer(importer)  # must be in the table, whatever it imports
    bad = violations(importer, path.read_text(), [PACKAGE.name, *relative.parts[:-1]])
    assert bad == [], f"gpflow_cool/{relative} imports {bad}, which is not below it"


@pytest.mark.parametrize(
    "importer, source, bad",
    [
        ("chain", "from .spectrum import Spectrum", []),
        ("chain", "from .recovery import recover", ["recovery"]),
        ("metrics", "from . import linalg", ["linalg"]),
        ("metrics", "import gpflow_cool.linalg", ["linalg"]),
        ("metrics", "from gpflow_cool.linalg import eigh", ["linalg"]),
        ("metrics", "def f():\n    from .models.cool import CoolMTGP", ["models"]),
        ("posteriors", "from .training import fit", ["training"]),
        ("likelihoods", "from .kronecker import evidence\nimport gpflow", []),
        ("demo", "from . import datasets, plotting", []),
        ("demo", "from .cli import main", ["cli"]),
        ("demo", "from . import CoolMTGP", [INIT]),
        ("demo", "import gpflow_cool", [INIT]),
        ("demo", "from gpflow_cool import CoolMTGP, datasets", [INIT]),
    ],
)
def test_rule_finds_violations(importer, source, bad):
    assert violations(importer, source) == bad


def test_rule_inside_a_subpackage():
    source = "from ..linalg import eigh\nfrom .exact import x\nfrom ..estimator import x"
    assert violations("models", source, ["gpflow_cool", "models"]) == ["estimator"]


def test_unknown_module_is_told_where_to_go():
    with pytest.raises(LookupError, match="gpflow_cool.novelty is in no layer.*add it to LAYERS"):
        layer("novelty")
