"""`stop` and `close`: from any thread and any state, any number of times, before the start and after the end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import asyncfeed as af
from asyncfeed.testing import run_virtual
from tests.conftest import Run
from tests.engine.inside import background_loops
from tests.engine.outside import loop_threads, run_tasks, threads_ended, until
from tests.engine.witness import Stage


class Thing:
    """An item that can be asked whether it is still there."""


BLOCKED: dict[str, Callable[[Stage], af.Pipeline[Any]]] = {
    "slow async read": lambda stage: af.items(range(9)).map(stage.hang_async),
    "full queue": lambda stage: af.items(range(10**9)).map(stage.pass_on).prefetch(1),
    "endless source": lambda stage: af.items(range(10**9)).map(stage.pass_on).filter(lambda _: False),
}


@pytest.mark.parametrize("memory", [None, 1])
@pytest.mark.parametrize("state", BLOCKED)
def test_stop_reaches_every_blocked_state(state: str, memory: int | None) -> None:
    """A full queue, an empty one, no memory, a read that does not come back."""
    stage = Stage()
    with BLOCKED[state](stage).open(memory_limit=memory) as feed:
        assert stage.entered.wait(10)
        feed.stop("enough")
        assert threads_ended()
        with pytest.raises(af.ClosedError, match="enough"):
            next(feed)


def test_stop_wakes_every_waiting_thread() -> None:
    """From another thread, with the reason in what they get."""
    stage = Stage()
    raised: list[BaseException] = []

    def consume(feed: af.Feed[int]) -> None:
        try:
            next(feed)
        except af.ClosedError as error:
            raised.append(error)

    with af.items(range(9)).map(stage.hang_async).open() as feed:
        threads = [threading.Thread(target=consume, args=(feed,)) for _ in range(5)]
        for thread in threads:
            thread.start()
        assert stage.entered.wait(10)
        feed.stop("the coordinator said so")
        feed.stop("later reasons do not count")
        for thread in threads:
            thread.join(10)
    assert [str(each) for each in raised] == ["the feed was stopped: the coordinator said so"] * 5


def test_stop_wakes_every_waiting_task(run: Run) -> None:
    """The same on one loop, where `stop` may be called from anywhere too."""

    async def main() -> list[Any]:
        async with af.items(range(9)).map(Stage().hang_async).open() as feed:
            draws = [asyncio.ensure_future(anext(feed)) for _ in range(3)]
            await asyncio.sleep(0.01)
            threading.Thread(target=feed.stop, args=("enough",)).start()
            return await asyncio.gather(*draws, return_exceptions=True)

    assert [str(each) for each in run(main)] == ["the feed was stopped: enough"] * 3


def test_stop_drops_what_is_queued() -> None:
    """Nothing comes after `stop` or `close`, also where the run had made everything already; nothing is kept."""
    for end in (af.Feed.stop, af.Feed.close):
        things = [Thing() for _ in range(8)]
        first, *others = map(weakref.ref, things)
        feed = af.items(lambda things=things: map(things.pop, [0] * 8)).prefetch(100).open()
        assert next(feed) is first()
        assert threads_ended()  # all is in the queue, and the run has ended
        assert not things and None not in [each() for each in others]
        end(feed)
        with pytest.raises(af.ClosedError):
            next(feed)
        feed.close()
        assert [each() for each in others] == [None] * 7


def test_stop_drops_what_is_queued_on_a_loop(seed: int) -> None:
    """The same for a feed on the caller's loop: nothing is kept until `aclose`."""

    async def main() -> None:
        things = [Thing() for _ in range(8)]
        first, *others = map(weakref.ref, things)
        feed = af.items(lambda things=things: map(things.pop, [0] * 8)).prefetch(100).open()
        assert await anext(feed) is first()
        await until(lambda: not run_tasks())  # all is in the queue, and the run has ended
        assert not things and None not in [each() for each in others]
        feed.stop()
        for _ in range(3):
            await asyncio.sleep(0)
        assert [each() for each in others] == [None] * 7
        await feed.aclose()

    run_virtual(main, seed=seed)


