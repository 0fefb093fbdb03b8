"""Files into batches, beside the same work by hand and in other libraries.

Shuffled .npy files of float32 to batches of 32; the page cache is warm unless said.

    python benchmarks/files.py [--help] [--quick] [--rows small large] [--markdown FILE]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import filesets
import fresh
import harness
import peers_files as peers
import readers
import report
from filesets import BATCH, FileSet, fileset
from fixed import beside_fixed
from harness import Contender, Entry, Row, Tally, Turn
from readers import BARE, BARE_REUSED, NO_RING, OURS, OURS_TF
from report import Goal, Section, Spread

PACKAGES = ("asyncfeed", "numpy", "aiofiles", "uvloop", "tensorflow", "torch", "torchdata", "grain", "spdl_core")
PYTHON = (peers.TORCH, peers.GRAIN, peers.SPDL)
Makers = Iterable[Callable[[], Iterable[Contender]]]


@dataclass(frozen=True)
class Size:
    """How much of a row is run."""

    count: int
    """Files."""
    seconds: float
    """The length of a turn, and of a trial."""
    rounds: int
    settings: int = sys.maxsize
    """How many of a contender's settings are tried."""


def quickly(count: int) -> Size:
    """Return what is enough to see that a row works."""
    return Size(count, seconds=0.1, rounds=2, settings=2)


def compete(
    section: Section,
    makers: Makers,
    files: FileSet,
    size: Size,
    *,
    value: tuple[str, Callable[[float], float]] = ("files/s", lambda seconds: 1 / seconds),
    turn: Turn = Turn(),  # noqa: B008 - it is frozen
    most: int | None = None,
    checked: int = 331,
) -> Mapping[str, list[float]]:
    """Check and measure contenders in turns, and put their table into the section.

    The page cache has all files at the beginning of a turn, unless the turn says otherwise.
    """
    turn = turn if turn.before else replace(turn, before=files.warm)
    found, missing = harness.available(makers)
    found = [harness.thinned(each, size.settings) for each in found]
    harness.forget_heap()
    check = partial(filesets.check, items=checked)
    entries = [harness.enter(each, files, size.seconds, check=check, turn=turn, most=most) for each in found]
    times = harness.race(entries, files, size.rounds, within=35, turn=turn)
    section.remarks.append(f"{len(times[OURS])} turns of about {size.seconds:g} s each.")
    show(section, entries, times, value)
    section.remarks.extend(missing)
    return times


def show(
    section: Section,
    entries: list[Entry],
    times: Mapping[str, list[float]],
    value: tuple[str, Callable[[float], float]],
) -> None:
    """Put the table of a race and the notes into the section."""
    unit, convert = value
    section.tables.append(harness.side_by_side(entries, times, base=OURS, unit=unit, value=convert))
    section.remarks.extend(f"{entry.name}: {entry.note}." for entry in entries if entry.note)


def goal(
    section: Section, times: Mapping[str, list[float]], than: Iterable[str], least: float, name: str = OURS
) -> None:
    """Add the goal of being `least` times as fast as the fastest of some others, where they are there."""
    found = harness.faster(times, name, list(than), least)
    if found:
        section.goals.append(found)


# -- the page cache is warm: small, large, ragged


def small(*, quick: bool) -> Section:
    """Measure 4 KB files."""
    section = Section("Files: 4 KB each", PACKAGES)
    size = quickly(2_000) if quick else Size(10_000, 1.0, 5)
    makers = (
        *(readers.ours, readers.ours_without_ring, readers.bare, readers.serial, readers.by_hand),
        *(peers.tf_data, peers.tf_generator, peers.torch, peers.torchdata, peers.grain, peers.spdl),
    )
    with fileset("small", size.count) as files:
        times = compete(section, makers, files, size)
    goal(section, times, [peers.TF], 3)
    goal(section, times, PYTHON, 10)
    goal(section, times, [BARE], 1.0)
    goal(section, times, [peers.TF], 2, NO_RING)
    goal(section, times, [BARE], 0.7, NO_RING)
    return section


