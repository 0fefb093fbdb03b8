"""Listing a folder of local files: `files(...)` beside a bare loop over `os.scandir`.

The files are empty, in one folder, and the folder is in the cache. The bare loop asks for nothing but the entries.
`files` matches a pattern, sorts the names, and holds the paths. The default also asks for size and time of each.

    python benchmarks/listing.py [--help] [--quick] [--rows one] [--markdown FILE]
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import harness
from harness import Contender, Entry, Row, WrongError
from report import Section

import asyncfeed as af
from asyncfeed.reading.name_list import expand_names

PACKAGES = ("asyncfeed", "numpy")
BARE, SORTED, EAGER, NAMES = (
    "a bare loop over os.scandir",
    "sorted, with is_file and endswith",
    'files, listing="eager"',
    'files, listing="names"',
)
COUNT = 1_000_000


@contextmanager
def written(count: int, name: Callable[[int], str]) -> Iterator[str]:
    """Write so many files, and give their folder."""
    with tempfile.TemporaryDirectory() as folder:
        opened = os.open(folder, os.O_RDONLY)
        for number in range(count):
            os.close(os.open(name(number), os.O_CREAT | os.O_WRONLY, dir_fd=opened))
        os.close(opened)
        yield folder


def bare(folder: str) -> None:
    """List the folder, and keep nothing."""
    with os.scandir(folder) as entries:
        for _ in entries:
            pass


def plain(folder: str) -> list[str]:
    """Return the names, sorted by Python."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.name.endswith(".npy") and entry.is_file())


def ours(listing: Any, folder: str) -> af.Pipeline[af.File]:
    """Return a pipeline."""
    return af.files(f"{folder}/*.npy", listing=listing)


def run_of(listed: Callable[[str], Any]) -> Callable[[Any, int, Callable[[Any], None]], None]:
    """Return a run that lists the folder once."""

    def run(folder: str, items: int, consume: Callable[[Any], None]) -> None:
        kept = listed(folder)
        consume(range(items))  # the clock stops here
        del kept

    return run


def check(folder: str) -> None:
    """Raise unless names and sizes are listed in the same order."""
    pattern = f"{folder}/*.npy"
    if expand_names(pattern).paths() != [file.path for file in af.files(pattern)]:
        raise WrongError("the listings differ")


def measure(title: str, name: Callable[[int], str], *, quick: bool) -> Section:
    """Measure one way to name the files."""
    section = Section(f"Listing: {title}", PACKAGES)
    count = COUNT // 20 if quick else COUNT
    with written(count, name) as folder:
        check(folder)
        settings = {
            BARE: bare,
            SORTED: plain,
            NAMES: partial(ours, "names"),
            EAGER: partial(ours, "eager"),
        }
        entries = [
            Entry(each.name, each.settings["defaults"], "defaults", count, harness.chosen(each))
            for each in (Contender(title, {"defaults": run_of(fn)}) for title, fn in settings.items())
        ]
        times = harness.race(entries, folder, 3 if quick else 9, within=90)
    goal = harness.faster(times, NAMES, [BARE], 0.8)
    section.goals.extend([goal] if goal else [])
    section.tables.append(
        harness.side_by_side(entries, times, base=NAMES, unit="million files/s", value=lambda each: 1e-6 / each)
    )
    return section


ROWS = {
    "one": Row("names of one length", 120, partial(measure, "names of one length", "img_{:07}.npy".format)),
    "many": Row("names of many lengths", 120, partial(measure, "names of many lengths", "{}.npy".format)),
}


if __name__ == "__main__":
    harness.main("Listing a folder: asyncfeed beside a bare loop over os.scandir.", ROWS)
