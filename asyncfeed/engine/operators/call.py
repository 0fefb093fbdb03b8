"""What the executors of `map` and `filter` share: they call the function once for each item.

Invariants, in addition to those of the operator:

* In order, a result is sent as soon as the outcomes of all earlier items are known. Unordered, a result is sent
  when it is there, but never past the end of an epoch.
* At most K calls run at any time. Each worker makes one call, or has one group called, at a time. If there are
  more than K workers, the extra groups wait in a capacity limiter of K threads.
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
    """Calls a function once for each item. A subclass says how a worker does that."""

    most: ClassVar[int]
    """Maximum number of calls at a time with concurrency="auto"."""
    order: ReorderBuffer

    def __init__(self, operator: Operator) -> None:
        super().__init__(operator)
        work = operator.work
        self.order = ReorderBuffer() if work.ordered else CompletionBuffer()
        self._auto = work.concurrency == "auto"
        operator.pool.limit = limit = self.most if work.concurrency == "auto" else work.concurrency
        self._window_size = max(WINDOW_ITEMS // operator.unit, 2 * limit)
        """Number of items in the order at which no more chunks are taken in."""
        self._backlog = BACKLOG_ITEMS // operator.unit
        """The same while the next stage is behind."""
        self._weights = Weights(work)
        sharing_calls = AUTO_SHARES if self._auto else limit
        self._admission = Admission(operator, self._weights, sharing_calls, self._wake_workers, self._is_next)
        self._untaken: deque[Entry] = deque()
        """The entries with items that no worker has taken."""
        self._current: Entry | None = None
        """The first of these entries. Workers take items from it."""

    @property
    def unknown(self) -> bool:
        """Whether the weight of a result cannot be predicted yet."""
        return self._weights.unknown

    def drop(self) -> None:
        """Drop all items and results."""
        self._untaken.clear()
        self._current = None
        self._admission.drop()
        super().drop()

    # -- taking chunks in

    async def take_in(self, chunk: Chunk) -> None:
        """Add a chunk to the order. If its results will be small, charge for all of them now."""
        operator, order = self.operator, self.order
        entry = Entry(chunk, order.held + order.sent_total)
        was_empty = not order
        order.add(entry)
        if not chunk.items:
            return
        weight = self._weights.predict(entry)
        if weight is not None:
            budget = operator.budget
            if not budget.try_charge(weight, operator.depth):
                is_next = partial(self._is_next, entry, 0)
                await budget.admit(weight, operator.depth, is_next, number=entry.number)
            entry.charged += weight
            entry.weight = weight
        if was_empty and operator.send_gate.waiting:
            entry.awaited = 0  # set before a worker can take its first item
        self._untaken.append(entry)
        self._current = self._untaken[0]
        operator.pool.wake_one()

    def has_enough(self) -> bool:
        """Return whether no more chunks should be taken in for now."""
        if len(self._untaken) > 1:
            return True  # the workers have enough items for now
        most = self._window_size
        if self.operator.sending:
            most = max(
                min(self._backlog, BACKLOG_BYTES // max(1, self._weights.result_bytes)), self.operator.pool.limit
            )
        # A source without items can send ends of epochs without end.
        return self.order.held >= most or self.order.empty_entries >= WINDOW_EPOCH_ENDS

    def _is_next(self, entry: Entry, index: int) -> bool:
        """Return whether this item is next: the consumer waits for it before all others (see `budget.py`)."""
        operator = self.operator
        return not operator.sending and self.order.is_next(entry, index) and operator.path_is_clear()

    # -- working

    def _advance(self) -> None:
        """Make the next entry with untaken items the current one."""
        operator = self.operator
        operator.begun += len(self._untaken.popleft().values)
        self._current = self._untaken[0] if self._untaken else None
        if operator.feed_gate.waiting:
            operator.feed_gate.open()

    def _record_failure(self, entry: Entry, index: int, item: Any, error: BaseException) -> None:
        """Store the exception of an item as its outcome."""
        operator = self.operator
        entry.set_missing(index, operator.provenance.failure(error, operator.name, entry.positions[index], item))

    def _wake_workers(self) -> None:
        """Wake a worker if there are items. That worker wakes the next one."""
        self.operator.pool.worker_started()
        if self._current is not None:
            self.operator.pool.wake_one()

    # -- what results weigh

    async def _admit(self, entry: Entry, index: int, count: int, weight: int, spare: int = 0) -> Part:
        """Wait until there is room for the results of `count` items of `weight`. Return their part."""
        part = Part(entry, count, weight)
        await self._admission.admit(part, index, entry.number + index, spare)
        return part

    def _weigh(self, entry: Entry, start: int, stop: int, part: Part, peak: int = 0) -> None:
        """Charge what the results weigh, learn from it, and release the bytes of their items.

        There were `peak` bytes at most while they were made, if that is known to be more.
        """
        operator = self.operator
        results = entry.results(start, stop)
        actual = self._weights.learn(results, part.weight, peak)
        if results:
            operator.warn_if_unweighable(results[-1])
        result_bytes = self._weights.result_bytes
        operator.inbox.most = (
            max(1, min(self._backlog, TOGETHER_BYTES // result_bytes))
            if result_bytes > SMALL_ITEM_BYTES
            else sys.maxsize
        )
        operator.budget.need(operator.depth, actual // (stop - start))
        self._admission.settle(part, actual - entry.bytes_per_item * (stop - start))

    def _spot_check(self, entry: Entry, start: int, items: list[Any]) -> None:
        """Weigh the last result of a group that is not weighed, because earlier results were small.

        If this result is large, the whole group is weighed, and all items that no worker has taken are admitted
        one by one.
        """
        stop = start + len(items)
        if self.operator.work.shape == "filter" or stop - 1 in entry.missing:
            return
        last = entry.values[stop - 1]
        self.operator.warn_if_unweighable(last)
        if size_of(last) <= SURPRISE_BYTES:
            return
        for untaken in self._untaken:
            self._weights.break_up(untaken)
        part = Part(entry, len(items), sum(self._weights.costs(items)))
        part.admit()
        self._weigh(entry, start, stop, part)
