"""Ours beside `tf.train.Coordinator`: the same, but for its faults; and feeds tied to either."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import asyncfeed as af

tf = pytest.importorskip("tensorflow")

KINDS = {"ours": af.Coordinator, "TensorFlow's": tf.train.Coordinator}


class Falsy(Exception):
    def __bool__(self) -> bool:
        return False


def outcome(call: Callable[[], Any]) -> object:
    """Return what a call returns, or what it raises; a `RuntimeError` of stragglers without its text."""
    try:
        return call()
    except BaseException as error:
        return type(error) if isinstance(error, RuntimeError) else f"{type(error).__name__}: {error}"


def state(coord: Any, call: Callable[[], Any] = lambda: None) -> tuple[object, ...]:
    """Return what a call does, and what the coordinator says then."""
    done = outcome(call)
    return done, coord.should_stop(), coord.wait_for_stop(0), outcome(coord.join), coord.joined


def handling(error: BaseException, then: Callable[[BaseException], Any]) -> None:
    """Call `then` in the `except` block of an exception, as TensorFlow wants it."""
    try:
        raise error
    except BaseException as caught:
        then(caught)


def in_with(coord: Any, error: BaseException) -> None:
    with coord.stop_on_exception():
        raise error


def hang(coord: Any, **kwargs: Any) -> object:
    leave = threading.Event()
    thread = threading.Thread(target=leave.wait, daemon=True)
    thread.start()
    coord.register_thread(thread)
    coord.request_stop()
    found = outcome(lambda: coord.join(**kwargs))
    leave.set()
    thread.join()
    return found, outcome(coord.join)


def stopped_by_a_thread(coord: Any) -> object:
    threads = [threading.Thread(target=coord.wait_for_stop) for _ in range(2)]
    for thread in threads:
        thread.start()
    coord.request_stop()
    return outcome(lambda: coord.join(threads)), [thread.is_alive() for thread in threads]


def late(coord: Any, error: BaseException | None) -> object:
    coord.join()
    return outcome(lambda: coord.request_stop() if error is None else handling(error, coord.request_stop))


def clear(coord: Any) -> object:
    handling(ValueError("x"), coord.request_stop)
    first = outcome(coord.join)
    coord.clear_stop()
    return first, state(coord)


def twice(coord: Any, first: BaseException | None, second: BaseException) -> None:
    coord.request_stop() if first is None else handling(first, coord.request_stop)
    handling(second, coord.request_stop)


def end_of_range() -> BaseException:
    return tf.errors.OutOfRangeError(None, None, "the end")


# Equal on both.
SAME: dict[str, Callable[[Any], object]] = {
    "nothing": state,
    "a stop": lambda c: state(c, c.request_stop),
    "a handled exception": lambda c: state(c, lambda: handling(ValueError("x"), c.request_stop)),
    "exc_info": lambda c: state(c, lambda: handling(ValueError("x"), lambda _: c.request_stop(sys.exc_info()))),
    "a handled KeyboardInterrupt": lambda c: state(c, lambda: handling(KeyboardInterrupt("x"), c.request_stop)),
    "the first exception wins": lambda c: state(c, lambda: twice(c, ValueError("1"), OSError("2"))),
    "OutOfRangeError is clean": lambda c: state(c, lambda: handling(end_of_range(), c.request_stop)),
    "the end, twice": lambda c: state(c, lambda: twice(c, None, end_of_range())),
    "a cancelled queue after the stop": lambda c: state(
        c, lambda: twice(c, None, tf.errors.CancelledError(None, None, "Enqueue operation was cancelled"))
    ),
    "raise_requested_exception": lambda c: (
        outcome(c.raise_requested_exception),
        handling(ValueError("x"), c.request_stop),
        outcome(c.raise_requested_exception),
        outcome(c.raise_requested_exception),
        c.should_stop(),
    ),
    "clear_stop": clear,
    "stop_on_exception": lambda c: state(c, lambda: in_with(c, ValueError("x"))),
    "stop_on_exception, clean": lambda c: state(c, lambda: in_with(c, end_of_range())),
    "threads that end": stopped_by_a_thread,
    "a thread never started": lambda c: state(c, lambda: c.register_thread(threading.Thread())),
    "a thread that does not end": lambda c: hang(c, stop_grace_period_secs=0.01),
    "no grace period": lambda c: hang(c, stop_grace_period_secs=0),
    "a negative grace period": lambda c: hang(c, stop_grace_period_secs=-1),
    "ignored": lambda c: hang(c, stop_grace_period_secs=0.01, ignore_live_threads=True),
    "an exception before stragglers": lambda c: (
        handling(ValueError("x"), c.request_stop),
        hang(c, stop_grace_period_secs=0),
    ),
    "after join": lambda c: (late(c, None), c.should_stop()),
    "an exception after join": lambda c: late(c, ValueError("late")),
    "a clean one after join": lambda c: (late(c, end_of_range()), c.should_stop()),
}

# What ours does, then TensorFlow's: the table in docs/tensorflow.md.
BROKEN = "TypeError: not all arguments converted during string formatting"
FAULTS: dict[str, tuple[Callable[[Any], object], object, object]] = {
    "a new exception": (
        lambda c: (outcome(lambda: c.request_stop(ValueError("x"))), c.should_stop(), outcome(c.join)),
        (None, True, "ValueError: x"),
        (BROKEN, False, "TypeError: exceptions must derive from BaseException"),
    ),
    "a new exception in a handler": (
        lambda c: state(c, lambda: handling(OSError("handled"), lambda _: c.request_stop(ValueError("given")))),
        (None, True, True, "ValueError: given", True),
        (None, True, True, "OSError: handled", True),
    ),
    "an exception after a clean stop": (
        lambda c: state(c, lambda: twice(c, None, ValueError("x"))),
        (None, True, True, "ValueError: x", True),
        (None, True, True, None, True),
    ),
    "an exception that is false": (
        lambda c: state(c, lambda: handling(Falsy("x"), c.request_stop)),
        (None, True, True, "Falsy: x", True),
        (None, True, True, None, True),
    ),
    "stop_on_exception and Ctrl-C": (
        lambda c: state(c, lambda: in_with(c, KeyboardInterrupt("x"))),
        ("KeyboardInterrupt: x", True, True, "KeyboardInterrupt: x", True),
        (None, True, True, "KeyboardInterrupt: x", True),
    ),
    "the end of an iterator": (
        lambda c: state(c, lambda: handling(StopIteration("x"), c.request_stop)),
        (None, True, True, None, True),
        (None, True, True, "StopIteration: x", True),
    ),
    "an exception after join": (
        lambda c: (late(c, ValueError("late")), c.should_stop()),
        ("ValueError: late", True),
        ("ValueError: late", False),
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_ours_does_what_tensorflows_does(name: str) -> None:
    assert SAME[name](af.Coordinator()) == SAME[name](tf.train.Coordinator())


@pytest.mark.parametrize("name", FAULTS)
def test_ours_does_not_have_these_faults(name: str) -> None:
    scenario, ours, theirs = FAULTS[name]
    assert (scenario(af.Coordinator()), scenario(tf.train.Coordinator())) == (ours, theirs)


# -- TensorFlow's own threads under our coordinator


@pytest.mark.parametrize("kind", KINDS)
def test_queue_runners_run_under_it(kind: str) -> None:
    """Seed 001: a producer of slices, batches of three, and the end of the data."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as sess:
        v1 = tf.compat.v1
        queue = v1.train.slice_input_producer([tf.range(5)], num_epochs=2, shuffle=False)
        batches = v1.train.batch(queue, batch_size=3, num_threads=1)
        sess.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        coord = KINDS[kind]()
        threads = v1.train.start_queue_runners(sess, coord)
        got = []
        try:
            while not coord.should_stop():
                got.append(sess.run(batches).tolist())
        except tf.errors.OutOfRangeError as end:
            coord.request_stop(end)
        finally:
            coord.request_stop()
        coord.join(threads)
        assert got == [[0, 1, 2], [3, 4, 0], [1, 2, 3]]


