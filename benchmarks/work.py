"""What the engine makes of functions that take their time: waiting, decoding, computing.

python benchmarks/work.py [--help] [--quick] [--rows lognormal auto] [--markdown FILE]
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import harness
import numpy as np
import report
import work_async
import work_sync
from fixed import beside_fixed
from harness import Contender, Entry, Made, Row, Work
from report import Goal, Section, Spread
from work_async import BATCH, MEDIAN, MOST, OURS, SIGMA, SLOW, SLOW_SHARE, SPDL, TAKEN, UNORDERED

import asyncfeed as af

PACKAGES = ("asyncfeed", "numpy", "uvloop")
PEERS = ("spdl_core", "streamable", "aiostream")
SYNC_PEERS = ("spdl_core", "torch", "grain", "tensorflow", "pillow")


# -- lognormal: a long tail


IN_FLIGHT = 512


def lognormal(*, quick: bool) -> Section:
    """Measure 512 calls in flight that take 20 ms, most of them."""
    section = Section("512 in flight, a long tail", (*PACKAGES, *PEERS))
    seconds = 0.7 if quick else 2.5

    work = work_async.sleeping

    makers = (
        *(work_async.ours, work_async.ours_unordered, work_async.spdl, work_async.streamable),
        *(work_async.aiostream, work_async.gathered),
    )
    found, missing = harness.available([partial(maker, IN_FLIGHT) for maker in makers])
    harness.forget_heap()
    entries = [enter_tail(contender, work, seconds) for contender in found]
    times = harness.race(entries, work, 1 if quick else 5, within=60)
    section.tables.append(
        harness.side_by_side(entries, times, base=OURS, unit="items/s", value=lambda seconds: 1 / seconds)
    )
    present = {entry.name for entry in entries}
    measured = harness.ratio(times, over=UNORDERED, under=OURS)
    goal = Goal("asyncfeed, in order, of our own unordered", ">= 0.85", measured.show(), measured.median >= 0.85)
    section.goals.append(goal)
    if SPDL in present:
        measured = harness.ratio(times, over=SPDL, under=OURS)
        section.goals.append(Goal(f"{SPDL} / asyncfeed", ">= 8", measured.show(), measured.median >= 8))
    ideal = IN_FLIGHT / statistics.mean(TAKEN)
    section.remarks.append(
        f"A call sleeps: lognormal with a median of {MEDIAN * 1e3:g} ms and sigma {SIGMA:g}, {SLOW_SHARE:.0%} "
        f"{SLOW * 1e3:g} ms instead, the same for all contenders, each over as many items as it takes about "
        f"{seconds:g} s for. The ideal, {IN_FLIGHT} / mean, is {ideal:,.0f} items/s; ours is "
        f"{1 / statistics.median(times[OURS]) / ideal:.0%} of it, with the filling at the beginning and the last "
        "slow calls at the end, about half a second, in everybody's time."
    )
    section.remarks.extend(f"{entry.name}: {entry.note}." for entry in entries if entry.note)
    section.remarks.extend(missing)
    return section


def enter_tail(contender: Contender, work: Work, seconds: float) -> Entry:
    """Check a contender, choose its setting, and find how many items take about `seconds`.

    What the first few items take, with the last slow calls of their run, says nothing about the rate.
    """
    harness.check(contender, work)
    few, more = 2 * IN_FLIGHT, 6 * IN_FLIGHT
    trials: dict[str, float] = {}
    for setting, run in contender.settings.items():
        begun = few * harness.cost(run, work, few)
        trials[setting] = max(1e-5, (more * harness.cost(run, work, more) - begun) / (more - few))
    best = min(trials, key=trials.__getitem__)
    items = min(MOST, few + round((seconds - SLOW) / trials[best] / BATCH) * BATCH)
    return Entry(contender.name, contender.settings[best], best, items, harness.chosen(contender))


# -- auto: how many at a time


class Near:
    """A store that answers in 5 ms, whatever is asked of it."""

    says, most = "answers in 5 ms", 40_000
    """`most` is about what a second can bring, in items, on this kind of machine."""
    latency = 0.005

    async def get(self, item: int) -> int:
        """Return the item."""
        await asyncio.sleep(self.latency)
        return item


class Line:
    """A store behind a line: 20 ms, then 100 KB an item over 200 MB/s, which all that is in flight shares."""

    says, most = "20 ms and 200 MB/s for items of 100 KB", 2_000
    latency = 0.020

    def __init__(self) -> None:
        self._free = 0.0

    async def get(self, item: int) -> int:
        """Return the item, once the line has carried it."""
        now = time.perf_counter()
        self._free = max(self._free, now + self.latency) + 100e3 / 200e6
        await asyncio.sleep(self._free - now)
        return item


class Counter:
    """A store that serves 100 at a time, each in 20 ms; the others queue in the store."""

    says, most = "serves 100 at a time in 20 ms each", 5_000
    latency = 0.020

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(100)

    async def get(self, item: int) -> int:
        """Return the item, once it had its turn."""
        async with self._room:
            await asyncio.sleep(self.latency)
        return item


FIXED = tuple(2**power for power in range(10))


def run_store(store: Callable[[], Any], limit: Any, _: object, items: int, consume: Callable[[Any], None]) -> None:
    """Read so many items from a new store."""
    get: Callable[[int], Awaitable[int]] = store().get
    for batch in af.items(range(items)).map(get, concurrency=limit).batch(BATCH):
        consume(batch)


def auto(*, quick: bool) -> Section:
    """Measure "auto" beside fixed concurrencies in three stores."""
    section = Section('concurrency="auto" beside fixed ones', PACKAGES)
    once, seconds, rounds = (0.1, 1.0, 1) if quick else (0.4, 5.0, 3)
    columns = []
    stores: tuple[Any, ...] = (Near, Line, Counter)
    for store in stores:
        at = partial(partial, run_store, store)
        harness.check(Contender(store.says, {"": at("auto")}), unused)
        probes = {limit: max(2 * BATCH, round(once * min(store.most, limit / store.latency))) for limit in FIXED}
        found = beside_fixed(f"the store {store.says}", at, unused, probes, seconds=seconds, rounds=rounds)
        section.goals.append(found.goal)
        columns.append(found.column)
    rows = [(name, *(column[name] for column in columns)) for name in columns[0]]
    section.tables.append(report.table(("items/s", *(store.says for store in stores)), rows))
    section.remarks.append(
        f"Each fixed number once, for about {once:g} s; then auto and the best in turns, over as many items as "
        f"the best reads in {seconds:g} s, from the start: what auto needs to find its number counts."
    )
    return section


async def unused(item: int) -> int:
    """Stand where the harness wants an async function: each run makes a store of its own."""
    return item


# -- decode: more than one core


FEW = 2 * BATCH


def steady(run: Any, job: Any, items: int) -> float:
    """Return the seconds per item beyond the first few, whose run has what it takes to start the workers.

    Not the pace at which the last ones come: what is done out of order comes in a burst, from where it piled up.
    """
    few = whole(run, job, FEW)
    return (whole(run, job, items) - few) / (items - FEW)


def whole(run: Any, job: Any, items: int) -> float:
    """Return the seconds from the start of a run until its last item is in the consumer's hand."""
    left, ended = items, 0.0

    def consume(batch: Any) -> None:
        nonlocal left, ended
        left -= len(batch[0])
        if not left:
            ended = time.perf_counter()

    if isinstance(run, Made):
        run.prepare(job, items)
    begun = time.perf_counter()
    run(job, items, consume)
    return ended - begun


