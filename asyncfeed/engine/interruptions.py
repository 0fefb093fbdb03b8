"""Signal handlers that interrupt the engine: what they call must not wait for what they have interrupted.

Python calls a handler on the main thread, between any two steps of the code that runs there. A handler may take
the state of a feed, ask for its statistics, or close it. Invariants:

* The lock of the last queue is reentrant. A handler that interrupts a draw finds the counts before or after it.
* What a handler needs is imported when the feed is opened: it may interrupt the import of the same module.
* `calmly` runs what takes longer on a thread of its own, where no handler interrupts it.
* `close` does not wait inside a handler that has interrupted a draw, because the run may wait for that draw.
"""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

T = TypeVar("T")

SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGHUP")
    if hasattr(signal, name)
)
"""The signals by which people stop jobs, or have them save."""


def has_handlers() -> bool:
    """Return whether the program has a handler of its own for one of `SIGNALS`.

    Python's own handler of Ctrl-C only raises, and asyncio's only cancels a task. asyncio's is a `partial`.
    """
    handlers = map(signal.getsignal, SIGNALS)
    return any(
        callable(each) and each is not signal.default_int_handler and not isinstance(each, partial)
        for each in handlers
    )


def has_interrupted(lock: threading.RLock) -> bool:
    """Return whether this thread has the lock, so that the caller is a handler which has interrupted its owner."""
    try:
        threading.Condition(lock).notify()  # nobody waits for it
    except RuntimeError:  # this thread does not have the lock
        return False
    return True


def calmly(call: Callable[[], T]) -> T:
    """Return what a function returns, or raise what it raises. No handler of a signal interrupts it."""
    if threading.current_thread() is not threading.main_thread() or not has_handlers():
        return call()
    results: list[T] = []
    errors: list[BaseException] = []
    ended = _thread.allocate_lock()
    ended.acquire()

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - it is raised by the caller
            errors.append(error)
        finally:
            ended.release()

    try:
        # A `threading.Thread` has locks that the handler may need, too.
        _thread.start_new_thread(run, ())
    except RuntimeError:  # the interpreter is ending, or the system has no more threads
        return call()
    ended.acquire()
    if errors:
        raise errors.pop()
    return results.pop()
