"""Asking for a stop: what counts as an error, who hears of it, and from where it may be asked."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncfeed as af


class Falsy(Exception):
    """An exception that says it is nothing."""

    def __bool__(self) -> bool:
        return False


def raised_by_join(coord: af.Coordinator) -> BaseException | None:
    try:
        coord.join()
    except BaseException as error:
        return error
    return None


def test_a_new_coordinator_asks_for_nothing() -> None:
    coord = af.Coordinator()
    assert (coord.should_stop(), coord.wait_for_stop(0), coord.joined, coord.exceptions) == (
        False,
        False,
        False,
        (),
    )
    coord.raise_requested_exception()


def test_a_stop_is_seen_by_all_who_look_and_all_who_wait() -> None:
    coord = af.Coordinator()
    with ThreadPoolExecutor(3) as pool:
        waits = [pool.submit(coord.wait_for_stop) for _ in range(3)]
        coord.request_stop()
        assert [wait.result(10) for wait in waits] == [True] * 3
    assert coord.should_stop() and coord.wait_for_stop(-1) and coord.wait_for_stop()
    coord.join()
    assert coord.joined


@pytest.mark.parametrize("error", [ValueError("x"), Falsy(), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_the_exception_that_is_given_is_the_one_that_is_raised(error: BaseException) -> None:
    """Outside of any handler, inside that of another, each time the same object; its traceback does not grow."""
    coord = af.Coordinator()
    try:
        raise OSError("another")
    except OSError:
        coord.request_stop(error)
    assert raised_by_join(coord) is error
    depths = []
    for _ in range(3):
        with pytest.raises(type(error)) as caught:
            coord.raise_requested_exception()
        depths.append(len(caught.traceback))
    assert len(set(depths)) == 1


def test_what_sys_exc_info_returns_may_be_given() -> None:
    coord = af.Coordinator()
    error = ValueError("x")
    coord.request_stop((ValueError, error, None))
    assert raised_by_join(coord) is error
    nothing = af.Coordinator()
    nothing.request_stop((None, None, None))
    assert nothing.should_stop() and raised_by_join(nothing) is None


def test_what_is_no_exception_stops_all_the_same_and_raises() -> None:
    coord = af.Coordinator()
    with pytest.raises(TypeError, match="expected an exception"):
        coord.request_stop("bad")  # type: ignore[arg-type]
    assert coord.should_stop()


class Ours(Exception):
    """An error that a test calls clean."""


REPORTS = {
    "none": lambda: None,
    "error": lambda: ValueError("x"),
    "interrupt": KeyboardInterrupt,
    "end": StopIteration,
    "cancelled": asyncio.CancelledError,
    "closed": lambda: af.ClosedError("the feed was stopped"),
}


@given(st.lists(st.sampled_from(sorted(REPORTS)), min_size=1, max_size=6))
def test_join_raises_the_first_error_wherever_it_comes(kinds: list[str]) -> None:
    """An error counts also after a clean stop; the consequences of a stop count only where they came first."""
    coord = af.Coordinator()
    expected = []
    for turn, kind in enumerate(kinds):
        error = REPORTS[kind]()
        coord.request_stop(error)
        if kind in ("error", "interrupt") or (kind == "closed" and turn == 0):
            expected.append(error)
    assert list(coord.exceptions) == expected
    assert raised_by_join(coord) is (expected[0] if expected else None)
    if expected:
        assert len(getattr(expected[0], "__notes__", [])) == len(expected) - 1


def test_the_same_exception_reported_twice_is_one() -> None:
    coord = af.Coordinator()
    error = ValueError("x")
    coord.request_stop(error)
    coord.request_stop(error)
    assert coord.exceptions == (error,)
    assert not hasattr(error, "__notes__")


def test_clean_types_are_those_that_are_given() -> None:
    coord = af.Coordinator([Ours])
    coord.request_stop(Ours())
    assert raised_by_join(coord) is None
    end = StopIteration()
    strict = af.Coordinator([])
    strict.request_stop(end)
    assert raised_by_join(strict) is end


def test_after_join_an_exception_is_raised_where_it_is_reported() -> None:
    """Nobody else would hear of it; everything stops all the same."""
    coord = af.Coordinator()
    coord.join()
    error = ValueError("late")
    with pytest.raises(ValueError, match="late"):
        coord.request_stop(error)
    assert coord.should_stop() and coord.exceptions == (error,)
    coord.request_stop(StopIteration())


def test_clear_stop_starts_anew() -> None:
    coord = af.Coordinator()
    coord.request_stop(ValueError("x"))
    assert raised_by_join(coord) is not None
    coord.clear_stop()
    assert (coord.should_stop(), coord.joined, coord.exceptions) == (False, False, ())
    coord.join()
    calls: list[int] = []
    coord.on_stop(lambda: calls.append(1))
    coord.clear_stop()
    coord.request_stop()
    assert calls == [1]


# -- stop_on_exception


def test_stop_on_exception_reports_and_ends_quietly() -> None:
    coord = af.Coordinator()
    with coord.stop_on_exception():
        raise ValueError("x")
    with pytest.raises(ValueError, match="x"):
        coord.join()
    clean = af.Coordinator()
    with clean.stop_on_exception():
        next(iter([]))
    assert clean.should_stop()
    clean.join()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_stop_on_exception_hands_on_what_ends_the_program(kind: type[BaseException]) -> None:
    coord = af.Coordinator()
    with pytest.raises(kind), coord.stop_on_exception():
        raise kind
    assert coord.should_stop() and isinstance(coord.exceptions[0], kind)


@pytest.mark.parametrize("kind", [asyncio.CancelledError, GeneratorExit])
def test_stop_on_exception_leaves_a_cancellation_alone(kind: type[BaseException]) -> None:
    """One task of many that is cancelled is no reason to stop the others."""
    coord = af.Coordinator()
    with pytest.raises(kind), coord.stop_on_exception():
        raise kind
    assert not coord.should_stop()


# -- callbacks


def test_callbacks_run_once_in_order_on_the_thread_that_asks() -> None:
    coord = af.Coordinator()
    calls: list[tuple[str, int]] = []
    me = threading.get_ident()
    for name in "abc":
        coord.on_stop(lambda name=name: calls.append((name, threading.get_ident())))
    coord.on_stop(lambda: calls.append(("taken back", 0)))()
    coord.request_stop()
    coord.request_stop()
    coord.on_stop(lambda: calls.append(("late", threading.get_ident())))
    assert calls == [("a", me), ("b", me), ("c", me), ("late", me)]


def test_a_callback_that_fails_is_reported_and_keeps_no_other_from_running() -> None:
    coord = af.Coordinator()
    calls: list[int] = []
    coord.on_stop(lambda: 1 // 0)
    coord.on_stop(lambda: calls.append(1))
    coord.request_stop()
    assert calls == [1]
    with pytest.raises(ZeroDivisionError):
        coord.join()


def test_ctrl_c_in_a_callback_is_raised_after_the_others_have_run() -> None:
    coord = af.Coordinator()
    calls: list[int] = []

    def interrupted() -> None:
        raise KeyboardInterrupt

    coord.on_stop(interrupted)
    coord.on_stop(lambda: calls.append(1))
    with pytest.raises(KeyboardInterrupt):
        coord.request_stop()
    assert calls == [1] and coord.should_stop()


def test_many_threads_ask_and_register_at_once_and_each_callback_runs_once() -> None:
    for _ in range(50):
        coord = af.Coordinator()
        calls: list[int] = []
        together = threading.Barrier(4)

        def register(
            first: int, coord: af.Coordinator = coord, calls: list[int] = calls, together=together
        ) -> None:
            together.wait()
            for number in range(first, first + 20):
                coord.on_stop(lambda number=number: calls.append(number))

        def ask(coord: af.Coordinator = coord, together=together) -> None:
            together.wait()
            coord.request_stop()

        threads = [threading.Thread(target=register, args=(n * 20,)) for n in range(2)]
        threads += [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert sorted(calls) == list(range(40))


# -- from a signal's handler


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs POSIX timers")
def test_a_signal_handler_stops_the_thread_it_interrupts() -> None:
    """The main thread waits, without a time-out, and the handler asks on that same thread."""
    coord = af.Coordinator()
    before = signal.signal(signal.SIGALRM, lambda *_: coord.request_stop())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        assert coord.wait_for_stop()
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    "method", ["wait_for_stop", "on_stop", "request_stop", "register_thread", "join", "clear_stop"]
)
def test_a_stop_may_be_asked_for_at_any_line_of_any_method(method: str) -> None:
    """As a signal's handler would, between any two lines: nothing waits for itself."""
    import sys

    arguments = {
        "wait_for_stop": (0.0,),
        "on_stop": (lambda: None,),
        "register_thread": (threading.Thread(),),
    }
    line = 0
    while True:
        line += 1
        coord = af.Coordinator()
        seen = 0

        def trace(frame, event, _, coord: af.Coordinator = coord, line: int = line):
            nonlocal seen
            if "coordinator" not in frame.f_code.co_filename or "tests" in frame.f_code.co_filename:
                return None
            if event == "line":
                seen += 1
                if seen == line:
                    sys.settrace(None)
                    coord.request_stop()
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            getattr(coord, method)(*arguments.get(method, ()))
        finally:
            sys.settrace(before)
        if seen < line:
            break
        assert coord.should_stop() or method == "clear_stop"
    assert line > 2


def test_a_first_exception_that_takes_no_notes_is_still_the_one_that_is_raised() -> None:
    """As a frozen dataclass; what came later is in `exceptions`."""

    @dataclasses.dataclass(frozen=True)
    class Frozen(Exception):
        text: str

    coord = af.Coordinator()
    first, second = Frozen("first"), ValueError("second")
    coord.request_stop(first)
    coord.request_stop(second)
    assert coord.exceptions == (first, second)
    assert raised_by_join(coord) is first
