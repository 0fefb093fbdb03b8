"""What all feeds of a process share that read the same store: its limits.

Each reader has its own `Window`. It may begin a request if all of them together have room, or if it has less than
its fair part, or none under way. So a reader is woken by its own requests, and none waits for another one.

How many requests they may have under way together grows while requests are answered, as TCP begins slowly. When it
has grown, there are fair parts.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from asyncfeed.limits import process_requests
from asyncfeed.reading.pace import Pace
from asyncfeed.reading.window import MAX_REQUESTS, Window

if TYPE_CHECKING:
    from asyncfeed.reading.objects import ObjectStore


FIRST: Final = 32
"""Number of requests that may be under way at first. It doubles in the time of a request, and then grows by as
much again and again."""
FASTER: Final = 0.1
"""By which share that growth grows in the same time."""


class Traffic:
    """The requests of one store. Any thread may use it."""

    def __init__(self) -> None:
        self.pace = Pace()
        self._limit = self._growth = float(FIRST)
        """Number of requests that all readers may have under way, and by how much that number grows while as many
        are answered. Threads may lose a step of the growth."""
        self._most = MAX_REQUESTS
        """Where the growth ends."""
        self._windows: dict[Window, None] = {}
        """Those of the readers that are open."""

    def join(self, window: Window, *, known: bool) -> None:
        """Count the requests of a reader. If its number is `known` to suit, it need not grow."""
        self._windows[window] = None
        self._most = max(self._most, window.most)
        if known:
            self._limit = max(self._limit, float(window.most))

    def leave(self, window: Window) -> None:
        """Count them no more."""
        self._windows.pop(window, None)

    def has_room(self, window: Window) -> bool:
        """Return whether a reader may begin one more request beside those of all readers."""
        own = window.under_way
        if not own:
            return True
        windows = list(self._windows)
        most = process_requests.most or self._most
        if self._limit >= most and own < most // (len(windows) + 1):
            return True
        # The sum is not kept, because readers on several threads would have to lock it for each request.
        return sum(each.under_way for each in windows) < min(self._limit, most)

    def note_answer(self, began: float) -> None:
        """Note that a request was answered that began at that time."""
        if self._limit < self._most:
            self._limit += self._growth / self._limit
            self._growth *= 1 + FASTER / self._limit
        self.pace.note_answer(began)


_lock = threading.RLock()
"""Reentrant, because the garbage collector may make a reader on a thread that has it."""
_all: WeakValueDictionary[ObjectStore, Traffic] = WeakValueDictionary()


def traffic_of(store: ObjectStore) -> Traffic:
    """Return what the readers share that reach the same address with the same credentials."""
    key = store.limited
    with _lock:
        found = _all.get(key)
        if found is None:
            found = _all[key] = Traffic()
        return found


def _forget() -> None:
    """Forget the stores, because this process is a fork. Another thread may have had the lock."""
    global _lock
    _lock = threading.RLock()
    _all.clear()


if hasattr(os, "register_at_fork"):  # a system without this function cannot fork
    os.register_at_fork(after_in_child=_forget)
