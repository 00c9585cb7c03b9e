"""Every example in a docstring runs and says what it prints."""

import doctest
from importlib import import_module
from pkgutil import walk_packages

import pytest

import gpflow_cool

# Modules that run something when they are imported are left to tests of their own, and so is what
# needs Trieste, which has an environment of its own (`make test-trieste`).
MODULES = [
    module.name
    for module in walk_packages(gpflow_cool.__path__, "gpflow_cool.")
    if not module.name.endswith("__main__") and ".trieste" not in module.name
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    failed, _ = doctest.testmod(import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder()
    found = [test for name in MODULES for test in finder.find(import_module(name)) if test.examples]
    assert len(found) >= 20
