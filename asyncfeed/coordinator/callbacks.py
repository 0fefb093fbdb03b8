"""How a stop reaches its waiters: callbacks, gates for threads, and calls into an event loop. None takes a lock.

A stop may be asked for in a signal handler or a finalizer, on a thread that is in the middle of the same code.
There the release of a lock, the `pop` of a dict and `call_soon_threadsafe` are safe. A condition variable is not.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress


class Callbacks:
    """Functions that are called once each, even if others raise. Any thread may add, remove and call them."""

    def __init__(self) -> None:
        self._waiting: dict[object, Callable[[], object]] = {}

    def add(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Add a function. Return a function that removes it."""
        key = object()
        self._waiting[key] = callback

        def remove() -> None:
            self._waiting.pop(key, None)

        return remove

    def call(self) -> list[BaseException]:
        """Call all functions in the order they were added. Return the exceptions that they raised."""
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
    """One thread waits at the gate until it is opened. `open` releases a lock, which a signal handler may do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def open(self) -> None:
        """Let the thread continue. This may be called any number of times."""
        with suppress(RuntimeError):  # it is open already
            self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds. Return whether the gate was opened. Ctrl-C interrupts the wait."""
        seconds = -1 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX)
        return self._lock.acquire(timeout=seconds)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs on this thread, or None."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def on_loop(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object) -> None:
    """Call a function on a loop, from any thread."""
    with suppress(RuntimeError):  # the loop is closed, so nothing waits on it
        loop.call_soon_threadsafe(function, *args)


def settle(future: asyncio.Future[None]) -> None:
    """Resolve a future, unless it is done."""
    if not future.done():
        future.set_result(None)
