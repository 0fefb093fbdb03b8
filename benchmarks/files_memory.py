"""The row `memory` of files.py: how much each contender needs beyond what its imports took.

Each runs in a process of its own. That process imports, says so, waits for a word, does the work and says what it
saw; this one measures it, and its worker processes, from outside:

    python benchmarks/files_memory.py KIND CONTENDER SETTING ITEMS   (the file set comes through stdin)
"""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import filesets
import harness
import peers_files as peers
import readers
from filesets import BATCH, FileSet, fileset
from harness import Contender, Entry, Goal, Made, Section, Spread
from readers import BARE, OURS

import asyncfeed as af

MEGA = 1_000_000
LIMITS = {"small": (64, 4), "large": (160, 64), "ragged": (64, 8)}
"""Our budgets in MB, an ample and a tight one: a batch of 1 MB files is 34 MB."""
SAMPLE = 0.005
SEEN: dict[str, int] = {}
"""What a contender saw of itself."""


class Limited(Made):
    """Our pipeline within a budget, which notes how much of it was used."""

    def __init__(self, megabytes: int) -> None:
        super().__init__(readers.pipeline)
        self._limit = megabytes * MEGA

    def __call__(self, work: Any, items: int, consume: Callable[[Any], None]) -> None:
        """Iterate."""
        pipeline: Any = self.prepare(work, items)
        with pipeline.open(memory_limit=self._limit) as feed:
            for batch in feed:
                consume(batch)
            SEEN["memory_peak"] = feed.stats().memory_peak


def limited(kind: str) -> Iterator[Contender]:
    """Yield our pipeline within each budget."""
    for megabytes in LIMITS[kind]:
        yield Contender(limited_name(megabytes), {"defaults": Limited(megabytes)})


def limited_name(megabytes: int) -> str:
    """Return what our pipeline within a budget is called."""
    return f"{OURS}, memory_limit {megabytes} MB"


def makers(kind: str) -> dict[str, Callable[[], Iterable[Contender]]]:
    """Return the makers for a kind of files, by what the names of their contenders begin with."""
    ragged = kind == "ragged"
    found: dict[str, Callable[[], Iterable[Contender]]] = {
        OURS: partial(limited, kind),
        readers.SERIAL: readers.serial,
        peers.TF: partial(peers.tf_data, ragged=ragged),
        peers.TORCH: peers.torch,
        peers.SPDL: peers.spdl,
    }
    # Neither pads: Grain by a function of one's own, which is what the serial loop does.
    return found if ragged else {**found, peers.GRAIN: peers.grain, BARE.partition(",")[0]: readers.bare}


# -- this side


def memory(*, quick: bool) -> Section:
    """Measure the most memory that each of the first three rows needs."""
    packages = ("asyncfeed", "numpy", "tensorflow", "torch", "grain", "spdl_core")
    section = Section("Files: peak memory", "python benchmarks/files.py --rows memory", packages)
    counts = (
        {"small": 2_000, "large": 96, "ragged": 1_000}
        if quick
        else {"small": 20_000, "large": 400, "ragged": 4_000}
    )
    missing: list[str] = []
    for kind, count in counts.items():
        with fileset(kind, count) as files:
            found, missing = harness.available(makers(kind).values())
            if quick:
                found = [replace(each, settings=dict([*each.settings.items()][:1])) for each in found]
            harness.forget_heap()
            check = partial(filesets.check, items=67)
            most = count if quick else None
            entries = [harness.enter(each, files, 0.1 if quick else 0.5, check=check, most=most) for each in found]
            items = count if quick else 3 * count
            size = max(map(os.path.getsize, files.paths))
            runs = {
                each.name: [peak(each, files, kind, items) for _ in range(1 if quick else 3)] for each in entries
            }
        compare(section, kind, BATCH * size, entries, runs)
    section.remarks.append(
        "MB beyond what the imports took, ours and TensorFlow's at first use included; worker processes count, and"
        " what processes share counts once. Each contender runs with the setting that is its quickest."
    )
    section.remarks.extend(missing)
    return section


