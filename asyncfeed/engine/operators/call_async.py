"""The workers of a stage whose function is async: each awaits it for one item after the other, on the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from time import perf_counter
from typing import Any

from asyncfeed.engine.constants import FIRST_CALLS, SLICE_AFTER_WAIT_ITEMS, SLICE_ITEMS, TURN_SECONDS
from asyncfeed.engine.operators.call import Calls
from asyncfeed.engine.operators.operator import Operator
from asyncfeed.engine.order.reorder import Entry
from asyncfeed.engine.provenance import ItemPlace, is_own_cancellation, raise_if_cancelled
from asyncfeed.trees import SMALL_KINDS


class Pace:
    """How many items a worker takes between two looks at the clock.

    It takes one slice after the other, each twice as long as the one before, until it waits or its time is over.
    """

    __slots__ = ("_late", "size")

    def __init__(self) -> None:
        self.size = 1
        self._late = 0.0

    def begin(self) -> None:
        """Begin anew: with short slices if the last ones took too long."""
        now = perf_counter()
        self.size = min(self.size, SLICE_AFTER_WAIT_ITEMS) if now < self._late else 1
        self._late = now + TURN_SECONDS

    def over(self) -> bool:
        """Return whether others should have the loop."""
        return perf_counter() >= self._late

    def quicken(self) -> None:
        """Take a longer slice next."""
        self.size = min(2 * self.size, SLICE_ITEMS)


class AsyncCalls(Calls):
    """Calls an async function on the loop."""

    most = 512

    def __init__(self, operator: Operator) -> None:
        super().__init__(operator)
        self._turn = 0
        """Counts the times that a worker has come to have the loop: it has moved on where one has waited."""
        self._pausing = 0
        """How many workers let others have the loop and come back at once: nothing for a colleague to do."""
        if self._auto:
            operator.pool.tune(FIRST_CALLS, self.most)

    async def work(self) -> None:
        """Await the function for one item after the other."""
        stage = self.operator.work
        plain = not stage.placed and stage.shape == "map"
        pool, pace = self.operator.pool, Pace()
        turn: int | None = None
        pool.worker_started()
        while True:
            entry = self._current
            if (
                self._pausing
                or entry is None
                or pool.working > pool.limit
                or (entry.big and self._admission.alone)
            ):
                entry = None  # a resting worker must not keep the last items alive
                if self._pausing:
                    pool.wants_notice = True  # who pauses calls again, and this one works when that one waits
                await pool.park()
                turn = None
                continue
            if turn != self._turn:  # it has waited, and others of its kind have had the loop
                turn = self._turn = self._turn + 1
                pace.begin()
            elif pace.over():
                entry = turn = None
                self._pausing += 1
                await asyncio.sleep(0)
                self._pausing -= 1
                continue
            untaken: Iterator[tuple[int, Any]] | None = entry.untaken
            with_care = entry.big or entry.order is not None or not plain
            done = await (self._call_with_care if with_care else self._call_each)(entry, pace.size)
            if done or entry.untaken is not untaken:
                pace.quicken()
            elif self._current is entry:
                self._advance()
            entry = untaken = None
            raise_if_cancelled()

    async def _call_each(self, entry: Entry, size: int) -> bool:
        """Await the function for up to `size` items of an entry; return whether there was one."""
        operator = self.operator
        fn: Callable[..., Awaitable[Any]] = operator.work.fn
        pool, progress, out, done = operator.pool, operator.progress, entry.out, entry.done
        task = asyncio.current_task()
        i = item = result = None
        # The hot path: nothing here that is not needed for every item.
        for i, item in islice(entry.untaken, size):
            if pool.wants_notice and self._more(entry, i):
                pool.wake_one(operator.begun + i)
            try:
                out[i] = result = await fn(item)
                done[i] = 1
            except BaseException as error:
                if is_own_cancellation(error, task):
                    raise
                self._failed(entry, i, item, error)
                result = None
            if entry.awaited == i:
                progress.open()
            if pool.over_limit:
                break
        if i is None:
            return False
        if type(result) not in SMALL_KINDS:
            self._sample(entry, i, [item])
        return True

    def _more(self, entry: Entry, i: int) -> bool:
        """Return whether items are left beyond this one."""
        return i + 1 < len(entry.out) or len(self._untaken) > 1

    async def _call_with_care(self, entry: Entry, size: int) -> bool:
        """Do the same for items that need more: memory, their place, or an order of their own."""
        operator, work = self.operator, self.operator.work
        pool, out, done, order = operator.pool, entry.out, entry.done, entry.order
        task = asyncio.current_task()
        i = None
        for i, item in islice(entry.untaken, size):
            entry.taken = i + 1
            entry.items[i] = None
            if pool.wants_notice and self._more(entry, i):
                pool.wake_one(operator.begun + i)
            part = await self._admit(entry, i, 1, entry.costs[i]) if entry.big else None
            result = None
            try:
                args = (item, ItemPlace(operator.provenance, entry.positions[i])) if work.placed else (item,)
                result = await work.fn(*args)
                if work.shape == "filter" and not result:
                    entry.lost[i] = None
                else:
                    out[i] = item if work.shape == "filter" else result
                done[i] = 1
            except BaseException as error:
                if is_own_cancellation(error, task):
                    raise
                self._failed(entry, i, item, error)
            if part is not None:
                item = result = None
                self._weighed(entry, i, i + 1, part)
            elif type(result) not in SMALL_KINDS:
                self._sample(entry, i, [item])
            if order is not None:
                order.append(i)
                if operator.progress.waiting:
                    operator.progress.open()
            elif entry.awaited == i:
                operator.progress.open()
            if pool.over_limit or (entry.big and self._admission.alone):
                break
        return i is not None
