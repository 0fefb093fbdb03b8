"""The executor for async functions: each worker awaits the function for one item after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any

from asyncfeed.engine.constants import (
    BATCHED_REQUESTS,
    FEWEST_BATCHES,
    FIRST_CALLS,
    LEAST_CALLS,
    LEAST_ITEMS,
    SLICE_AFTER_WAIT_ITEMS,
    SLICE_ITEMS,
    TURN_SECONDS,
)
from asyncfeed.engine.operators.attempts import Attempts
from asyncfeed.engine.operators.call import Calls
from asyncfeed.engine.operators.operator import Operator
from asyncfeed.engine.order.reorder import Entry
from asyncfeed.engine.provenance import ItemPlace, is_own_cancellation, raise_if_cancelled
from asyncfeed.stages.steps import Work
from asyncfeed.trees import SMALL_KINDS


class Pace:
    """Limits the turn of a worker on the loop, with few looks at the clock.

    The worker takes slices of items, and looks at the clock after each slice. Each slice is twice as large as the
    one before, until the worker waits or its turn is over.
    """

    __slots__ = ("_turn_end", "size")

    def __init__(self) -> None:
        self.size = 1
        """Number of items in the next slice."""
        self._turn_end = 0.0
        """When the turn is over, by `perf_counter`."""

    def begin(self) -> None:
        """Begin a turn. The first slice has 1 item if the last turn began more than `TURN_SECONDS` ago."""
        now = perf_counter()
        self.size = min(self.size, SLICE_AFTER_WAIT_ITEMS) if now < self._turn_end else 1
        self._turn_end = now + TURN_SECONDS

    def is_over(self) -> bool:
        """Return whether the turn is over, and other tasks should run."""
        return perf_counter() >= self._turn_end

    def lengthen(self) -> None:
        """Double the next slice."""
        self.size = min(2 * self.size, SLICE_ITEMS)


class AsyncCalls(Calls):
    """Calls an async function on the loop."""

    most = 512

    def __init__(self, operator: Operator) -> None:
        super().__init__(operator)
        self._turn = 0
        """Counts the turns of all workers. A worker that finds another number has waited, and others have run."""
        self._pausing = 0
        """Number of workers between two turns, which let other tasks run. No other worker takes items then."""
        work = operator.work
        self._fn: Callable[..., Awaitable[Any]] = work.fn
        self._attempts: Attempts | None = None
        if work.policy is not None:
            self._attempts = Attempts(work.policy, operator.name, operator.context)
            self._fn = partial(self._attempts.call, work.fn)
        if self._auto:
            least_items = max(min(LEAST_CALLS, work.requests), LEAST_ITEMS // work.requests)
            operator.pool.tune(*self.range_of(work), least_items)

    @classmethod
    def range_of(cls, work: Work) -> tuple[int, int]:
        """Return the number of calls that "auto" begins with, and the largest."""
        least = min(FEWEST_BATCHES, work.requests)
        most = cls.most if work.requests == 1 else BATCHED_REQUESTS
        return max(least, FIRST_CALLS // work.requests), max(least, most // work.requests)

    def drop(self) -> None:
        """Forget what is held."""
        if self._attempts is not None:
            self._attempts.drop()
        super().drop()

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
                or (entry.one_by_one and self._admission.holds_others)
            ):
                entry = None  # a parked worker must not keep the last items alive
                if self._pausing:
                    pool.wants_notice = True  # so that the pausing worker wakes this one at its next item
                await pool.park()
                turn = None
                continue
            if turn != self._turn:  # this worker has waited, and others have run
                turn = self._turn = self._turn + 1
                pace.begin()
            elif pace.is_over():
                entry = turn = None
                self._pausing += 1
                await asyncio.sleep(0)
                self._pausing -= 1
                continue
            untaken: Iterator[tuple[int, Any]] | None = entry.untaken
            needs_care = entry.one_by_one or entry.completed is not None or not plain
            done = await (self._call_general if needs_care else self._call_plain)(entry, pace.size)
            if done or entry.untaken is not untaken:
                pace.lengthen()
            elif self._current is entry:
                self._advance()
            entry = untaken = None
            raise_if_cancelled()

    async def _call_plain(self, entry: Entry, size: int) -> bool:
        """Await the function for up to `size` items of an entry. Return whether there was one."""
        operator = self.operator
        fn = self._fn
        pool, send_gate, values, done = operator.pool, operator.send_gate, entry.values, entry.done
        task = asyncio.current_task()
        i = item = result = None
        # The hot path: only what every item needs.
        for i, item in islice(entry.untaken, size):
            if pool.wants_notice and self._items_left(entry, i):
                pool.wake_one(operator.begun + i)
            try:
                values[i] = result = await fn(item)
                done[i] = 1
            except BaseException as error:
                if is_own_cancellation(error, task):
                    raise
                self._record_failure(entry, i, item, error)
                result = None
            if entry.awaited == i:
                send_gate.open()
            if pool.over_limit:
                break
        if i is None:
            return False
        if type(result) not in SMALL_KINDS:
            self._spot_check(entry, i, [item])
        return True

    def _items_left(self, entry: Entry, i: int) -> bool:
        """Return whether there are untaken items after this one."""
        return i + 1 < len(entry.values) or len(self._untaken) > 1

    async def _call_general(self, entry: Entry, size: int) -> bool:
        """Do the same for stages that need more: admission of each item, its place, a filter, or no order."""
        operator, work = self.operator, self.operator.work
        pool, values, done, completed = operator.pool, entry.values, entry.done, entry.completed
        task = asyncio.current_task()
        i = None
        for i, item in islice(entry.untaken, size):
            entry.taken = i + 1
            entry.items[i] = None
            if pool.wants_notice and self._items_left(entry, i):
                pool.wake_one(operator.begun + i)
            part = await self._admit(entry, i, 1, entry.costs[i]) if entry.one_by_one else None
            result = None
            try:
                args = (item, ItemPlace(operator.provenance, entry.positions[i])) if work.placed else (item,)
                result = await self._fn(*args)
                if work.shape == "filter" and not result:
                    entry.missing[i] = None
                else:
                    values[i] = item if work.shape == "filter" else result
                done[i] = 1
            except BaseException as error:
                if is_own_cancellation(error, task):
                    raise
                self._record_failure(entry, i, item, error)
            if part is not None:
                item = result = None
                self._weigh(entry, i, i + 1, part)
            elif type(result) not in SMALL_KINDS:
                self._spot_check(entry, i, [item])
            if completed is not None:
                completed.append(i)
                if operator.send_gate.waiting:
                    operator.send_gate.open()
            elif entry.awaited == i:
                operator.send_gate.open()
            if pool.over_limit or (entry.one_by_one and self._admission.holds_others):
                break
        return i is not None
