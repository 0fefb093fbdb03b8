"""One call for each item, by any number of workers: what the executors of `map` and `filter` share.

Invariants, beside those of the operator:

* The results are sent in the order of the entries. A piece of an entry goes as soon as all before it is done. If
  they are unordered, results go as they come, but never past the end of an epoch.
* At most K calls run at any time. A worker makes one call (or calls one group) at a time. If there is one worker
  more, its group waits in a limiter that is K threads wide.
"""

from __future__ import annotations

import sys
from collections import deque
from functools import partial
from typing import Any, ClassVar

from asyncfeed.engine.constants import (
    AUTO_SHARES,
    BACKLOG_BYTES,
    BACKLOG_ITEMS,
    SMALL_ITEM_BYTES,
    SURPRISE_BYTES,
    TOGETHER_BYTES,
    WINDOW_EPOCH_ENDS,
    WINDOW_ITEMS,
)
from asyncfeed.engine.limits.weighing import Weights
from asyncfeed.engine.operators.admission import Admission, Part
from asyncfeed.engine.operators.operator import Executor, Operator
from asyncfeed.engine.order.reorder import CompletionBuffer, Entry, ReorderBuffer
from asyncfeed.stages.steps import Chunk
from asyncfeed.trees import size_of


class Calls(Executor):
    """Calls a function once for each item. The two kinds differ in how a worker does it."""

    most: ClassVar[int]
    """The largest number of calls at a time that concurrency="auto" tries."""
    order: ReorderBuffer

    def __init__(self, operator: Operator) -> None:
        super().__init__(operator)
        work = operator.work
        self.order = ReorderBuffer() if work.ordered else CompletionBuffer()
        self._auto = work.concurrency == "auto"
        operator.pool.limit = limit = self.most if work.concurrency == "auto" else work.concurrency
        self._window_size = max(WINDOW_ITEMS // operator.unit, 2 * limit)
        self._backlog = BACKLOG_ITEMS // operator.unit
        self._weights = Weights(work)
        shares = AUTO_SHARES if self._auto else limit
        self._admission = Admission(operator, self._weights, shares, self._begin_next, self._is_next)
        self._untaken: deque[Entry] = deque()
        """The entries with items that no worker has taken."""
        self._current: Entry | None = None
        """The first of them."""

    @property
    def unknown(self) -> bool:
        """Whether nobody can tell beforehand what a result weighs."""
        return self._weights.unknown

    def drop(self) -> None:
        """Forget what is held."""
        self._untaken.clear()
        self._current = None
        self._admission.drop()
        super().drop()

    # -- taking chunks in

    async def take_in(self, chunk: Chunk) -> None:
        """Put a chunk into the order, with the memory for its results if they are small."""
        operator, order = self.operator, self.order
        entry = Entry(chunk, order.held + order.gone)
        alone = not order
        order.add(entry)
        if not chunk.items:
            return
        weight = self._weights.predict(entry)
        if weight is not None:
            budget = operator.budget
            if not budget.fits(weight, operator.depth):
                is_next = partial(self._is_next, entry, 0)
                await budget.admit(weight, operator.depth, is_next, number=entry.number)
            entry.charged += weight
            entry.weight = weight
        if alone and operator.progress.waiting:
            entry.awaited = 0  # before a worker can have its first item
        self._untaken.append(entry)
        self._current = self._untaken[0]
        operator.pool.wake_one()

    def has_enough(self) -> bool:
        """Return whether nothing more should be taken in for now."""
        if len(self._untaken) > 1:
            return True  # the workers have enough at hand; the rest stays where it is
        most = self._window_size
        if self.operator.sending:
            most = max(min(self._backlog, BACKLOG_BYTES // max(1, self._weights.each)), self.operator.pool.limit)
        # A source of no items can send the ends of its epochs for ever.
        return self.order.held >= most or self.order.ends >= WINDOW_EPOCH_ENDS

    def _is_next(self, entry: Entry, place: int) -> bool:
        """Return whether the consumer waits for this item before all others."""
        operator = self.operator
        return not operator.sending and self.order.is_next(entry, place) and operator.clear_ahead()

    # -- working

    def _advance(self) -> None:
        """Go to the next entry with untaken items."""
        operator = self.operator
        operator.begun += len(self._untaken.popleft().out)
        self._current = self._untaken[0] if self._untaken else None
        if operator.room.waiting:
            operator.room.open()

    def _failed(self, entry: Entry, place: int, item: Any, error: BaseException) -> None:
        """Note how an item failed."""
        operator = self.operator
        entry.lose(place, operator.provenance.failure(error, operator.name, entry.positions[place], item))

    def _begin_next(self) -> None:
        self.operator.pool.worker_started()
        if self._current is not None:
            self.operator.pool.wake_one()

    # -- what results weigh

    async def _admit(self, entry: Entry, place: int, count: int, weight: int, spare: int = 0) -> Part:
        """Wait until there is room for the results of `count` items that weigh so much; return their part."""
        part = Part(entry, count, weight)
        await self._admission.admit(part, place, entry.number + place, spare)
        return part

    def _weighed(self, entry: Entry, start: int, stop: int, part: Part) -> None:
        """Book what the results really weigh, and let go of what they were made from."""
        operator = self.operator
        results = entry.results(start, stop)
        actual = self._weights.learn(results, part.weight)
        if results:
            operator.look_at(results[-1])
        each = self._weights.each
        operator.inbox.most = (
            max(1, min(self._backlog, TOGETHER_BYTES // each)) if each > SMALL_ITEM_BYTES else sys.maxsize
        )
        operator.budget.need(operator.depth, actual // (stop - start))
        self._admission.settle(part, actual - entry.share * (stop - start))

    def _sample(self, entry: Entry, start: int, items: list[Any]) -> None:
        """Look at results that nobody weighs, as those before were small: at the last of them, for them all.

        If it is large, they are weighed, and all that is not begun is admitted one by one.
        """
        stop = start + len(items)
        if self.operator.work.shape == "filter" or stop - 1 in entry.lost:
            return
        last = entry.out[stop - 1]
        self.operator.look_at(last)
        if size_of(last) <= SURPRISE_BYTES:
            return
        for each in self._untaken:
            self._weights.break_up(each)
        part = Part(entry, len(items), sum(self._weights.costs(items)))
        part.admit()
        self._weighed(entry, start, stop, part)
