"""
The paper's experiments as commands: `python -m gpflow_cool.studies NAME`.

Each study writes a CSV file that grows while it works, so that it can be interrupted and started
again, then prints tables with the paper's numbers beside ours and draws its figures.

>>> from gpflow_cool.studies import run
>>> result = run("variance", quick=True, out="study_output")  # doctest: +SKIP
"""

from os import PathLike
from typing import Any

from .records import StudyError
from .results import ALL
from .runner import DEFAULT_OUT, Request, Study, StudyResult, run_study

__all__ = ["DEFAULT_OUT", "STUDIES", "Study", "StudyError", "StudyResult", "run"]

BY_NAME = {study.name: study for study in ALL}
STUDIES = tuple(BY_NAME)


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
    Run a study, or continue one that was interrupted.

    >>> from gpflow_cool import studies
    >>> studies.STUDIES
    ('synthetic', 'permutation', 'variance', 'real', 'runtime')
    >>> studies.run("variance", quick=True, out="studies")  # doctest: +SKIP

    :param name: One of `STUDIES`.
    :param quick: Small sizes, under a minute: shows how it works, not what the paper found.
    :param out: Folder for the CSV file and the figures.
    :param seed: Seed of all draws and splits.
    :param data: Folder with the Mulan ARFF files; None for the one that the environment variable
        GPFLOW_COOL_DATA names.
    :param options: The study's own options, for example `sets=["andro"]` for "real": those that
        `python -m gpflow_cool.studies NAME --help` lists.
    :raises StudyError: If the user can correct the cause; what was computed before is kept.
    """
    if name not in BY_NAME:
        raise StudyError(f"{name!r} is not a study. Choose one of {', '.join(STUDIES)}.")
    study = BY_NAME[name]
    known = ["out", "seed", "data", *study.options]
    unknown = [option for option in options if option not in known]
    if unknown:
        raise StudyError(
            f"The study {name!r} has no option {', '.join(unknown)}: it has {', '.join(known)}."
        )
    if seed < 0:
        raise StudyError(f"seed={seed} must be a whole number of at least 0.")
    return run_study(study, study.plan(Request(quick, seed, data, **options)), out, quick)
