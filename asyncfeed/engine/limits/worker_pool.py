"""The workers of a stage: called one by one while there is work, resting in between; and what it allows."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from asyncfeed.engine.limits.demand import Demand
from asyncfeed.engine.limits.tuner import Tuner
from asyncfeed.engine.operators.step import RunContext
from asyncfeed.engine.provenance import raise_if_cancelled
from asyncfeed.errors import Failure, note
from asyncfeed.stages.steps import Work


class WorkerPool:
    """Up to `limit` long-lived workers.

    A worker that comes calls the next while items are left, so a stage whose function never waits keeps to a few
    of them, and one that waits soon has all. Where there is a `tuner`, it moves the limit.

    `start` starts a worker, of which nothing runs inside that call: each new one calls the next.
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
        self.spare = 0
        """How many more may have their work ready and wait until one of these has done: no calls of their own."""
        self.tuner: Tuner | None = None
        self._loop = loop
        self._start = start
        self._hungry_for = hungry_for
        self._demand = demand
        self._workers = 0
        self._resting: list[asyncio.Future[None]] = []
        self.short_handed = False
        """Whether to call `hire` when the next item is begun; only then is that worth its price."""
        self.crowded = False
        """Whether more work than should: who has finished an item is to rest."""
        self._idle, self._counted = 0.0, 0.0

    @property
    def room(self) -> int:
        """How many may have work in hand."""
        return self.limit + self.spare

    @property
    def working(self) -> int:
        """How many are not resting."""
        return self._workers - len(self._resting)

    def hire(self, begun: int | None = None) -> None:
        """Call one more worker, if there is one; if all work, ask the tuner, who counts the items `begun`.

        A caller that does not know that number leaves the question to the next worker that begins an item.

        No worker runs before this returns: the caller's own books may be written before or after it.
        """
        tuner = self.tuner
        if begun is None and tuner is not None and self.working >= self.room:
            return
        self.short_handed = False
        if begun is not None and self.working >= self.room and tuner is not None and tuner.limit == self.limit:
            self.limit = tuner.look(begun, self._loop.time(), self._idle)
            self.crowded = self.working > self.room
        if self.working < self.room:
            self._count_idle()
            if self._resting:
                resting = self._resting.pop()
                if not resting.done():
                    resting.set_result(None)
            else:
                self._workers += 1
                self._start()

    def tune(self, start: int, most: int) -> None:
        """Find the limit from here on, between 1 and `most`; where that is the start there is nothing to find."""
        self.limit = min(start, most)
        can_take = None if self._demand is None else self._demand.rate
        self.tuner = Tuner(self.limit, most, self._hungry_for, can_take) if most > start else None
        self._counted = self._loop.time()
        self.arrived()

    def suit(self, start: int, most: int, *, anew: bool) -> None:
        """Go on finding the limit, up to another `most`; anew where asked, or where there now is one to find.

        Where there no longer is, the limit is `start` again.
        """
        if anew or (most > start) is (self.tuner is None):
            self.tune(start, most)
        elif self.tuner is not None:
            self.tuner.most = most

    def arrived(self) -> None:
        """Note that a called worker has come: another may be called, or all are at work now."""
        self.short_handed = self.working < self.room or self.tuner is not None

    def watch(self, begun: int) -> None:
        """Have the next item's begin noticed: something was finished, so it is time to look how fast.

        If not all work, ask the tuner whether fewer would do; `begun` items were begun, or somewhat more.
        """
        tuner = self.tuner
        if tuner is None:
            return
        if self._demand is not None:
            self._demand.note(begun)
        if self.working >= self.limit:
            self.short_handed = True
        elif tuner.limit == self.limit:
            self._count_idle()
            self.limit = tuner.ease(begun, self._counted, self._idle)
            self.crowded = self.working > self.room

    async def rest(self) -> None:
        """Wait to be called."""
        raise_if_cancelled()
        self._count_idle()
        resting = self._loop.create_future()
        self._resting.append(resting)
        self.crowded = self.working > self.room
        await resting
        self.arrived()

    def _count_idle(self) -> None:
        """Book the time that those who could work have rested; called when their number changes."""
        if self.tuner is not None:
            now = self._loop.time()
            self._idle += max(0, self.limit - self.working) * (now - self._counted)
            self._counted = now


class SkipBudget:
    """What a stage does with items that fail: all of them end the run, or a limited number is left out."""

    def __init__(self, work: Work, context: RunContext) -> None:
        self._skips = work.on_error == "skip"
        self._limit = work.skip_limit
        self._context = context
        self._left_out = 0

    def allows(self, failure: Failure, seen: int) -> bool:
        """Return whether the item may be left out, after `seen` good ones; asked in the order of the stream."""
        if not self._skips or not isinstance(failure.error, Exception):
            return False  # nobody means Ctrl-C or an exit when they allow for bad items
        self._left_out += 1
        limit = self._limit
        allowed = limit if limit >= 1 else math.ceil(limit * (seen + self._left_out))
        if self._left_out > allowed:
            note(
                failure.error,
                f"asyncfeed: {self._left_out} items of this run failed, which is more than skip_limit={limit:g} "
                "allows",
            )
            return False
        self._context.skipped(failure)
        return True
