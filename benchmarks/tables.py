"""Parquet files to arrays: `parquet` beside pyarrow's own loop.

The files are in the page cache: 8 files of 400,000 rows in row groups of 100,000, with 16 columns of float32, one
of int64 and one of text with 1,000 values. Each contender gets arrays of NumPy, batch by batch, in order.
pyarrow's loop is `ParquetFile.iter_batches` and `to_numpy`, with the fastest of its settings.

    python benchmarks/tables.py [--help] [--quick] [--rows some] [--markdown FILE]
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from harness import Contender, Entry, Row, WrongError
from report import Section

import asyncfeed as af

PACKAGES = ("asyncfeed", "numpy", "pyarrow")
OURS, THEIRS = "asyncfeed", "pyarrow, iter_batches"
FILES, ROWS_OF_FILE, GROUP = 8, 400_000, 100_000
FLOATS = [f"x{number}" for number in range(16)]
SOME, TEXT = [*FLOATS[:3], "label"], ["x0", "label", "text"]


class Sized:
    """A batch as its number of rows."""

    def __init__(self, batch: dict[str, Any]) -> None:
        self.rows = len(batch["label"])

    def __len__(self) -> int:
        return self.rows


@contextmanager
def written(files: int) -> Iterator[list[str]]:
    """Write the files, and give their paths."""
    draw = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / f"{number}.parquet") for number in range(files)]
        for path in paths:
            columns: dict[str, Any] = {name: draw.normal(size=ROWS_OF_FILE).astype(np.float32) for name in FLOATS}
            columns["label"] = draw.integers(0, 10, ROWS_OF_FILE)
            columns["text"] = pa.array(np.char.add("item ", draw.integers(0, 1000, ROWS_OF_FILE).astype(str)))
            pq.write_table(pa.table(columns), path, row_group_size=GROUP)
        yield paths


def ours(columns: Sequence[str], paths: list[str]) -> Iterable[dict[str, Any]]:
    """Return our pipeline."""
    return af.files(paths).flat_map(af.parquet(columns=columns))


def theirs(
    rows: int, pre_buffer: bool, memory_map: bool, columns: Sequence[str], paths: list[str]
) -> Iterator[dict[str, Any]]:
    """Yield the batches of pyarrow's loop."""
    for path in paths:
        with pq.ParquetFile(path, pre_buffer=pre_buffer, memory_map=memory_map) as opened:
            for batch in opened.iter_batches(rows, columns=columns):
                names = batch.schema.names
                yield {name: batch.column(at).to_numpy(zero_copy_only=False) for at, name in enumerate(names)}


def run_of(make: Callable[..., Iterable[Any]]) -> Callable[[Any, int, Callable[[Any], None]], None]:
    """Return a run that goes through all files as often as the number of rows says."""

    def run(paths: list[str], items: int, consume: Callable[[Any], None]) -> None:
        for batch in make(paths * (items // (len(paths) * ROWS_OF_FILE))):
            consume(Sized(batch))

    return run


def contenders(columns: Sequence[str]) -> Iterator[Contender]:
    """Yield ours and pyarrow's loop, with its settings."""
    yield Contender(OURS, {"defaults": run_of(partial(ours, columns))})
    settings = {
        f"{rows:,} rows{', pre_buffer' * pre_buffer}{', memory_map' * memory_map}": run_of(
            partial(theirs, rows, pre_buffer, memory_map, columns)
        )
        for rows, pre_buffer, memory_map in product((8_192, 65_536, GROUP), (False, True), (False, True))
    }
    yield Contender(THEIRS, settings)


def check(columns: Sequence[str], paths: list[str]) -> None:
    """Raise unless both give the same arrays."""
    batches = list(ours(columns, paths[:1])), list(theirs(GROUP, True, False, columns, paths[:1]))
    for name in columns:
        one, other = (np.concatenate([batch[name] for batch in each]) for each in batches)
        if one.dtype != other.dtype or not np.array_equal(one, other):
            raise WrongError(f"{name} differs")


def enter(contender: Contender, paths: list[str], epochs: int) -> Entry:
    """Choose the setting of a contender."""
    items = len(paths) * ROWS_OF_FILE
    trials = {
        name: min(harness.cost(run, paths, items) for _ in range(3)) for name, run in contender.settings.items()
    }
    best = min(trials, key=trials.__getitem__)
    return Entry(contender.name, contender.settings[best], best, epochs * items, harness.chosen(contender))


def measure(title: str, columns: Sequence[str], *, quick: bool) -> Section:
    """Measure some columns."""
    section = Section(f"Parquet: {title}", PACKAGES)
    with written(2 if quick else FILES) as paths:
        check(columns, paths)
        entries = [enter(contender, paths, 1 if quick else 4) for contender in contenders(columns)]
        times = harness.race(entries, paths, 2 if quick else 9, within=60)
    goal = harness.faster(times, OURS, [THEIRS], 0.9)
    section.goals.extend([goal] if goal else [])
    section.tables.append(
        harness.side_by_side(entries, times, base=OURS, unit="million rows/s", value=lambda each: 1e-6 / each)
    )
    section.remarks.extend(f"{entry.name}: {entry.note}." for entry in entries if entry.note)
    return section


ROWS = {
    "some": Row("4 of 18 columns: three of float32, one of int64", 60, partial(measure, "4 of 18 columns", SOME)),
    "numbers": Row("all 17 columns of numbers", 90, partial(measure, "17 columns", [*FLOATS, "label"])),
    "text": Row("3 of 18 columns, one of text", 90, partial(measure, "3 columns, one of text", TEXT)),
}


if __name__ == "__main__":
    harness.main("Parquet files to arrays: asyncfeed beside pyarrow's own loop.", ROWS)