def check_decoded(contender: Contender, job: Any, items: int = 323) -> None:
    """Raise unless every setting delivers every item in order, and what belongs to it."""
    for setting, run in contender.settings.items():
        batches: list[Any] = []
        run(job, items, batches.append)
        if isinstance(run, Made):
            run.drop()
        numbers = np.concatenate([np.asarray(batch[0]) for batch in batches])
        if numbers.tolist() != list(range(items)) or len(batches) != -(-items // BATCH):
            raise harness.WrongError(f"{contender.name} ({setting}) lost, repeated or moved items")
        for number, value in enumerate(value for batch in batches for value in np.asarray(batch[1])):
            # Two JPEG decoders may round a pixel differently.
            if not np.allclose(value, job(number)[1], atol=4 if value.dtype == np.uint8 else 0):
                raise harness.WrongError(f"{contender.name} ({setting}) made something else of item {number}")


def enter_decoder(contender: Contender, job: Any, items: int, *, quick: bool) -> Entry:
    """Check a contender and choose its setting in short trials; quickly, take the first."""
    if quick:
        first = next(iter(contender.settings))
        contender = replace(contender, settings={first: contender.settings[first]})
    check_decoded(contender, job)
    trials: dict[str, float] = {}
    for setting, run in contender.settings.items():
        trials[setting] = steady(run, job, max(6 * FEW, items // 4)) if len(contender.settings) > 1 else 0.0
        if isinstance(run, Made):
            run.drop()
    best = min(trials, key=trials.__getitem__)
    return Entry(contender.name, contender.settings[best], best, items, harness.chosen(contender))


def decode(
    title: str,
    make: Callable[[], Any],
    makers: Iterable[Callable[[], Iterator[Contender]]],
    *,
    quick: bool,
) -> Section:
    """Measure a job in all contenders, in turns, beside one thread and two processes that do nothing else."""
    section = Section(title, (*PACKAGES, *SYNC_PEERS))
    try:
        job = make()
    except ImportError as error:
        package = {"PIL": "pillow"}.get(str(error.name), error.name)
        section.remarks.append(
            f"{package} is not installed: nothing was measured (`pip install 'asyncfeed[bench]'`)."
        )
        return section
    found, missing = harness.available([work_sync.one_thread, *makers])
    harness.forget_heap()
    alone = min(steady(next(iter(found[0].settings.values())), job, 320) for _ in range(3))
    items = max(320, round((0.4 if quick else 2.0) / alone / 64) * 64)
    entries = [enter_decoder(contender, job, items, quick=quick) for contender in found]
    ours, one, two = work_sync.OURS, work_sync.ONE, work_sync.TWO
    times: dict[str, list[float]] = {name: [] for name in (two, *(entry.name for entry in entries))}
    for turn in harness.rounds(1 if quick else 5, within=30):
        times[two].append(work_sync.two_processes(job, items))
        for entry in harness.rotated(entries, turn):
            times[entry.name].append(steady(entry.run, job, items))
    for entry in entries:
        if isinstance(entry.run, Made):
            entry.run.drop()
    entries.append(Entry(two, entries[0].run, "bare loops", items, "they hand nothing over: what the machine has"))
    base = ours if ours in times else one
    section.tables.append(
        harness.side_by_side(entries, times, base=base, unit="items/s", value=lambda seconds: 1 / seconds)
    )
    if ours in times:
        peers = [name for name in times if name not in {ours, one, two} and not name.startswith(ours)]
        goal = harness.faster(times, ours, peers, 1)
        section.goals.extend([goal] if goal else [])
        halves = [a / b / 2 for a, b in zip(times[one], times[ours], strict=True)]
        spread = Spread.of(halves)
        section.goals.append(
            Goal("of two cores (twice one thread)", ">= 0.9", spread.show(), spread.median >= 0.9)
        )
    both = harness.ratio(times, over=one, under=two)
    section.remarks.append(
        f"An item takes {number_of(times[one])} us in one thread. Two processes that share nothing reach "
        f"{both.show()} times one thread: more the machine does not have. Measured: a run, less "
        f"one of {FEW} items, so that starting workers does not count."
    )
    section.remarks.extend(f"{entry.name}: {entry.note}." for entry in entries if entry.note)
    section.remarks.extend(missing)
    return section


def number_of(times: list[float]) -> str:
    """Return the median in microseconds."""
    return report.number(statistics.median(times) * 1e6)


# -- all of it


THREADS = (
    *(work_sync.ours, work_sync.executors, work_sync.spdl, work_sync.torch),
    *(work_sync.grain_threads, work_sync.grain_processes, work_sync.tf_data),
)
PROCESSES = (
    work_sync.ours_in_processes,
    *(work_sync.process_pool, work_sync.torch, work_sync.grain_processes),
)


def decoding(what: str, make: Callable[[], Any], makers: Any) -> Callable[..., Section]:
    """Return a row of decoding."""
    return partial(decode, f"Decode: {what}", make, makers)


ROWS = {
    "lognormal": Row("512 async calls in flight whose times have a long tail, in order", 100, lognormal),
    "auto": Row('`concurrency="auto"` beside every fixed number, in three stores', 110, auto),
    "decode-zlib": Row(
        "64 KB from zlib, which releases the GIL, on threads",
        *(65, decoding("zlib on threads", work_sync.Inflate, THREADS)),
    ),
    "decode-jpeg": Row(
        "256 x 256 JPEG with Pillow, which releases the GIL, on threads",
        *(65, decoding("JPEG on threads", work_sync.Jpeg, (*THREADS, work_sync.ours_with_tensorflow))),
    ),
    "decode-python": Row(
        "a function of about 1 ms of pure Python, in processes",
        *(75, decoding("pure Python in processes", work_sync.Spin, PROCESSES)),
    ),
}


if __name__ == "__main__":
    harness.main("Functions that take their time.", ROWS)