def large(*, quick: bool) -> Section:
    """Measure 1 MB files."""
    section = Section("Files: 1 MB each", PACKAGES)
    size = quickly(96) if quick else Size(400, 1.0, 5)
    makers = (
        *(readers.ours, readers.ours_tf, readers.bare, readers.bare_reused, readers.serial),
        *(peers.tf_data, peers.torch, peers.grain, peers.spdl),
    )
    with fileset("large", size.count) as files:
        gigabytes = files.nbytes / 1e9
        rate = ("GB/s", lambda seconds: gigabytes / seconds)
        times = compete(section, makers, files, size, value=rate, checked=67)
    goal(section, times, [peers.TF], 2)
    goal(section, times, [peers.TF], 1.5, OURS_TF)
    goal(section, times, [BARE], 0.7)
    goal(section, times, [BARE_REUSED], 0.9)
    return section


def ragged(*, quick: bool) -> Section:
    """Measure ragged files, padded to the longest of the batch."""
    section = Section("Files: ragged, 20 to 200 x 40, padded", PACKAGES)
    size = quickly(1_000) if quick else Size(4_000, 1.0, 5)
    makers = (readers.ours, readers.serial, partial(peers.tf_data, ragged=True), peers.torch, peers.spdl)
    with fileset("ragged", size.count) as files:
        times = compete(section, makers, files, size)
    goal(section, times, [peers.TF], 2)
    return section


# -- storage that has to be waited for: slow, cold


def slow(*, quick: bool) -> Section:
    """Measure what "auto" makes of reads that wait, against every fixed concurrency."""
    section = Section("Files: each read waits 5 ms", PACKAGES)
    wait, fixed = 0.005, [4, 32, 256] if quick else [1, 2, 4, 8, 16, 32, 64, 128, 256]
    once, seconds, rounds = (0.2, 1.0, 1) if quick else (0.8, 5.0, 4)

    def at(concurrency: Any) -> harness.Run:
        (contender,) = readers.ours_at([concurrency])
        return contender.settings["defaults"]

    with fileset("small", 2_000) as files, filesets.slow_reads(wait):
        for concurrency in (*fixed, "auto"):
            filesets.check(Contender(str(concurrency), {"": at(concurrency)}), files, items=67)
        # 256 at a time come to less than 256 / wait: at most about what a second can bring.
        probes = {calls: BATCH * max(2, round(once * min(calls / wait, 20_000) / BATCH)) for calls in fixed}
        found = beside_fixed("files", at, files, probes, seconds=seconds, rounds=rounds)
    section.goals.append(found.goal)
    section.tables.append(report.table(("at a time", "files/s"), found.column.items()))
    section.remarks.append(
        f"Each fixed number once, for about {once:g} s; then auto and the best in turns, over as many files as "
        f"the best reads in {seconds:g} s. The time includes the start of every run, and what auto needs to find "
        "its number."
    )
    return section


def cold(*, quick: bool) -> Section:
    """Measure 4 KB files that have to come from the disk."""
    section = Section("Files: 4 KB each, not in the page cache", PACKAGES)
    size = quickly(2_000) if quick else Size(10_000, 1.0, 5)
    fixed = [1, 2, 4, 8, 32]
    makers = (
        *(readers.ours, partial(readers.ours_at, fixed), readers.bare, readers.serial),
        *(peers.tf_data, peers.torch, peers.spdl),
    )
    with fileset("small", size.count) as files:
        times = compete(section, makers, files, size, turn=Turn(before=files.evict), most=size.count)
    goal(section, times, [peers.TF], 2)
    goal(section, times, [readers.at(each) for each in fixed], 1)
    section.remarks.append("Every file is evicted (`POSIX_FADV_DONTNEED`) before each turn, and read once in it.")
    return section


# -- a run that is over soon


