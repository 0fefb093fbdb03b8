"""The items that consumers work on: drawn, but not finished.

A consumer is the thread or task that draws. It has finished its item when it asks for another one. If it returns
without asking, it has finished when another consumer asks: `asyncio.wait_for` may draw in a task of its own, and
its caller then works on the item. A task that failed, was cancelled or was dropped has not finished. Invariants:

* `first` is at most the number of each item that a consumer has drawn and not finished.
* `first` never decreases, because items are drawn in the order of their numbers.
* No consumer is kept alive: its frames may hold the feed, and dropping the feed must end the run.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from weakref import WeakSet, ref

Consumer = threading.Thread | asyncio.Task[Any]
Place = tuple[int, int]
"""The number of an item among all items of the run, and of its epoch."""


class _Hand:
    """The first unfinished item of a consumer."""

    __slots__ = ("place", "returned", "thread")

    def __init__(self, place: Place, consumer: Consumer) -> None:
        self.place = place
        self.returned = False
        """Whether the consumer is a task that has returned."""
        # The main thread ends with the process, perhaps because of an exception.
        self.thread = isinstance(consumer, threading.Thread) and consumer is not threading.main_thread()
        """Whether the consumer is a thread that has finished its item when it ends."""


class InHand:
    """The first unfinished item of each consumer."""

    def __init__(self) -> None:
        self._hands: dict[ref[Consumer], _Hand] = {}
        self._watched: WeakSet[asyncio.Task[Any]] = WeakSet()
        """The tasks that report when they are done."""

    def asks(self, consumer: Consumer) -> None:
        """Note that a consumer asks for another item."""
        self._hands.pop(ref(consumer), None)
        for each, hand in list(self._hands.items()):
            if hand.returned or (hand.thread and _has_ended(each)):
                del self._hands[each]

    def takes(self, consumer: Consumer, place: Place) -> None:
        """Note that a consumer has drawn an item."""
        self._hands.setdefault(ref(consumer), _Hand(place, consumer))
        if isinstance(consumer, asyncio.Task) and consumer not in self._watched:
            self._watched.add(consumer)
            consumer.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        hand = self._hands.get(ref(task))
        # `exception()` would keep asyncio from reporting an exception that nobody asks for.
        if hand is not None and not task.cancelled() and getattr(task, "_exception", None) is None:
            hand.returned = True

    def finish_all(self) -> None:
        """Note that all items that were drawn are finished."""
        self._hands.clear()

    def first(self) -> Place | None:
        """Return the place of the first item that is not finished; None if all are."""
        return min((hand.place for hand in self._hands.values()), default=None)


def consumer() -> Consumer:
    """Return the task that runs on this thread, or the thread."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs on this thread
        task = None
    return threading.current_thread() if task is None else task


def _has_ended(each: ref[Consumer]) -> bool:
    """Return whether a thread has ended."""
    thread = each()
    return not (isinstance(thread, threading.Thread) and thread.is_alive())
