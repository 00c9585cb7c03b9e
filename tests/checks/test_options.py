"""Options, starting values and names of tasks: what is refused, and in which words."""

import numpy as np
import pandas as pd
import pytest
from gpflow.kernels import SquaredExponential
from refusals import exactly, refused

from gpflow_cool import CoolMTGP, checks

# Options and starting values ----------------------------------------------------------------------


@pytest.mark.parametrize("value", ["Hierarchical", "", None, 1, ["spectral"], np.array(["a", "b"])])
def test_unknown_options(X, Y, value):
    known = "'hierarchical', 'approximate'"
    text = f"learning={value!r} is not known. Choose one of: {known}."
    refused(exactly(text), (X, Y), learning=value)
    known = "'auto', 'spectral', 'grid'"
    text = f"engine={value!r} is not known. Choose one of: {known}."
    refused(exactly(text), (X, Y), engine=value)
    text = f"weight_prior={value!r} is not known. Choose one of: 'scaled', 'unit'."
    refused(exactly(text), (X, Y), weight_prior=value)


def test_unknown_options_of_methods(model):
    with pytest.raises(
        ValueError, match="^correlation='none' is not known. Choose one of: 'mean', 'map', 'm"
    ):
        model.multitask_parameters("none")
    with pytest.raises(
        ValueError, match="^precompute_cache='ram' is not known. Choose one of: 'tensor'"
    ):
        model.posterior("ram")


@pytest.mark.parametrize("value", [0, -1, 1.5, "3", True])
def test_numbers_of_samples(X, model, value):
    text = exactly(f"num_samples={value!r} must be a whole number of at least 1.")
    with pytest.raises(ValueError, match=text):
        model.predict_f_samples(X, value)
    with pytest.raises(ValueError, match=text):
        model.multitask_parameters("monte_carlo", num_samples=value)


@pytest.mark.parametrize("value", [-1, 1.5, "3", True])
def test_seeds(model, value):
    text = (
        f"seed={value!r} must be a whole number of at least 0, or None for a different draw every"
        " time."
    )
    with pytest.raises(ValueError, match=exactly(text)):
        model.multitask_parameters("monte_carlo", seed=value)
    assert checks.seed(np.int64(3)) == 3
    assert checks.seed(None) is None


@pytest.mark.parametrize("name", ["b", "sigma2"])
@pytest.mark.parametrize(
    "value, where, entry",
    [
        (0, 0, "0.0"),
        (-1, 0, "-1.0"),
        (np.nan, 0, "nan"),
        ([1, 2, np.inf], 2, "inf"),
        ([1, -2, 3], 1, "-2.0"),
    ],
)
def test_starting_values_must_be_positive(X, Y, name, value, where, entry):
    text = (
        f"{name}[{where}] is {entry}: every entry must be positive and finite. Leave {name} out to"
        " start from the data."
    )
    refused(exactly(text), (X, Y), **{name: value})


@pytest.mark.parametrize("name", ["b", "sigma2"])
@pytest.mark.parametrize("value", [[1, 2], [[1, 2, 3]], []])
def test_starting_values_of_wrong_length(X, Y, name, value):
    text = (
        f"{name} has shape {np.shape(value)}, but Y has 3 tasks: pass one number, or one per task,"
        " shape (3,)."
    )
    refused(exactly(text), (X, Y), **{name: value})


@pytest.mark.parametrize("name", ["b", "sigma2"])
def test_starting_values_that_are_no_numbers(X, Y, name):
    refused(rf"^{name} cannot be read as numbers \(its type is <U4\)", (X, Y), **{name: "auto"})


@pytest.mark.parametrize("value", [0, -1.0, np.nan, np.inf, [1.0, 2.0], "auto", True])
def test_the_weights_prior_variance_is_one_positive_number(X, Y, value):
    text = (
        f"weight_variance={value!r} must be one number of at least 1e-08: the prior variance of the"
        " weights between tasks, relative to the noise. By default it starts at 1; 1e-08 is as good"
        " as no weights."
    )
    refused(exactly(text), (X, Y), weight_variance=value)


def test_a_prior_of_one_has_no_variance_to_start_from(X, Y):
    text = 'weight_variance goes with weight_prior="scaled".'
    refused(f"^{text}", (X, Y), weight_prior="unit", weight_variance=2.0)


@pytest.mark.parametrize("value", [-1, 4, 1.0, "1", True])
def test_ranks(value):
    text = f"rank={value!r} is not possible for 3 tasks: pass a whole number from 0 to 3, or None."
    with pytest.raises(ValueError, match=exactly(text)):
        checks.rank(value, "rank", 3, "or None")
    assert [checks.rank(rank, "rank", 3, "or None") for rank in [0, np.int32(3)]] == [0, 3]


@pytest.mark.parametrize("value", [-1, 1.0, "1", True])
def test_whole_numbers(value):
    with pytest.raises(
        ValueError, match=exactly(f"restarts={value!r} must be a whole number of at least 0.")
    ):
        checks.whole_number(value, "restarts")
    assert checks.whole_number(np.int64(0), "restarts") == 0


# Names of tasks -----------------------------------------------------------------------------------


def test_names_of_tasks(X, Y):
    kernel = SquaredExponential()
    frame = pd.DataFrame(Y, columns=["Cd", 7, ("Zn", "ppm")])
    assert CoolMTGP((X, Y), kernel).task_names == ("task_0", "task_1", "task_2")
    assert CoolMTGP((X, frame), kernel).task_names == ("Cd", "7", "('Zn', 'ppm')")
    assert CoolMTGP((X, frame), kernel, task_names=np.array(["a", "b", "c"])).task_names == (
        "a",
        "b",
        "c",
    )


def test_names_of_tasks_that_are_refused(X, Y):
    text = "Names of tasks must differ, but task_names have ['a'] more than once."
    refused(exactly(text), (X, Y), task_names=["a", "b", "a"])
    twice = pd.DataFrame(Y, columns=["x", "y", "y"])
    text = "Names of tasks must differ, but the columns of Y have ['y'] more than once."
    refused(exactly(text), (X, twice))
    text = "task_names has 2 names, but Y has 3 columns: pass one name per column."
    refused(exactly(text), (X, Y), task_names=["a", "b"])
    for names in ["abc", 5]:
        text = f"task_names={names!r} must be a list of 3 names, one per task."
        refused(exactly(text), (X, Y), task_names=names)
