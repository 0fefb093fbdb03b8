"""The executor of `flat_map`, `interleave` and `unbatch`: it makes the children of each item.

Each item has an expansion, which holds its children. `order/expansions.py` decides which children are sent next.
If an expansion holds enough children, its worker waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Iterable
from typing import Any

from asyncfeed.engine.closing import IteratingAsync, complain
from asyncfeed.engine.constants import CHUNK_ITEMS, FLAT_CALLS, FLAT_OPEN_ITEMS, GROUP_BYTES, GROUP_SECONDS
from asyncfeed.engine.epochs import EpochsEnded
from asyncfeed.engine.limits.group_size import GroupSize
from asyncfeed.engine.limits.weighing import Estimate
from asyncfeed.engine.operators.admission import Admission, Part
from asyncfeed.engine.operators.operator import Executor, Operator
from asyncfeed.engine.operators.step import Gate
from asyncfeed.engine.operators.threaded_iterator import ThreadedIterator
from asyncfeed.engine.order.expansions import Expansion, Expansions, expansions_of
from asyncfeed.engine.provenance import ItemPlace, is_own_cancellation, raise_if_cancelled
from asyncfeed.stages.steps import Chunk
from asyncfeed.trees import total_size


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
            elif expansion.gate is not None and self.operator.skips(ends):
                expansion.unwanted = True
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
            expansion = Expansion(item, position, item_bytes)
            expansion.gate = Gate()
            self.order.add(expansion)
            self._untaken.append(expansion)
            operator.pool.wake_one()
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
            expansion = self._untaken.popleft()
            expansion.begun = True
            self._open.add(expansion)
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
            expansion.item = None
            expansion.done = True
            self._open.discard(expansion)
            if expansion.part is not None and expansion.part.admitted:
                admission.settle(expansion.part, 0)
            admission.allow_others()
            if expansion.charged:
                operator.budget.charge(-expansion.charged)
                expansion.charged = 0
            if operator.send_gate.waiting:
                operator.send_gate.open()
            del expansion

    def _wake_workers(self) -> None:
        """Wake a worker if there are items. That worker wakes the next one."""
        self.operator.pool.worker_started()
        if self._untaken:
            self.operator.pool.wake_one()

    async def _expand(self, expansion: Expansion) -> None:
        operator, work, item = self.operator, self.operator.work, expansion.item
        args = (item, ItemPlace(operator.provenance, expansion.position)) if work.placed else (item,)
        if self._list_length:
            await self._admit(expansion, self._list_length)
            if expansion.unwanted:
                return
        if work.kind == "async" or (work.inline is not None and work.inline(item)):
            made = work.fn(*args)
        else:
            made = await operator.context.threads.run(operator.name, work.fn, *args)
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
        self._list_length = max(length, int(0.9 * self._list_length + 0.1 * length), 1)
        nbytes = self._charge(expansion, rest)
        while rest and not expansion.unwanted:
            children = [rest.pop() for _ in range(min(len(rest), CHUNK_ITEMS))]
            await self._add(expansion, children, nbytes * len(children) // length)

    async def _add_children(self, expansion: Expansion, children: list[Any]) -> None:
        """Add children to the expansion, charge what they weigh, and wait while it holds enough."""
        await self._add(expansion, children, self._charge(expansion, children))

    def _charge(self, expansion: Expansion, children: list[Any]) -> int:
        """Charge an expansion with what children weigh that were made at once. Return the bytes."""
        operator, part = self.operator, expansion.part
        if part is None:  # the function has returned an iterator before, and now a list
            part = Part(expansion, len(children), len(children))
            part.admit()
        nbytes = total_size(children)
        if children:
            operator.warn_if_unweighable(children[-1])
            if nbytes and nbytes != len(children) * self._child_bytes:
                self._estimate.learn(nbytes, len(children))
                self._child_bytes = self._estimate.expect(1)
                operator.budget.need(operator.depth, max(1, self._list_length) * self._child_bytes)
        self._admission.settle(part, nbytes)
        return nbytes

    async def _add(self, expansion: Expansion, children: list[Any], nbytes: int) -> None:
        """Add children to the expansion, which is charged with their bytes, and wait while it holds enough."""
        operator = self.operator
        if expansion.received:
            count = len(children)
            children = expansion.leave_out_received(children)
            # What was left out is charged until all children were made.
            nbytes = nbytes * len(children) // count
        expansion.charged -= nbytes
        expansion.nbytes += nbytes
        expansion.children.extend(children)
        del children
        if operator.send_gate.waiting and self.order.may_be_next(expansion):
            operator.send_gate.open()
        while len(expansion.children) >= 2 * CHUNK_ITEMS and not expansion.unwanted:
            await expansion.gate.wait()

    def note_piece_taken(self) -> None:
        """Let workers continue whose expansions do not hold enough children any more."""
        for each in self._open:
            if each.gate.waiting and len(each.children) < 2 * CHUNK_ITEMS:
                each.gate.open()

    def _is_next(self, expansion: Expansion, _: int) -> bool:
        """Return whether the next child of this item is next: the consumer waits for it (see `budget.py`)."""
        if self.operator.sending or not self.operator.path_is_clear():
            return False
        sendable = list(self.order.sendable())
        return expansion in sendable and not any(each.children or each.active for each in sendable)
