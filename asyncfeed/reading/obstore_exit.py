"""Lets the threads of obstore leave Python before the interpreter ends.

Python up to 3.13 ends a thread that wants the GIL when the interpreter has ended, and native code then aborts the
process: a program whose work is done exits with SIGABRT or SIGSEGV. Two kinds of threads of obstore still want it:

* one that has delivered an answer, and must return from asyncio. It is seen by its stack;
* one with a request that was cancelled when its loop was closed. It does not hear of that before the answer comes.
  It holds the future of the request until then.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

if TYPE_CHECKING:
    from asyncio import Future

MAX_SECONDS = 5.0
"""Time that the interpreter waits. A thread takes milliseconds, more if other programs use all processors."""

_unheard: WeakSet[Future[Any]] = WeakSet()
"""Futures whose loop was closed before obstore had done with them."""


def note_unheard(futures: Iterable[Future[Any]]) -> None:
    """Remember requests whose loop is closed."""
    _unheard.update(futures)


def wait_for_obstore(max_seconds: float = MAX_SECONDS) -> None:
    """Wait until no thread of obstore wants the GIL, or until the time is over."""
    if "obstore" not in sys.modules:
        return
    import obstore  # noqa: PLC0415 - it was imported
    import obstore.store  # noqa: PLC0415

    store = obstore.store.MemoryStore()
    until = time.monotonic() + max_seconds
    while (_unheard or _delivers()) and time.monotonic() < until:
        with suppress(
            FileNotFoundError
        ):  # a call of obstore: this thread has no GIL, and obstore drops what it kept
            obstore.head(store, "none")


def _delivers() -> bool:
    """Return whether a thread that Python did not start is inside of `call_soon_threadsafe`."""
    started = {thread.ident for thread in threading.enumerate()}
    frames = sys._current_frames()  # noqa: SLF001 - the documented way to see another thread's stack
    try:
        return any(_is_inside(frame) for ident, frame in frames.items() if ident not in started)
    finally:
        frames.clear()  # it refers to this frame, which would be a cycle


def _is_inside(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "call_soon_threadsafe":
            return True
        frame = frame.f_back
    return False
