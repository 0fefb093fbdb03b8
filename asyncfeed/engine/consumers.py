"""The handoff's records of its consumers: which of them wait, what they have taken, and which epochs they want."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from itertools import islice, repeat, starmap, takewhile
from operator import itemgetter
from typing import Any

from asyncfeed.engine.constants import AHEAD_BYTES, AHEAD_ITEMS

Queue = deque[tuple[Any, int, bool]]
"""(item, bytes, False), or (None, 0, True) for the end of an epoch."""
_item, _nbytes = itemgetter(0), itemgetter(1)


class Ahead:
    """Items that have left the queue together, for the next draws. Those need no lock.

    `popleft` gives each item to one thread, under the GIL. `withdraw` takes those that are left without Python in
    between. So `delivered` is right at any moment, in a signal handler, too.
    """

    __slots__ = ("_back", "_taken", "epoch", "items")

    def __init__(self, epoch: int, items: list[Any], before: int) -> None:
        self.epoch = epoch
        self.items = deque(items)
        """Gives the items to consumers of all epochs, or of `epoch`."""
        self._taken = before + len(items)
        self._back: list[Any] = []

    @property
    def delivered(self) -> int:
        """Number of these items that were drawn, and of those `before` them."""
        return self._taken - len(self.items) - len(self._back)

    @property
    def over(self) -> bool:
        """Whether all of these items were drawn or withdrawn."""
        return not self.items

    def withdraw(self) -> list[Any]:
        """Give out no more of these items, and return them. Any thread may call this, and a signal handler."""
        with suppress(IndexError):  # when none is left
            self._back.extend(starmap(self.items.popleft, repeat(())))
        return self._back


class Delivered:
    """Counts the items that consumers have taken, and the bytes that this frees."""

    __slots__ = ("_alone", "ahead", "booked", "left", "left_bytes", "nbytes")

    def __init__(self) -> None:
        self._alone = 0
        """Number of items that left the queue alone, each when it was drawn."""
        self.ahead = Ahead(0, [], 0)
        """Small items that left it together. Their bytes count as freed."""
        self.left = 0
        """Number of items that were dropped with the rest of an epoch."""
        self.nbytes = 0
        """Bytes of the items that left the queue for consumers."""
        self.left_bytes = 0
        """Bytes of items that were dropped with the rest of an epoch, or at a stop."""
        self.booked = 0
        """How many of all these bytes the budget has been told of."""

    @property
    def count(self) -> int:
        """Number of items that were delivered."""
        return self._alone + self.ahead.delivered

    @property
    def unbooked(self) -> int:
        """Number of freed bytes that the budget has not been told of."""
        return self.nbytes + self.left_bytes - self.booked

    def deliver(self, nbytes: int) -> None:
        """Note that a consumer takes an item of the queue. None lie ahead."""
        self._alone += 1
        self.nbytes += nbytes

    def put_ahead(self, epoch: int, queue: Queue, most: int) -> None:
        """Let draws take up to `most` small items in front of the queue without its lock. No others lie ahead.

        These are items of one epoch. Ctrl-C may come at any moment, and loses none.
        """
        sizes = list(takewhile(AHEAD_BYTES.__ge__, map(_nbytes, islice(queue, min(most, AHEAD_ITEMS)))))
        items: list[Any] = []
        try:
            items.extend(map(_item, starmap(queue.popleft, repeat((), len(sizes)))))  # in one step: no Python runs
            ahead = Ahead(epoch, items, self.ahead.delivered)
            nbytes = sum(sizes)
            self.ahead = ahead
        except BaseException:
            queue.extendleft(zip(reversed(items), reversed(sizes), repeat(False), strict=False))
            raise
        self.nbytes += nbytes

    def take_back(self, queue: Queue) -> bool:
        """Put what lies ahead back into the queue. Return whether there was anything. Its bytes stay freed."""
        left = self.ahead.withdraw()
        if not left:
            return False
        nothing = Ahead(0, [], self.ahead.delivered)
        queue.extendleft(zip(reversed(left), repeat(0), repeat(False), strict=False))
        self.ahead = nothing
        return True

    def drop(self, sizes: list[int]) -> None:
        """Note that items were dropped at a stop. They count as neither delivered nor left."""
        self.left_bytes += sum(sizes)

    def book(self) -> int:
        """Return `unbooked`, and count these bytes as booked. The caller must tell the budget."""
        freed = self.unbooked
        self.booked += freed
        return freed


class EpochGate:
    """Which epochs a queue holds, and which are wanted. They are numbered from the first epoch of the run."""

    __slots__ = ("coming", "front", "queued_ends", "seen", "wanted")

    def __init__(self) -> None:
        self.front = 0
        """The epoch of the item in front."""
        self.coming = 0
        """The epoch of the next item that is put."""
        self.seen = 0
        """Number of epochs whose end a consumer has been told of."""
        self.wanted = 0
        """The first epoch that is still wanted."""
        self.queued_ends = 0
        """Number of ends of epochs in the queue."""

    def pass_end(self) -> None:
        """Note that the end of an epoch was taken from the queue."""
        self.queued_ends -= 1
        self.front += 1

    def enter_next(self) -> None:
        """Note that a consumer of all epochs has passed the end of an epoch."""
        self.pass_end()
        self.wanted = max(self.wanted, self.front)


class Waiters:
    """The consumers that wait, on threads and on the loop. They are woken first come, first served."""

    __slots__ = ("sleepers", "threads")

    def __init__(self) -> None:
        self.threads: deque[Any] = deque()
        """A locked lock for each thread that waits. A condition variable would be unsafe. It is Python code: an
        interrupt in the middle of its `wait` makes it release a lock that it does not hold."""
        self.sleepers: deque[asyncio.Future[None]] = deque()
        """A future for each task that waits."""

    def __bool__(self) -> bool:
        return bool(self.threads or self.sleepers)

    def wake(self, count: int | None) -> None:
        """Wake up to `count` threads and up to `count` tasks. None wakes all."""
        for _ in range(len(self.threads) if count is None else min(count, len(self.threads))):
            self.threads.popleft().release()
        woken = 0
        while self.sleepers and (count is None or woken < count):
            sleeper = self.sleepers.popleft()
            if not sleeper.done():
                sleeper.set_result(None)
                woken += 1

    def leave(self, consumer: Any, queue: deque[Any]) -> None:
        """Remove a consumer from one of the queues. If it was already woken for an item, wake another one."""
        if consumer in queue:
            queue.remove(consumer)
        else:
            self.wake(1)

    def forget_done(self) -> None:
        """Remove the futures of tasks that were woken or closed."""
        for sleeper in [each for each in self.sleepers if each.done()]:
            self.sleepers.remove(sleeper)
