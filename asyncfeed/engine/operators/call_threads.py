"""The executor for sync functions: each worker has one group of items at a time called on a thread.

If the function runs in processes, the thread sends the group on to a worker process.
"""

from __future__ import annotations

import asyncio
import sys
from bisect import insort
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from asyncfeed.engine.constants import GROUP_BYTES, INLINE_BYTES, READY_GROUPS
from asyncfeed.engine.limits.group_size import as_heavy
from asyncfeed.engine.limits.weighing import UNMEASURED
from asyncfeed.engine.operators.admission import Part
from asyncfeed.engine.operators.call import Calls
from asyncfeed.engine.operators.dispatch import ThreadDispatch
from asyncfeed.engine.operators.gathering import Gathering
from asyncfeed.engine.operators.operator import Operator
from asyncfeed.engine.order.outcomes import Outcomes
from asyncfeed.engine.order.reorder import Entry
from asyncfeed.engine.processes.stage import ProcessDispatch
from asyncfeed.engine.provenance import ItemPlace

_number = attrgetter("number")


@dataclass(slots=True, eq=False)
class Group:
    """Items of an entry that go to a thread together."""

    entry: Entry
    start: int
    """The index of the first item in the entry."""
    items: list[Any]
    part: Part | None = None
    """Their part of the budget. None if the budget has admitted their whole entry."""
    admitted: bool = False
    """Whether that was asked for. A list that several workers share is admitted once."""
    workers: int = 0
    """Number of workers that are busy with it."""
    charged: int = 1
    """Number of workers whose memory is charged."""
    lists: list[Gathering] = field(default_factory=list)
    """The items as lists whose members threads share, since a thread has begun them. Empty for other items."""

    @property
    def stop(self) -> int:
        """The index after the last item."""
        return self.start + len(self.items)

    @property
    def number(self) -> int:
        """The number of the first item in its stage."""
        return self.entry.number + self.start

    @property
    def weight(self) -> int:
        """What the items weigh, if they are admitted one by one."""
        return sum(self.entry.costs[self.start : self.stop])

    def split(self, size: int) -> Group:
        """Keep the first `size` items. Return the other items as a group without a part of the budget."""
        rest = Group(self.entry, self.start + size, self.items[size:], lists=self.lists[size:])
        del self.items[size:], self.lists[size:]
        return rest


