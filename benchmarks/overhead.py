"""What the engine costs by itself: items that cost nothing, beside the same work in other libraries.

`items(range(n))`, an async identity at concurrency 64, in order, batches of 32, the loop in one thread and
the consumer in another. Rows:

    plain    the function never suspends
    suspend  it suspends once per item (`await asyncio.sleep(0)`)
    scale    cost per item from 10^4 to 10^7 items
    import   `import asyncfeed` beyond `import numpy`
    latency  first batch, end of data, stop

    python benchmarks/overhead.py [--quick] [--rows plain suspend] [--markdown FILE]
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeAlias

import harness
from harness import Consume, Contender, Entry, Goal, Run, Section, Spread, Work

import asyncfeed as af

CONCURRENCY = 64
BATCH = 32
OURS, BARE, SPDL, STREAMABLE = "asyncfeed", "bare loop", "SPDL, ordered", "streamable"
PACKAGES = ("asyncfeed", "numpy", "uvloop", "spdl_core", "streamable", "aiostream", "torchdata", "torch")

NewLoop: TypeAlias = Callable[[], asyncio.AbstractEventLoop]


async def identity(item: int) -> int:
    """Return the item, without suspending."""
    return item


async def suspending(item: int) -> int:
    """Return the item after one real suspension."""
    await asyncio.sleep(0)
    return item


# -- the contenders


def loops() -> dict[str, NewLoop]:
    """Return the event loops to choose from: peers may have what we use."""
    found: dict[str, NewLoop] = {"asyncio": asyncio.SelectorEventLoop}
    if importlib.util.find_spec("uvloop"):
        import uvloop

        found["uvloop"] = uvloop.new_event_loop
    return found


def run_ours(work: Work, items: int, consume: Consume) -> None:
    """Run our pipeline, as a user writes it."""
    for batch in af.items(range(items)).map(work, concurrency=CONCURRENCY).batch(BATCH):
        consume(batch)


def ours() -> Iterator[Contender]:
    """Yield our one way, with nothing set but what the task says."""
    yield Contender(OURS, {"defaults": run_ours}, note="batches are numpy arrays, the others' are lists")


def bare() -> Iterator[Contender]:
    """Yield what cannot be beaten: no concurrency, no other thread; and both added by hand."""

    async def one_by_one(work: Work, items: int, consume: Consume) -> None:
        batch: list[int] = []
        for item in range(items):
            batch.append(await work(item))
            if len(batch) == BATCH:
                consume(batch)
                batch = []
        if batch:
            consume(batch)

    async def at_once(work: Work, items: int, consume: Consume) -> None:
        source = iter(range(items))
        batch: list[int] = []

        async def worker() -> None:
            nonlocal batch
            for item in source:
                done = await work(item)  # first: another task may have begun a new batch meanwhile
                batch.append(done)
                if len(batch) == BATCH:
                    full, batch = batch, []
                    consume(full)

        async with asyncio.TaskGroup() as group:
            for _ in range(CONCURRENCY):
                group.create_task(worker())
        if batch:
            consume(batch)

    def run(
        main: Callable[[Work, int, Consume], Coroutine[Any, Any, None]],
        loop: NewLoop,
        work: Work,
        items: int,
        consume: Consume,
    ) -> None:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(main(work, items, consume))

    async def produced(work: Work, items: int) -> AsyncIterator[list[int]]:
        batch: list[int] = []
        for item in range(items):
            batch.append(await work(item))
            if len(batch) == BATCH:
                yield batch
                batch = []
        if batch:
            yield batch

    yield Contender(
        BARE,
        each_loop(run, one_by_one),
        note="one at a time, in the consumer's thread: the limit",
    )
    yield Contender(
        "bare loop, 64 tasks",
        each_loop(run, at_once),
        ordered=False,
        note="the same with 64 in flight",
    )
    yield Contender(
        "bare loop, other thread",
        each_loop(from_thread, produced),
        note="one at a time, through a queue",
    )


def spdl() -> Iterator[Contender]:
    """Yield SPDL as its documentation has it, and with everything off that costs."""
    from spdl.pipeline import AsyncQueue, PipelineBuilder

    def run(
        source: Callable[[int], Any],
        order: str,
        extra: dict[str, Any],
        work: Work,
        items: int,
        consume: Consume,
    ) -> None:
        builder: Any = PipelineBuilder().add_source(source(items))  # its types stop at `pipe`
        builder.pipe(work, concurrency=CONCURRENCY, output_order=order).aggregate(BATCH).add_sink(4)
        pipeline = builder.build(num_threads=1, **extra)
        with pipeline.auto_stop():
            for batch in pipeline:
                consume(batch)

    async def arange(items: int) -> AsyncIterator[int]:
        for item in range(items):
            yield item

    def on(loop: NewLoop, work: Work, items: int, consume: Consume) -> None:
        with default_loop(loop):
            run(
                arange,
                "input",
                {"task_hook_factory": lambda _: [], "queue_class": AsyncQueue},
                work,
                items,
                consume,
            )

    yield Contender(SPDL, {"defaults": partial(run, range, "input", {})})
    yield Contender("SPDL, unordered", {"defaults": partial(run, range, "completion", {})}, ordered=False)
    yield Contender("SPDL, ordered, tuned", each_loop(on), note="its statistics off, an async source")


def streamable() -> Iterator[Contender]:
    """Yield streamable, its loop in a thread of its own."""
    from streamable import stream

    def batches(work: Work, items: int) -> AsyncIterator[list[int]]:
        source: Any = stream(range(items))
        grouped: AsyncIterator[list[int]] = source.map(work, concurrency=CONCURRENCY).group(BATCH).__aiter__()
        return grouped

    yield Contender(STREAMABLE, each_loop(from_thread, batches))


def aiostream() -> Iterator[Contender]:
    """Yield aiostream, its loop in a thread of its own."""
    from aiostream import pipe, stream

    async def batches(work: Work, items: int) -> AsyncIterator[list[int]]:
        function: Any = work
        mapped = stream.iterate(range(items)) | pipe.map(function, ordered=True, task_limit=CONCURRENCY)
        async with (mapped | pipe.chunks(BATCH)).stream() as streamer:
            async for batch in streamer:
                yield batch

    yield Contender("aiostream", each_loop(from_thread, batches))


def torchdata() -> Iterator[Contender]:
    """Yield torchdata's nodes, which know no async functions: theirs is a sync identity on threads."""
    from torchdata.nodes import Batcher, IterableWrapper, Loader, ParallelMapper

    def run(workers: int, prebatch: int | None, _: Work, items: int, consume: Consume) -> None:
        mapped = ParallelMapper(
            IterableWrapper(range(items)),
            lambda item: item,
            num_workers=workers,
            method="thread",
            prebatch=prebatch,
        )
        for batch in Loader(Batcher(mapped, BATCH, drop_last=False)):
            consume(batch)

    def named(workers: int, prebatch: int | None) -> tuple[str, Run]:
        return f"workers {workers}, prebatch {prebatch}", partial(run, workers, prebatch)

    settings = dict(named(*pair) for pair in [(64, None), (1, 32), (4, 32), (1, 1024), (4, 1024)])
    yield Contender(
        "torchdata.nodes", settings, runs_work=False, note="a sync identity: it runs no async functions"
    )


