"""The executor of `flat_map`, `interleave` and `unbatch`: it makes the children of each item.

Each item has an expansion, which holds its children. `order/expansions.py` decides which children are sent next.
If an expansion holds enough children, its worker waits.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Iterable, Sequence
from itertools import islice, zip_longest
from operator import attrgetter
from time import perf_counter
from typing import Any

from asyncfeed.engine.closing import IteratingAsync, complain
from asyncfeed.engine.constants import (
    CHUNK_ITEMS,
    FLAT_CALLS,
    FLAT_OPEN_ITEMS,
    GROUP_BYTES,
    GROUP_SECONDS,
    LATE_FACTOR,
)
from asyncfeed.engine.epochs import EpochsEnded
from asyncfeed.engine.limits.group_size import GroupSize
from asyncfeed.engine.limits.weighing import Estimate
from asyncfeed.engine.operators.admission import Admission, Part
from asyncfeed.engine.operators.operator import Executor, Operator
from asyncfeed.engine.operators.step import Gate
from asyncfeed.engine.operators.threaded_iterator import ThreadedIterator
from asyncfeed.engine.order.expansions import Expansion, Expansions, expansions_of
from asyncfeed.engine.provenance import ItemPlace, is_own_cancellation, raise_if_cancelled
from asyncfeed.engine.threads import stop_iteration
from asyncfeed.stages.steps import Chunk
from asyncfeed.trees import total_size

_Made = tuple[Any, BaseException | None, int]
"""What a call returned or raised, and what a short list of children weighs."""
_number = attrgetter("number")


class Expanding(Executor):
    """Calls a function once for each item, and iterates over what it returns."""

    order: Expansions

    def __init__(self, operator: Operator) -> None:
        super().__init__(operator)
        work = operator.work
        self.order = expansions_of(work)
        self._open: set[Expansion] = set()
        """The expansions that have a worker."""
        self._untaken: deque[Expansion] = deque()
        """The expansions that no worker has taken."""
        self._max_expansions = max(2, FLAT_OPEN_ITEMS // operator.unit)
        """Number of expansions in the order at which no more chunks are taken in."""
        if work.turns is not None:
            self._max_expansions = max(self._max_expansions, work.turns.cycle + FLAT_CALLS)
        operator.inbox.most = max(1, self._max_expansions // 4)
        operator.pool.limit = limit = FLAT_CALLS if work.concurrency == "auto" else work.concurrency
        self._estimate = Estimate()
        """The estimate of the weight of a child."""
        self._list_length = 1
        """How many children are expected as soon as a call returns, because it returns a list. 0 if it returns an
        iterator. 1 before the first call has returned."""
        self._child_bytes = 0
        """The estimated bytes of a child. 0 while they are unknown."""
        self._admission = Admission(operator, self._estimate, limit, self._wake_workers, self._is_next)
        # One worker works alone until a child was weighed, or takes long. Children of unknown weight that are made
        # at the same time may be too many bytes.
        self._admission.holds_others = True
        self._group = GroupSize()
        """How many items are called together."""
        self._groups = work.kind == "thread" and work.turns is None and work.inline is None
        """Whether they are. In turns, an item that is called early would have to wait for its turn."""
        self._taken_in = 0

    @property
    def unknown(self) -> bool:
        """True, because the weight of a child cannot be predicted before the first one."""
        return True

    def skip(self, ends_sent: EpochsEnded) -> None:
        """Make no more children of the items of a skipped epoch. Their iterables may be endless."""
        ends = ends_sent.copy()
        for expansion in self.order:
            if expansion.boundary is not None:
                ends.note(expansion.boundary)
            elif expansion.has_item and self.operator.skips(ends):
                expansion.unwanted = True
                if expansion.gate is not None:
                    expansion.gate.open()

    def drop(self) -> None:
        """Drop all items and children."""
        self._open.clear()
        self._untaken.clear()
        self._admission.drop()
        super().drop()

    # -- taking chunks in

    async def take_in(self, chunk: Chunk) -> None:
        """Add the items of a chunk, and its end, to the order. Wake workers for the items."""
        operator = self.operator
        item_bytes = chunk.nbytes // max(1, len(chunk.items))
        operator.budget.charge(item_bytes * len(chunk.items) - chunk.nbytes)
        for item, position in zip(chunk.items, chunk.positions, strict=True):
            expansion = Expansion(item, position, item_bytes, self._taken_in)
            self._taken_in += 1
            self.order.add(expansion)
            self._untaken.append(expansion)
        if chunk.items:
            operator.pool.wake_one()  # it wakes the next one
        if chunk.ends:
            self.order.add(Expansion.end(chunk.boundary, chunk.failure))

    def has_enough(self) -> bool:
        """Return whether no more chunks should be taken in for now. Ends count, because there may be no items."""
        return len(self.order) >= self._max_expansions

    # -- working

    async def work(self) -> None:
        """Make the children of one item after the other."""
        task = asyncio.current_task()
        operator, pool, admission = self.operator, self.operator.pool, self._admission
        pool.worker_started()
        while True:
            if not self._untaken or (admission.holds_others and self._open):
                await pool.park()
                continue
            expansion = self._take()
            if self._untaken and pool.wants_notice:
                pool.wake_one()
            try:
                if not expansion.unwanted:
                    await self._expand(expansion)
            except BaseException as error:
                if is_own_cancellation(error, task):
                    raise
                if task is not None and task.cancelling():
                    complain(operator.context.loop, operator.name, error)  # no consumer is left to get it
                    return
                expansion.failure = operator.provenance.failure(
                    error, operator.name, expansion.position, expansion.item
                )
            self._close(expansion)
            del expansion

    def _take(self) -> Expansion:
        """Take the first item that no worker has taken."""
        expansion = self._untaken.popleft()
        expansion.begun = True
        self._open.add(expansion)
        return expansion

    def _close(self, expansion: Expansion) -> None:
        """Note that all children of an item were made, or that it failed."""
        operator = self.operator
        expansion.item = None
        expansion.done = True
        self._open.discard(expansion)
        if expansion.part is not None and expansion.part.admitted:
            self._admission.settle(expansion.part, 0)
        self._admission.allow_others()
        if expansion.charged:
            operator.budget.charge(-expansion.charged)
            expansion.charged = 0
        if operator.send_gate.waiting:
            operator.send_gate.open()

    def _wake_workers(self) -> None:
        """Wake a worker if there are items. That worker wakes the next one."""
        self.operator.pool.worker_started()
        if self._untaken:
            self.operator.pool.wake_one()

    async def _expand(self, expansion: Expansion) -> None:
        operator, work, item = self.operator, self.operator.work, expansion.item
        if expansion.made is None and self._list_length:
            await self._admit(expansion, self._list_length)
            if expansion.unwanted:
                return
        if expansion.made is not None:
            (made, error, _), expansion.made = expansion.made, None
            if error is not None:
                raise error
        elif work.kind == "async" or (work.inline is not None and work.inline(item)):
            made = self._call(expansion)
        elif self._groups and self._list_length:
            made = await self._call_together(expansion)
        else:
            made = await operator.context.threads.run(operator.name, self._call, expansion)
        if isinstance(made, Awaitable) and not isinstance(made, AsyncIterable):  # some cursors are both
            made = await made
            raise_if_cancelled()
        if isinstance(made, (list, tuple)):
            rest = list(reversed(made))
            del made  # of a list, only what is not sent yet stays in memory
            await self._add_list(expansion, rest)
            return
        self._list_length = 0
        if isinstance(made, AsyncIterable):
            async with IteratingAsync(made, operator.name, operator.context.in_peace) as iterator:
                await self._expand_on_loop(expansion, iterator)
        elif isinstance(made, Iterable):
            await self._expand_on_thread(expansion, made)
        else:
            message = f"{operator.name} must return an iterable or an async iterable, not {type(made).__name__}"
            raise TypeError(message)

    def _call(self, expansion: Expansion) -> Any:
        work = self.operator.work
        if work.placed:
            return work.fn(expansion.item, ItemPlace(self.operator.provenance, expansion.position))
        return work.fn(expansion.item)

    # -- several items together, whose calls take less time than to hand them to a thread

    async def _call_together(self, first: Expansion) -> Any:
        """Have the function called for an item, and for the following items that fit into a group.

        Return what it returned for the first one. The others are done, or any worker goes on with them.
        """
        operator, part = self.operator, first.part
        followers, extra = self._followers(part)
        try:
            outcomes, seconds = await operator.context.threads.run(
                operator.name, self._call_each, [first, *followers]
            )
        except RuntimeError as raised:  # the system has no more threads
            outcomes, seconds = [(None, raised, 0)], 0.0
        self._group.learn(seconds / len(outcomes), GROUP_SECONDS)
        if followers:
            self._admission.recharge(part, part.nbytes - extra)
            for follower, outcome in zip_longest(followers, outcomes[1:]):
                self._follow(follower, outcome)
        made, error, _ = outcomes[0]
        if error is not None:
            raise error
        return made

    def _followers(self, part: Part) -> tuple[list[Expansion], int]:
        """Take the items that are called in the same group, and charge what their children are expected to weigh.

        Return the items and the bytes. There are no items if there is no room for their children.
        """
        length, untaken = self._list_length, self._untaken
        fitting = min(CHUNK_ITEMS // length, GROUP_BYTES // max(1, length * self._child_bytes))
        most = max(1, min(self._group.items, fitting)) - 1
        count = 0
        for count, each in enumerate(islice(untaken, most), 1):
            if each.made is not None or each.unwanted:
                count -= 1
                break
        nbytes = 0 if self._estimate.unknown else self._estimate.expect(count * length)
        if count < 1 or not self._admission.extend(part, nbytes):
            return [], 0
        return [self._take() for _ in range(count)], nbytes

    def _call_each(self, group: list[Expansion]) -> tuple[list[_Made], float]:
        """Call the function for items until it is late. Return the outcomes, and the seconds it took."""
        threads, operator = self.operator.context.threads, self.operator
        room = max(GROUP_BYTES, operator.budget.limit // 16)
        outcomes: list[_Made] = []
        began = perf_counter()
        for expansion in group:
            made, error, nbytes = None, None, room
            try:
                made = self._call(expansion)
                if isinstance(made, list | tuple) and len(made) <= CHUNK_ITEMS:
                    nbytes = total_size(made)
            except BaseException as raised:  # noqa: BLE001 - the consumer gets it
                error = stop_iteration(raised) if isinstance(raised, StopIteration) else raised
            outcomes.append((made, error, nbytes))
            room -= nbytes
            if room <= 0 or threads.ending or perf_counter() - began > LATE_FACTOR * GROUP_SECONDS:
                break
        return outcomes, perf_counter() - began

    def _follow(self, expansion: Expansion, outcome: _Made | None) -> None:
        """Finish an item that was called after another one, if it has a short list of children.

        Otherwise the next worker goes on with it. If it was not called, that worker calls the function.
        """
        if outcome is not None and not expansion.unwanted:
            made, error, nbytes = outcome
            if error is None and isinstance(made, list | tuple) and len(made) <= CHUNK_ITEMS:
                self._note_length(len(made))
                self._learn(made, nbytes)
                self.operator.budget.charge(nbytes)
                expansion.charged += nbytes
                self._put(expansion, list(made), nbytes)
                self._close(expansion)
                return
        expansion.made = outcome
        expansion.begun = False
        self._open.discard(expansion)
        insort(self._untaken, expansion, key=_number)
        self.operator.pool.worker_started()

    async def _expand_on_loop(self, expansion: Expansion, iterator: AsyncIterator[Any]) -> None:
        grouped, count = self.operator.work.grouped, 1
        while not expansion.unwanted:
            await self._admit(expansion, count)
            try:
                made = await anext(iterator)
                raise_if_cancelled()
            except StopAsyncIteration:
                return
            if grouped:  # the next group is expected to be as large as this one
                count = max(1, min(len(made), GROUP_BYTES // max(1, self._child_bytes or GROUP_BYTES)))
            await self._add_children(expansion, made if grouped else [made])
            del made

    async def _expand_on_thread(self, expansion: Expansion, made: Iterable[Any]) -> None:
        operator = self.operator
        room = max(GROUP_BYTES, operator.budget.limit // 16)
        elements = ThreadedIterator(made, operator.name, operator.context.loop, room)
        group = GroupSize()
        try:
            while not (elements.ended or expansion.unwanted):
                fitting = GROUP_BYTES // max(1, self._child_bytes or GROUP_BYTES)
                size = max(1, min(group.items, fitting))
                await self._admit(expansion, size)
                children, seconds = await operator.context.threads.run(operator.name, elements.draw, size)
                group.learn(seconds / max(1, len(children)), GROUP_SECONDS)
                await self._add_children(expansion, children)
                del children
                if elements.error is not None:
                    raise elements.error
        finally:
            elements.stop(operator.context.threads.submit)

    # -- memory

    async def _admit(self, expansion: Expansion, count: int) -> None:
        """Wait until there is room for `count` children of the estimated weight."""
        part = expansion.part
        if part is None:
            part = expansion.part = Part(expansion, count, count)
        if part.admitted:
            return  # before the call, which was expected to return a list
        part.count = part.weight = count
        # Other expansions leave room for one child of the expansion whose children may be sent now.
        spare = 0 if self.order.may_be_next(expansion) else self._child_bytes or self.operator.budget.min_guess
        await self._admission.admit(part, spare=spare)

    async def _add_list(self, expansion: Expansion, rest: list[Any]) -> None:
        """Charge what a list of children weighs. Add them, from the last one on, as fast as they are sent."""
        length = len(rest)
        self._note_length(length)
        nbytes = self._charge(expansion, rest)
        while rest and not expansion.unwanted:
            children = [rest.pop() for _ in range(min(len(rest), CHUNK_ITEMS))]
            await self._add(expansion, children, nbytes * len(children) // length)

    def _note_length(self, length: int) -> None:
        self._list_length = max(length, int(0.9 * self._list_length + 0.1 * length), 1)

    async def _add_children(self, expansion: Expansion, children: list[Any]) -> None:
        """Add children to the expansion, charge what they weigh, and wait while it holds enough."""
        await self._add(expansion, children, self._charge(expansion, children))

    def _charge(self, expansion: Expansion, children: list[Any]) -> int:
        """Charge an expansion with what children weigh that were made at once. Return the bytes."""
        part = expansion.part
        if part is None:  # the function has returned an iterator before, and now a list
            part = Part(expansion, len(children), len(children))
            part.admit()
        nbytes = total_size(children)
        self._learn(children, nbytes)
        self._admission.settle(part, nbytes)
        return nbytes

    def _learn(self, children: Sequence[Any], nbytes: int) -> None:
        """Learn from children that were made at once, and weigh `nbytes`."""
        if not children:
            return
        operator = self.operator
        operator.warn_if_unweighable(children[-1])
        if nbytes and nbytes != len(children) * self._child_bytes:
            self._estimate.learn(nbytes, len(children))
            self._child_bytes = self._estimate.expect(1)
            operator.budget.need(operator.depth, max(1, self._list_length) * self._child_bytes)

    async def _add(self, expansion: Expansion, children: list[Any], nbytes: int) -> None:
        """Add children to the expansion, which is charged with their bytes, and wait while it holds enough."""
        self._put(expansion, children, nbytes)
        del children
        while len(expansion.children) >= 2 * CHUNK_ITEMS and not expansion.unwanted:
            if expansion.gate is None:
                expansion.gate = Gate()
            await expansion.gate.wait()

    def _put(self, expansion: Expansion, children: list[Any], nbytes: int) -> None:
        """Add children to the expansion, which is charged with their bytes."""
        operator = self.operator
        if expansion.received and children:
            count = len(children)
            children = expansion.leave_out_received(children)
            # What was left out is charged until all children were made.
            nbytes = nbytes * len(children) // count
        expansion.charged -= nbytes
        expansion.nbytes += nbytes
        expansion.children.extend(children)
        if operator.send_gate.waiting and self.order.may_be_next(expansion):
            operator.send_gate.open()

    def note_piece_taken(self) -> None:
        """Let workers continue whose expansions do not hold enough children any more."""
        for each in self._open:
            if each.gate is not None and each.gate.waiting and len(each.children) < 2 * CHUNK_ITEMS:
                each.gate.open()

    def _is_next(self, expansion: Expansion, _: int) -> bool:
        """Return whether the next child of this item is next: the consumer waits for it (see `budget.py`)."""
        if self.operator.sending or not self.operator.path_is_clear():
            return False
        sendable = list(self.order.sendable())
        return expansion in sendable and not any(each.children or each.active for each in sendable)
