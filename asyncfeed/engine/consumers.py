"""What the queue to the consumers knows of them: who waits, what they have got, and which epochs they want."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any


class Delivered:
    """What consumers have got, and what that frees."""

    __slots__ = ("booked", "count", "left_bytes", "nbytes")

    def __init__(self) -> None:
        self.count = 0
        """How many items were delivered."""
        self.nbytes = 0
        """What they weighed."""
        self.left_bytes = 0
        """What those weighed that were left out with the rest of an epoch."""
        self.booked = 0
        """How many bytes of both the budget knows of."""

    @property
    def unbooked(self) -> int:
        """How many bytes are free, and the budget does not know it."""
        return self.nbytes + self.left_bytes - self.booked

    def book(self) -> int:
        """Return the same, and count on it that the budget is told."""
        freed = self.unbooked
        self.booked += freed
        return freed


class EpochGate:
    """Which epochs a queue holds, and which are wanted: by numbers counted from the first of the run."""

    __slots__ = ("coming", "front", "queued_ends", "wanted")

    def __init__(self) -> None:
        self.front = 0
        """The epoch of the item in front."""
        self.coming = 0
        """The epoch of the item that is put next."""
        self.wanted = 0
        """The first epoch that is still wanted."""
        self.queued_ends = 0
        """How many ends of epochs are queued."""

    def pass_end(self) -> None:
        """Note that the end of an epoch was taken from the queue."""
        self.queued_ends -= 1
        self.front += 1


class Waiters:
    """The consumers that wait, on threads and on the loop; woken in the order in which they came."""

    __slots__ = ("sleepers", "threads")

    def __init__(self) -> None:
        self.threads: deque[Any] = deque()
        """A locked lock for each thread that waits. A condition variable is written in Python: an interrupt in the
        middle of its wait makes it release a lock that it does not have."""
        self.sleepers: deque[asyncio.Future[None]] = deque()

    def __bool__(self) -> bool:
        return bool(self.threads or self.sleepers)

    def wake(self, count: int | None) -> None:
        """Wake as many consumers as there are items for, or all."""
        for _ in range(len(self.threads) if count is None else min(count, len(self.threads))):
            self.threads.popleft().release()
        woken = 0
        while self.sleepers and (count is None or woken < count):
            sleeper = self.sleepers.popleft()
            if not sleeper.done():
                sleeper.set_result(None)
                woken += 1

    def forget_done(self) -> None:
        """Forget tasks that were woken or closed."""
        for sleeper in [each for each in self.sleepers if each.done()]:
            self.sleepers.remove(sleeper)
