"""`using`: what a run opens for the functions of the user, and closes at its end, however it ends."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.errors import ClosedError, PipelineError
from asyncfeed.reading import MemoryStore
from asyncfeed.testing import run_virtual

LIMIT = 1 << 20


class Opened:
    """Makes context managers, and writes down what happens to them."""

    def __init__(self, name: str = "client", *, fails: str = "", takes: float = 0) -> None:
        self.name = name
        self.log: list[str] = []
        self.users: list[int] = []
        self.tasks: list[Any] = []
        self._fails = fails
        self._takes = takes

    @contextlib.asynccontextmanager
    async def on_loop(self) -> AsyncIterator[list[int]]:
        self.tasks.append(asyncio.current_task())
        await asyncio.sleep(self._takes)
        if self._fails == "opening":
            raise OSError(f"{self.name} is not there")
        self.log.append("opened")
        try:
            yield self.users
        finally:
            self.tasks.append(asyncio.current_task())
            await asyncio.sleep(self._takes)
            self.log.append("closed")
            if self._fails == "closing":
                raise OSError(f"{self.name} does not close")

    @contextlib.contextmanager
    def on_thread(self) -> Iterator[list[int]]:
        self.tasks.append(threading.current_thread())
        if self._fails == "opening":
            raise OSError(f"{self.name} is not there")
        self.log.append("opened")
        try:
            yield self.users
        finally:
            self.tasks.append(threading.current_thread())
            self.log.append("closed")


async def use(x: int, *, client: list[int]) -> int:
    await asyncio.sleep((x * 7919) % 13 / 1000)
    client.append(x)
    return 2 * x


def use_on_thread(x: int, client: list[int]) -> int:
    client.append(x)
    return 2 * x


@pytest.fixture
def opened() -> Opened:
    return Opened()


async def draw(pipeline: af.Pipeline[Any], count: int | None = None) -> list[Any]:
    items = []
    async with pipeline.open(memory_limit=LIMIT) as feed:
        async for item in feed:
            items.append(item)
            if len(items) == count:
                break
    return items


# -- once for a run


def test_it_is_opened_once_for_all_functions_and_closed_after_the_last(opened: Opened, seed: int) -> None:
    def both(x: int, *, client: list[int]) -> bool:
        assert client is opened.users
        assert opened.log == ["opened"]
        return x < 30

    pipeline = af.items(range(20)).using(client=opened.on_loop).map(use).map(use_on_thread).filter(both)
    assert run_virtual(draw(pipeline), seed=seed) == [4 * x for x in range(8)]
    assert sorted(opened.users) == sorted([*range(20), *range(0, 40, 2)])
    assert opened.log == ["opened", "closed"]
    assert opened.tasks[0] is opened.tasks[1]  # as task groups and time-outs need it


def test_a_plain_for_opens_it_on_the_loop_of_the_run(opened: Opened) -> None:
    assert list(af.items(range(3)).using(client=opened.on_loop).map(use)) == [0, 2, 4]
    assert list(af.items(range(3)).using(client=opened.on_loop).map(use)) == [0, 2, 4]
    assert opened.log == ["opened", "closed"] * 2


def test_any_other_context_manager_is_entered_and_left_on_threads(opened: Opened) -> None:
    assert list(af.items(range(3)).using(client=opened.on_thread).map(use).map(use_on_thread)) == [0, 4, 8]
    assert opened.log == ["opened", "closed"]
    assert all("worker" in thread.name for thread in opened.tasks)


def test_all_epochs_of_a_run_share_it(opened: Opened) -> None:
    for epoch in af.items(range(3)).using(client=opened.on_loop).map(use).epochs(3):
        assert list(epoch) == [0, 2, 4]
    assert opened.log == ["opened", "closed"]


def test_several_are_closed_in_the_opposite_order(seed: int) -> None:
    log: list[str] = []

    @contextlib.asynccontextmanager
    async def make(name: str) -> AsyncIterator[str]:
        log.append(f"open {name}")
        yield name
        log.append(f"close {name}")

    def join(x: int, *, b: str, a: str) -> str:
        return f"{x}{a}{b}"

    pipeline = af.items([1]).using(a=partial(make, "A"), b=partial(make, "B")).map(join)
    assert run_virtual(draw(pipeline), seed=seed) == ["1AB"]
    assert log == ["open A", "open B", "close B", "close A"]


# -- who gets it


def test_every_kind_of_function_may_ask_for_it(opened: Opened, seed: int) -> None:
    async def stream(x: int, client: list[int]) -> AsyncIterator[int]:
        for each in range(x):
            client.append(each)
            yield each

    def several(x: int, client: list[int]) -> list[int]:
        client.append(x)
        return [x, x]

    def noisy(x: int, rng: np.random.Generator, *, client: list[int]) -> int:
        client.append(x)
        return x

    def collate(items: list[int], *, client: list[int]) -> int:
        client.append(len(items))
        return sum(items)

    pipeline = (
        af.items([2])
        .using(client=opened.on_loop)
        .flat_map(stream)
        .flat_map(several)
        .interleave(several, cycle=2)
        .map(noisy, rng=True, seed=1)
        .map(use, retry=af.Retry(attempts=2), timeout=5)
        .batch(8, collate=collate)
    )
    assert run_virtual(draw(pipeline), seed=seed) == [8]
    assert opened.users[-1] == 8
    assert opened.log == ["opened", "closed"]


def test_a_decoder_may_ask_for_it(opened: Opened) -> None:
    def decode(data: bytes, client: list[int]) -> str:
        client.append(len(data))
        return data.decode()

    store = MemoryStore({"a": b"one", "b": b"three"})
    assert list(af.items(store.files()).using(client=opened.on_loop).load(decode)) == ["one", "three"]
    assert sorted(opened.users) == [3, 5]


def test_functions_before_it_and_functions_that_do_not_ask_get_nothing(opened: Opened) -> None:
    def before(x: int, client: str = "none") -> int:
        assert client == "none"
        return x

    pipeline = (
        af.items([1])
        .map(before)
        .using(client=opened.on_loop)
        .map(str)
        .map(int)
        .map(len, on_error="skip", skip_limit=1)
    )
    assert list(pipeline) == []


def test_what_a_partial_has_set_stays(opened: Opened) -> None:
    mine: list[int] = []
    pipeline = af.items([1, 2]).using(client=opened.on_loop).map(partial(use, client=mine))
    assert list(pipeline) == [2, 4]
    assert (sorted(mine), opened.users) == ([1, 2], [])
    whole = af.items([1, 2]).using(client=opened.on_loop).map(partial(partial(use)))
    assert list(whole) == [2, 4]
    assert sorted(opened.users) == [1, 2]


def test_an_object_that_can_be_called_may_ask_for_it(opened: Opened) -> None:
    class Use:
        async def __call__(self, x: int, client: list[int]) -> int:
            return await use(x, client=client)

    assert list(af.items([1, 2]).using(client=opened.on_loop).map(Use())) == [2, 4]
    assert sorted(opened.users) == [1, 2]


def test_a_later_one_of_the_same_name_is_for_later_functions() -> None:
    one, two = Opened("one"), Opened("two")
    pipeline = af.items([1]).using(client=one.on_loop).map(use).using(client=two.on_loop).map(use)
    assert list(pipeline) == [4]
    assert (one.users, two.users) == ([1], [2])


def test_inputs_of_a_merge_share_what_is_written_the_same() -> None:
    one, two = Opened("one"), Opened("two")
    factory = one.on_loop
    left = af.items([1, 2]).using(client=factory).map(use)
    right = af.items([3, 4]).using(client=factory).map(use)
    other = af.items([5, 6]).using(client=two.on_loop).map(use)
    assert list(af.zip(left, right, other)) == [(2, 6, 10), (4, 8, 12)]
    assert (one.log, two.log) == (["opened", "closed"], ["opened", "closed"])
    assert sorted(two.users) == [5, 6]


def test_shuffle_and_split_stay_exact_behind_it(opened: Opened) -> None:
    first, second = af.items(range(10)).using(client=opened.on_loop).shuffle(seed=1).map(use), None
    assert sorted(first) == [2 * x for x in range(10)]
    first, second = af.items(range(10)).using(client=opened.on_loop).split(0.5, 0.5, seed=1)
    assert sorted([*first.map(use), *second.map(use)]) == [2 * x for x in range(10)]


# -- however the run ends


def test_a_run_that_is_left_early_closes_it_after_the_functions_have_ended(opened: Opened) -> None:
    running = threading.Event()
    ended: list[list[str]] = []

    def slow(x: int, client: list[int]) -> int:
        running.set()
        time.sleep(0.05)
        ended.append(list(opened.log))
        return x

    with af.items(range(1000)).using(client=opened.on_loop).map(slow, concurrency=4).open() as feed:
        next(feed)
    assert running.is_set()
    assert opened.log == ["opened", "closed"]
    assert all(log == ["opened"] for log in ended)


def test_a_failure_of_a_function_is_raised_after_it_was_closed(opened: Opened, seed: int) -> None:
    async def fail(x: int, *, client: list[int]) -> int:
        await asyncio.sleep(0)
        if x == 5:
            raise ValueError("no")
        return x

    async def main() -> None:
        with pytest.raises(ValueError, match="no"):
            await draw(af.items(range(9)).using(client=opened.on_loop).map(fail))

    run_virtual(main, seed=seed)
    assert opened.log == ["opened", "closed"]


@pytest.mark.parametrize("kind", ["on_loop", "on_thread"])
def test_what_cannot_be_opened_ends_the_run_with_its_error(kind: str) -> None:
    good, bad, never = Opened("good"), Opened("bad", fails="opening"), Opened("never")
    asked: list[int] = []

    def source() -> Iterator[int]:
        asked.append(1)
        yield 1

    pipeline = af.items(source).using(a=good.on_loop, b=getattr(bad, kind), c=never.on_loop)
    with pytest.raises(OSError, match="bad is not there") as caught:
        list(pipeline)
    assert any(f"in using(b={kind})" in note for note in caught.value.__notes__)
    assert (good.log, never.log, asked) == (["opened", "closed"], [], [])


def test_what_does_not_close_is_reported_to_the_loop() -> None:
    bad, good = Opened("bad", fails="closing"), Opened("good")
    reported: list[str] = []

    async def main() -> list[int]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(str(context)))
        items = await draw(af.items([1]).using(good=good.on_loop, client=bad.on_loop).map(use))
        await asyncio.sleep(0)
        return items

    assert asyncio.run(main()) == [2]
    assert good.log == ["opened", "closed"]
    assert "bad does not close" in reported[0]


def test_a_stop_while_it_opens_cancels_it_and_closes_the_others(seed: int) -> None:
    first, slow = Opened("first"), Opened("slow", takes=100)

    async def main() -> None:
        feed = af.items([1]).using(a=first.on_loop, client=slow.on_loop).map(use).open(memory_limit=LIMIT)
        async with feed:
            waiting = asyncio.create_task(anext(feed))
            await asyncio.sleep(5)
            assert first.log == ["opened"]
            feed.stop()
            with pytest.raises((ClosedError, StopAsyncIteration)):
                await waiting

    run_virtual(main, seed=seed)
    assert (first.log, slow.log) == (["opened", "closed"], [])


def test_a_cancelled_consumer_closes_it(opened: Opened, seed: int) -> None:
    async def for_ever(x: int, *, client: list[int]) -> int:
        await asyncio.sleep(1e6)
        return x

    async def main() -> None:
        drawing = asyncio.create_task(draw(af.items([1]).using(client=opened.on_loop).map(for_ever)))
        await asyncio.sleep(5)
        drawing.cancel()
        await asyncio.wait([drawing])

    run_virtual(main, seed=seed)
    assert opened.log == ["opened", "closed"]


def test_a_slow_close_is_awaited(seed: int) -> None:
    slow = Opened("slow", takes=1)

    async def main() -> float:
        start = asyncio.get_running_loop().time()
        await draw(af.items([0]).using(client=slow.on_loop).map(use))
        return asyncio.get_running_loop().time() - start

    assert run_virtual(main, seed=seed) == 2
    assert slow.log == ["opened", "closed"]


def test_a_close_that_never_ends_is_reported_and_left_after_the_grace(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    @contextlib.asynccontextmanager
    async def stuck() -> AsyncIterator[int]:
        yield 1
        await asyncio.sleep(1e9)

    async def main() -> list[int]:
        pipeline = af.items([1]).using(one=stuck)
        items = []
        async with pipeline.open(memory_limit=LIMIT, grace=3) as feed:
            async for item in feed:
                items.append(item)
        return items

    assert run_virtual(main, seed=seed) == [1]
    assert "using" in caplog.text


def test_a_loop_that_is_closed_before_the_run_has_ended_leaves_nothing_open(opened: Opened) -> None:
    loop = asyncio.new_event_loop()

    async def begin() -> Any:
        feed = af.items(range(100)).using(client=opened.on_loop).map(use).open(memory_limit=LIMIT)
        await anext(feed)
        return feed

    feed = loop.run_until_complete(begin())
    loop.close()
    assert feed is not None
    assert opened.log[0] == "opened"


# -- errors that teach


def test_what_makes_no_sense_is_refused_in_its_line(opened: Opened) -> None:
    pipeline = af.items([1])
    with pytest.raises(PipelineError, match="give what to open by name"):
        pipeline.using()
    with pytest.raises(PipelineError, match="client must be a function that returns a context manager"):
        pipeline.using(client=[])  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="asks for 'client', which is open in this process"):
        pipeline.using(client=opened.on_loop).map(use_on_thread, on="process")
    with pytest.raises(TypeError, match=r"client gave no context manager, but int: write contextlib\.nullcontext"):
        list(pipeline.using(client=int).map(use))
    assert list(pipeline.using(client=partial(contextlib.nullcontext, [])).map(use)) == [2]


def test_it_is_shown_as_it_is_written(opened: Opened) -> None:
    def make() -> Any:
        return opened.on_loop()

    def build() -> af.Pipeline[Any]:
        return af.items([1]).using(client=make).map(use)

    assert repr(build()) == "items([1]).using(client=make).map(use)"
    assert build() == build()
    assert build() != af.items([1]).using(client=Callable).map(use)
    assert "using" in build().explain()
