"""A case is fitted, and every law is asked of what was fitted: which of them do not hold?"""

import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gpflow_cool.training.run import TrainingFailed

from .cases import Case, fit, make_data, make_model
from .fitted import Fitted, joint_models
from .laws import FUNDAMENTAL, JOINT_LAWS
from .laws_of_fits import OTHER_LAWS, warns_of_indefinite_kernels

ADVICE = re.compile(
    r"\b(pass|use|try|choose|drop|rescale|look|leave|set|standardise|centre|call|fit|give|need"
    r"|needed|create|build|fill|minimum of)\b",
    re.IGNORECASE,
)
"""A word that every message with advice has."""


class Violation(NamedTuple):
    """A law that does not hold, and what was seen instead."""

    law: str
    text: str


class Examination(NamedTuple):
    """What came of a case."""

    violations: list[Violation]
    refusal: str = ""
    """The message, where the case was refused with advice."""


def examine(case: Case) -> Examination:
    """Fit the case's model, and see which laws do not hold."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            data = make_data(case)
            thing = fit(case, make_model(case, data), data)
        except Exception as error:
            return refused(error)
        said = [str(warning.message) for warning in caught]
        found = list(violations_of(case, thing, said))
    return Examination(found + list(noise_of_numpy(caught)))


def refused(error: Exception) -> Examination:
    """A refusal with advice is right; any other exception is a violation."""
    text = str(error)
    if type(error) in (ValueError, TrainingFailed) and ADVICE.search(text):
        return Examination([], text)
    return Examination([exception("fit", error)])


def exception(where: str, error: Exception) -> Violation:
    """An exception as a violation, with the line of the package that it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "gpflow_cool" in f.filename and "tests" not in f.filename]
    at = f" in {Path(ours[-1].filename).name}, {ours[-1].name}" if ours else ""
    text = " ".join(str(error).split())[:160]
    return Violation(f"{where}: {type(error).__name__}", f"{type(error).__name__}{at}: {text}")


def violations_of(case: Case, thing: Any, said: list[str]) -> Iterator[Violation]:
    """What is wrong with something that was fitted."""
    for model in joint_models(thing):
        fitted = Fitted(case, model)
        for law in JOINT_LAWS:
            found = list(broken(law, fitted))
            yield from found
            if found and law in FUNDAMENTAL:
                return
    for other_law in OTHER_LAWS:
        yield from broken(other_law, case, thing)
    yield from broken(warns_of_indefinite_kernels, case, thing, said)


def broken(law: Callable[..., Iterator[str]], *arguments: Any) -> Iterator[Violation]:
    """How a law is broken; an exception breaks it as well."""
    try:
        for text in law(*arguments):
            yield Violation(law.__name__, text)
    except Exception as error:
        yield exception(law.__name__, error)


def noise_of_numpy(caught: list[warnings.WarningMessage]) -> Iterator[Violation]:
    """Warnings of overflow and the like from inside the package: users cannot act on them."""
    for warning in caught:
        if issubclass(warning.category, RuntimeWarning) and "gpflow_cool/" in warning.filename:
            where = f"{Path(warning.filename).name}:{warning.lineno}"
            yield Violation("numpy_warnings", f"{where}: {warning.message}")
            return