class ThreadCalls(Calls):
    """Calls a sync function on threads, or in processes."""

    most = 256

    def __init__(self, operator: Operator) -> None:
        super().__init__(operator)
        work, context = operator.work, operator.context
        if work.kind == "process":
            self._dispatch: ThreadDispatch = ProcessDispatch(context, work, operator.name, operator.unit)
        else:
            self._dispatch = ThreadDispatch(context.threads, work, operator.name, operator.unit)
        # A group that is next (see `budget.py`) is admitted even if it exceeds the limit, so no group may be large
        # compared to the limit.
        self._dispatch.room = max(GROUP_BYTES, context.budget.limit // 16)
        self._given_back: list[Group] = []
        """The items that workers gave back, in the order of the stream."""
        self._begun: list[Group] = []
        """The groups of one list each that has members for any worker, in the order of the stream."""
        self._shares = work.kind == "thread" and work.members > 0
        """Whether items are lists whose members threads can share."""
        self._members = 0
        """Number of members for which the functions were called."""
        self._admitting: set[int] = set()
        """The numbers of the groups that wait for room in the budget."""
        self._measuring: set[int] = set()
        """The numbers of the groups whose items are being measured."""
        self._was_slow = False
        """Whether items were slow when the range of threads was last set."""
        self._first = 1
        """Number of threads that the search began with."""
        self._quick = self._dispatch.quick_threads
        """Number of threads for items that are quick, at that time."""
        if self._auto:
            operator.pool.tune(self._quick, self._quick)

    @property
    def computed(self) -> float:
        """Seconds that the function has computed on threads."""
        return self._dispatch.limiter.computed

    def drop(self) -> None:
        """Drop all items and results."""
        self._given_back.clear()
        self._begun.clear()
        super().drop()

    async def work(self) -> None:
        """Have one group after the other called on a thread."""
        operator, pool = self.operator, self.operator.pool
        inline = operator.work.inline is not None
        pool.worker_started()
        while True:
            # A worker that gave items back takes them again before it parks, even if there are too many workers:
            # all other workers may be waiting for room, and only the results of these items free it.
            left = self._given_back or any(not each.workers for each in self._begun)
            group = None if pool.working > pool.capacity and not left else self._next_group()
            if group is None:
                await pool.park()
                continue
            on_loop = inline and self._may_run_on_loop(group)
            if pool.wants_notice and (self._current or self._given_back or self._begun) and not on_loop:
                pool.wake_one(self._count_begun())
            if group.entry.one_by_one and not group.admitted:
                self._admitting.add(group.number)
                try:
                    await self._admit_group(group)
                finally:
                    self._admitting.discard(group.number)
            if self._shares:
                await self._call_lists(group)
            else:
                self._store_outcomes(group, await self._call_group(group, group.items, on_loop=on_loop))
            group = None  # a parked worker must not keep the items alive
            if on_loop:
                await asyncio.sleep(0)

    async def _call_lists(self, group: Group) -> None:
        """Have the functions called for members of lists. Other workers may help with a list, or finish it."""
        if not group.lists:
            group.lists = list(map(Gathering, group.items))
        size = self._dispatch.members
        taken = [each.take(size, reads=self._dispatch.reads) for each in group.lists]
        begun = sum(size.share(len(each.values)) for each in taken)
        self._members += begun
        alone = len(group.lists) == 1
        self._share(group, on=alone and self.operator.pool.limit > 1)
        if self._begun and self.operator.pool.wants_notice:
            self.operator.pool.wake_one(self._count_begun())
        group.workers += 1
        outcomes = await self._call_group(group, list(zip(group.lists, taken, strict=True)))
        group.workers -= 1
        done = len(outcomes)
        if done < len(group.lists):
            rest = [taken[done]] if outcomes.rest is None else outcomes.rest
            uncalled = [rest, *([each] for each in taken[done + 1 :])]
            for each, members in zip(group.lists[done:], uncalled, strict=True):
                each.put_back(members)
        self._members += outcomes.called - begun
        if done or not (alone or outcomes.amount):
            self._share(group, on=False)
            self._store_outcomes(group, outcomes)
            return
        if not alone:
            self._give_back(group, 1)
        if self._weights.unknown and group.part is not None:
            self._weights.assume(self._dispatch.list_bytes(group.lists[0]), group.weight)
            self._admission.weight_is_known()
        self._share(group, on=True)

    def _share(self, group: Group, *, on: bool) -> None:
        """Have the workers that ask next go on with the list of a group, if there is anything left to do."""
        if on and group.lists[0].has_untaken:
            if group not in self._begun:
                insort(self._begun, group, key=_number)
                self.operator.pool.worker_started()
        elif group in self._begun:
            self._begun.remove(group)

    def _may_help(self, group: Group) -> bool:
        """Return whether one more worker may call the functions for members of a list.

        Each needs memory for what goes into a function and comes out of it. The list is charged with one of these.
        """
        if group.workers < group.charged or group.part is None:
            return True
        peak = self._dispatch.member_peak
        if peak > GROUP_BYTES:
            if not self._admission.extend(group.part, peak):
                return False
            group.charged += 1
        return True

    def _count_begun(self) -> int:
        """Return how many items were begun, which tells the tuner the rate. Of lists the members count."""
        if self._shares:
            self.operator.begun = self._members
            return self.operator.begun
        return self.operator.begun + (0 if self._current is None else self._current.taken)

    def _advance(self) -> None:
        """Make the next entry with untaken items the current one."""
        super()._advance()
        if self._shares:
            self.operator.begun = self._members

    async def _call_group(self, group: Group, items: list[Any], *, on_loop: bool = False) -> Outcomes:
        """Have the function called for a group. There are fewer outcomes than items if the group ended early."""
        operator, dispatch, pool = self.operator, self._dispatch, self.operator.pool
        places = None
        if operator.work.placed:
            positions = group.entry.positions[group.start : group.stop]
            places = [ItemPlace(operator.provenance, each) for each in positions]
        if on_loop:
            return dispatch.call(items, places)
        dispatch.limiter.width = pool.limit
        if not pool.extra:
            pool.extra = READY_GROUPS
            pool.worker_started()
        outcomes = await dispatch.run(items, places, group.number)
        if self._auto:
            self._set_thread_range()
        return outcomes

    def _store_outcomes(self, group: Group, outcomes: Outcomes) -> None:
        """Store the outcomes of a group in its entry, and weigh the results."""
        entry, items = group.entry, group.items
        if len(outcomes) < len(items):
            self._give_back(group, len(outcomes))
        if not outcomes:
            if group.part is not None:
                self._admission.settle(group.part, 0)
            return
        start, stop = group.start, group.stop
        entry.accept(start, outcomes.values)
        for index, error in outcomes.missing.items():
            if error is None:
                entry.missing[start + index] = None
            else:
                self._record_failure(entry, start + index, items[index], error)
        if group.part is not None:
            group.part.weight = group.weight
            self._weigh(entry, start, stop, group.part, outcomes.peak)
        else:
            self._spot_check(entry, start, items)
        if entry.completed is not None:
            entry.completed.extend(range(start, stop))
            if self.operator.send_gate.waiting:
                self.operator.send_gate.open()
        elif start <= entry.awaited < stop:
            self.operator.send_gate.open()

    async def _admit_group(self, group: Group) -> None:
        """Wait until the budget has room for the results of a group. Measure unmeasured items first."""
        entry, items = group.entry, group.items
        costs = entry.costs[group.start : group.stop]
        if UNMEASURED in costs:
            number = group.number
            self._measuring.add(number)
            try:
                costs = await self.operator.context.threads.run(self.operator.name, self._weights.measure, items)
            finally:
                self._measuring.discard(number)
            entry.costs[group.start : group.stop] = costs
            size = self._dispatch.group(len(items), costs, self._weights.ratio)
            if size < len(items):
                self._give_back(group, size)
        weight = group.weight
        # Leave as much room again for an earlier group that is still being measured.
        earlier = min(self._measuring, default=group.number) < group.number
        spare = self._weights.expect(weight, len(items)) if earlier else 0
        group.admitted = True
        group.part = await self._admit(entry, group.start, len(items), weight, spare)

    def _give_back(self, group: Group, size: int) -> None:
        """Keep the first `size` items of a group. The other items are taken and admitted again.

        By then, more may be known about their weight. This worker takes them again before it parks. The proof in
        `budget.py` relies on that.
        """
        if group.part is not None:
            self._admission.recharge(group.part, group.part.nbytes * size // len(group.items))
        rest = group.split(size)
        insort(self._given_back, rest, key=_number)
        rest.entry.waiting += len(rest.items)
        self.operator.pool.worker_started()

    def _may_run_on_loop(self, group: Group) -> bool:
        """Return whether the function is so quick for these items that the loop may call it."""
        entry, work = group.entry, self.operator.work
        if entry.weight is not None and 0 < entry.weight < INLINE_BYTES:
            return True
        if entry.one_by_one and work.cost is not None:
            return max(entry.costs[group.start : group.stop]) <= INLINE_BYTES
        return work.inline is not None and all(map(work.inline, group.items))

    def _set_thread_range(self) -> None:
        """Set the range in which the tuner searches for the number of threads, from what groups have shown."""
        dispatch = self._dispatch
        slow, quick = dispatch.slow, dispatch.quick_threads
        most = min(self.most, dispatch.max_threads) if slow else quick
        anew = slow is not self._was_slow or (quick != self._quick and not slow)
        first = dispatch.first_threads
        if slow and first >= 2 * self._first and first > self.operator.pool.limit:
            anew = True  # the first groups computed more than those behind them, as when a library is first used
        if anew:
            self._first = first
        self.operator.pool.set_range(first, most, anew=anew)
        self._was_slow, self._quick = slow, quick

    def _next_group(self) -> Group | None:
        """Take the items of the next group, first those that were begun. Return None if there are none.

        If items are called in their order, there are none while an earlier group waits for room. They would only
        be given back, and would count as calls that run, so that the earlier group would not be next.
        """
        earliest = self._given_back[0].number if self._given_back else sys.maxsize
        waiting = min(self._admitting, default=sys.maxsize) if self._dispatch.in_turn else sys.maxsize
        for begun in self._begun:
            if begun.number < min(earliest, waiting) and self._may_help(begun):
                return begun
        if earliest < waiting:
            group = self._given_back.pop(0)
            costs = group.entry.costs[group.start :]
            size = self._dispatch.group(len(group.items), costs, self._weights.ratio)
            if size < len(group.items):
                self._given_back.insert(0, group.split(size))
            group.entry.waiting -= len(group.items)
            return group
        current = self._current
        if current is None or waiting < sys.maxsize or (current.one_by_one and self._admission.holds_others):
            return None
        i, count = current.taken, len(current.values)
        costs = current.costs[i:]
        inline = self.operator.work.inline is not None
        if inline and current.weight is not None:
            size = max(1, min(count - i, count * INLINE_BYTES // max(1, current.weight)))
        elif inline and costs and 0 <= costs[0] <= INLINE_BYTES:
            size = as_heavy(count - i, costs, INLINE_BYTES)
        elif self._weights.unknown:
            size = 1
        else:
            size = self._dispatch.group(count - i, costs, self._weights.ratio)
        items = current.items[i : i + size]
        current.items[i : i + size] = [None] * size
        current.taken = i + size
        if current.taken == count:
            self._advance()
        return Group(current, i, items)
