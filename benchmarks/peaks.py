"""How much memory a contender takes at most, beyond what its imports took: each in a process of its own.

That process imports, says so, waits for a word, does the work and says what it saw; this one measures it, and its
worker processes, from outside.
"""

from __future__ import annotations

import json
import pickle
import re
import select
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import harness
from harness import Contender

import asyncfeed as af

MEGA = 1_000_000
SAMPLE = 0.005
SEEN: dict[str, int] = {}
"""What a contender saw of itself."""


class Limited(harness.Made):
    """Our pipeline within a budget, which notes how much of it was used."""

    def __init__(self, make: Callable[[Any, int], Iterable[Any]], megabytes: int) -> None:
        super().__init__(make)
        self._limit = megabytes * MEGA

    def __call__(self, work: Any, items: int, consume: Callable[[Any], None]) -> None:
        """Iterate."""
        pipeline: Any = self.prepare(work, items)
        with pipeline.open(memory_limit=self._limit) as feed:
            for batch in feed:
                consume(batch)
            SEEN["memory_peak"] = feed.stats().memory_peak


@dataclass(frozen=True)
class Task:
    """What a process is to do; all of it can be pickled."""

    maker: Callable[[], Iterable[Contender]]
    """Imports what it needs, and no more."""
    name: str
    setting: str
    work: Any
    items: int
    counted: Callable[[Any], int]
    """How many items a batch holds."""
    around: Callable[[Any], AbstractContextManager[Any]] = nullcontext
    """Makes the circumstances in which the work is done."""
    each: Callable[[], Any] | None = None
    """What the consumer does with a batch, beside counting it."""


def peak(task: Task) -> dict[str, float]:
    """Run a contender in a fresh process; return its growth in bytes and what it saw."""
    command = [sys.executable, "-c", "import peaks; peaks.child()"]
    here, pipe = Path(__file__).parent, subprocess.PIPE
    with subprocess.Popen(command, cwd=here, stdin=pipe, stdout=pipe) as child:
        assert child.stdin
        assert child.stdout
        child.stdin.write(pickle.dumps(task))
        child.stdin.flush()
        if child.stdout.readline() != b"ready\n":
            raise harness.WrongError(f"{task.name} ended before it began")
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


# -- in the process


def resident(field: str) -> int:
    """Return a line of this process' memory, in bytes: VmRSS now, VmHWM at most."""
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) * 1024


def consume(tally: harness.Tally, task: Task, batch: Any) -> None:
    """Count a batch, and let it go."""
    if task.each is not None:
        task.each()
    tally(range(task.counted(batch)))


def child() -> None:
    """Do the work once when told so."""
    task: Task = pickle.load(sys.stdin.buffer)
    (run,) = (each.settings[task.setting] for each in task.maker() if each.name == task.name)
    if "tensorflow" in sys.modules:
        import tensorflow as tf

        tf.constant(0)
    if isinstance(run, Limited):
        import asyncfeed.stages.load_batch  # noqa: F401 - as are the others

        list(af.items(range(1)).batch(1))
    if isinstance(run, harness.Made):
        run.prepare(task.work, task.items)
    low = resident("VmRSS")
    print("ready", flush=True)
    sys.stdin.buffer.readline()
    tally = harness.Tally(task.items)
    with task.around(task.work):
        run(task.work, task.items, partial(consume, tally, task))
    if tally.left:
        raise harness.WrongError(f"{task.name} left {tally.left} items")
    print(json.dumps({"low": low, "high": resident("VmHWM"), **SEEN}), flush=True)
