"""Small items leave the last queue together, and are drawn without its lock. Nobody can tell, whatever comes between."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from linecache import getline
from types import FrameType
from typing import Any, Self
from weakref import ref

import pytest

import asyncfeed as af
from asyncfeed import ClosedError
from tests.engine.inside import AHEAD_ITEMS, drawing_files, take_ready, wait_for_ready

COUNT = 1000
READY = 3 * AHEAD_ITEMS
"""How many items are ready before a test begins. Some draws move many of them, others none."""


@contextmanager
def ready(count: int = COUNT, state: Any = None) -> Iterator[af.Feed[int]]:
    """Open a feed of numbers, many of which are ready."""
    with af.items(range(count)).prefetch(4 * READY).open(state=state) as feed:
        feed_drawn = [next(feed)] if state is None else []
        assert feed_drawn in ([], [0])
        wait_for_ready(feed, READY)
        yield feed


def rest_of(state: Any, count: int = COUNT) -> list[int]:
    """Return what a feed delivers that goes on from a state."""
    with af.items(range(count)).prefetch(4 * READY).open(state=state) as feed:
        return list(feed)


def test_a_state_is_where_the_consumer_is_after_each_draw() -> None:
    """Not where the queue is."""
    with ready() as feed:
        for drawn in range(1, READY):
            assert feed.stats().batches == drawn
            if drawn % 7 == 0:
                assert next(iter(rest_of(feed.state_dict()))) == drawn
            assert next(feed) == drawn


class Opaque:
    """Weighs little, as far as asyncfeed can see."""


def test_an_item_is_gone_when_its_consumer_drops_it() -> None:
    """It may hold more than it seems to."""
    with af.items(range(COUNT)).map(lambda _: Opaque()).prefetch(4 * READY).open() as feed:
        next(feed)
        wait_for_ready(feed, READY)
        for _ in range(2 * AHEAD_ITEMS):
            drawn = ref(next(feed))
            assert drawn() is None


def test_each_item_goes_to_one_of_several_threads_in_order() -> None:
    with ready(20_000) as feed:
        came: list[list[int]] = [[] for _ in range(4)]
        threads = [threading.Thread(target=lambda mine=mine: mine.extend(feed)) for mine in came]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all(mine == sorted(mine) for mine in came)
    assert sorted(sum(came, [])) == list(range(1, 20_000))


@pytest.mark.parametrize("before", range(0, 2 * AHEAD_ITEMS, 9))
def test_a_stop_is_seen_at_once(before: int) -> None:
    with ready() as feed:
        for _ in range(before):
            next(feed)
        feed.stop("enough")
        with pytest.raises(ClosedError, match="enough"):
            next(feed)
        assert feed.stats().batches == before + 1
        state = feed.state_dict()
    assert rest_of(state) == list(range(before + 1, COUNT))


@pytest.mark.parametrize("before", range(0, 2 * AHEAD_ITEMS, 9))
def test_a_bridge_goes_on_where_a_draw_ended(before: int) -> None:
    """It takes what is ready, all at once."""
    with ready() as feed:
        came = [0, *(next(feed) for _ in range(before))]
        came += take_ready(feed, 10, 1 << 20)
        came += [next(feed) for _ in range(3)]
        state = feed.state_dict()
        came += list(feed)
    assert came == list(range(COUNT))
    assert rest_of(state) == list(range(before + 14, COUNT))


@pytest.mark.parametrize("before", range(1, 2 * AHEAD_ITEMS, 9))
def test_the_rest_of_an_epoch_that_is_left_does_not_come_in_the_next(before: int) -> None:
    came: list[list[int]] = []
    for epoch in af.items(range(200)).prefetch(400).epochs(3):
        came.append([])
        for item in epoch:
            came[-1].append(item)
            if len(came[-1]) == before:
                break
    assert came == [list(range(before))] * 3


def test_consumers_of_two_epochs_get_no_items_of_the_others() -> None:
    """One is still in the epoch that the other has left."""
    epochs = af.items(range(200)).prefetch(400).epochs(2)
    first = next(epochs)
    came = [next(first) for _ in range(5)]
    second = next(epochs)
    later = [next(second) for _ in range(5)]
    assert list(first) == []
    assert [came, later + list(second)] == [list(range(5)), list(range(200))]


class Tracing:
    """Calls a function before one of the lines that a thread runs in the code of drawing.

    Not before a `with`: Python runs no handler of a signal between the end of its block and the release of the lock.
    """

    def __init__(self, at: int, call: Callable[[], None]) -> None:
        self.left = at
        self._call = call

    def __enter__(self) -> Self:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in drawing_files():
            return None
        if event == "line" and not getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with "):
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                self._call()
        return self._trace


def on_a_thread(call: Callable[[], object]) -> None:
    errors: list[BaseException] = []

    def called() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    thread = threading.Thread(target=called)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def every_line(try_it: Callable[[int], bool]) -> None:
    """Try it at one line after the other until there is none. Each is on a thread of its own, and only that is traced."""
    at = 1
    while try_it(at):
        at += 1
    assert at > 10


def test_a_handler_that_takes_a_state_anywhere_in_a_draw_gets_what_was_drawn() -> None:
    """The item in hand may count already."""

    def try_it(at: int) -> bool:
        with ready() as feed:
            came = [0]
            states: list[tuple[int, int, Any]] = []

            def look() -> None:
                states.append((len(came), feed.stats().batches, feed.state_dict()))

            def draw() -> None:
                with Tracing(at, look) as tracing:
                    for _ in range(AHEAD_ITEMS + 3):
                        came.append(next(feed))
                left.append(tracing.left)

            left: list[int] = []
            on_a_thread(draw)
            came.extend(feed)
        assert came == list(range(COUNT)), at
        for drawn, counted, state in states:
            assert drawn <= counted <= drawn + 1, at
            if at % 10 == 0:
                assert rest_of(state) == list(range(counted, COUNT)), at
        return left[0] <= 0

    every_line(try_it)


def test_ctrl_c_anywhere_in_a_draw_loses_at_most_the_item_in_hand() -> None:
    """An interrupted cell of a notebook keeps its feed."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    def try_it(at: int) -> bool:
        with ready() as feed:
            came = [0]
            left: list[int] = []

            def draw() -> None:
                tracing = Tracing(at, interrupt)
                try:
                    with tracing:
                        for _ in range(AHEAD_ITEMS + 3):
                            came.append(next(feed))
                except KeyboardInterrupt:
                    pass
                left.append(tracing.left)

            on_a_thread(draw)
            came.extend(feed)
        assert came == sorted(set(came)), at
        assert len(came) >= COUNT - 1, at
        return left[0] <= 0

    every_line(try_it)


def test_a_stop_on_another_thread_anywhere_in_a_draw_is_counted_right() -> None:
    def try_it(at: int) -> bool:
        with ready() as feed:
            came = [0]
            left: list[int] = []

            def draw() -> None:
                tracing = Tracing(at, lambda: on_a_thread(feed.stop))
                with tracing, pytest.raises(ClosedError):
                    while tracing.left > -1000:
                        came.append(next(feed))
                left.append(tracing.left)

            on_a_thread(draw)
            assert came == list(range(len(came))), at
            assert feed.stats().batches == len(came), at
            if at % 10 == 0:
                assert rest_of(feed.state_dict()) == list(range(len(came), COUNT)), at
        return left[0] == 0 and len(came) < AHEAD_ITEMS + 3

    every_line(try_it)
