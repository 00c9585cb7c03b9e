"""
The paper's experiments as commands: `python -m gpflow_cool.studies NAME`.

Each study writes a CSV file that grows while it works, so that it can be interrupted and started
again, then prints tables with the paper's numbers beside ours and draws its figures.

>>> from gpflow_cool.studies import run
>>> result = run("variance", quick=True, out="study_output")  # doctest: +SKIP
"""

import inspect
from os import PathLike
from typing import Any

from . import permutation, real, runtime, synthetic, variance
from .runner import DEFAULT_OUT, Study, StudyResult
from .table import StudyError

__all__ = ["DEFAULT_OUT", "STUDIES", "Study", "StudyError", "StudyResult", "run"]

MODULES: dict[str, Any] = {
    "synthetic": synthetic,
    "permutation": permutation,
    "variance": variance,
    "real": real,
    "runtime": runtime,
}

STUDIES = tuple(MODULES)


def run(
    name: str,
    *,
    quick: bool = False,
    out: str | PathLike[str] = DEFAULT_OUT,
    seed: int = 0,
    data: str | PathLike[str] | None = None,
    **options: Any,
) -> StudyResult:
    """
    Run a study, or go on with it.

    :param name: One of `STUDIES`.
    :param quick: Small sizes, under a minute: shows how it works, not what the paper found.
    :param out: Folder for the CSV file and the figures.
    :param seed: Seed of all draws and splits.
    :param data: Folder with the Mulan ARFF files; else the environment variable GPFLOW_COOL_DATA,
        else ../shared/data/mulan.
    :param options: Passed on to the study's own `run`, for example `sets=["andro"]` for "real".
    :raises StudyError: What a user can mend; what was computed before is kept.
    """
    if name not in MODULES:
        raise StudyError(f"{name!r} is no study. Choose one of {', '.join(STUDIES)}.")
    known = [option for option in option_names(name) if option != "quick"]
    unknown = [option for option in options if option not in known]
    if unknown:
        raise StudyError(
            f"The study {name!r} has no option {', '.join(unknown)}: it has {', '.join(known)}."
        )
    if seed < 0:
        raise StudyError(f"seed={seed} must be a whole number of at least 0.")
    result: StudyResult = MODULES[name].run(quick=quick, out=out, seed=seed, data=data, **options)
    return result


def option_names(name: str) -> list[str]:
    """The options that a study takes."""
    return list(inspect.signature(MODULES[name].run).parameters)