def compare(
    section: Section, kind: str, batch: int, entries: list[Entry], runs: dict[str, list[dict[str, float]]]
) -> None:
    """Put the goals and the table of one kind of files, `batch` bytes in 32 of them, into the section."""
    grown = {name: Spread.of([run["peak"] / MEGA for run in each]) for name, each in runs.items()}
    rows = [
        (
            f"{kind}: {entry.name}",
            grown[entry.name].show(),
            entry.setting,
        )
        for entry in sorted(entries, key=lambda entry: -grown[entry.name].median)
    ]
    section.tables.append(harness.table(("", "MB at most", "setting"), rows))

    def at_most(what: str, limit: float, measured: Spread) -> None:
        section.goals.append(Goal(what, f"<= {limit:.1f} MB", f"{measured.show()} MB", measured.median <= limit))

    for megabytes in LIMITS[kind]:
        name = limited_name(megabytes)
        counted = Spread.of([run["memory_peak"] / MEGA for run in runs[name]])
        at_most(f"{kind}: {name}, in flight by its own count", megabytes, counted)
        # What the consumer holds is not in flight any more: one batch, until it has the next.
        at_most(f"{kind}: {name}, process, with the consumer's batch", megabytes + batch / MEGA, grown[name])
    others = [name for name in grown if not name.startswith(OURS) and name not in (BARE, readers.SERIAL)]
    least = min(others, key=lambda name: grown[name].median)
    at_most(f"{kind}: {name}, process, against the smallest, {least}", grown[least].median, grown[name])


def peak(entry: Entry, files: FileSet, kind: str, items: int) -> dict[str, float]:
    """Run a contender in a fresh process; return its growth in bytes and what it saw."""
    command = [sys.executable, __file__, kind, entry.name, entry.setting, str(items)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin
        assert child.stdout
        child.stdin.write(pickle.dumps(files))
        child.stdin.flush()
        if child.stdout.readline() != b"ready\n":
            raise harness.WrongError(f"{entry.name} ended before it began")
        before = total(child.pid)
        child.stdin.write(b"go\n")
        child.stdin.flush()
        highest = before
        # Processes share pages, so they are looked at together, and again and again while they run.
        while not readable(child.stdout):
            highest = max(highest, total(child.pid))
        seen = json.loads(child.stdout.readline())
    alone = seen.pop("high") - seen.pop("low")  # the kernel's own count misses nothing, but knows one process only
    return {"peak": max(highest - before, alone), **seen}


def readable(stream: Any) -> bool:
    """Wait a moment for a line; say whether there is one."""
    import select

    return bool(select.select([stream], [], [], SAMPLE)[0])


def total(pid: int) -> int:
    """Return the memory of a process and all below it, in bytes; shared pages count in parts."""
    bytes_ = 0
    for each in family(pid):
        try:
            text = Path(f"/proc/{each}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        if found := re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE):
            bytes_ += int(found[1]) * 1024
    return bytes_


def family(pid: int) -> list[int]:
    """Return a process and all below it."""
    try:
        children = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except (FileNotFoundError, ProcessLookupError):
        return [pid]
    return [pid, *(each for child in children for each in family(child))]


# -- the other side


def resident(field: str) -> int:
    """Return a line of this process' memory, in bytes: VmRSS now, VmHWM at most."""
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) * 1024


def child(kind: str, name: str, setting: str, items: int) -> None:
    """Do the work once when told so."""
    files = pickle.load(sys.stdin.buffer)
    # Only what this contender needs is imported.
    (run,) = (each.settings[setting] for each in makers(kind)[name.partition(",")[0]]() if each.name == name)
    if name == peers.TF:
        import tensorflow as tf

        tf.constant(0)
    elif name.startswith(OURS):
        list(af.items(range(1)))
    if isinstance(run, harness.Made):
        run.prepare(files, items)
    low = resident("VmRSS")
    print("ready", flush=True)
    sys.stdin.buffer.readline()
    tally = harness.Tally(items)
    run(files, items, tally)
    print(json.dumps({"low": low, "high": resident("VmHWM"), **SEEN}), flush=True)


if __name__ == "__main__":
    child(*sys.argv[1:4], items=int(sys.argv[4]))
