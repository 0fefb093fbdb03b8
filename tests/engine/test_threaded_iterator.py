"""An iterator of a `flat_map` that threads draw from is closed once, wherever a stop meets a draw."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import FrameType
from typing import Any

import pytest

from tests.engine.inside import ThreadedIterator

COUNT = 4
place: ContextVar[str] = ContextVar("place")


class Stopping:
    """Draws from an iterator on one thread, and stops it on another one before a given line of the draw."""

    def __init__(self, at: int, loop: asyncio.AbstractEventLoop) -> None:
        self.closed: list[str] = []
        self.errors: list[BaseException] = []
        self.left = at
        """Number of lines before the stop."""
        self.drawn = ThreadedIterator(self.numbers(), "numbers", loop, 1 << 20)
        self.threads: list[threading.Thread] = []

    def numbers(self) -> Iterator[int]:
        place.set("mine")
        try:
            yield from range(COUNT)
        finally:
            self.closed.append(place.get())

    def start(self, call: Callable[[], object]) -> None:
        """Call a function on another thread."""

        def called() -> None:
            try:
                call()
            except BaseException as error:  # noqa: BLE001 - looked at by the test
                self.errors.append(error)

        self.threads.append(threading.Thread(target=called))
        self.threads[-1].start()

    def stop(self) -> None:
        self.start(lambda: self.drawn.stop(lambda _, close: self.start(close)))
        if not self.drawn._lock.locked():  # else it waits for the draw
            for thread in self.threads:
                thread.join()

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename != sys.modules[ThreadedIterator.__module__].__file__:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                self.stop()
        return self.trace

    def run(self, most: int) -> None:
        self.drawn.draw(1)
        sys.settrace(self.trace)
        try:
            self.drawn.draw(most)
        finally:
            sys.settrace(None)
        if self.left > 0:
            self.stop()
        for thread in self.threads:
            thread.join()


@pytest.mark.parametrize("most", [1, COUNT])
def test_a_stop_anywhere_in_a_draw_closes_it_once_in_its_context(most: int) -> None:
    loop = asyncio.new_event_loop()
    at = 1
    while True:
        stopping = Stopping(at, loop)
        drawing = threading.Thread(target=stopping.run, args=(most,))  # so that no other thread is traced
        drawing.start()
        drawing.join()
        assert stopping.errors == [], at
        assert stopping.closed == ["mine"], at
        if stopping.left > 0:
            break
        at += 1
    assert at > 15
    loop.close()
