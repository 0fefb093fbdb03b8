"""The workers of a stage, and how many of them may work at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from asyncfeed.engine.limits.demand import Demand
from asyncfeed.engine.limits.tuner import Tuner
from asyncfeed.engine.provenance import raise_if_cancelled


class WorkerPool:
    """Up to `limit` long-lived workers, which park while there is nothing to do.

    A worker that starts wakes the next one while items are left. So a stage whose function never waits keeps to
    a few workers, and a stage whose function waits soon has all of them. If there is a `tuner`, it moves the
    limit.

    `start` starts a worker. Nothing of the worker runs inside that call.
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
        """How many more workers may have a group ready, and wait for a thread until one of the others is done."""
        self.tuner: Tuner | None = None
        self._loop = loop
        self._start = start
        self._hungry_for = hungry_for
        self._demand = demand
        self._workers = 0
        self._parked: list[asyncio.Future[None]] = []
        self.wants_notice = False
        """Whether a worker that begins an item calls `wake_one`. At other times the call would change nothing."""
        self.over_limit = False
        """Whether more workers work than may: the next one that has finished an item parks."""
        self._idle, self._counted = 0.0, 0.0

    @property
    def capacity(self) -> int:
        """How many workers may have items in hand."""
        return self.limit + self.extra

    @property
    def working(self) -> int:
        """How many workers are not parked."""
        return self._workers - len(self._parked)

    def wake_one(self, begun: int | None = None) -> None:
        """Let one more worker work, if one may. If all work, ask the tuner, which counts the items `begun`.

        A caller that does not know that number leaves the question to the next worker that begins an item. No
        worker runs before this returns, so the caller may update its own state before or after it.
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

    def tune(self, start: int, most: int) -> None:
        """Let a tuner find the limit from now on, between 1 and `most`. If `most` is the start, there is none."""
        self.limit = min(start, most)
        can_take = None if self._demand is None else self._demand.rate
        self.tuner = Tuner(self.limit, most, self._hungry_for, can_take) if most > start else None
        self._counted = self._loop.time()
        self.worker_started()

    def set_range(self, start: int, most: int, *, anew: bool) -> None:
        """Let the tuner go up to another `most`.

        The search begins again from `start` if it is to begin `anew`, or if there was no tuner and now is one. If
        `most` is the start, the limit is `start` again.
        """
        if anew or (most > start) is (self.tuner is None):
            self.tune(start, most)
        elif self.tuner is not None:
            self.tuner.most = most

    def worker_started(self) -> None:
        """Note that a worker that was woken has started: the next one may be woken, or all work now."""
        self.wants_notice = self.working < self.capacity or self.tuner is not None

    def note_progress(self, begun: int) -> None:
        """Note that results were sent on, so that the tuner may look at the rate when the next item is begun.

        If not all workers work, ask the tuner whether fewer would do. `begun` items were begun, or a few more.
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
        """Wait to be woken."""
        raise_if_cancelled()
        self._count_idle()
        parked = self._loop.create_future()
        self._parked.append(parked)
        self.over_limit = self.working > self.capacity
        await parked
        self.worker_started()

    def _count_idle(self) -> None:
        """Add up how long workers that may work were parked. It is called when the number of workers changes."""
        if self.tuner is not None:
            now = self._loop.time()
            self._idle += max(0, self.limit - self.working) * (now - self._counted)
            self._counted = now
