"""User code that does not stop: what hangs is named and left behind, and errors of closing are told."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest

import asyncfeed as af
from asyncfeed.testing import VirtualLoop, no_leaks, run_virtual
from tests.engine.inside import Run
from tests.engine.outside import loop_threads, run_threads
from tests.engine.witness import Stage


def test_a_thread_in_a_function_is_waited_for() -> None:
    """It ends by itself within the grace: nothing is left, nothing is logged."""
    stage = Stage()
    with no_leaks(types=(af.Feed, Run)):
        feed = af.items(range(9)).map(stage.hang, concurrency=1).open(grace=30)
        feed.__enter__()
        assert stage.entered.wait(10)
        feed.stop()
        stage.leave.set()
        feed.close()
        assert stage.left.is_set()
        del feed


@pytest.mark.parametrize(
    "build",
    [
        lambda stage: af.items(range(9)).map(stage.hang),
        lambda stage: af.items(range(9)).flat_map(lambda _: stage.draw()),
        lambda stage: af.items(stage.draw),
        lambda stage: af.items(range(9)).batch(2).map(stage.hang),
    ],
)
def test_a_function_that_hangs_is_named_with_its_stack(build: Any, caplog: pytest.LogCaptureFixture) -> None:
    """`close` returns after the grace; the log says, once, which stage and which line."""
    stage = Stage()
    with caplog.at_level(logging.WARNING, "asyncfeed"):
        with build(stage).open(grace=0.05) as feed:
            feed.__enter__()
            assert stage.entered.wait(10)
        assert run_threads()
        assert not loop_threads()
    stage.leave.set()
    (record,) = caplog.records
    message = record.getMessage()
    assert "is still in" in message
    assert "self.leave.wait(30)" in message
    assert any(name in message for name in ("map(", "items("))


def test_a_function_that_hangs_is_named_on_a_loop_too(caplog: pytest.LogCaptureFixture) -> None:
    """`async with` ends after the grace as well."""
    stage = Stage()

    async def main() -> None:
        async with af.items(range(9)).map(stage.hang).open(grace=0.05):
            while not stage.entered.is_set():
                await asyncio.sleep(0.001)

    with caplog.at_level(logging.WARNING, "asyncfeed"):
        asyncio.run(main())
    stage.leave.set()
    (record,) = caplog.records
    assert "self.leave.wait(30)" in record.getMessage()


def test_a_task_that_refuses_to_end_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """An async function that waits on in its `finally`."""
    stage = Stage()
    release = asyncio.Event()

    async def refuses(x: int) -> int:
        stage.entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            await release.wait()
        return x

    async def main() -> None:
        async with af.items(range(9)).map(refuses, concurrency=1).open(grace=0.05):
            while not stage.entered.is_set():
                await asyncio.sleep(0.001)
        release.set()

    with caplog.at_level(logging.WARNING, "asyncfeed"):
        asyncio.run(main())
    (record,) = caplog.records
    assert "refuses" in record.getMessage()


@pytest.mark.parametrize("where", ["map", "source", "flat_map"])
@pytest.mark.parametrize("leave", ["closed", "abandoned"])
def test_a_task_that_never_ends_is_left_shortly_after_the_grace(
    leave: str, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not keep `aclose` waiting, nor `asyncio.run`."""
    loop = VirtualLoop()
    release = asyncio.Event()

    async def never(x: int = 0) -> int:
        while not release.is_set():
            with suppress(asyncio.CancelledError):
                await release.wait()
        return x

    async def rows(_: int = 0) -> AsyncIterator[int]:
        yield 0
        await never()

    async def one_then_never(x: int) -> int:
        return x if x == 0 else await never()

    pipelines: dict[str, af.Pipeline[Any]] = {
        "map": af.items(range(9)).map(one_then_never, concurrency=2),
        "source": af.items(rows),
        "flat_map": af.items(range(9)).flat_map(rows),
    }

    async def main() -> None:
        feed = pipelines[where].open(grace=5)
        await anext(feed)
        await asyncio.sleep(1)
        if leave == "closed":
            await feed.aclose()
            assert loop.time() == pytest.approx(6.5)

    async def cancel_all() -> None:
        if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        assert loop.time() == pytest.approx(6.5)
        release.set()
        await asyncio.sleep(1)

    with caplog.at_level(logging.WARNING, "asyncfeed"), asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())
        runner.run(cancel_all())
    assert not loop.complaints
    (record,) = [each for each in caplog.records if each.name == "asyncfeed"]
    assert "waits no longer" in record.getMessage()


