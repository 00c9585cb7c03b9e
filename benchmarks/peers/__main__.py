"""
This package beside its peers, in one run: `python -m benchmarks.peers`.

Each fit has a process of its own. Results are written to a file as they come, and what is in it
already is not run again, so that a run can be interrupted and continued. Ends with the bars, as
ratios; `--page docs/benchmarks.md` writes the page and its picture from the file.
"""

import argparse
from pathlib import Path

from gpflow_cool.studies.partition import data_folder

from . import methods, problems
from .bars import bars
from .report import write_page
from .runner import Results, run
from .summary import summarise


def chosen(names: str | None, known: dict, default: tuple) -> list:
    """What the user names, in the order of the names."""
    if names is None:
        return list(default)
    unknown = [name for name in names.split(",") if name not in known]
    if unknown:
        raise SystemExit(f"{unknown[0]!r} is not known. Choose from: {', '.join(known)}")
    return [known[name] for name in names.split(",")]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="one tiny problem, one thread")
    parser.add_argument("--data", help="folder of the Mulan tables; else $GPFLOW_COOL_DATA")
    parser.add_argument("--problems", help="names with commas between them, default: all")
    parser.add_argument("--methods", help="names with commas between them, default: all")
    parser.add_argument("--splits", type=int, default=10, help="of real problems, default: 10")
    parser.add_argument("--threads", type=int, nargs="+", default=[2, 1], help="default: 2 1")
    parser.add_argument("--limit", type=int, default=300, help="seconds per fit, default: 300")
    parser.add_argument("--force", action="store_true", help="do again what is there")
    parser.add_argument("--out", default="benchmark_output/peers.json", help="file of results")
    parser.add_argument("--page", help="write this page and its picture, run nothing")
    parser.add_argument("--note", default="", help="a sentence on the circumstances for the page")
    return parser.parse_args()


def main() -> None:
    said = options()
    path = Path(said.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    results = Results(path)
    if said.page:
        write_page(results, Path(said.page), said.note)
        return
    folder = data_folder(said.data)
    tables = problems.ALL if folder else tuple(p for p in problems.ALL if p.table is None)
    if not folder and not said.smoke:
        print(
            "Left out, since neither --data nor GPFLOW_COOL_DATA names their folder: real problems"
        )
    run(
        results,
        chosen(said.problems, problems.BY_NAME, problems.SMOKE if said.smoke else tables),
        chosen(said.methods, methods.BY_NAME, methods.ALL),
        splits=1 if said.smoke else said.splits,
        threads=[1] if said.smoke else said.threads,
        limit=said.limit,
        data=str(folder) if folder else None,
        force=said.force,
    )
    for bar in bars(summarise(results.rows)):
        print(bar)


if __name__ == "__main__":
    main()
