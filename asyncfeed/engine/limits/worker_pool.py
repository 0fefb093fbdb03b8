"""The worker pool of a stage: starts, wakes and parks its workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from asyncfeed.engine.constants import LEAST_ITEMS
from asyncfeed.engine.limits.demand import Demand
from asyncfeed.engine.limits.tuner import Tuner
from asyncfeed.engine.provenance import raise_if_cancelled


class WorkerPool:
    """Up to `limit` long-lived workers, which park while there is no work.

    When a worker starts, it wakes the next one if items are left. So a stage whose function never waits uses a few
    workers, and a stage whose function waits soon has all of them. A `tuner`, if there is one, moves the limit.

    `start` starts a worker, which must take its first step after that call has returned. `hungry_for` returns the
    seconds that the consumer has waited so far.
    """

    def __init__(
        self,
        limit: int,
        loop: asyncio.AbstractEventLoop,
        start: Callable[[], None],
        hungry_for: Callable[[], float],
        demand: Demand | None = None,
    ) -> None:
        self.limit = limit
        self.extra = 0
        """Number of extra workers that may prepare their next group while all threads are busy."""
        self.tuner: Tuner | None = None
        self._loop = loop
        self._start = start
        self._hungry_for = hungry_for
        self._demand = demand
        self._workers = 0
        self._parked: list[asyncio.Future[None]] = []
        self.wants_notice = False
        """Whether a worker that begins an item must call `wake_one`. If False, the call would have no effect."""
        self.over_limit = False
        """Whether more workers work than are allowed. The next one that has finished an item parks."""
        self._idle, self._counted = 0.0, 0.0

    @property
    def capacity(self) -> int:
        """Number of workers that may hold items."""
        return self.limit + self.extra

    @property
    def working(self) -> int:
        """Number of workers that are not parked."""
        return self._workers - len(self._parked)

    def wake_one(self, begun: int | None = None) -> None:
        """Wake or start one more worker, if the limit allows. If all workers work, ask the tuner for a new limit.

        `begun` is the number of items that were begun, which the tuner needs. A caller that does not know the
        number passes None, and the next worker that begins an item asks the tuner. No worker runs before this
        returns, so the caller may update its own state before or after the call.
        """
        tuner = self.tuner
        if begun is None and tuner is not None and self.working >= self.capacity:
            return
        self.wants_notice = False
        if begun is not None and self.working >= self.capacity and tuner is not None and tuner.limit == self.limit:
            self.limit = tuner.look(begun, self._loop.time(), self._idle)
            self.over_limit = self.working > self.capacity
        if self.working < self.capacity:
            self._count_idle()
            if self._parked:
                parked = self._parked.pop()
                if not parked.done():
                    parked.set_result(None)
            else:
                self._workers += 1
                self._start()

    def tune(self, start: int, most: int, least_items: int = LEAST_ITEMS) -> None:
        """Let a tuner find the limit, between 1 and `most`. There is no tuner if `most` is not above `start`.

        `least_items` is the number of items from which a rate can be told.
        """
        self.limit = min(start, most)
        can_take = None if self._demand is None else self._demand.rate
        self.tuner = Tuner(self.limit, most, self._hungry_for, can_take, least_items) if most > start else None
        self._counted = self._loop.time()
        self.worker_started()

    def set_range(self, start: int, most: int, *, anew: bool) -> None:
        """Change the largest limit that the tuner may set.

        The search starts again from `start` if `anew` is true, or if there was no tuner and there is one now. If
        `most` is not above `start`, there is no tuner any more.
        """
        if anew or (most > start) is (self.tuner is None):
            self.tune(start, most)
        elif self.tuner is not None:
            self.tuner.most = most

    def worker_started(self) -> None:
        """Note that a woken worker now works. The next worker that begins an item may wake another one."""
        self.wants_notice = self.working < self.capacity or self.tuner is not None

    def note_progress(self, begun: int) -> None:
        """Note that results were sent on, so that the tuner measures the rate when the next item is begun.

        If not all workers work, ask the tuner whether fewer would be enough. `begun` is the number of items that
        were begun, or a little more.
        """
        tuner = self.tuner
        if tuner is None:
            return
        if self._demand is not None:
            self._demand.note(begun)
        if self.working >= self.limit:
            self.wants_notice = True
        elif tuner.limit == self.limit:
            self._count_idle()
            self.limit = tuner.ease(begun, self._counted, self._idle)
            self.over_limit = self.working > self.capacity

    async def park(self) -> None:
        """Wait until the pool wakes this worker."""
        raise_if_cancelled()
        self._count_idle()
        parked = self._loop.create_future()
        self._parked.append(parked)
        self.over_limit = self.working > self.capacity
        await parked
        self.worker_started()

    def _count_idle(self) -> None:
        """Add up how long workers below the limit were parked. To be called when the number of workers changes."""
        if self.tuner is not None:
            now = self._loop.time()
            self._idle += max(0, self.limit - self.working) * (now - self._counted)
            self._counted = now