# -- feeds


async def never(x: int) -> int:
    import asyncio

    if x >= 4:
        await asyncio.Event().wait()
    return x


def bad(x: int) -> int:
    if x == 4:
        raise ValueError("item four")
    return x


HANGING = af.items(range(100)).map(never)
FAILING = af.items(range(100)).map(bad)


@pytest.mark.parametrize("kind", KINDS)
def test_the_coordinator_stops_its_feeds(kind: str) -> None:
    coord = KINDS[kind]()
    errors: list[BaseException] = []
    arrived = threading.Semaphore(0)

    def draw(feed: af.Feed[int]) -> None:
        try:
            for _ in feed:
                arrived.release()
        except af.ClosedError as error:
            errors.append(error)

    with HANGING.open(coord=coord) as one, HANGING.open(coord=coord) as two:
        threads = [threading.Thread(target=draw, args=(feed,)) for feed in (one, two)]
        for thread in threads:
            thread.start()
        for _ in range(8):
            arrived.acquire()
        handling(OSError("disk full"), coord.request_stop)
        for thread in threads:
            thread.join()
    assert [str(error.__cause__) for error in errors] == ["disk full"] * 2
    with pytest.raises(af.ClosedError):
        next(HANGING.open(coord=coord))
    with pytest.raises(OSError, match="disk full"):
        coord.join()


