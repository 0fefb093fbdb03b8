"""How a stop is handed on: callbacks, gates for threads, and a way into an event loop; none of them takes a lock.

A lock's release, a dict's `pop` and `call_soon_threadsafe` are safe where a condition variable is not: in a
signal's handler or a finalizer, on a thread that is in the middle of the same code.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress


class Callbacks:
    """Functions to be called once each, whatever the others raise; any thread adds, removes and calls them."""

    def __init__(self) -> None:
        self._waiting: dict[object, Callable[[], object]] = {}

    def add(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Add a function; return what removes it."""
        key = object()
        self._waiting[key] = callback

        def remove() -> None:
            self._waiting.pop(key, None)

        return remove

    def call(self) -> list[BaseException]:
        """Call all, in the order they were added; return what they raised."""
        errors: list[BaseException] = []
        while self._waiting:
            for key in self._waiting.copy():
                callback = self._waiting.pop(key, None)
                if callback is not None:  # another thread may have taken it
                    try:
                        callback()
                    except BaseException as error:  # noqa: BLE001 - it must not keep the others from being called
                        errors.append(error)
        return errors


class Gate:
    """What one thread waits at until it is opened; a lock's release is safe in a signal's handler."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def open(self) -> None:
        """Let the thread go on; any number of times."""
        with suppress(RuntimeError):  # it is open
            self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds; return whether it was opened. Ctrl-C interrupts it."""
        seconds = -1 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX)
        return self._lock.acquire(timeout=seconds)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop of this thread, where one runs."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def on_loop(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object) -> None:
    """Call a function on a loop, from anywhere."""
    with suppress(RuntimeError):  # the loop has closed: nothing waits there any more
        loop.call_soon_threadsafe(function, *args)


def settle(future: asyncio.Future[None]) -> None:
    """Let those go on who wait for this future."""
    if not future.done():
        future.set_result(None)
