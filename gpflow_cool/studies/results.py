"""The page of results, docs/results.md, written from the studies' CSV files and figures."""

import os
import platform
import shutil
from collections import Counter
from pathlib import Path

from . import permutation, real, runtime, synthetic, variance
from .records import OK, Columns, Rows, StudyError, read_rows, select, texts, to_text
from .runner import Study
from .text import check_lines

ALL = (synthetic.STUDY, permutation.STUDY, variance.STUDY, real.STUDY, runtime.STUDY)
COMMAND = "python -m gpflow_cool.studies"


def write(folder: Path, page: Path, note: str = "") -> Path:
    """
    Write the page, and copy the figures beside it.

    :param folder: Where the studies have left their files.
    :param page: The Markdown file; figures go to `images/` in its folder.
    :param note: A sentence on the circumstances, for instance who else used the machine.
    """
    done = [study for study in ALL if (folder / f"{study.name}.csv").is_file()]
    if not done:
        names = ", ".join(f"{study.name}.csv" for study in ALL)
        raise StudyError(f"{folder} holds none of {names}: run a study first, or name its --out.")
    parts = [head(note)]
    try:
        (page.parent / "images").mkdir(parents=True, exist_ok=True)
        for study in ALL:
            parts.append(section(study, folder, page.parent) if study in done else absent(study))
        page.write_text("\n".join(parts), encoding="utf-8")
    except OSError as error:
        raise StudyError(f"Cannot write {page}: {error.strerror}. Choose another --to.") from error
    return page


def head(note: str) -> str:
    """Where the numbers come from."""
    machine = f"{os.cpu_count()} CPU cores, {platform.system()} {platform.machine()}"
    return (
        "# The paper's experiments\n\n"
        "They were run again with this package: our numbers beside those that the\n"
        f"paper prints. This page is written by `{COMMAND} results --from DIR` from\n"
        "the files that the studies leave; do not edit it by hand.\n\n"
        "Cool-MT and ~Cool-MT have the paper's prior of the weights between tasks,\n"
        '`weight_prior="unit"`, but for the orders of the tasks, where they have the default.\n\n'
        f"{f'Machine: {machine}. {note}'.rstrip()}\n"
    )


def absent(study: Study) -> str:
    """What stands in the place of a study that has not run."""
    return f"## {study.title}\n\nNot run yet: `{COMMAND} {study.name}`.\n"


def section(study: Study, folder: Path, docs: Path) -> str:
    """A study's settings, tables, figures, verdicts and remarks."""
    everything = read_rows(folder / f"{study.name}.csv", study.columns)
    settings = main_settings(everything, study.columns)
    rows = select(everything, study.columns, settings)
    if not rows:
        return absent(study)
    shown = ", ".join(f"{name} {to_text(value)}" for name, value in settings.items())
    lines = [f"## {study.title}", "", f"`{COMMAND} {study.name}` ({shown})", ""]
    for table in study.tables(rows):
        lines += [str(table), ""]
    lines += figure_lines(study, folder, docs)
    checks = check_lines(study.checks(rows))
    if checks:
        lines += ["What must hold:", "", *(f"* {line}" for line in checks), ""]
    remarks = study.remarks(rows)
    lines += ["Beside the paper:", "", *(f"* {remark}" for remark in remarks), ""]
    failed = sum(row["status"] != OK for row in everything)
    if failed:
        lines += [f"{failed} runs failed and are left out; the CSV file says why.", ""]
    return "\n".join(lines)


def main_settings(rows: Rows, columns: Columns) -> dict[str, object]:
    """The settings that most rows have."""
    names = columns.settings
    counts = Counter(texts(row, names) for row in rows)
    return {k: v for words, _ in counts.most_common(1) for k, v in zip(names, words, strict=True)}


def figure_lines(study: Study, folder: Path, docs: Path) -> list[str]:
    """Copy a study's figures, and refer to them."""
    lines = []
    for path in sorted(folder.glob(f"{study.name}_*.png")):
        if not path.name.startswith(f"{study.name}_quick"):
            shutil.copyfile(path, docs / "images" / f"study_{path.name}")
            words = path.stem.replace("_", " ")
            lines += [f"![{words}](images/study_{path.name})", ""]
    return lines
