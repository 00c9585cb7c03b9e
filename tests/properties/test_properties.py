"""
Every law on some random data sets, the same ones each time.

They are drawn from what works today: the table `NOT_YET` in cases.py says what is left out, and
why. `make fuzz` draws from everything.
"""

from hypothesis import HealthCheck, settings

from properties.cases import Case
from properties.laws import examine

GROUPS = {
    "cool": ("cool", "averaged"),
    "exact": ("kronecker", "kronecker_em", "std_mt", "sigma_mt"),
    "competitors": ("independent",),
    "sparse": ("sparse",),
    "estimator": ("estimator", "estimator_sparse"),
}


def check(case: Case) -> None:
    found = examine(case)
    assert not found.violations, f"{case!r}: {found.violations}"


def profile(examples):
    """The same examples in every run, and no file that remembers failures."""
    return settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