def short(*, quick: bool) -> Section:
    """Measure one epoch of 8,192 files in a fresh process, from its first batch on."""
    section = Section("Files: 4 KB each, one epoch in a fresh process", PACKAGES[:2])
    size = quickly(2_000) if quick else Size(8_192, 1.0, 7)
    found: list[list[float]] = []
    with fileset("small", size.count) as files:
        folder = os.path.dirname(files.paths[0])
        for _ in range(size.rounds):
            files.warm()
            done = subprocess.run(
                [sys.executable, fresh.__file__, folder], check=True, capture_output=True, text=True
            )
            found.append(json.loads(done.stdout))
    share = Spread.of([long / epoch for _, _, epoch, long in found])
    section.goals.append(
        Goal("one epoch / a run of 20 epochs, files/s", ">= 0.7", share.show(), share.median >= 0.7)
    )
    rows = (
        ("first batch, with the import of asyncfeed", 0, "ms", 1e3),
        ("first batch", 1, "ms", 1e3),
        ("one epoch, from the first batch on", 2, "us a file", 1e6),
        ("20 epochs, from the first batch on", 3, "us a file", 1e6),
    )
    shown = [
        (what, f"{Spread.of([each[at] for each in found]).show(scale)} {unit}") for what, at, unit, scale in rows
    ]
    section.tables.append(report.table(("", f"{size.count:,} files"), shown))
    return section


# -- a consumer that computes


def busy(*, quick: bool) -> Section:
    """Measure 4 KB files while the consumer holds the GIL for 1 ms per batch."""
    section = Section("Files: 4 KB each, the consumer computes", PACKAGES)
    size = quickly(2_000) if quick else Size(10_000, 1.0, 5)
    rounds = calibrated(0.001)
    with fileset("small", size.count) as files:
        makers = (
            *(readers.ours, readers.ours_without_ring, readers.ours_switching, readers.bare, readers.serial),
            *(peers.tf_data, peers.tf_generator, peers.torch, peers.torchdata, peers.grain, peers.spdl),
            partial(readers.in_memory, files),
        )
        times = compete(section, makers, files, size, turn=Turn(tally=partial(Computing, rounds=rounds)))
    for peer in (readers.SERIAL, peers.TORCH, peers.TORCHDATA, peers.GRAIN, peers.GRAIN_MP, peers.SPDL):
        goal(section, times, [peer], 5)
    goal(section, times, [readers.IN_MEMORY], 0.9)
    goal(section, times, [peers.TF], 1.0)
    section.remarks.append(
        "Batches in memory show what the consumer leaves: it takes more than 1 ms if the machine is slower than "
        "when the length of its loop was found. 5 times a peer that reaches more than "
        f"{BATCH * 200:,} files/s cannot be had."
    )
    return section


def spin(rounds: int) -> None:
    """Compute in Python, holding the GIL."""
    for _ in range(rounds):
        pass


def calibrated(seconds: float) -> int:
    """Return how many rounds of `spin` take that long, undisturbed."""
    rounds = 10_000
    best = min(timed(rounds) for _ in range(200))
    return round(rounds * seconds / best)


def timed(rounds: int) -> float:
    """Return the processor time of `spin`."""
    begun = time.thread_time()
    spin(rounds)
    return time.thread_time() - begun


@dataclass
class Computing(Tally):
    """A consumer that computes before it counts."""

    rounds: int = 0

    def __call__(self, batch: Any) -> None:
        """Take one batch."""
        spin(self.rounds)
        super().__call__(batch)


# -- all of it


ROWS = {
    "small": Row("4 KB files", 95, small),
    "large": Row("1 MB files, to numpy and on to TensorFlow", 95, large),
    "ragged": Row("files of 20 to 200 x 40 float32, padded to the longest of the batch", 55, ragged),
    "slow": Row('4 KB files where each read waits 5 ms: "auto" beside fixed concurrencies', 60, slow),
    "short": Row("4 KB files, one epoch in a fresh process beside a long run", 25, short),
    "cold": Row("4 KB files that are not in the page cache", 80, cold),
    "busy": Row("4 KB files while the consumer computes for 1 ms a batch, in Python", 95, busy),
}


if __name__ == "__main__":
    harness.main("Files into batches.", ROWS)
