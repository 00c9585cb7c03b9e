"""
Parquet files as one dataset of numbers, which is read in chunks.

Files are found, compared and opened here, before a row is read and without TensorFlow.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .files import (
    INDEX_OF_PARQUET,
    PARQUET,
    TableError,
    ask_pyarrow,
    did_you_mean,
    import_pyarrow,
)

NUMBERS = ("int", "uint", "float", "double", "halffloat", "bool", "decimal")
"""How the names of pyarrow's types of numbers begin."""


def is_dataset(X: Any) -> bool:
    """Whether a table is a `pyarrow.dataset.Dataset`."""
    return (
        type(X).__module__.startswith("pyarrow")
        and hasattr(X, "to_batches")
        and not hasattr(X, "columns")
    )


def is_number(kind: Any) -> bool:
    """Whether a type of pyarrow's is one of numbers."""
    return str(kind).startswith(NUMBERS)


def parquet_files(paths: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """The files that are named, and those of folders, by name."""
    files: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise TableError(f"{path} is not there.")
        found = sorted(path.iterdir()) if path.is_dir() else [path]
        found = [file for file in found if file.suffix.lower() in PARQUET]
        if not found:
            what = "holds no Parquet file" if path.is_dir() else "is not a Parquet file"
            raise TableError(
                f"{path} {what}: several files are read in chunks, and must end in"
                f" {' or '.join(PARQUET)}."
            )
        files += found
    return files


def read_schema(file: Path) -> Any:
    """Names and types of a file's columns, without the index that pandas writes."""
    schema = ask_pyarrow("read_schema", file)
    return import_pyarrow(file).schema([f for f in schema if f.name != INDEX_OF_PARQUET])


def count_rows(file: Path) -> int:
    """Number of rows, which a file tells at its end."""
    return int(ask_pyarrow("read_metadata", file).num_rows)


def open_dataset(files: Sequence[Path], names: Sequence[str]) -> Any:
    """
    A dataset of some columns.

    :param names: Columns, which every file must have.
    :raises TableError: If a file lacks one, or does not hold numbers there.
    """
    pyarrow = import_pyarrow(files[0])
    from pyarrow.dataset import dataset

    kinds: dict[str, set[Any]] = {name: set() for name in names}
    for file in files:
        schema = read_schema(file)
        for name in names:
            if schema.names.count(name) != 1:
                many = "more than one column" if name in schema.names else "no column"
                raise TableError(
                    f"{file} has {many} {name!r}, but {files[0]} has one: all files must have the"
                    " same columns."
                )
            kind = schema.field(name).type
            check_number(name, kind, str(file))
            kinds[name].add(kind)
    fields = [(name, k.pop() if len(k) == 1 else pyarrow.float64()) for name, k in kinds.items()]
    paths = [str(file) for file in files]
    return dataset(paths, schema=pyarrow.schema(fields), format="parquet")


def read_batches(dataset: Any, names: Sequence[str], num_rows: int) -> Iterator[Any]:
    """
    Some columns of a dataset, so many rows at a time.

    As little as possible is read ahead, and what is freed goes back to the system: pyarrow's own
    pool keeps it. Reading takes a tenth of what is computed with the rows.
    """
    import pyarrow
    from pyarrow.dataset import ParquetFragmentScanOptions

    options = {}
    if getattr(getattr(dataset, "format", None), "default_extname", None) == "parquet":
        scan = ParquetFragmentScanOptions(pre_buffer=False, use_buffered_stream=True)
        options["fragment_scan_options"] = scan
    yield from dataset.to_batches(
        columns=list(names),
        batch_size=num_rows,
        batch_readahead=0,
        fragment_readahead=0,
        memory_pool=pyarrow.system_memory_pool(),
        **options,
    )


def check_number(name: str, kind: Any, where: str) -> None:
    """Raise unless a column that is streamed holds numbers."""
    if not is_number(kind):
        raise TableError(
            f"Column {name!r} of {where} holds {kind}, but a stream must hold numbers: turn it into"
            " numbers first, or leave it out (--exclude)."
        )


def stream_columns(dataset: Any, targets: Any) -> tuple[list[str], list[str]]:
    """Names of inputs and targets, all of numbers: the inputs are all columns but the targets."""
    names = [targets] if isinstance(targets, str) else list(targets)
    known = list(dataset.schema.names)
    for name in names:
        if name not in known:
            raise TableError(
                f"The dataset has no column {name!r}.{did_you_mean(name, known)} It has:"
                f" {', '.join(known[:20])}."
            )
    inputs = [name for name in known if name not in names]
    if not names or not inputs:
        raise TableError(
            "A dataset needs targets and inputs: pass fit(dataset, ['name of a target', ...]), and"
            " leave at least one other column."
        )
    for name in known:
        check_number(name, dataset.schema.field(name).type, "the dataset")
    return inputs, names


def place_of(dataset: Any, row: int) -> str:
    """Where a row of a dataset is, counted from 1 as people do."""
    before = 0
    for fragment in dataset.get_fragments():
        count = int(fragment.count_rows())
        path = str(getattr(fragment, "path", None) or "the dataset")
        if row < before + count:
            return f"{path}, row {row - before + 1}"
        before += count
    raise IndexError(f"The dataset has {before} rows.")
