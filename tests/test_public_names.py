"""Every public name has a page in the API reference, with an example that is run."""

import inspect
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Protocol

import pytest

import gpflow_cool

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def public():
    spec = spec_from_file_location("public", DOCS / "public.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    before = set(sys.modules)
    yield module
    for name in set(sys.modules) - before:  # a stand-in for Trieste, and what imported it
        if "trieste" in name:
            del sys.modules[name]


def test_every_public_name_has_an_example(public):
    """Exceptions and protocols need none; `test_docstrings` runs the examples."""
    values = {each.page: each.value for each in public.public_names()}
    needed = {
        page: value
        for page, value in values.items()
        if public.described(value)
        and not (inspect.isclass(value) and issubclass(value, Exception))
        and Protocol not in getattr(value, "__bases__", ())
    }
    assert len(needed) > 40
    assert [page for page, value in needed.items() if ">>>" not in (value.__doc__ or "")] == []


def test_pages_of_the_reference(public, tmp_path):
    (tmp_path / "gpflow_cool.gone.rst").write_text("a name that was removed")
    public.write_pages(tmp_path)
    pages = {path.stem for path in tmp_path.glob("*.rst")}
    assert {f"gpflow_cool.{name}" for name in gpflow_cool.__all__} <= pages
    assert {"gpflow_cool.metrics.rmse", "gpflow_cool.trieste.MultitaskRegression"} <= pages
    assert "gpflow_cool.gone" not in pages
    text = (tmp_path / "gpflow_cool.CoolMTGP.rst").read_text()
    assert "predict_y_given" in text and "to_document" not in text
