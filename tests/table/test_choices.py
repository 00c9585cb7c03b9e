"""Kernels by name, the exact model or inducing points, and where there is an average."""

import gpflow
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gpflow_cool.chain.starting import half_median_distance
from gpflow_cool.cli import commands
from gpflow_cool.models import CoolMTGP
from gpflow_cool.selection.candidates import CANDIDATES
from gpflow_cool.selection.choice import KernelTable
from gpflow_cool.selection.ranking import Candidate
from gpflow_cool.systems.features import choose_inducing_points
from gpflow_cool.table import choices
from gpflow_cool.table.choices import (
    choose_model,
    make_kernel,
    num_inducing,
    train_model,
)
from gpflow_cool.table.learned import choice_sentence


@pytest.mark.parametrize("name", CANDIDATES)
@pytest.mark.parametrize("ard", [False, True, "shrunk"])
def test_kernels_by_name(name, ard):
    kernel = make_kernel(name, ard, 3)
    part = kernel.kernels[0] if "+" in name else kernel
    size = np.size(part.variance if name == "linear" else part.lengthscales)
    assert type(kernel) is type(CANDIDATES[name]()) and size == (3 if ard is True else 1)


def test_a_kernel_object_is_copied_and_an_unknown_name_refused():
    kernel = gpflow.kernels.Matern12()
    assert make_kernel(kernel, False, 3) is not kernel
    with pytest.raises(ValueError, match="ard=True is for a kernel given by name"):
        make_kernel(kernel, True, 3)
    with pytest.raises(ValueError, match="kernel='rbf' is not known"):
        make_kernel("rbf", False, 3)
    with pytest.raises(
        ValueError, match="kernel=None is not known. Choose 'auto' or one of 'se', "
    ):
        make_kernel(None, False, 3)


def test_number_of_inducing_points(monkeypatch):
    monkeypatch.setattr("gpflow_cool.table.costs.MAX_ROWS", 20)
    se, linear = gpflow.kernels.SquaredExponential(), gpflow.kernels.Linear()
    assert [num_inducing(20, se, None), num_inducing(21, linear, None)] == [0, 0]
    assert [num_inducing(21, se, 0), num_inducing(5, se, 4)] == [0, 4]
    message = "21 rows are more than 20.*Pass inducing=300 to say that this is meant"
    with pytest.warns(UserWarning, match=message):
        assert num_inducing(21, se, None) == 300


def test_inducing_points_do_not_go_with_missing_targets(rng):
    X, Y = rng.normal(size=[9, 1]), rng.normal(size=[9, 2])
    Y[4, 1] = np.nan
    message = (
        "1 of 9 rows have a missing target, but 3 inducing points need every target. Pass"
        " inducing=0 for the exact model, .*, or drop these rows, or fill the gaps."
    )
    options = {"learning": "approximate", "task_names": ["a", "b"]}
    with pytest.raises(ValueError, match=message):
        choose_model((X, Y), make_kernel("se", False, 1), inducing=3, **options)
    assert choose_model((X, Y), make_kernel("se", False, 1), inducing=0, **options).num_tasks == 2


def test_inducing_points_are_chosen_at_the_data_s_own_lengthscale(rng):
    data = rng.normal(size=[12, 2]), rng.normal(size=[12, 2])
    options = {"learning": "approximate", "task_names": ["a", "b"]}
    model = choose_model(data, gpflow.kernels.Matern32(), inducing=4, **options)
    guess = gpflow.kernels.Matern32(lengthscales=half_median_distance(data[0]))
    assert_allclose(model.inducing_variable.Z, choose_inducing_points(data[0], guess, 4))
    assert model.task_names == ("a", "b")
    exact = choose_model(data, gpflow.kernels.Matern32(), inducing=0, **options)
    assert isinstance(exact, CoolMTGP)


def test_the_command_line_offers_the_same_kernels():
    """It lists them itself: importing them would load TensorFlow."""
    options = {option.name: option for option in commands.main.commands["fit"].params}
    assert list(options["kernel"].type.choices) == ["auto", *CANDIDATES]


def test_kernels_compete_on_some_of_many_tasks(rng, monkeypatch):
    monkeypatch.setattr(choices, "TASKS_OF_CHOICE", 3)
    monkeypatch.setattr(
        choices, "named_candidates", lambda _: {"se": gpflow.kernels.SquaredExponential()}
    )
    X, names = rng.normal(size=[12, 1]), [f"y{t}" for t in range(7)]
    Y = np.sin(X + np.arange(7.0)) + 0.1 * rng.normal(size=[12, 7])
    seen = []

    def make(data, kernel, **options):
        seen.append(data[1])
        settings = {"inducing": 0, "learning": "approximate", "task_names": names}
        return choose_model(data, kernel, **{**settings, **options})

    options = {"inducing": None, "restarts": 0, "seed": None, "verbose": 0}
    trained = train_model((X, Y), "auto", "shrunk", make, **options)
    assert_array_equal(seen[0], Y[:, [0, 3, 6]])
    assert_array_equal(seen[-1], Y)
    assert list(trained.model.task_names) == names and trained.history.converged


def test_it_is_told_that_kernels_competed_on_some_targets():
    rows = tuple(Candidate(name, -1.0, 0.5, -2.0, 3, 0.1, "") for name in ("se", "rq"))
    table = KernelTable(rows, "se", 40)
    assert choice_sentence(table, 100).endswith("by leave-one-out of 40 rows)")
    assert choice_sentence(table, 101).endswith("of 40 rows and 100 of the targets)")
