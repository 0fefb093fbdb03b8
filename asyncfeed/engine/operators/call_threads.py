"""The workers of a stage whose function is sync: each takes a group of items to a thread, again and again.

Where the function is to run in processes, the thread takes the group on to one of them.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from asyncfeed.engine.constants import GROUP_BYTES, INLINE_BYTES, READY_GROUPS
from asyncfeed.engine.limits.weighing import UNMEASURED
from asyncfeed.engine.operators.admission import Part
from asyncfeed.engine.operators.call import Calls
from asyncfeed.engine.operators.dispatch import ThreadDispatch
from asyncfeed.engine.operators.operator import Operator
from asyncfeed.engine.order.outcomes import Outcomes
from asyncfeed.engine.order.reorder import Entry
from asyncfeed.engine.processes.stage import ProcessDispatch
from asyncfeed.engine.provenance import ItemPlace

_number = attrgetter("number")


@dataclass(slots=True)
class Taken:
    """Items for a group."""

    entry: Entry
    start: int
    """The place of the first of them in the entry."""
    items: list[Any]
    part: Part | None = None
    """Their part of the budget, where they have one."""

    @property
    def stop(self) -> int:
        """The place after the last of them."""
        return self.start + len(self.items)

    @property
    def number(self) -> int:
        """The place of the first of them among all that the stage takes in."""
        return self.entry.number + self.start

    @property
    def weight(self) -> int:
        """What they weigh, where that is known one by one."""
        return sum(self.entry.costs[self.start : self.stop])

    def split(self, size: int) -> Taken:
        """Keep the first `size` items; return the rest, which has no part of the budget."""
        rest = Taken(self.entry, self.start + size, self.items[size:])
        del self.items[size:]
        return rest


class ThreadCalls(Calls):
    """Calls a sync function on threads, or in processes."""

    most = 256

    def __init__(self, operator: Operator) -> None:
        super().__init__(operator)
        work, context = operator.work, operator.context
        if work.kind == "process":
            self._dispatch: ThreadDispatch = ProcessDispatch(
                context.threads, context.processes, work, operator.name, operator.unit
            )
        else:
            self._dispatch = ThreadDispatch(context.threads, work, operator.name, operator.unit)
        # What is next is let in whatever the limit says: a group must be a small part of it.
        self._dispatch.room = max(GROUP_BYTES, context.budget.limit // 16)
        self._left: list[Taken] = []
        """What groups that took too long have given back, in the order of the stream."""
        self._measured: set[int] = set()
        """The numbers of items that are just being measured."""
        self._spread = False
        """Whether auto has found that more than one thread may be worth having."""
        if self._auto:
            operator.pool.tune(1, 1)

    def drop(self) -> None:
        """Forget what is held."""
        self._left.clear()
        super().drop()

    async def work(self) -> None:
        """Take a group of items to a thread, again and again."""
        operator, pool = self.operator, self.operator.pool
        inline = operator.work.inline is not None
        pool.worker_started()
        while True:
            # Who gives items back takes them again before it rests: those who wait for memory may all be waiting
            # for these.
            taken = None if pool.working > pool.capacity and not self._left else self._take()
            if taken is None:
                await pool.park()
                continue
            on_loop = inline and self._is_small(taken)
            if pool.wants_notice and (self._current is not None or self._left) and not on_loop:
                pool.wake_one(operator.begun + (self._current.taken if self._current is not None else 0))
            if taken.entry.big:
                await self._admit_all(taken)
            self._note(taken, await self._call_all(taken, on_loop=on_loop))
            taken = None  # sent on: not ours to keep alive
            if on_loop:
                await asyncio.sleep(0)

    async def _call_all(self, taken: Taken, *, on_loop: bool) -> Outcomes:
        """Call the function for a group; the outcomes are fewer if it took too long."""
        operator, dispatch, pool = self.operator, self._dispatch, self.operator.pool
        places = None
        if operator.work.placed:
            positions = taken.entry.positions[taken.start : taken.stop]
            places = [ItemPlace(operator.provenance, each) for each in positions]
        if on_loop:
            return dispatch.call(taken.items, places)
        dispatch.limiter.width = pool.limit
        if not pool.extra:
            pool.extra = READY_GROUPS
            pool.worker_started()
        outcomes = await dispatch.run(taken.items, places)
        if self._auto:
            self._heed()
        return outcomes

    def _note(self, taken: Taken, outcomes: Outcomes) -> None:
        """Put what became of a group in its place, and weigh it."""
        entry, group = taken.entry, taken.items
        if len(outcomes) < len(group):
            self._give_back(taken, len(outcomes))
        start, stop = taken.start, taken.stop
        entry.accept(start, outcomes.values)
        for place, error in outcomes.lost.items():
            if error is None:
                entry.lost[start + place] = None
            else:
                self._failed(entry, start + place, group[place], error)
        if taken.part is not None:
            taken.part.weight = taken.weight
            self._weighed(entry, start, stop, taken.part)
        else:
            self._sample(entry, start, group)
        if entry.order is not None:
            entry.order.extend(range(start, stop))
            if self.operator.progress.waiting:
                self.operator.progress.open()
        elif start <= entry.awaited < stop:
            self.operator.progress.open()

    async def _admit_all(self, taken: Taken) -> None:
        """Wait until the budget has room for the results, and see before how much they need."""
        entry, group = taken.entry, taken.items
        costs = entry.costs[taken.start : taken.stop]
        if UNMEASURED in costs:
            number = taken.number
            self._measured.add(number)
            try:
                costs = await self.operator.context.threads.run(self.operator.name, self._weights.measure, group)
            finally:
                self._measured.discard(number)
            entry.costs[taken.start : taken.stop] = costs
            size = self._dispatch.group(len(group), costs, self._weights.ratio)
            if size < len(group):
                self._give_back(taken, size)
        weight = taken.weight
        # What comes before and is still being measured finds room for as much.
        before = min(self._measured, default=taken.number) < taken.number
        spare = self._weights.expect(weight, len(group)) if before else 0
        taken.part = await self._admit(entry, taken.start, len(group), weight, spare)

    def _give_back(self, taken: Taken, size: int) -> None:
        """Keep the first `size` items of a group; the others are taken again, and admitted anew.

        By then they may be known to be heavier. The budget counts on this worker to take them: see there.
        """
        if taken.part is not None:
            self._admission.recharge(taken.part, taken.part.nbytes * size // len(taken.items))
        rest = taken.split(size)
        insort(self._left, rest, key=_number)
        rest.entry.waiting += len(rest.items)
        self.operator.pool.worker_started()

    def _is_small(self, taken: Taken) -> bool:
        """Return whether the loop itself may do these items."""
        entry, work = taken.entry, self.operator.work
        if entry.weight is not None and 0 < entry.weight < INLINE_BYTES:
            return True
        if entry.big and work.cost is not None:
            return max(entry.costs[taken.start : taken.stop]) <= INLINE_BYTES
        return work.inline is not None and all(map(work.inline, taken.items))

    def _heed(self) -> None:
        """Let the pool have as many threads as the last group says may help; the tuner finds how many do."""
        dispatch = self._dispatch
        most = min(self.most, dispatch.most) if dispatch.slow else 1
        self.operator.pool.set_range(dispatch.worth, most, anew=dispatch.slow is not self._spread)
        self._spread = dispatch.slow

    def _take(self) -> Taken | None:
        """Take the items of the next group: first what an earlier one gave back; None where there is nothing."""
        if self._left:
            taken = self._left.pop(0)
            costs = taken.entry.costs[taken.start :]
            size = self._dispatch.group(len(taken.items), costs, self._weights.ratio)
            if size < len(taken.items):
                self._left.insert(0, taken.split(size))
            taken.entry.waiting -= len(taken.items)
            return taken
        current = self._current
        if current is None or (current.big and self._admission.alone):
            return None
        i, count = current.taken, len(current.out)
        if self.operator.work.inline is not None and (current.weight or INLINE_BYTES) < INLINE_BYTES:
            size = count - i
        elif self._weights.unknown:
            size = 1
        else:
            size = self._dispatch.group(count - i, current.costs[i:], self._weights.ratio)
        group = current.items[i : i + size]
        current.items[i : i + size] = [None] * size
        current.taken = i + size
        if current.taken == count:
            self._advance()
        return Taken(current, i, group)
