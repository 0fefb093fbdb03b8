"""What the engine costs by itself: items that cost nothing, beside the same work in other libraries.

`items(range(n))`, an async identity at concurrency 64, in order, batches of 32, the loop in one thread and
the consumer in another; and how a run begins, ends and stops.

    python benchmarks/overhead.py [--help] [--quick] [--rows plain suspend] [--markdown FILE]
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import Any

import harness
import report
import work_async
from harness import Consume, Row, Run, Work
from report import Goal, Section, Spread
from work_async import BARE, BATCH, OURS, SPDL, STREAMABLE, TF, TF_CALLED, identity

import asyncfeed as af

CONCURRENCY = 64
PACKAGES = (
    *("asyncfeed", "numpy", "uvloop", "spdl_core", "streamable", "aiostream", "torchdata", "torch"),
    "tensorflow",
)
MAKERS = (work_async.ours, work_async.bare, work_async.spdl, work_async.streamable, work_async.aiostream)
NOT_ASYNC = (work_async.torchdata, work_async.tf_data)
run_ours: Run = partial(work_async.run_ours, CONCURRENCY, True)


async def suspending(item: int) -> int:
    """Return the item after one real suspension."""
    await asyncio.sleep(0)
    return item


# -- beside the others: plain, suspend


def beside(row: str, *, quick: bool) -> Section:
    """Measure all contenders on one row, in turns."""
    work, does = {
        "plain": (identity, "the function never suspends"),
        "suspend": (suspending, "the function suspends once per item"),
    }[row]
    section = Section(f"Engine alone: {does}", PACKAGES)
    makers = (*MAKERS, *NOT_ASYNC) if row == "plain" else MAKERS
    found, missing = harness.available([partial(maker, CONCURRENCY) for maker in makers])
    if row == "suspend":
        missing.append("torchdata.nodes and tf.data run no async functions: they cannot do this.")
    harness.forget_heap()  # of all that was imported, which each trial would go through
    entries = [harness.enter(contender, work, 0.1 if quick else 0.8) for contender in found]
    times = harness.race(entries, work, 2 if quick else 5, within=35)
    section.tables.append(
        harness.side_by_side(entries, times, base=OURS, unit="us/item", value=lambda seconds: seconds * 1e6)
    )
    section.remarks.extend(f"{entry.name}: {entry.note}." for entry in entries if entry.note)
    section.remarks.extend(missing)
    present = {entry.name for entry in entries}

    def slower(other: str, least: float) -> None:
        if other in present:
            measured = harness.ratio(times, over=other, under=OURS)
            goal = Goal(f"{other} / asyncfeed", f">= {least:g}", measured.show(), measured.median >= least)
            section.goals.append(goal)

    if row == "plain":
        slower(SPDL, 100)
        slower(STREAMABLE, 2)
        slower(TF, 1)
        slower(TF_CALLED, 1)
        measured = harness.ratio(times, over=OURS, under=BARE)
        section.goals.append(Goal("asyncfeed / bare loop", "<= 12", measured.show(), measured.median <= 12))
    else:
        slower(SPDL, 40)
    return section


# -- the same at any size


FAR = 10**9
YEAR = 365 * 24 * 3_600 * 1_000
"""The items of a year at a thousand a second."""


def scale(*, quick: bool) -> Section:
    """Measure the cost per item of runs of very different lengths, and in very different places of one."""
    section = Section("Engine alone: cost per item by number of items", PACKAGES)
    sizes = {10**4: 20, 10**5: 5, 10**6: 1} if quick else {10**4: 60, 10**5: 8, 10**6: 1}
    times: dict[int, list[float]] = {size: [] for size in sizes}
    harness.forget_heap()
    harness.cost(run_ours, identity, 10**5)
    for _ in range(1 if quick else 5):
        for size, turns in sizes.items():
            times[size].extend(harness.cost(run_ours, identity, size) for _ in range(turns))
    spreads = {size: Spread.of(values) for size, values in times.items()}
    base = spreads[10**4].median
    rows = [
        (f"10^{len(str(size)) - 1}", f"{spread.median / base:.2f}", spread.show(1e6), str(len(times[size])))
        for size, spread in spreads.items()
    ]
    section.tables.append(report.table(("items", "times that of 10^4", "us/item", "runs"), rows))
    medians = [spread.median for spread in spreads.values()]
    apart = max(medians) / min(medians)
    what = f"dearest / cheapest of 10^4 to 10^{len(str(max(sizes))) - 1} items"
    section.goals.append(Goal(what, "<= 1.20", f"{apart:.2f}", apart <= 1.2))
    far_and_near(section, quick=quick)
    beginning(section, quick=quick)
    return section


def far_and_near(section: Section, *, quick: bool) -> None:
    """Add what an item costs at the end of a source, beside its beginning, in turns."""
    count = 5 * 10**4 if quick else 2 * 10**5

    def run(total: int, skipped: int, shuffled: bool, _work: Work, items: int, consume: Consume) -> None:
        source = af.items(range(total))
        source = source.shuffle(seed=1) if shuffled else source
        for batch in source.skip(skipped).take(items).map(identity, concurrency=CONCURRENCY).batch(BATCH):
            consume(batch)

    rows = []
    for total, named in ((FAR, "10^9"), (YEAR, "a year at 1,000 a second")):
        for shuffled in (False, True):
            near, far = partial(run, total, 0, shuffled), partial(run, total, total - count, shuffled)
            times: dict[str, list[float]] = {"near": [], "far": []}
            for turn in range(2 if quick else 6):
                for which in ("near", "far") if turn % 2 else ("far", "near"):
                    times[which].append(harness.cost(near if which == "near" else far, identity, count))
            apart = harness.ratio(times, over="far", under="near")
            what = f"{named}{', shuffled' if shuffled else ''}"
            rows.append((what, Spread.of(times["near"]).show(1e6), Spread.of(times["far"]).show(1e6)))
            goal = Goal(f"end / beginning of {what}", "<= 1.20", apart.show(), apart.median <= 1.2)
            section.goals.append(goal)
    heads = (f"{count:,} items of", "at the beginning, us/item", "at the end")
    section.tables.append(report.table(heads, rows))


BEGIN = """
import resource, sys, time, tracemalloc
import asyncfeed as af

