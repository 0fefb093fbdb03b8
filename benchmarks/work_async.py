"""Ways to call an async function for every item, ours and the others': the contenders of overhead.py and work.py.

Each maker takes how many calls are to be in flight, and yields contenders whose batches of 32 come in the
thread that called, with the event loop in another where the library leaves that open.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import queue
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from harness import Consume, Contender, Made, Run, Work

import asyncfeed as af

BATCH = 32
OURS, UNORDERED, BARE = "asyncfeed", "asyncfeed, unordered", "bare loop"
SPDL, STREAMABLE = "SPDL, ordered", "streamable"
TF, TF_CALLED = "tf.data", "tf.data, x + 0"

NewLoop: TypeAlias = Callable[[], asyncio.AbstractEventLoop]


def loops() -> dict[str, NewLoop]:
    """Return the event loops to choose from: peers may have what we use."""
    found: dict[str, NewLoop] = {"asyncio": asyncio.SelectorEventLoop}
    if importlib.util.find_spec("uvloop"):
        import uvloop

        found["uvloop"] = uvloop.new_event_loop
    return found


# -- the functions


async def identity(item: int) -> int:
    """Return the item, without suspending."""
    return item


MEDIAN, SIGMA = 0.020, 0.5
SLOW, SLOW_SHARE = 0.500, 0.01
MOST = 100_000


def latencies(count: int = MOST) -> list[float]:
    """Return how long each item takes in seconds, the same for every contender and in every run."""
    rng = np.random.default_rng(1)
    taken = MEDIAN * np.exp(SIGMA * rng.normal(size=count))
    taken[rng.random(count) < SLOW_SHARE] = SLOW
    times: list[float] = taken.tolist()
    return times


TAKEN = latencies()


async def sleeping(item: int) -> int:
    """Return the item after the time that it takes."""
    await asyncio.sleep(TAKEN[item])
    return item


# -- ours


def run_ours(calls: int, ordered: bool, work: Work, items: int, consume: Consume) -> None:
    """Run our pipeline, as a user writes it."""
    for batch in af.items(range(items)).map(work, concurrency=calls, ordered=ordered).batch(BATCH):
        consume(batch)


def ours(calls: int) -> Iterator[Contender]:
    """Yield our one way, with nothing set but what the task says."""
    note = "batches are numpy arrays, the others' are lists"
    yield Contender(OURS, {"defaults": partial(run_ours, calls, True)}, note=note)


def ours_unordered(calls: int) -> Iterator[Contender]:
    """Yield the same in the order of completion."""
    yield Contender(UNORDERED, {"defaults": partial(run_ours, calls, False)}, ordered=False)


def bare(calls: int) -> Iterator[Contender]:
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
            for _ in range(calls):
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
        f"bare loop, {calls} tasks",
        each_loop(run, at_once),
        ordered=False,
        note=f"the same with {calls} in flight",
    )
    yield Contender(
        "bare loop, other thread",
        each_loop(from_thread, produced),
        note="one at a time, through a queue",
    )


def spdl(calls: int) -> Iterator[Contender]:
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
        builder.pipe(work, concurrency=calls, output_order=order).aggregate(BATCH).add_sink(4)
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


def streamable(calls: int) -> Iterator[Contender]:
    """Yield streamable, its loop in a thread of its own."""
    from streamable import stream

    def batches(work: Work, items: int) -> AsyncIterator[list[int]]:
        source: Any = stream(range(items))
        grouped: AsyncIterator[list[int]] = source.map(work, concurrency=calls).group(BATCH).__aiter__()
        return grouped

    yield Contender(STREAMABLE, each_loop(from_thread, batches))


def aiostream(calls: int) -> Iterator[Contender]:
    """Yield aiostream, its loop in a thread of its own."""
    from aiostream import pipe, stream

    async def batches(work: Work, items: int) -> AsyncIterator[list[int]]:
        function: Any = work
        mapped = stream.iterate(range(items)) | pipe.map(function, ordered=True, task_limit=calls)
        async with (mapped | pipe.chunks(BATCH)).stream() as streamer:
            async for batch in streamer:
                yield batch

    yield Contender("aiostream", each_loop(from_thread, batches))


def gathered(calls: int) -> Iterator[Contender]:
    """Yield what is written by hand: a semaphore around each call, all of them gathered."""

    def run(loop: NewLoop, work: Work, items: int, consume: Consume) -> None:
        async def main() -> None:
            semaphore = asyncio.Semaphore(calls)

            async def one(item: int) -> int:
                async with semaphore:
                    return await work(item)

            done = await asyncio.gather(*map(one, range(items)))
            for start in range(0, items, BATCH):
                consume(done[start : start + BATCH])

        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(main())

    note = "nothing comes before everything is done, and all of it is held"
    yield Contender("Semaphore and gather", each_loop(run), note=note)


def tf_data(calls: int) -> Iterator[Contender]:
    """Yield tf.data's C++ with a graph function, which stands in for an async one.

    It is imported in the process of all: measured before and after, nobody else became slower.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # else it greets, on every start
    import tensorflow as tf

    def settings(fn: Callable[[Any], Any], *consumers: str) -> Iterator[tuple[str, Run]]:
        for parallel in (None, 2, calls, tf.data.AUTOTUNE):
            told = {} if parallel is None else {"num_parallel_calls": parallel, "deterministic": True}
            named = "AUTOTUNE" if parallel == tf.data.AUTOTUNE else str(parallel).lower()

            def dataset(_: Work, items: int, told: dict[str, Any] = told) -> Any:
                return tf.data.Dataset.range(items).map(fn, **told).batch(BATCH)

            def arrays(work: Work, items: int, make: Callable[..., Any] = dataset) -> Any:
                return Again(make(work, items).as_numpy_iterator)

            for consumer in consumers:
                yield f"parallel calls {named}, {consumer}", Made(dataset if consumer == "tensors" else arrays)

    note = "C++; it sees that the function returns its argument, and never calls it"
    identity = dict(settings(lambda item: item, "tensors", "arrays"))
    yield Contender(TF, identity, runs_work=False, note=note)
    called = dict(settings(lambda item: item + 0, "arrays"))
    yield Contender(TF_CALLED, called, runs_work=False, note="C++, with a function that it does call")


class Again:
    """An iterable from a function that returns an iterator."""

    def __init__(self, begin: Callable[[], Iterator[Any]]) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[Any]:
        return self._begin()


def torchdata(calls: int) -> Iterator[Contender]:
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

    settings = dict(named(*pair) for pair in [(calls, None), (1, 32), (4, 32), (1, 1024), (4, 1024)])
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

    A full queue blocks the loop. With nothing to wait for that is right, and cheaper than a group per batch.
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

        class SkipBudget(asyncio.DefaultEventLoopPolicy):
            def new_event_loop(self) -> asyncio.AbstractEventLoop:
                return loop()

        before = asyncio.get_event_loop_policy()
        asyncio.set_event_loop_policy(SkipBudget())
        try:
            yield
        finally:
            asyncio.set_event_loop_policy(before)
