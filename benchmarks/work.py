"""What the engine makes of functions that take their time: waiting, decoding, computing.

Rows:

    lognormal       512 async calls in flight whose times have a long tail, in order
    auto            concurrency="auto" beside every fixed number, in three stores
    decode-zlib     zlib, which releases the GIL, on threads
    decode-jpeg     JPEG with Pillow, on threads
    decode-python   pure Python, in processes

    python benchmarks/work.py [--quick] [--rows lognormal auto] [--markdown FILE]
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
import work_async
import work_sync
from harness import Contender, Entry, Goal, Made, Section, Spread, Work
from work_async import BATCH, OURS, SPDL, UNORDERED

import asyncfeed as af

PACKAGES = ("asyncfeed", "numpy", "uvloop")
PEERS = ("spdl_core", "streamable", "aiostream")
SYNC_PEERS = ("spdl_core", "torch", "grain", "tensorflow", "pillow")


def rotated(entries: list[Any], turn: int) -> list[Any]:
    """Return the entries in the order of a round: the first moves on by one each round."""
    start = turn % len(entries)
    return [*entries[start:], *entries[:start]]


# -- lognormal: a long tail


IN_FLIGHT = 512
MEDIAN, SIGMA = 0.020, 0.5
SLOW, SLOW_SHARE = 0.500, 0.01
SHARES = {OURS: 1.0, UNORDERED: 1.0, "Semaphore and gather": 1.0, "SPDL, unordered": 0.3}
"""How many of the items each contender gets, so that they take about as long; 0.15 where nothing is said."""


def latencies(count: int = 100_000) -> list[float]:
    """Return how long each item takes in seconds, the same for every contender and in every run."""
    rng = np.random.default_rng(1)
    taken = MEDIAN * np.exp(SIGMA * rng.normal(size=count))
    taken[rng.random(count) < SLOW_SHARE] = SLOW
    times: list[float] = taken.tolist()
    return times


def lognormal(*, quick: bool) -> Section:
    """Measure 512 calls in flight that take 20 ms, most of them."""
    section = new_section("512 in flight, a long tail", "lognormal", PEERS)
    taken = latencies()
    full = 10_000 if quick else 60_000

    async def work(item: int) -> int:
        await asyncio.sleep(taken[item])
        return item

    makers = (
        *(work_async.ours, work_async.ours_unordered, work_async.spdl, work_async.streamable),
        *(work_async.aiostream, work_async.gathered),
    )
    found, missing = harness.available([partial(maker, IN_FLIGHT) for maker in makers])
    harness.forget_heap()
    entries = [enter_tail(contender, work, full) for contender in found]
    times = harness.race(entries, work, rounds=1 if quick else 5)
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
    ideal = IN_FLIGHT / statistics.mean(taken[:full])
    section.remarks.append(
        f"A call sleeps: lognormal with a median of {MEDIAN * 1e3:g} ms and sigma {SIGMA:g}, {SLOW_SHARE:.0%} "
        f"{SLOW * 1e3:g} ms instead, the same for all contenders. The ideal, {IN_FLIGHT} / mean, is {ideal:,.0f} "
        f"items/s; ours is {1 / statistics.median(times[OURS]) / ideal:.0%} of it, with the filling at the "
        "beginning and the last slow calls at the end in the time."
    )
    section.remarks.extend(f"{entry.name}: {entry.note}." for entry in entries if entry.note)
    section.remarks.extend(missing)
    return section


def enter_tail(contender: Contender, work: Work, full: int) -> Entry:
    """Check a contender and choose its setting, from runs long enough that the tail does not choose."""
    harness.check(contender, work)
    items = round(full * SHARES.get(contender.name, 0.15))
    trials = {
        setting: harness.cost(run, work, max(1_000, items // 4)) if len(contender.settings) > 1 else 0.0
        for setting, run in contender.settings.items()
    }
    best = min(trials, key=trials.__getitem__)
    tried = f"chosen from {'; '.join(trials)}" if len(trials) > 1 else ""
    note = "; ".join(filter(None, (contender.note, tried)))
    return Entry(contender.name, contender.settings[best], best, items, note)


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


AUTO = 'concurrency="auto"'
FIXED = tuple(2**power for power in range(10))


def run_store(store: Callable[[], Any], limit: Any, _: object, items: int, consume: Callable[[Any], None]) -> None:
    """Read so many items from a new store."""
    get: Callable[[int], Awaitable[int]] = store().get
    for batch in af.items(range(items)).map(get, concurrency=limit).batch(BATCH):
        consume(batch)


def auto(*, quick: bool) -> Section:
    """Measure every fixed concurrency once, and the best of them beside "auto", in turns."""
    section = new_section('concurrency="auto" beside fixed ones', "auto", ())
    once, seconds, rounds = (0.2, 1.0, 1) if quick else (1.0, 5.0, 5)
    columns: list[dict[str, str]] = []
    stores: tuple[Any, ...] = (Near, Line, Counter)
    for store in stores:
        harness.check(Contender(AUTO, {"": partial(run_store, store, "auto")}), unused)
        rates: dict[int, float] = {}
        for limit in FIXED:
            items = max(BATCH, round(once * min(store.most, limit / store.latency)))
            rates[limit] = 1 / harness.cost(partial(run_store, store, limit), unused, items)
        best = max(rates, key=rates.__getitem__)
        fixed = f"{best} at a time"
        items = round(seconds * rates[best])
        entries = [
            Entry(AUTO, partial(run_store, store, "auto"), "", items, ""),
            Entry(fixed, partial(run_store, store, best), "", items, ""),
        ]
        times = harness.race(entries, unused, rounds)
        measured = harness.ratio(times, over=fixed, under=AUTO)
        what = f"the store {store.says}: auto / {fixed}, items/s"
        section.goals.append(Goal(what, ">= 0.9", measured.show(), measured.median >= 0.9))
        columns.append(
            {str(limit): harness.number(rate) for limit, rate in rates.items()}
            | {AUTO: Spread.of([1 / each for each in times[AUTO]]).show()}
            | {"the best again": Spread.of([1 / each for each in times[fixed]]).show()}
        )
    rows = [(name, *(column[name] for column in columns)) for name in columns[0]]
    section.tables.append(harness.table(("items/s", *(store.says for store in stores)), rows))
    section.remarks.append(
        f"Each fixed number once, for {once:g} s; then auto and the best in turns, over as many items as the best "
        f"reads in {seconds:g} s, from the start: what auto needs to find its number counts."
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
    """Check a contender and choose its setting; quickly, take the first."""
    if quick:
        first = next(iter(contender.settings))
        contender = replace(contender, settings={first: contender.settings[first]})
    check_decoded(contender, job)
    trials: dict[str, float] = {}
    for setting, run in contender.settings.items():
        trials[setting] = steady(run, job, items // 2) if len(contender.settings) > 1 else 0.0
        if isinstance(run, Made):
            run.drop()
    best = min(trials, key=trials.__getitem__)
    tried = f"chosen from {'; '.join(trials)}" if len(trials) > 1 else ""
    note = "; ".join(filter(None, (contender.note, tried)))
    return Entry(contender.name, contender.settings[best], best, items, note)


def decode(
    row: str,
    title: str,
    make: Callable[[], Any],
    makers: Iterable[Callable[[], Iterator[Contender]]],
    *,
    quick: bool,
) -> Section:
    """Measure a job in all contenders, in turns, beside one thread and two processes that do nothing else."""
    section = new_section(title, row, SYNC_PEERS)
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
    items = max(320, round((0.6 if quick else 5.0) / alone / 64) * 64)
    entries = [enter_decoder(contender, job, items, quick=quick) for contender in found]
    ours, one, two = work_sync.OURS, work_sync.ONE, work_sync.TWO
    times: dict[str, list[float]] = {name: [] for name in (two, *(entry.name for entry in entries))}
    for turn in range(1 if quick else 5):
        times[two].append(work_sync.two_processes(job, items))
        for entry in rotated(entries, turn):
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
    return harness.number(statistics.median(times) * 1e6)


# -- all of it


THREADS = (
    *(work_sync.ours, work_sync.executors, work_sync.spdl, work_sync.torch),
    *(work_sync.grain_threads, work_sync.grain_processes, work_sync.tf_data),
)
PROCESSES = (
    work_sync.ours_in_processes,
    *(work_sync.process_pool, work_sync.torch, work_sync.grain_processes),
)


def new_section(title: str, row: str, packages: Iterable[str]) -> Section:
    """Return an empty section with the command that repeats it."""
    return Section(title, f"python benchmarks/work.py --rows {row}", (*PACKAGES, *packages))


def decoding(row: str, what: str, make: Callable[[], Any], makers: Any) -> Callable[..., Section]:
    """Return a row of decoding."""
    return partial(decode, row, f"Decode: {what}", make, makers)


ROWS: dict[str, Callable[..., Section]] = {
    "lognormal": lognormal,
    "auto": auto,
    "decode-zlib": decoding("decode-zlib", "zlib on threads", work_sync.Inflate, THREADS),
    "decode-jpeg": decoding("decode-jpeg", "JPEG on threads", work_sync.Jpeg, THREADS),
    "decode-python": decoding("decode-python", "pure Python in processes", work_sync.Spin, PROCESSES),
}


def main() -> None:
    """Measure the rows asked for, print them, and put them into the results."""
    chosen = harness.options("Functions that take their time.", list(ROWS))
    sections = []
    for row in chosen.rows:
        sections.append(ROWS[row](quick=chosen.quick))
        print(sections[-1].markdown(), flush=True)
    if chosen.markdown:
        harness.write(chosen.markdown, sections)


if __name__ == "__main__":
    main()
