"""A feed opened with a coordinator: either one stopping stops the other, and no more than that."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import Any

import pytest

import asyncfeed as af
from asyncfeed.testing import no_leaks, run_virtual
from tests.engine.inside import Run


async def never(x: int) -> int:
    if x >= 4:
        await asyncio.Event().wait()
    return x


def bad(x: int) -> int:
    if x == 4:
        raise ValueError("item four")
    return x


HANGING = af.items(range(100)).map(never)
FAILING = af.items(range(100)).map(bad)


def draw(
    feed: af.Feed[Any], into: list[BaseException], started: threading.Event | None = None
) -> threading.Thread:
    """Draw on a thread until it ends, and keep what it ended with."""

    def run() -> None:
        try:
            for _ in feed:
                if started is not None:
                    started.set()
        except BaseException as error:
            into.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_the_stop_of_the_coordinator_wakes_a_thread_that_waits_for_a_batch() -> None:
    coord = af.Coordinator()
    errors: list[BaseException] = []
    started = threading.Event()
    with HANGING.open(coord=coord) as feed:
        thread = draw(feed, errors, started)
        started.wait(60)
        coord.request_stop()
        coord.join([thread])
    assert isinstance(errors[0], af.ClosedError)
    assert str(errors[0]) == "the feed was stopped: its coordinator was asked to stop"
    assert errors[0].__cause__ is None


def test_what_the_coordinator_was_told_is_the_cause_of_the_error_of_the_feed() -> None:
    coord = af.Coordinator()
    error = OSError("disk full")
    with HANGING.open(coord=coord) as feed, HANGING.open(coord=coord) as unused:
        next(feed)
        coord.request_stop(error)
        for each in (feed, unused):
            with pytest.raises(af.ClosedError) as caught:
                next(each)
            assert caught.value.__cause__ is error


def test_a_feed_opened_after_the_stop_never_starts() -> None:
    coord = af.Coordinator()
    coord.request_stop()
    feed = HANGING.open(coord=coord)
    with pytest.raises(af.ClosedError, match="its coordinator was asked to stop"):
        next(feed)
    with pytest.raises(af.ClosedError), HANGING.open(coord=coord):
        pass


def test_a_failing_feed_stops_the_coordinator_and_still_delivers_what_came_before() -> None:
    coord = af.Coordinator()
    got = []
    with pytest.raises(ValueError, match="item four") as caught, FAILING.open(coord=coord) as feed:
        for x in feed:
            got.append(x)
    assert got == [0, 1, 2, 3]
    assert coord.wait_for_stop(60)
    assert coord.exceptions == (caught.value,)
    with pytest.raises(ValueError, match="item four"):
        coord.join()


def test_a_failure_is_reported_though_whoever_saw_it_closed_the_feed_first(seed: int) -> None:
    coord = af.Coordinator()

    async def bad_later(x: int) -> int:
        await asyncio.sleep(1)
        return bad(x)

    async def main() -> None:
        feed = af.items(range(100)).map(bad_later).open(coord=coord)
        with pytest.raises(ValueError, match="item four"):
            async for _ in feed:
                pass
        assert not coord.should_stop()  # the loop has not come to it
        await feed.aclose()

    run_virtual(main, seed=seed)
    assert [str(error) for error in coord.exceptions] == ["item four"]


def test_what_a_joined_coordinator_raises_again_is_only_for_the_consumer(seed: int) -> None:
    """Its `join` cannot raise the failure any more. The loop is told nothing, as the consumer gets it."""
    coord = af.Coordinator()
    coord.join()

    async def main() -> None:
        async with FAILING.open(coord=coord) as feed:
            with pytest.raises(ValueError, match="item four"):
                async for _ in feed:
                    pass

    run_virtual(main, seed=seed)  # it raises if the loop is told of an error
    assert [str(error) for error in coord.exceptions] == ["item four"]


def test_an_error_of_the_coordinator_itself_is_for_the_loop(seed: int) -> None:
    class Broken(af.Coordinator):
        def request_stop(self, ex: Any = None) -> None:
            raise OSError("the coordinator is gone")

    async def main() -> list[str]:
        async with FAILING.open(coord=Broken()) as feed:
            with pytest.raises(ValueError, match="item four"):
                async for _ in feed:
                    pass
        loop: Any = asyncio.get_running_loop()
        told = [str(each["exception"]) for each in loop.complaints]
        loop.complaints.clear()
        return told

    assert run_virtual(main, seed=seed) == ["the coordinator is gone"]


def test_a_failing_feed_stops_the_other_feeds() -> None:
    coord = af.Coordinator()
    errors: list[BaseException] = []
    with HANGING.open(coord=coord) as other, FAILING.open(coord=coord):
        thread = draw(other, errors)
        thread.join()
    assert isinstance(errors[0], af.ClosedError) and isinstance(errors[0].__cause__, ValueError)


def test_stopping_the_feed_stops_the_coordinator_cleanly() -> None:
    coord = af.Coordinator()
    with HANGING.open(coord=coord) as feed:
        thread = threading.Thread(target=coord.wait_for_stop)
        thread.start()
        next(feed)
        feed.stop()
        coord.join([thread])
    assert coord.should_stop() and coord.exceptions == ()
    unused = af.Coordinator()
    HANGING.open(coord=unused).stop()
    assert unused.should_stop()


def test_whoever_draws_from_a_stopped_feed_reports_no_error() -> None:
    """The coordinator hears of the stop before they do, so their `ClosedError` is a consequence."""
    coord = af.Coordinator()
    started = threading.Event()
    with HANGING.open(coord=coord) as feed:

        def work() -> None:
            with coord.stop_on_exception():
                for _ in feed:
                    started.set()

        thread = threading.Thread(target=work)
        thread.start()
        started.wait(60)
        feed.stop()
        coord.join([thread])


def test_the_end_of_the_data_and_leaving_a_feed_stop_nobody() -> None:
    """As the end of a queue runner: others may be at work still."""
    coord = af.Coordinator()
    with af.items(range(3)).open(coord=coord) as feed:
        assert list(feed) == [0, 1, 2]
    for _ in HANGING.open(coord=coord):
        break
    with HANGING.open(coord=coord) as feed:
        next(feed)
    gc.collect()
    coord.join()
    assert not coord.should_stop()
    assert coord._callbacks._waiting == {}


def test_the_loop_of_the_seeds_ends_as_it_should() -> None:
    """`while not coord.should_stop()` with the end of the data as `StopIteration`, then `finally` and `join`."""
    for pipeline, expected in ((af.items(range(5)), None), (FAILING, ValueError)):
        coord = af.Coordinator()
        feed = pipeline.open(coord=coord)
        try:
            while not coord.should_stop():
                next(feed)
        except Exception as error:
            coord.request_stop(error)
        finally:
            coord.request_stop()
        if expected is None:
            coord.join()
        else:
            with pytest.raises(expected):
                coord.join()
        del feed
        gc.collect()


def test_joining_waits_until_the_feed_has_closed_everything() -> None:
    closed = threading.Event()

    def source():
        try:
            yield from range(10**6)
        finally:
            closed.set()

    coord = af.Coordinator()
    feed = af.items(source).open(coord=coord)
    next(feed)
    coord.request_stop()
    coord.join()
    assert closed.is_set()
    with pytest.raises(af.ClosedError):
        next(feed)


def test_a_stop_that_was_cleared_stays_cleared() -> None:
    """The feed ends later than it was told to, and does not ask again."""
    coord = af.Coordinator()
    feed = HANGING.open(coord=coord)
    next(feed)
    coord.request_stop()
    coord.clear_stop()
    feed.close()
    assert not coord.should_stop()


def test_a_feed_that_is_dropped_stops_its_run_and_is_not_kept() -> None:
    coord = af.Coordinator()
    HANGING.open().close()
    with no_leaks(types=(af.Feed, Run), patience=10):
        for _ in range(5):
            feed = HANGING.open(coord=coord)
            next(feed)
            gone = weakref.ref(feed)
            del feed
            gc.collect()  # a run that is closing holds the stacks of all threads for a moment
            assert gone() is None
            HANGING.open(coord=coord)
    coord.join()
    assert coord._callbacks._waiting == {} and not coord.should_stop()


def test_a_coordinator_is_not_kept_by_its_feeds() -> None:
    coord = af.Coordinator()
    with HANGING.open(coord=coord) as feed:
        next(feed)
    gone = weakref.ref(coord)
    del coord, feed
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("how", ["stop", "fail"])
def test_on_a_loop_feeds_tasks_and_threads_stop_together(how: str, seed: int) -> None:
    async def main() -> None:
        errors: list[BaseException] = []

        async def consume(feed: af.Feed[int]) -> None:
            async for _ in feed:
                pass

        async def bad_later(x: int) -> int:
            await asyncio.sleep(x)
            return bad(x)

        try:
            async with af.Coordinator() as coord:
                pipeline = af.items(range(100)).map(bad_later) if how == "fail" else HANGING
                one, two = pipeline.open(coord=coord), HANGING.open(coord=coord)
                tasks = [asyncio.create_task(consume(feed)) for feed in (one, two)]
                for task in tasks:
                    coord.register_task(task)
                if how == "stop":
                    await asyncio.sleep(1)
                    two.stop()
                await coord.wait()
        except ValueError as error:
            errors.append(error)
        assert all(task.done() for task in tasks)
        assert [str(error) for error in errors] == (["item four"] if how == "fail" else [])
        for feed in (one, two):
            with pytest.raises((af.ClosedError, ValueError)):
                await anext(feed)

    run_virtual(main, seed=seed)


def test_a_coordinator_is_what_asks_and_is_asked() -> None:
    with pytest.raises(af.PipelineError, match="coord must be a Coordinator"):
        HANGING.open(coord=object())
