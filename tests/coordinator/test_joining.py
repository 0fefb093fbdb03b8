"""Joining: threads and tasks end, or are named; the exception comes out; `with` does it all."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator

import pytest

import asyncfeed as af
from asyncfeed.testing import run_virtual


@pytest.fixture
def hang() -> Iterator[Callable[[str], threading.Thread]]:
    """Return a function that starts a thread which stays until the test is over."""
    leave = threading.Event()
    threads = []

    def start(name: str) -> threading.Thread:
        entered = threading.Event()

        def stay() -> None:
            entered.set()
            leave.wait(60)

        thread = threading.Thread(target=stay, name=name)
        threads.append(thread)
        thread.start()
        entered.wait(60)
        return thread

    yield start
    leave.set()
    for thread in threads:
        thread.join(60)


def started(target: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=target)
    thread.start()
    return thread


def test_join_waits_for_threads_that_end_by_themselves() -> None:
    """Given and registered ones, without a stop, and without one that was never started."""
    coord = af.Coordinator()
    go = threading.Event()
    ended: list[str] = []

    def work(name: str) -> None:
        go.wait(60)
        ended.append(name)

    given = started(lambda: work("given"))
    coord.register_thread(started(lambda: work("registered")))
    coord.register_thread(threading.Thread(target=lambda: ended.append("never")))
    opener = started(go.set)
    coord.join([given])
    assert sorted(ended) == ["given", "registered"]
    assert coord.joined and not coord.should_stop()
    opener.join()


def test_join_waits_for_a_stop_and_then_for_the_threads() -> None:
    coord = af.Coordinator()
    seen: list[bool] = []
    threads = [started(lambda: seen.append(coord.wait_for_stop())) for _ in range(3)]
    asks = started(lambda: coord.request_stop(ValueError("x")))
    with pytest.raises(ValueError, match="x"):
        coord.join(threads)
    assert seen == [True] * 3
    asks.join()


@pytest.mark.parametrize("grace", [0.0, 0.01, -1.0])
def test_what_does_not_end_is_named_with_its_stack(hang: Callable[[str], threading.Thread], grace: float) -> None:
    coord = af.Coordinator()
    coord.register_thread(hang("laggard"))
    coord.request_stop()
    with pytest.raises(RuntimeError, match=r"(?s)thread 'laggard', at:.*leave\.wait\(60\)"):
        coord.join([hang("other")], stop_grace_period_secs=grace)
    assert coord.joined
    coord.join()  # both are forgotten


def test_the_grace_period_begins_with_the_stop(hang: Callable[[str], threading.Thread]) -> None:
    """A join that waits already notices the stop, also with a grace period of nothing."""
    coord = af.Coordinator()
    thread = hang("laggard")
    asks = started(coord.request_stop)
    with pytest.raises(RuntimeError, match="laggard"):
        coord.join([thread], stop_grace_period_secs=0)
    asks.join()


def test_live_threads_may_be_ignored(
    hang: Callable[[str], threading.Thread], caplog: pytest.LogCaptureFixture
) -> None:
    coord = af.Coordinator()
    coord.request_stop()
    with caplog.at_level(logging.INFO, "asyncfeed"):
        coord.join([hang("laggard")], stop_grace_period_secs=0, ignore_live_threads=True)
    assert "laggard" in caplog.text


def test_the_exception_comes_before_what_still_runs(hang: Callable[[str], threading.Thread]) -> None:
    coord = af.Coordinator()
    coord.request_stop(ValueError("x"))
    with pytest.raises(ValueError, match="x"):
        coord.join([hang("laggard")], stop_grace_period_secs=0)


@pytest.mark.parametrize("stopped", [True, False])
def test_a_thread_that_joins_itself_is_told_so(stopped: bool) -> None:
    coord = af.Coordinator()
    if stopped:
        coord.request_stop()
    coord.register_thread(threading.current_thread())
    with pytest.raises(RuntimeError, match="MainThread"):
        coord.join()


def test_an_endless_grace_period_is_one() -> None:
    coord = af.Coordinator()
    thread = started(coord.wait_for_stop)
    coord.request_stop()
    coord.join([thread], stop_grace_period_secs=float("inf"))


def test_threads_that_have_ended_are_not_kept() -> None:
    coord = af.Coordinator()
    for _ in range(5):
        thread = started(lambda: None)
        coord.register_thread(thread)
        thread.join()
    assert len(coord._threads) == 1


# -- tasks


async def forever() -> None:
    await asyncio.Event().wait()


def test_a_stop_cancels_registered_tasks_and_joining_waits_for_them(seed: int) -> None:
    closed: list[int] = []

    async def work(number: int) -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(1)
            closed.append(number)

    async def main() -> None:
        coord = af.Coordinator()
        for number in range(3):
            coord.register_task(asyncio.create_task(work(number)))
        asyncio.get_running_loop().call_later(5, coord.request_stop)
        await coord.wait()
        await coord.join_async()
        assert sorted(closed) == [0, 1, 2]
        assert asyncio.get_running_loop().time() == 6.0

    run_virtual(main, seed=seed)


def test_a_task_that_fails_stops_the_others(seed: int) -> None:
    async def fail() -> None:
        await asyncio.sleep(1)
        raise ValueError("x")

    async def main() -> None:
        coord = af.Coordinator()
        others = [asyncio.create_task(forever()) for _ in range(3)]
        for task in (*others, asyncio.create_task(fail())):
            coord.register_task(task)
        with pytest.raises(ValueError, match="x"):
            await coord.join_async()
        assert all(task.cancelled() for task in others)

    run_virtual(main, seed=seed)


def test_a_task_that_is_cancelled_or_returns_stops_nobody(seed: int) -> None:
    async def main() -> None:
        coord = af.Coordinator()
        cancelled = asyncio.create_task(forever())
        for task in (cancelled, asyncio.create_task(asyncio.sleep(1))):
            coord.register_task(task)
        cancelled.cancel()
        await coord.join_async()
        assert not coord.should_stop()

    run_virtual(main, seed=seed)


def test_a_task_may_look_for_itself(seed: int) -> None:
    """`cancel=False`, or given to `join_async` alone: such tasks are only waited for."""

    async def look(coord: af.Coordinator) -> str:
        while not coord.should_stop():
            await asyncio.sleep(1)
        await asyncio.sleep(1)
        return "its own end"

    async def main() -> None:
        coord = af.Coordinator()
        registered, given = (asyncio.create_task(look(coord)) for _ in range(2))
        coord.register_task(registered, cancel=False)
        coord.request_stop()
        await coord.join_async([given])
        assert registered.result() == given.result() == "its own end"

    run_virtual(main, seed=seed)


def test_a_task_that_does_not_end_is_named(seed: int) -> None:
    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(10)
                return
            except asyncio.CancelledError:
                pass

    async def main() -> None:
        coord = af.Coordinator()
        task = asyncio.create_task(stubborn(), name="laggard")
        coord.register_task(task)
        await asyncio.sleep(0)
        coord.request_stop()
        with pytest.raises(RuntimeError, match=r"(?s)task 'laggard', at:.*stubborn"):
            await coord.join_async(stop_grace_period_secs=2)
        await task

    run_virtual(main, seed=seed)


def test_joining_threads_does_not_hold_up_the_loop() -> None:
    async def main() -> None:
        coord = af.Coordinator()
        thread = started(coord.wait_for_stop)
        asyncio.get_running_loop().call_soon(coord.request_stop, ValueError("x"))
        with pytest.raises(ValueError, match="x"):
            await coord.join_async([thread])
        assert not thread.is_alive()

    asyncio.run(main())


def test_a_thread_joins_the_tasks_of_another_loop() -> None:
    coord = af.Coordinator()
    running = threading.Event()

    async def main() -> None:
        task = asyncio.create_task(forever())
        coord.register_task(task)
        running.set()
        await asyncio.wait([task])
        assert task.cancelled()

    loop_thread = started(lambda: asyncio.run(main()))
    running.wait(60)
    asks = started(coord.request_stop)
    coord.join()
    asks.join()
    loop_thread.join()


def test_joining_where_it_could_never_end_is_an_error() -> None:
    async def main() -> None:
        coord = af.Coordinator()
        task = asyncio.create_task(forever())
        coord.register_task(task)
        with pytest.raises(RuntimeError, match="await coord.join_async"):
            coord.join()
        coord.request_stop()
        await coord.join_async()
        with pytest.raises(RuntimeError, match="on the event loop of the task"):
            await asyncio.to_thread(coord.register_task, task)

    asyncio.run(main())


def test_a_wait_or_a_join_that_is_cancelled_leaves_nothing_registered(seed: int) -> None:
    async def main() -> None:
        coord = af.Coordinator()
        for wait in (coord.wait(), coord.join_async([asyncio.ensure_future(asyncio.sleep(2))])):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(wait, 1)
        assert coord._callbacks._waiting == {}
        await asyncio.sleep(5)

    run_virtual(main, seed=seed)


# -- with


def test_leaving_with_asks_for_a_stop_and_joins() -> None:
    ended: list[bool] = []
    with af.Coordinator() as coord:
        coord.register_thread(started(lambda: ended.append(coord.wait_for_stop())))
    assert ended == [True] and coord.joined


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, asyncio.CancelledError])
def test_what_leaves_the_block_stops_and_goes_on(kind: type[BaseException], seed: int) -> None:
    error = kind("body")
    with pytest.raises(kind) as caught, af.Coordinator() as coord:
        raise error
    assert caught.value is error and coord.should_stop()

    async def main() -> None:
        coord = af.Coordinator()
        task = asyncio.create_task(forever())
        with pytest.raises(kind) as caught:
            async with coord:
                coord.register_task(task)
                raise error
        assert caught.value is error and task.cancelled()

    run_virtual(main, seed=seed)


def test_the_block_raises_the_first_exception() -> None:
    first = ValueError("first")
    with pytest.raises(ValueError) as caught, af.Coordinator() as coord:
        coord.request_stop(first)
        raise OSError("later")
    assert caught.value is first and any("later" in note for note in first.__notes__)


def test_a_cancellation_goes_on_whatever_was_reported(seed: int) -> None:
    async def body() -> None:
        async with af.Coordinator() as coord:
            coord.request_stop(ValueError("x"))
            await forever()

    async def main() -> None:
        task = asyncio.create_task(body())
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    run_virtual(main, seed=seed)


@pytest.mark.parametrize("end", [StopIteration, lambda: af.ClosedError("stopped")])
def test_the_end_of_the_data_and_what_a_stop_causes_end_the_block_quietly(end: Callable[[], Exception]) -> None:
    with af.Coordinator() as coord:
        coord.request_stop()
        raise end()


def test_what_does_not_end_in_time_is_named_by_the_block(hang: Callable[[str], threading.Thread]) -> None:
    with pytest.raises(RuntimeError, match="laggard"), af.Coordinator(stop_grace_period_secs=0.01) as coord:
        coord.register_thread(hang("laggard"))
