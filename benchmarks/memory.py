"""The most memory that the work of the other programs takes: ours within a budget, beside the others.

python benchmarks/memory.py [--help] [--quick] [--rows small large] [--markdown FILE]
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import harness
import work_async
import work_sync
from filesets import BATCH, FileSet, fileset
from harness import Contender, Row
from kinds import KINDS, LOOPS, OURS, name_of
from peaks import MEGA, Task, peak
from report import Goal, Section, Spread, table

PACKAGES = (
    "asyncfeed",
    "numpy",
    "tensorflow",
    "torch",
    "torchdata",
    "grain",
    "spdl_core",
    "streamable",
    "aiostream",
)
FILES = {
    "small": ("small", 10_000, 2_000),
    "large": ("large", 400, 96),
    "ragged": ("ragged", 4_000, 1_000),
    "slow": ("small", 2_000, 1_000),
    "cold": ("small", 10_000, 1_000),
    "busy": ("small", 10_000, 1_000),
}
"""Which files they are, how many, and how many quickly."""
WORKS: Mapping[str, Any] = {
    "engine": lambda: work_async.identity,
    "lognormal": lambda: work_async.sleeping,
    "zlib": work_sync.Inflate,
    "jpeg": work_sync.Jpeg,
    "python": work_sync.Spin,
}


@contextmanager
def work_of(kind: str, *, quick: bool) -> Iterator[tuple[Any, float]]:
    """Make the work of a kind; yield it with the megabytes of a batch."""
    if kind in FILES:
        with fileset(FILES[kind][0], FILES[kind][1 + quick]) as files:
            yield files, BATCH * max(map(os.path.getsize, files.paths)) / MEGA
    else:
        yield WORKS[kind](), BATCH * {"zlib": 65_536, "jpeg": 196_608}.get(kind, 8) / MEGA


def memory(kind: str, *, quick: bool) -> Section:
    """Measure the most memory that each contender needs for one kind of work."""
    section = Section(f"Peak memory: {kind}", PACKAGES)
    chosen = KINDS[kind]
    items = min(chosen.items, FILES[kind][2]) if quick and kind in FILES else chosen.items
    tasks, missing = [], []
    with work_of(kind, quick=quick) as (work, batch):
        for maker in chosen.makers:
            found, without = harness.available([maker])
            missing += without
            for contender in found:
                setting = setting_of(contender, work, items if quick else None) if kind in FILES else None
                setting = setting or next(iter(contender.settings))
                how = chosen.counted, chosen.around, chosen.each
                tasks.append(Task(maker, contender.name, setting, work, items, *how))
        runs: dict[str, list[dict[str, float]]] = {task.name: [] for task in tasks}
        for number in harness.rounds(1 if quick else 3, within=20, least=1):
            for task in harness.rotated(tasks, number):
                runs[task.name].append(peak(task))
    compare(section, chosen.budgets, batch, tasks, runs)
    section.remarks.append(
        f"{items:,} items. MB beyond what the imports took, ours and TensorFlow's at first use included; worker "
        "processes count, and what processes share counts once. Files are read with the quickest of up to "
        "4 settings, chosen in a short trial; all else with the first that its own program lists."
    )
    section.remarks.extend(missing)
    return section


def setting_of(contender: Contender, files: FileSet, most: int | None) -> str:
    """Return the quickest setting of a contender, from a short trial; quickly, the first."""
    if most is not None:
        return next(iter(contender.settings))
    return harness.enter(harness.thinned(contender, 4), files, 0.3, check=lambda *_: None).setting


def compare(
    section: Section,
    budgets: tuple[int, ...],
    batch: float,
    tasks: Iterable[Task],
    runs: Mapping[str, list[dict[str, float]]],
) -> None:
    """Put the goals and the table into the section; `batch` is the MB of one."""
    grown = {name: Spread.of([run["peak"] / MEGA for run in each]) for name, each in runs.items()}
    ranked = sorted(tasks, key=lambda task: -grown[task.name].median)
    rows = [(task.name, grown[task.name].show(), task.setting) for task in ranked]
    section.tables.append(table(("", "MB at most", "setting"), rows))

    def at_most(what: str, limit: float, measured: Spread) -> None:
        section.goals.append(Goal(what, f"<= {limit:.1f} MB", f"{measured.show()} MB", measured.median <= limit))

    others = [name for name in grown if not name.startswith((OURS, *LOOPS))]
    least = min(others, key=lambda name: grown[name].median, default="")
    for megabytes in budgets:
        name = name_of(megabytes)
        counted = Spread.of([run["memory_peak"] / MEGA for run in runs[name]])
        at_most(f"{name}, in flight by its own count", megabytes, counted)
        # What the consumer holds is not in flight any more: one batch, until it has the next.
        at_most(f"{name}, process, with the consumer's batch", megabytes + batch, grown[name])
        if least:
            at_most(f"{name}, process, against the smallest, {least}", grown[least].median, grown[name])


SAYS = {
    "small": ("4 KB files, shuffled, to batches of 32", 45),
    "large": ("1 MB files, shuffled, to batches of 32", 45),
    "ragged": ("files of 20 to 200 x 40, padded", 35),
    "engine": ("an async function that never suspends, 64 at a time", 25),
    "lognormal": ("512 async calls in flight whose times have a long tail", 30),
    "slow": ("4 KB files where each read waits 5 ms", 20),
    "cold": ("4 KB files that are not in the page cache", 45),
    "busy": ("4 KB files while the consumer computes for 1 ms a batch", 45),
    "zlib": ("64 KB from zlib, on threads", 40),
    "jpeg": ("256 x 256 JPEG with Pillow, on threads", 40),
    "python": ("a function of about 1 ms of pure Python, in processes", 30),
}
ROWS = {
    kind: Row(f"the most memory: {says}", about, partial(memory, kind)) for kind, (says, about) in SAYS.items()
}


if __name__ == "__main__":
    harness.main("The most memory, each contender in a process of its own.", ROWS)
