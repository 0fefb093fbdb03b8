"""Leaving a feed behind: `break`, a dropped reference, an exception in the body; and leaving very many."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

import asyncfeed as af
from asyncfeed.testing import no_leaks, run_virtual
from tests.engine.inside import EXIT, Run, stopped_at_exit_before_its_start
from tests.engine.outside import threads_ended
from tests.engine.witness import BUILDS, Ledger, on_thread
from tests.searching import SEARCH

SOAK = max(100, int(200 * SEARCH))


class Boom(Exception):
    """What the consumer raises."""


def leave_by_break(pipeline: af.Pipeline[Any]) -> None:
    for _ in pipeline:
        break


def leave_by_dropping(pipeline: af.Pipeline[Any]) -> None:
    feed = iter(pipeline)
    next(feed)
    del feed


def leave_by_raising(pipeline: af.Pipeline[Any]) -> None:
    with contextlib.suppress(Boom):
        for _ in pipeline:
            raise Boom


def leave_by_with(pipeline: af.Pipeline[Any]) -> None:
    with contextlib.suppress(Boom), pipeline.open() as feed:
        next(feed)
        raise Boom


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_dropping, leave_by_raising, leave_by_with])
@pytest.mark.parametrize("kind", BUILDS)
def test_leaving_a_plain_for_ends_everything(leave: Callable[[Any], None], kind: str) -> None:
    """`break`, dropping the last reference, an exception in the body, and leaving `with`."""
    source = Ledger()
    with no_leaks(types=(af.Feed, Run), patience=5):
        leave(BUILDS[kind](source))
    assert source.settled()


@pytest.mark.parametrize("how", ["break", "drop", "raise", "with"])
@pytest.mark.parametrize("kind", BUILDS)
@pytest.mark.parametrize("seed", range(3))
def test_leaving_an_async_for_ends_everything(how: str, kind: str, seed: int) -> None:
    """The same on the caller's loop: no task is left once it has run on a little."""
    source = Ledger()

    async def leave() -> None:
        pipeline = BUILDS[kind](source)
        if how == "break":
            async for _ in pipeline:
                break
        elif how == "drop":
            feed = aiter(pipeline)
            await anext(feed)
            del feed
        elif how == "raise":
            with contextlib.suppress(Boom):
                async for _ in pipeline:
                    raise Boom
        else:
            with contextlib.suppress(Boom):
                async with pipeline.open() as feed:
                    await anext(feed)
                    raise Boom
            assert source.settled()

    async def main() -> None:
        await leave()
        gc.collect()
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0.001)

    run_virtual(main, seed=seed)
    assert source.settled()


def test_letting_go_runs_no_python_where_it_happens() -> None:
    """Whatever Python runs in such a callback, Ctrl-C may be raised in it, and is dropped there."""
    pytest.importorskip("uvloop")
    calls: list[str] = []
    feed = af.items(range(10**9)).map(on_thread).open()
    next(feed)
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_qualname) if event == "call" else None)
    del feed
    sys.setprofile(None)
    assert threads_ended()
    assert calls == []


# -- very many


async def start_and_leave(many: int, source: Ledger) -> None:
    """Start and stop feeds on this loop, half of them abandoned in the middle of an item."""
    choose = random.Random(many)
    for number in range(many):
        pipeline = choose.choice(list(BUILDS.values()))(source)
        if number % 2:
            async with pipeline.open() as feed:
                await anext(feed)
        else:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(anext(pipeline.open()), choose.random() / 1000)
    gc.collect()
    while len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(0.001)


def test_many_starts_and_stops_on_a_loop_leave_nothing() -> None:
    """No thread, task, file descriptor, run or feed; `ASYNCFEED_SEARCH=50` makes it many more."""
    source = Ledger()
    with no_leaks(types=(af.Feed, Run), patience=10):
        asyncio.run(start_and_leave(SOAK, source))
    assert source.settled()


def test_many_starts_and_stops_on_threads_leave_nothing() -> None:
    """The same with a background thread for each."""
    source = Ledger()
    choose = random.Random(SOAK)

    def start_and_leave(*, abandon: bool) -> None:
        feed = choose.choice(list(BUILDS.values()))(source).open()
        feed.__enter__()
        if not abandon:
            next(feed)
            feed.close()

    with no_leaks(types=(af.Feed, Run), patience=30):
        for number in range(SOAK):
            start_and_leave(abandon=number % 2 == 0)
    assert source.settled()


def test_threads_that_share_a_feed_get_each_item_once() -> None:
    """Every item goes to one of them, and each gets its own in order."""
    shares: list[list[int]] = [[] for _ in range(8)]

    def consume(feed: af.Feed[int], share: list[int]) -> None:
        share.extend(feed)

    with af.items(range(5000)).map(lambda x: x).open() as feed:
        threads = [threading.Thread(target=consume, args=(feed, share)) for share in shares]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(x for share in shares for x in share) == list(range(5000))
    assert all(share == sorted(share) for share in shares)


def test_the_interpreter_may_end_while_a_feed_is_starting() -> None:
    """Another thread starts it, as TensorFlow's do: then there is no thread yet to wait for, and it stops at once."""
    with no_leaks():
        assert stopped_at_exit_before_its_start(af.items(range(3)).open()) == EXIT
