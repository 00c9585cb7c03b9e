"""
Look for data sets that break a law: `make fuzz EXAMPLES=1000 SEED=0`.

Each seed is one data set with one model. Violations are printed as they are found, and once more at
the end, for each law and model the simplest case that was found. The exit code is 1 if there are
any. One case again: `python -m properties.fuzz --case "Case(model='sparse', seed=3)"`, with the
folders `.` and `tests` in PYTHONPATH; with `--simplify` it looks for simpler ones.
"""

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import quick_protocols  # noqa: F401
from check_shapes.config import ShapeCheckingState, set_enable_check_shapes

from .cases import CHOICES, Case, random_case, simpler_cases
from .examination import Examination, Violation, examine

SLOW = 60.0
"""Seconds of one core after which a case is told of: these data sets are tiny."""

CASES_PER_PROCESS = 100
"""After so many a process is replaced, so that memory does not grow. (The option of
ProcessPoolExecutor that promises this may wait for ever in Python 3.11.)"""


class Result(NamedTuple):
    """What came of a seed."""

    case: Case
    found: Examination
    seconds: float


class Simplest(NamedTuple):
    """The simplest case that was found to break a law."""

    case: Case
    violation: Violation


def run(case: Case) -> Result:
    """Examine a case."""
    from quick_tensorflow import bijectors_without_cache

    quiet()
    started = time.process_time()
    with bijectors_without_cache():
        return Result(case, examine(case), time.process_time() - started)


def quiet() -> None:
    """Keep TensorFlow's advice out of the list; shapes are checked by the tests, and take time."""
    import tensorflow as tf

    set_enable_check_shapes(ShapeCheckingState.DISABLED)
    tf.get_logger().setLevel("ERROR")


def simplify(case: Case, violation: Violation, attempts: int) -> Simplest:
    """Make one field after the other simpler, as long as the same law is broken."""
    quiet()
    simplest = Simplest(case, violation)
    changed = True
    while changed:
        changed = False
        for name in reversed(CHOICES):
            for simpler in simpler_cases(simplest.case, name):
                if attempts == 0:
                    return simplest
                attempts -= 1
                same = [v for v in examine(simpler).violations if v.law == violation.law]
                if same:
                    simplest, changed = Simplest(simpler, same[0]), True
                    break
    return simplest


def new_pool(jobs: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))


def results(seeds: range, minutes: float, jobs: int) -> Iterator[Result]:
    """What comes of the seeds, in the order in which they are done, until time is up."""
    ends = time.perf_counter() + 60.0 * minutes
    size = CASES_PER_PROCESS * jobs
    for first in range(0, len(seeds), size):
        with new_pool(jobs) as pool:
            waiting = {pool.submit(run, random_case(seed)) for seed in seeds[first : first + size]}
            for future in as_completed(waiting):
                if not future.cancelled():
                    yield future.result()
                if time.perf_counter() > ends:
                    for other in waiting:
                        other.cancel()
        if time.perf_counter() > ends:
            return


def tell(result: Result) -> None:
    """A case that breaks laws, each law once, or that takes long."""
    lines = [f"  {v.law}: {v.text}" for v in first_of_each_law(result.found.violations)]
    if result.seconds > SLOW:
        lines.append(f"  took {result.seconds:.0f} s")
    if lines:
        print("\n".join([f"seed {result.case.seed}: {result.case!r}", *lines]), flush=True)


def first_of_each_law(violations: list[Violation]) -> list[Violation]:
    return list({v.law: v for v in reversed(violations)}.values())[::-1]


def groups(found: list[Result]) -> dict[tuple[str, str], list[Simplest]]:
    """Violations by law and model."""
    grouped: dict[tuple[str, str], list[Simplest]] = {}
    for result in found:
        for violation in first_of_each_law(result.found.violations):
            members = grouped.setdefault((violation.law, result.case.model), [])
            members.append(Simplest(result.case, violation))
    return grouped


def num_fields(member: Simplest) -> int:
    """How many fields of a case are not the simplest."""
    defaults = Case._field_defaults.values()
    return sum(a != b for a, b in zip(member.case, defaults, strict=True))


def summarise(pool: ProcessPoolExecutor, found: list[Result], attempts: int) -> None:
    """Counts, and the simplest case for each law and model."""
    grouped = groups(found)
    jobs = {}
    for key, members in grouped.items():
        first = min(members, key=num_fields)
        jobs[key] = pool.submit(simplify, first.case, first.violation, attempts)
    broken = [r for r in found if r.found.violations]
    refused = [r for r in found if r.found.refusal]
    seconds = [r.seconds for r in found]
    print(f"\n{len(found)} data sets: {len(found) - len(broken) - len(refused)} clean,")
    print(f"{len(refused)} refused with advice, {len(broken)} with violations;")
    print(f"seconds per data set: mean {sum(seconds) / len(seconds):.1f}, most {max(seconds):.1f}")
    for text, count in Counter(r.found.refusal.splitlines()[0][:90] for r in refused).items():
        print(f"  refused {count}: {text}")
    for (law, model), members in sorted(grouped.items(), key=lambda item: -len(item[1])):
        simplest = jobs[law, model].result()
        print(f"\n{law}, {model}: {len(members)}\n  {simplest.violation.text}")
        print(f'  python -m properties.fuzz --case "{simplest.case!r}"')


def examine_one(case: Case, attempts: int) -> int:
    """Tell of one case, and of simpler ones that break the same laws."""
    result = run(case)
    tell(result)
    violations = first_of_each_law(result.found.violations)
    print(result.found.refusal or f"{len(violations)} laws broken")
    for violation in violations if attempts else []:
        simplest = simplify(case, violation, attempts)
        print(f"{simplest.case!r}\n  {simplest.violation.law}: {simplest.violation.text}")
    return int(bool(violations))


def read_case(text: str) -> Case:
    """A case as it was printed."""
    return eval(text, {"Case": Case, "__builtins__": {}})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--examples", type=int, default=100, help="how many data sets")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--minutes", type=float, default=1e6, help="how long at most")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--attempts", type=int, default=40, help="how many simpler cases to try")
    parser.add_argument("--case", type=read_case, help="examine this case alone")
    parser.add_argument("--simplify", action="store_true", help="and look for simpler ones")
    options = parser.parse_args()
    if options.case is not None:
        return examine_one(options.case, options.attempts if options.simplify else 0)
    print(f"seeds {options.seed} to {options.seed + options.examples - 1}", flush=True)
    found = []
    seeds = range(options.seed, options.seed + options.examples)
    for result in results(seeds, options.minutes, options.jobs):
        tell(result)
        found.append(result)
        if len(found) % 50 == 0:
            print(f"... {len(found)} data sets", flush=True)
    with new_pool(options.jobs) as pool:
        summarise(pool, found, options.attempts)
    return int(any(result.found.violations for result in found))


if __name__ == "__main__":
    sys.exit(main())
