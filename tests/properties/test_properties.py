"""Every law on some random data sets, the same ones each time; `make fuzz` draws many more."""

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings

from properties.cases import Case, cases, may_be_refused
from properties.examination import examine

SMALL = settings(
    max_examples=3,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
"""
The same examples in every run, and no file that remembers failures. A failure is not shrunk here,
since that takes minutes: `python -m properties.fuzz --simplify --case "Case(...)"` does it.
"""


@pytest.mark.slow
@SMALL
@given(cases())
@example(Case(N=2, D=2, T=5, kernel="matern52", weight_prior="unit", targets="combination"))
@example(Case(N=6, D=2, T=3, kernel="se_ard", inputs="repeated_rows", missing=0.2))
@example(Case(model="estimator", N=8, D=2, T=3, targets="heavy_tails", target_scale=0.0))
def test_laws_hold(case):
    found = examine(case)
    assert not found.refusal or may_be_refused(case), f"{case!r} was refused: {found.refusal}"
    assert not found.violations, f"{case!r}: {found.violations}"


def test_a_model_that_is_refused_is_refused_with_advice():
    case = Case(model="std_mt", N=8, target_scale=0.0)
    found = examine(case)
    assert not found.violations
    assert "Standardise Y" in found.refusal