def each_loop(run: Callable[..., None], *first: object) -> dict[str, Run]:
    """Return a way to run for each event loop, which it takes after the `first` arguments."""
    return {name: partial(run, *first, loop) for name, loop in loops().items()}


def from_thread(
    batches: Callable[[Work, int], AsyncIterator[list[int]]],
    loop: NewLoop,
    work: Work,
    items: int,
    consume: Consume,
) -> None:
    """Run an async iterator in a thread of its own and consume here, through a small queue.

    A full queue blocks the loop. With nothing to wait for that is right, and cheaper than a hop per batch.
    """
    handed: queue.Queue[list[int] | None] = queue.Queue(4)

    async def produce() -> None:
        async for batch in batches(work, items):
            handed.put(batch)

    def main() -> None:
        try:
            with asyncio.Runner(loop_factory=loop) as runner:
                runner.run(produce())
        finally:
            handed.put(None)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(main)
        while (batch := handed.get()) is not None:
            consume(batch)
        done.result()


@contextmanager
def default_loop(loop: NewLoop) -> Iterator[None]:
    """Let `asyncio.run` use a loop, for a library that offers no choice of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # of policies, in Python 3.14; there is no other way in

        class Policy(asyncio.DefaultEventLoopPolicy):
            def new_event_loop(self) -> asyncio.AbstractEventLoop:
                return loop()

        before = asyncio.get_event_loop_policy()
        asyncio.set_event_loop_policy(Policy())
        try:
            yield
        finally:
            asyncio.set_event_loop_policy(before)


# -- beside the others: plain, suspend


def beside(row: str, *, quick: bool) -> Section:
    """Measure all contenders on one row, in turns."""
    work, does = {
        "plain": (identity, "the function never suspends"),
        "suspend": (suspending, "the function suspends once per item"),
    }[row]
    section = new_section(f"Engine alone: {does}", row)
    found, missing = harness.available([ours, bare, spdl, streamable, aiostream, torchdata])
    if row == "suspend":
        unable = [contender.name for contender in found if not contender.runs_work]
        missing.extend(f"{name} runs no async functions: it cannot do this." for name in unable)
        found = [contender for contender in found if contender.runs_work]
    entries = [harness.enter(contender, work, 0.1 if quick else 0.4) for contender in found]
    times = harness.race(entries, work, rounds=2 if quick else 7)
    section.tables.append(side_by_side(entries, times))
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
        measured = harness.ratio(times, over=OURS, under=BARE)
        section.goals.append(Goal("asyncfeed / bare loop", "<= 12", measured.show(), measured.median <= 12))
    else:
        slower(SPDL, 40)
    return section


def side_by_side(entries: list[Entry], times: dict[str, list[float]]) -> str:
    """Return the table of a race, the slowest first."""
    ranked = sorted(entries, key=lambda entry: -statistics.median(times[entry.name]))
    rows = [
        (
            entry.name,
            harness.ratio(times, over=entry.name, under=OURS).show() if entry.name != OURS else "1",
            Spread.of(times[entry.name]).show(1e6),
            f"{entry.items:,}",
            entry.setting,
        )
        for entry in ranked
    ]
    return harness.table(("", "times asyncfeed's", "us/item", "items", "setting"), rows)


# -- the same at any size


def scale(*, quick: bool) -> Section:
    """Measure the cost per item of runs of very different lengths, in turns."""
    section = new_section("Engine alone: cost per item by number of items", "scale")
    sizes = {10**4: 20, 10**5: 5, 10**6: 2} if quick else {10**4: 30, 10**5: 6, 10**6: 2, 10**7: 1}
    times: dict[int, list[float]] = {size: [] for size in sizes}
    harness.forget_heap()
    harness.cost(run_ours, identity, 10**5)
    for _ in range(1 if quick else 3):
        for size, turns in sizes.items():
            times[size].extend(harness.cost(run_ours, identity, size) for _ in range(turns))
    spreads = {size: Spread.of(values) for size, values in times.items()}
    base = spreads[10**4].median
    rows = [
        (f"10^{len(str(size)) - 1}", f"{spread.median / base:.2f}", spread.show(1e6), str(len(times[size])))
        for size, spread in spreads.items()
    ]
    section.tables.append(harness.table(("items", "times that of 10^4", "us/item", "runs"), rows))
    medians = [spread.median for spread in spreads.values()]
    apart = max(medians) / min(medians)
    what = f"dearest / cheapest of 10^4 to 10^{len(str(max(sizes))) - 1} items"
    section.goals.append(Goal(what, "<= 1.20", f"{apart:.2f}", apart <= 1.2))
    return section


# -- import


def importing(*, quick: bool) -> Section:
    """Measure `import asyncfeed` in fresh interpreters that have imported numpy."""
    section = new_section("Import", "import")
    code = "import numpy, time; t = time.perf_counter(); import asyncfeed; print(time.perf_counter() - t)"
    taken = []
    with tempfile.TemporaryDirectory() as cache:
        # Compiled once and then read, as where it is installed, whatever the environment says about that.
        env = {**os.environ, "PYTHONPYCACHEPREFIX": cache, "PYTHONDONTWRITEBYTECODE": ""}
        for _ in range(4 if quick else 16):
            command = [sys.executable, "-c", code]
            # S603: our own interpreter with a constant program.
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
            taken.append(float(done.stdout))
    spread = Spread.of(taken[1:])  # the first one compiled
    goal = Goal(
        "`import asyncfeed` beyond `import numpy`", "< 30 ms", f"{spread.show(1e3)} ms", spread.median < 0.03
    )
    section.goals.append(goal)
    return section


# -- latency


def latency(*, quick: bool) -> Section:
    """Measure how soon a run begins, ends and stops."""
    section = new_section("First batch, end, stop", "latency")
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
    section.tables.append(harness.table(("stop while", "p99, ms", "median", "longest"), rows))
    return section


def within(what: str, taken: list[float], target: float) -> Goal:
    """Return a goal for the 99th percentile."""
    p99 = harness.percentile(taken, 0.99)
    measured = f"{percentile_ms(taken, 0.99)} ms (median {percentile_ms(taken, 0.5)})"
    return Goal(f"{what}, p99 of {len(taken):,}", f"< {target * 1e3:g} ms", measured, p99 < target)


def percentile_ms(taken: list[float], q: float) -> str:
    """Return a percentile in milliseconds."""
    return harness.number(harness.percentile(taken, q) * 1e3)


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


def new_section(title: str, row: str) -> Section:
    """Return an empty section with the command that repeats it."""
    return Section(title, f"python benchmarks/overhead.py --rows {row}", PACKAGES)


ROWS: dict[str, Callable[..., Section]] = {
    "plain": partial(beside, "plain"),
    "suspend": partial(beside, "suspend"),
    "scale": scale,
    "import": importing,
    "latency": latency,
}


def main() -> None:
    """Measure the rows asked for, print them, and put them into the results."""
    chosen = harness.options("What the engine costs by itself.", list(ROWS))
    sections = []
    for row in chosen.rows:
        sections.append(ROWS[row](quick=chosen.quick))
        print(sections[-1].markdown(), flush=True)
    if chosen.markdown:
        harness.write(chosen.markdown, sections)


if __name__ == "__main__":
    main()