def test_a_stop_that_comes_while_a_run_is_made_is_not_lost() -> None:
    """It finds no run that it could stop; drawing then says that the feed was stopped."""

    def stop_and_make() -> asyncio.AbstractEventLoop:
        feed.stop("enough")
        return asyncio.new_event_loop()

    feed = af.items(range(10**9)).open()
    with contextlib.closing(feed), background_loops(stop_and_make):
        with pytest.raises(af.ClosedError, match="enough"):
            next(feed)


def test_closing_twice_is_closing_once(run: Run) -> None:
    """Both ways of closing, in any order, after the end or before it."""
    for drawn in (0, 1, 5):
        feed = af.items(range(3)).open()
        for _, item in zip(range(drawn), feed, strict=False):
            assert item < 3
        feed.close()
        feed.close()
        feed.stop()

    async def main() -> None:
        for drawn in (0, 1, 5):
            feed = af.items(range(3)).open()
            if drawn:
                await anext(feed)
            await feed.aclose()
            await feed.aclose()
            feed.close()
            with pytest.raises(af.ClosedError):
                await anext(feed)

    run(main)


@pytest.mark.parametrize("end", ["stop", "close", "aclose"])
def test_a_feed_closed_before_its_start_never_starts(end: str, run: Run) -> None:
    """Drawing says that it was closed, in either way."""
    started = threading.Event()

    async def main() -> None:
        feed = af.items(range(3)).map(lambda _: started.set()).open()
        result = getattr(feed, end)()
        if result is not None:
            await result
        with pytest.raises(af.ClosedError, match="was closed|was called"):
            await anext(feed)
        with pytest.raises(af.ClosedError, match="was closed|was called"):
            next(feed)
        with pytest.raises(af.ClosedError), feed:
            pass
        assert feed.failure is None
        assert feed.stats().batches == 0

    run(main)
    assert not started.is_set()


def test_after_the_end_comes_the_end_until_it_is_closed() -> None:
    """`StopIteration` again and again; `ClosedError` is for use after close."""
    with af.items(range(2)).open() as feed:
        assert list(feed) == [0, 1]
        assert list(feed) == []
    with pytest.raises(af.ClosedError):
        next(feed)


def test_a_feed_is_used_where_it_runs(run: Run) -> None:
    """On another loop, or in the other way, the error says where to draw."""

    async def first(feed: af.Feed[int]) -> int:
        return await anext(feed)

    with af.items(range(3)).open() as feed, pytest.raises(af.ClosedError, match="runs on a background thread"):
        run(lambda: first(feed))

    async def main() -> None:
        async with af.items(range(3)).open() as feed:
            await anext(feed)
            with pytest.raises(af.ClosedError, match="async for"):
                next(feed)

    run(main)


def test_a_feed_on_a_thread_can_be_closed_from_a_loop(run: Run) -> None:
    """`aclose` waits without holding up the loop it is called on."""
    stage = Stage()

    async def main() -> None:
        feed = af.items(range(9)).map(stage.hang, concurrency=1).open()
        feed.__enter__()
        while not stage.entered.is_set():
            await asyncio.sleep(0)
        closing = asyncio.ensure_future(feed.aclose())
        await asyncio.sleep(0.001)
        assert not closing.done()
        stage.leave.set()
        await closing
        assert not loop_threads()

    asyncio.run(main())


def test_a_feed_whose_thread_cannot_start_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's error comes out, and nothing waits for a loop that nobody runs."""

    def refuses(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuses)
    feed = af.items(range(3)).open()
    with pytest.raises(RuntimeError, match="can't start"):
        next(feed)
    with pytest.raises(af.ClosedError, match="could not be started"):
        next(feed)
