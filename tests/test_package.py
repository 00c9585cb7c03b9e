"""What `import gpflow_cool` gives."""

import pytest

import gpflow_cool


def test_modules_of_the_readme_need_no_import_of_their_own():
    for name in ("callbacks", "coregion", "datasets", "metrics", "monitoring", "plotting"):
        module = gpflow_cool.__getattr__(name)
        assert module.__name__ == f"gpflow_cool.{name}" and name in dir(gpflow_cool)


def test_every_public_name_is_there():
    for name in gpflow_cool.__all__:
        assert getattr(gpflow_cool, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        gpflow_cool.nothing  # noqa: B018
