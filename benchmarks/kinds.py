"""What is measured for its memory: each kind of work, with its contenders; ours within budgets.

Contenders are made in processes of their own, which import this module, and a library only where it is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import peers_files as peers
import readers
import work_async
import work_sync
from filesets import FileSet, slow_reads
from harness import Contender
from peaks import Limited

import asyncfeed as af

OURS = "asyncfeed"
Makers = tuple[Callable[[], Iterable[Contender]], ...]
LOOPS = (work_async.BARE, work_sync.ONE, readers.BARE, readers.SERIAL)
"""Loops by hand: not what ours is to be smaller than."""


def name_of(megabytes: int) -> str:
    """Return what our pipeline within a budget is called."""
    return f"{OURS}, memory_limit {megabytes} MB"


def limited(make: Callable[[Any, int], Iterable[Any]], budgets: Iterable[int]) -> Iterator[Contender]:
    """Yield our pipeline within each budget, in MB."""
    for megabytes in budgets:
        yield Contender(name_of(megabytes), {"defaults": Limited(make, megabytes)})


@dataclass(frozen=True)
class Kind:
    """One kind of work."""

    ours: Callable[[Any, int], Iterable[Any]]
    budgets: tuple[int, ...]
    """In MB, an ample and a tight one: a batch of 1 MB files is 34 MB."""
    others: Makers
    items: int
    counted: Callable[[Any], int] = len
    around: Callable[[Any], AbstractContextManager[Any]] = nullcontext
    """Makes the circumstances in which the work is done."""
    each: Callable[[], Any] | None = None
    """What the consumer does with a batch, beside counting it."""

    @property
    def makers(self) -> Makers:
        """Return the makers of all contenders, ours first."""
        return (partial(limited, self.ours, self.budgets), *self.others)


# -- ours


def mapped(calls: int, work: Any, items: int) -> Iterable[Any]:
    """Return our pipeline over an async function."""
    return af.items(range(items)).map(work, concurrency=calls).batch(work_async.BATCH)


def threaded(job: Any, items: int) -> Iterable[Any]:
    """Return our pipeline over a sync function."""
    return af.items(range(items)).map(job).batch(work_sync.BATCH)


def in_processes(job: Any, items: int) -> Iterable[Any]:
    """Return our pipeline over a function in processes."""
    return af.items(range(items)).map(job, on="process").batch(work_sync.BATCH)


def numbers(batch: Any) -> int:
    """Return how many samples a batch of numbers and data holds."""
    return len(batch[0])


# -- the kinds


def files(budgets: tuple[int, ...], items: int, *, ragged: bool = False) -> Kind:
    """Return a kind of files."""
    others: Makers = (readers.serial, partial(peers.tf_data, ragged=ragged), peers.torch, peers.spdl)
    # Neither pads: Grain by a function of one's own, which is what the serial loop does.
    return Kind(readers.pipeline, budgets, others if ragged else (*others, peers.grain, readers.bare), items)


def calls(count: int, items: int, *more: Callable[[int], Iterable[Contender]]) -> Kind:
    """Return a kind of async functions, so many at a time."""
    makers = (work_async.spdl, work_async.streamable, work_async.aiostream, *more)
    return Kind(partial(mapped, count), (64,), tuple(partial(maker, count) for maker in makers), items)


def decoded(items: int) -> Kind:
    """Return a kind of functions that release the GIL, on threads."""
    others = (
        *(work_sync.one_thread, work_sync.executors, work_sync.spdl, work_sync.torch),
        *(work_sync.grain_threads, work_sync.grain_processes, work_sync.tf_data),
    )
    return Kind(threaded, (64,), others, items, numbers)


# -- circumstances


def far(_: FileSet) -> AbstractContextManager[None]:
    """Have each read wait for 5 ms."""
    return slow_reads(0.005)


def evicted(files: FileSet) -> AbstractContextManager[None]:
    """Have the files read from the disk."""
    files.evict()
    return nullcontext()


def compute() -> None:
    """Hold the GIL for a millisecond."""
    until = time.thread_time() + 0.001
    while time.thread_time() < until:
        pass


KINDS: Mapping[str, Kind] = {
    "small": files((64, 4), 20_000),
    "large": files((160, 64), 800),
    "ragged": files((64, 8), 8_000, ragged=True),
    # The others read by other calls than those that are made to wait.
    "slow": Kind(readers.pipeline, (64, 4), (), 8_000, around=far),
    "cold": replace(files((64, 4), 10_000), around=evicted),
    "busy": replace(files((64, 4), 10_000), each=compute),
    "engine": calls(64, 10_000, work_async.bare, work_async.torchdata, work_async.tf_data),
    "lognormal": calls(512, 8_000, work_async.gathered),
    "zlib": decoded(2_000),
    "jpeg": decoded(2_000),
    "python": Kind(
        *(in_processes, (64,)),
        (work_sync.one_thread, work_sync.process_pool, work_sync.torch, work_sync.grain_processes),
        *(1_000, numbers),
    ),
}