@pytest.mark.parametrize("kind", KINDS)
def test_a_feed_stops_its_coordinator(kind: str) -> None:
    stopped = KINDS[kind]()
    with HANGING.open(coord=stopped) as feed:
        next(feed)
        feed.stop()
        assert stopped.wait_for_stop(60)
    stopped.join()
    failed = KINDS[kind]()
    with FAILING.open(coord=failed) as feed, pytest.raises(ValueError, match="item four"):
        list(feed)
    assert failed.wait_for_stop(60)
    with pytest.raises(ValueError, match="item four"):
        failed.join()
    closed = KINDS[kind]()
    with HANGING.open(coord=closed) as feed:
        next(feed)
        feed.stop()
    assert closed.wait_for_stop(60)
    unused = KINDS[kind]()
    HANGING.open(coord=unused).stop()
    assert unused.should_stop()


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_of_the_data_and_closing_stop_nobody(kind: str) -> None:
    coord = KINDS[kind]()
    with af.items(range(5)).open(coord=coord) as feed:
        assert list(feed) == list(range(5))
    for _ in HANGING.open(coord=coord):
        break
    gc.collect()
    coord.join()
    assert not coord.should_stop()


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_after_join_is_raised_only_where_it_is_drawn(kind: str) -> None:
    coord = KINDS[kind]()
    coord.join()
    with FAILING.open(coord=coord) as feed, pytest.raises(ValueError, match="item four"):
        list(feed)


def test_what_wraps_request_stop_already_goes_on_working() -> None:
    coord = tf.train.Coordinator()
    calls: list[object] = []
    original = coord.request_stop

    def wrapped(ex: object = None) -> None:
        calls.append(ex)
        original(ex)

    coord.request_stop = wrapped
    with HANGING.open(coord=coord) as feed:
        next(feed)
        coord.request_stop(ex=None)
        with pytest.raises(af.ClosedError):
            next(feed)
    assert calls == [None]


def test_a_coordinator_of_tensorflows_is_not_kept() -> None:
    coord = tf.train.Coordinator()
    with HANGING.open(coord=coord) as feed:
        next(feed)
    gone = weakref.ref(coord)
    del coord, feed
    gc.collect()
    assert gone() is None


def test_a_looper_thread_takes_ours() -> None:
    """It asks with isinstance; every method stays ours."""
    coord = af.Coordinator()
    calls: list[int] = []

    def work() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise ValueError("the third")

    tf.compat.v1.train.LooperThread.loop(coord, None, work)
    with pytest.raises(ValueError, match="the third"):
        coord.join()
    assert len(calls) == 3
    assert isinstance(coord, af.Coordinator)
    assert type(coord) is type(af.Coordinator())
    assert type(coord).request_stop is af.Coordinator.request_stop


def test_a_subclass_of_ours_is_one_of_theirs() -> None:
    """With what it overrides."""

    class Mine(af.Coordinator):
        def __init__(self, name: str) -> None:
            super().__init__(stop_grace_period_secs=1)
            self.name = name

    coord = Mine("a")
    assert isinstance(coord, tf.train.Coordinator)
    assert (coord.name, type(coord).__name__) == ("a", "Mine")
