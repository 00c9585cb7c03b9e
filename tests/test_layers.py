"""
One rule: everything is listed in one order, and a module imports only what is listed before it.

Imports inside functions count as well, so that no cycle hides there.
"""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "gpflow_cool"

ORDER = """
checks  graphs  linalg  gaussian  metrics
chain/      laplacian  kernels  columns  variation  products  eigenbasis  spectrum  likelihood
            objective  systems  terms  compression  search  newton  starting  recovery
joint/      kronecker  covariances  likelihood  exceedance
            missing  conditioning  sampling  fourier  functions  updating  leave_one_out
            solved_posterior  base_posterior  partly_given  posteriors  model  simulation
lowrank/    __init__  features  statistics  rows  summary  summed  streaming
grid/       axes  kernels  posterior  __init__
saving/     files  replacing  folder  modules  models
plotting/   axes  matrices  predictions  kernels  cells  maps  __init__
callbacks  monitoring  coregion
training/   model  run  relevance  vector  remarks  lbfgs  starts  trials  growing  profiled
            streamed  em  optimizers  monte_carlo_em  fit
models/     arguments  base  data  in_memory  chain  exact  cool  sparse  competitors  __init__
selection/  candidates  relevance  ranking  comparison  choice
table/      arff  costs  columns  marks  files  writing  sentinels  parquet  folds  cells
            encoding  inputs  transforms  choices  training_rows  streams  places  intervals
            learned  estimator  evaluation  comparison  residuals  unlike  parameters  remarks
            summary
report/     whatif  page  data  sections
trieste/    samplers  model  __init__
datasets  loading
studies/    records  text  paper  figures  methods  partition  runner
            synthetic  permutation  variance  real  runtime  results  __init__  __main__
cli/        wording  console  tables  streams  evaluating  columns  predicting  maps  demo  commands
__main__
"""
"""Folders and modules in order; `__init__` where a folder's has more than a docstring."""

MAX_MODULES, MAX_LINES, MAX_BODY = 12, 400, 40
"""Modules outside folders, lines of a file, and lines of a function without its docstring."""


def listed_modules(order):
    """Modules of the list as dotted names; a folder's `__init__` goes by the folder's name."""
    folder = ""
    for line in order.strip().splitlines():
        words = line.split()
        if words[0].endswith("/"):
            folder = words.pop(0).removesuffix("/")
        elif not line.startswith(" "):
            folder = ""
        for word in words:
            yield ".".join(part for part in (folder, word) if part not in ("", "__init__"))


MODULES = list(listed_modules(ORDER))


def imported_modules(source, parents):
    """
    Modules of the package that a source imports, as dotted names; "" for the package itself.

    :param parents: Names of the folders around the source, e.g. ["models"].
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            targets = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            around = [PACKAGE.name, *parents]
            base = around[: len(around) - node.level + 1] if node.level else []
            base = base + (node.module.split(".") if node.module else [])
            targets = [[*base, alias.name] for alias in node.names]
        else:
            continue
        yield from (module_of(target[1:]) for target in targets if target[0] == PACKAGE.name)


def module_of(names):
    """The longest part of a dotted name that is listed; what follows is inside the module."""
    while names and ".".join(names) not in MODULES:
        names = names[:-1]
    return ".".join(names)


def violations(importer, source):
    """What a module imports although it is not listed before it."""
    folder = importer if (PACKAGE / importer).is_dir() else importer.rpartition(".")[0]
    imported = set(imported_modules(source, folder.split(".") if folder else []))
    return sorted(imported - set(MODULES[: MODULES.index(importer)]))


def dotted(path):
    """The dotted name of a file of the package."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def has_code(path):
    """Whether a file holds more than a docstring."""
    return len(ast.parse(path.read_text()).body) > 1


def body_sizes(source):
    """Name and number of lines of every function, its docstring aside."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            yield node.name, body[-1].end_lineno - body[0].lineno + 1 if body else 0


SOURCES = sorted(
    path
    for path in PACKAGE.rglob("*.py")
    if path.name != "__init__.py" or (path.parent != PACKAGE and has_code(path))
)


def test_every_module_is_listed_once():
    assert sorted(map(dotted, SOURCES)) == sorted(MODULES)


@pytest.mark.parametrize("path", SOURCES, ids=dotted)
def test_module_imports_only_what_is_listed_before_it(path):
    bad = violations(dotted(path), path.read_text())
    assert bad == [], f"{dotted(path)} imports {bad}, which the list does not have before it"


@pytest.mark.parametrize("path", SOURCES, ids=dotted)
def test_files_and_functions_are_short(path):
    source = path.read_text()
    assert len(source.splitlines()) <= MAX_LINES
    assert {name: size for name, size in body_sizes(source) if size > MAX_BODY} == {}


def test_few_modules_stand_outside_a_folder():
    assert len(list(PACKAGE.glob("*.py"))) <= MAX_MODULES


@pytest.mark.parametrize(
    "importer, source, bad",
    [
        ("chain.likelihood", "from .spectrum import Spectrum", []),
        ("chain.likelihood", "from .recovery import recover", ["chain.recovery"]),
        ("chain.likelihood", "from ..linalg import eigh\nimport gpflow", []),
        ("chain.spectrum", "from ..joint import kronecker", ["joint.kronecker"]),
        ("metrics", "import gpflow_cool.plotting", ["plotting"]),
        ("metrics", "from gpflow_cool.plotting import level_curve", ["plotting"]),
        ("metrics", "def f():\n    from .models.cool import CoolMTGP", ["models.cool"]),
        ("cli.demo", "from ..models import CoolMTGP", []),
        ("cli.demo", "from .. import CoolMTGP", [""]),
        ("cli.demo", "from gpflow_cool import CoolMTGP, datasets", [""]),
        ("cli.demo", "import gpflow_cool", [""]),
    ],
)
def test_rule_finds_violations(importer, source, bad):
    assert violations(importer, source) == bad
