"""The handoff's records of its consumers: which of them wait, what they have taken, and which epochs they want."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any


class Delivered:
    """Counts the items that consumers have taken, and the bytes that this frees."""

    __slots__ = ("booked", "count", "left", "left_bytes", "nbytes")

    def __init__(self) -> None:
        self.count = 0
        """Number of items that were delivered."""
        self.left = 0
        """Number of items that were dropped with the rest of an epoch."""
        self.nbytes = 0
        """Bytes of these items."""
        self.left_bytes = 0
        """Bytes of items that were dropped with the rest of an epoch, or at a stop."""
        self.booked = 0
        """How many of all these bytes the budget has been told of."""

    @property
    def unbooked(self) -> int:
        """Number of freed bytes that the budget has not been told of."""
        return self.nbytes + self.left_bytes - self.booked

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

    def forget_done(self) -> None:
        """Remove the futures of tasks that were woken or closed."""
        for sleeper in [each for each in self.sleepers if each.done()]:
            self.sleepers.remove(sleeper)