def begin(total, count=1_024):
    begun = time.perf_counter()
    with af.items(range(total)).shuffle(seed=1).batch(32).open() as feed:
        for _ in range(count // 32):
            next(feed)
        return time.perf_counter() - begun

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

cold = begin(2_048)  # imports what a run needs
before = peak()
warm = begin(10**9)
grown = peak() - before
tracemalloc.start()
begin(10**9)
print(cold, warm, grown, tracemalloc.get_traced_memory()[1])
"""


def beginning(section: Section, *, quick: bool) -> None:
    """Add what it takes to get the first thousand of 10^9 items in a random order, in fresh interpreters."""
    taken = [fresh(BEGIN) for _ in range(2 if quick else 8)]
    cold, warm, grown, traced = (Spread.of(values) for values in zip(*taken, strict=True))
    what = "`open` and the first 1,024 of 10^9, shuffled"
    section.goals.append(Goal(what, "< 50 ms", f"{warm.show(1e3)} ms", warm.median < 0.05))
    memory = max(grown.high, traced.high)
    section.goals.append(Goal(f"{what}: memory", "< 10 MB", f"{memory / 1e6:.2f} MB", memory < 10e6))
    section.remarks.append(
        "The first 1,024 of 10^9: `.shuffle(seed=1).batch(32)`, the second run of a fresh process; the first, of "
        f"2,048 items, which imports the engine, took {cold.show(1e3)} ms. Memory is the larger of the growth of "
        f"the peak resident size ({grown.high / 1e6:.2f} MB) and tracemalloc's peak in a third run "
        f"({traced.high / 1e6:.2f} MB)."
    )


def fresh(code: str, **environment: str) -> list[float]:
    """Return the numbers that a program prints in an interpreter of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return [float(word) for word in done.stdout.split()]


# -- import


def importing(*, quick: bool) -> Section:
    """Measure `import asyncfeed` in fresh interpreters that have imported numpy."""
    section = Section("Import", PACKAGES)
    code = "import numpy, time; t = time.perf_counter(); import asyncfeed; print(time.perf_counter() - t)"
    with tempfile.TemporaryDirectory() as cache:
        # Compiled once and then read, as where it is installed, whatever the environment says about that.
        kept = {"PYTHONPYCACHEPREFIX": cache, "PYTHONDONTWRITEBYTECODE": ""}
        taken = [fresh(code, **kept)[0] for _ in range(4 if quick else 16)]
    spread = Spread.of(taken[1:])  # the first one compiled
    goal = Goal(
        "`import asyncfeed` beyond `import numpy`", "< 30 ms", f"{spread.show(1e3)} ms", spread.median < 0.03
    )
    section.goals.append(goal)
    return section


# -- latency


def latency(*, quick: bool) -> Section:
    """Measure how soon a run begins, ends and stops."""
    section = Section("First batch, end, stop", PACKAGES)
    times = 20 if quick else 200
    harness.forget_heap()
    for what, target, measure in (
        ("first batch after `open`", 0.020, first_batch),
        ("end seen after the last item was done", 0.001, end_seen),
    ):
        taken = [measure() for _ in range(times)]
        section.goals.append(within(what, taken, target))
    stops = {
        state: [stop(pipeline, drawing=drawing) for _ in range(times)]
        for state, (pipeline, drawing) in states().items()
    }
    pooled = [seconds for taken in stops.values() for seconds in taken]
    section.goals.append(within("stop, from any of the states below", pooled, 0.010))
    rows = [
        (state, f"{percentile_ms(taken, 0.99)}", f"{percentile_ms(taken, 0.5)}", f"{percentile_ms(taken, 1)}")
        for state, taken in stops.items()
    ]
    section.tables.append(report.table(("stop while", "p99, ms", "median", "longest"), rows))
    return section


def within(what: str, taken: list[float], target: float) -> Goal:
    """Return a goal for the 99th percentile."""
    p99 = report.percentile(taken, 0.99)
    measured = f"{percentile_ms(taken, 0.99)} ms (median {percentile_ms(taken, 0.5)})"
    return Goal(f"{what}, p99 of {len(taken):,}", f"< {target * 1e3:g} ms", measured, p99 < target)


def percentile_ms(taken: list[float], q: float) -> str:
    """Return a percentile in milliseconds."""
    return report.number(report.percentile(taken, q) * 1e3)


def first_batch() -> float:
    """Return the seconds from describing a pipeline to its first batch."""
    begun = time.perf_counter()
    with af.items(range(10**6)).map(identity, concurrency=CONCURRENCY).batch(BATCH).open() as feed:
        next(feed)
        return time.perf_counter() - begun


def end_seen() -> float:
    """Return the seconds from the last call of the function to the end of the consumer's loop."""
    last = 0.0

    async def stamped(item: int) -> int:
        nonlocal last
        if item == 999:
            last = time.perf_counter()
        return item

    with af.items(range(1_000)).map(stamped, concurrency=CONCURRENCY).batch(BATCH).open() as feed:
        for _ in feed:
            pass
        return time.perf_counter() - last


def states() -> dict[str, tuple[af.Pipeline[Any], bool]]:
    """Return pipelines that stand still after their first batch, and whether a thread waits for another."""

    async def forever() -> None:
        await asyncio.get_running_loop().create_future()

    async def dries_up() -> AsyncIterator[int]:
        for item in range(BATCH):
            yield item
        await forever()

    async def first_only(item: int) -> int:
        if item >= BATCH:
            await forever()
        return item

    flowing = af.items(range(10**9)).map(identity, concurrency=CONCURRENCY).batch(BATCH)
    source = af.items(dries_up).map(identity, concurrency=CONCURRENCY).batch(BATCH)
    mapping = af.items(range(10**9)).map(first_only, concurrency=CONCURRENCY).batch(BATCH)
    unordered = af.items(range(10**9)).map(first_only, concurrency=CONCURRENCY, ordered=False).batch(BATCH)
    return {
        "nobody draws and everything is full": (flowing, False),
        "a source waits": (source, False),
        "64 functions wait, ordered": (mapping, False),
        "64 functions wait, unordered": (unordered, False),
        "64 functions and a consumer wait": (mapping, True),
    }


def stop(pipeline: af.Pipeline[Any], *, drawing: bool) -> float:
    """Return the seconds from `close` on a run that stands still until it, and the consumer, are free."""

    def draw() -> None:
        with suppress(af.ClosedError):
            next(feed)

    feed = pipeline.open()
    next(feed)
    consumer = threading.Thread(target=draw) if drawing else None
    if consumer:
        consumer.start()
    time.sleep(0.005)  # for all to come to a stand
    begun = time.perf_counter()
    feed.close()
    if consumer:
        consumer.join()
    return time.perf_counter() - begun


# -- all of it


ROWS = {
    "plain": Row("an async function that never suspends, in all libraries", 75, partial(beside, "plain")),
    "suspend": Row("one that suspends once per item (`asyncio.sleep(0)`)", 55, partial(beside, "suspend")),
    "scale": Row(
        "the cost per item of 10^4 to 10^6 items and at both ends of 10^9 and of a year's, and how 10^9 begin",
        *(50, scale),
    ),
    "import": Row("`import asyncfeed` beyond `import numpy`, in fresh interpreters", 10, importing),
    "latency": Row("the first batch, the end of the data, and stops from five states", 20, latency),
}


if __name__ == "__main__":
    harness.main("What the engine costs by itself.", ROWS)