# -- functions that keep the cancellation to themselves


async def stubborn(x: int) -> int:
    try:
        await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        pass
    return x


async def stubborn_source() -> AsyncIterator[int]:
    for x in range(10**9):
        yield await stubborn(x)


@pytest.mark.parametrize(
    "pipeline",
    [
        af.items(range(10**9)).map(stubborn, concurrency=3),
        af.items(stubborn_source),
        af.items(range(9)).flat_map(lambda _: stubborn_source()),
        af.items(range(10**9)).map(stubborn).batch(1).flat_map(lambda _: stubborn_source(), concurrency=2),
    ],
    ids=["map", "source", "flat_map", "flat_map of a map"],
)
def test_swallowing_the_cancellation_does_not_keep_a_run_alive(pipeline: Any, seed: int) -> None:
    """`asyncio.wait_for` on Python 3.11 does so, at times."""

    async def main() -> None:
        async with pipeline.open(grace=1000) as feed:
            await anext(feed)
        assert asyncio.get_running_loop().time() < 100

    run_virtual(main, seed=seed)


# -- errors of closing


def reported(pipeline: Callable[[], af.Pipeline[Any]], draws: int) -> tuple[list[Any], list[str]]:
    """Return what a consumer gets, and what the loop's exception handler is told."""
    told: list[str] = []
    got: list[Any] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(repr(context.get("exception"))))
        async with pipeline().open() as feed:
            try:
                for _ in range(draws):
                    got.append(await anext(feed))
            except Exception as error:  # noqa: BLE001 - it is what is tested
                got.append(repr(error))
        del feed
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(main())
    return got, told


class BadlyClosed:
    """An iterator of `count` items whose closing fails; `failing` before that, too."""

    def __init__(self, count: int = 3, *, failing: bool = False) -> None:
        self.next = 0
        self.count = count
        self.failing = failing

    def __iter__(self) -> BadlyClosed:
        return self

    def __next__(self) -> int:
        self.next += 1
        if self.next > self.count:
            raise ValueError("first") if self.failing else StopIteration
        return self.next

    def close(self) -> None:
        raise OSError("closing")


class BadlyClosedAsync(BadlyClosed):
    def __aiter__(self) -> BadlyClosedAsync:
        return self

    async def __anext__(self) -> int:
        await asyncio.sleep(0)
        try:
            return next(self)
        except StopIteration:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        self.close()


@pytest.mark.parametrize("kind", [BadlyClosed, BadlyClosedAsync])
def test_an_error_of_closing_neither_vanishes_nor_hides_another(kind: Any) -> None:
    """At the end of the data it is the source's failure; after a failure, or a stop, it is reported."""
    closing, first = repr(OSError("closing")), repr(ValueError("first"))
    assert reported(lambda: af.items(lambda: kind()), 9) == ([1, 2, 3, closing], [])
    assert reported(lambda: af.items(lambda: kind(failing=True)), 9) == ([1, 2, 3, first], [closing])
    endless = af.items(lambda: kind(10**9))
    assert reported(lambda: endless, 1) == ([1], [closing])
    assert reported(lambda: endless.take(2), 2) == ([1, 2], [closing])
    expanded = af.items([0]).flat_map(lambda _: kind(10**9))
    assert reported(lambda: expanded, 1) == ([1], [closing])
