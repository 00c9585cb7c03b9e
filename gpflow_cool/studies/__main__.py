"""The command line: `python -m gpflow_cool.studies NAME [--quick] [--out DIR] ...`."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from ..studies import DEFAULT_OUT, StudyError, run
from . import results

PROGRAM = "python -m gpflow_cool.studies"


def count(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return int(text)


OPTIONS: dict[str, dict[str, Any]] = {
    "sets": {"help": "data sets, with commas between them"},
    "methods": {"help": "methods, with commas between them"},
    "kernels": {"help": "linear, se, or both with a comma"},
    "draws": {"type": count, "help": "number of draws of the data"},
    "splits": {"type": count, "help": "number of random partitions, or draws"},
    "repeats": {"type": count, "help": "number of random choices of rows for each size"},
    "sizes": {"type": count, "nargs": "+", "action": "extend", "help": "numbers of training rows"},
    "max_rows": {"type": count, "help": "first rows to keep of every set (else 400 of large ones)"},
    "steps": {"type": count, "help": "most L-BFGS steps of the methods with many parameters"},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a study; `arguments` are those of the command line."""
    try:
        run_command(arguments)
    except StudyError as error:
        print(f"Error: {error}")
        return 2
    except KeyboardInterrupt:
        print("\nInterrupted. What is done is kept: the same command goes on from there.")
        return 130
    return 0


def run_command(arguments: Sequence[str] | None, program: str = PROGRAM) -> None:
    """
    Run what a command line asks for.

    :param program: How the user calls it, for help texts.
    :raises StudyError: For a mistake in the arguments as well.
    """
    options = vars(parser(program).parse_args(arguments))
    name = options.pop("name")
    if name == "results":
        print(f"Written: {results.write(**options)}")
    else:
        run(name, **options)


class Parser(argparse.ArgumentParser):
    """A parser that raises where argparse's own would print how it is used, and exit."""

    def error(self, message: str) -> NoReturn:
        raise StudyError(f"{message} (see {self.prog} --help)")


def parser(program: str = PROGRAM) -> argparse.ArgumentParser:
    """One subcommand per study, with its options, and one for the page of results."""
    found = Parser(prog=program, description="Run one of the paper's experiments, or continue it.")
    commands = found.add_subparsers(dest="name", required=True, metavar="NAME")
    for study in results.ALL:
        command = commands.add_parser(study.name, help=study.summary)
        command.add_argument("--quick", action="store_true", help="small sizes, under a minute")
        command.add_argument("--out", default=DEFAULT_OUT, help="folder for results (%(default)s)")
        command.add_argument("--seed", type=int, default=0, help="seed of all draws (%(default)s)")
        command.add_argument("--data", help="folder with the ARFF files (else $GPFLOW_COOL_DATA)")
        for option in study.options:
            flag = f"--{option.replace('_', '-')}"
            command.add_argument(flag, default=argparse.SUPPRESS, **OPTIONS[option])
    report = commands.add_parser("results", help="write a page from the results of the studies")
    report.add_argument("--from", dest="folder", type=Path, default=Path(DEFAULT_OUT))
    report.add_argument("--to", dest="page", type=Path, default=Path("docs/results.md"))
    report.add_argument("--note", default="", help="a sentence on the circumstances")
    return found


if __name__ == "__main__":
    raise SystemExit(main())
