"""One item in, any number out: the executor of `flat_map`, `interleave` and `unbatch`.

Each item has an expansion that its children gather in. `expansions.py` says which are sent when. When an expansion
holds enough, its worker waits.
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
from asyncfeed.engine.operators.drawing import Drawing
from asyncfeed.engine.operators.operator import Executor, Operator
from asyncfeed.engine.operators.step import Gate
from asyncfeed.engine.order.expansions import Expansion, Expansions, expansions_of
from asyncfeed.engine.provenance import ItemPlace, is_own_cancellation, raise_if_cancelled
from asyncfeed.stages.steps import Chunk
from asyncfeed.trees import total_size


class Expanding(Executor):
    """Calls a function once for each item, and goes through the elements that it returns."""

    order: Expansions

    def __init__(self, operator: Operator) -> None:
        super().__init__(operator)
        work = operator.work
        self.order = expansions_of(work)
        self._open: set[Expansion] = set()
        """Those that a worker is at."""
        self._untaken: deque[Expansion] = deque()
        self._most = max(2, FLAT_OPEN_ITEMS // operator.unit)
        if work.turns is not None:
            self._most = max(self._most, work.turns.cycle + FLAT_CALLS)
        operator.inbox.most = max(1, self._most // 4)
        operator.pool.limit = limit = FLAT_CALLS if work.concurrency == "auto" else work.concurrency
        self._element = Estimate()
        """What an element weighs."""
        self._weight = 0
        """The same as a whole number; 0 while it is unknown."""
        self._admission = Admission(operator, self._element, limit, self._begin_next, self._is_next)
        # One worker until an element has been weighed, or takes long: many at once might be too many.
        self._admission.alone = True

    @property
    def unknown(self) -> bool:
        """Whether nobody can tell beforehand what an element weighs."""
        return True

    def skip(self, passed: EpochsEnded) -> None:
        """Draw nothing more for the items of that epoch: what they expand to may have no end."""
        passed = passed.copy()
        for expansion in self.order:
            if expansion.boundary is not None:
                passed.note(expansion.boundary)
            elif expansion.gate is not None and self.operator.skips(passed):
                expansion.unwanted = True
                expansion.gate.open()

    def drop(self) -> None:
        """Forget what is held."""
        self._open.clear()
        self._untaken.clear()
        self._admission.drop()
        super().drop()

    # -- taking chunks in

    async def take_in(self, chunk: Chunk) -> None:
        """Put the items of a chunk into the order, and its end."""
        operator = self.operator
        share = chunk.nbytes // max(1, len(chunk.items))
        operator.budget.charge(share * len(chunk.items) - chunk.nbytes)
        for item, position in zip(chunk.items, chunk.positions, strict=True):
            expansion = Expansion(item, position, share)
            expansion.gate = Gate()
            self.order.add(expansion)
            self._untaken.append(expansion)
            operator.pool.wake_one()
        if chunk.ends:
            self.order.add(Expansion.end(chunk.boundary, chunk.failure))

    def has_enough(self) -> bool:
        """Return whether nothing more should be taken in for now: a source of no items can send ends for ever."""
        return len(self.order) >= self._most

    # -- working

    async def work(self) -> None:
        """Expand one item after the other."""
        task = asyncio.current_task()
        operator, pool, admission = self.operator, self.operator.pool, self._admission
        pool.worker_started()
        while True:
            if not self._untaken or (admission.alone and self._open):
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
                    complain(operator.context.loop, operator.name, error)  # nobody waits for the item any more
                    return
                expansion.failure = operator.provenance.failure(
                    error, operator.name, expansion.position, expansion.item
                )
            expansion.item = None
            expansion.done = True
            self._open.discard(expansion)
            if expansion.part is not None and expansion.part.admitted:
                admission.settle(expansion.part, 0)
            admission.end_alone()
            if expansion.charged:
                operator.budget.charge(-expansion.charged)
                expansion.charged = 0
            if operator.progress.waiting:
                operator.progress.open()
            del expansion

    def _begin_next(self) -> None:
        self.operator.pool.worker_started()
        if self._untaken:
            self.operator.pool.wake_one()

    async def _expand(self, expansion: Expansion) -> None:
        operator, work, item = self.operator, self.operator.work, expansion.item
        args = (item, ItemPlace(operator.provenance, expansion.position)) if work.placed else (item,)
        if work.kind == "async" or (work.inline is not None and work.inline(item)):
            made = work.fn(*args)
        else:
            made = await operator.context.threads.run(operator.name, work.fn, *args)
        if isinstance(made, Awaitable) and not isinstance(made, AsyncIterable):  # some cursors are both
            made = await made
            raise_if_cancelled()
        if isinstance(made, AsyncIterable):
            async with IteratingAsync(made, operator.name, operator.context.in_peace) as iterator:
                await self._expand_on_loop(expansion, iterator)
        elif isinstance(made, (list, tuple)):
            for start in range(0, len(made), CHUNK_ITEMS):
                if expansion.unwanted:
                    return
                await self._gather(expansion, list(made[start : start + CHUNK_ITEMS]))
        elif isinstance(made, Iterable):
            await self._expand_on_thread(expansion, made)
        else:
            message = f"{operator.name} must return an iterable or an async iterable, not {type(made).__name__}"
            raise TypeError(message)

    async def _expand_on_loop(self, expansion: Expansion, iterator: AsyncIterator[Any]) -> None:
        while not expansion.unwanted:
            await self._admit(expansion, 1)
            try:
                child = await anext(iterator)
                raise_if_cancelled()
            except StopAsyncIteration:
                return
            await self._gather(expansion, [child])
            del child

    async def _expand_on_thread(self, expansion: Expansion, made: Iterable[Any]) -> None:
        operator = self.operator
        room = max(GROUP_BYTES, operator.budget.limit // 16)
        drawing = Drawing(made, operator.name, operator.context.loop, room)
        group = GroupSize()
        try:
            while not (drawing.ended or expansion.unwanted):
                most = GROUP_BYTES // max(1, self._weight or GROUP_BYTES)
                size = max(1, min(group.items, most))
                await self._admit(expansion, size)
                children, seconds = await operator.context.threads.run(operator.name, drawing.draw, size)
                group.learn(seconds / max(1, len(children)), GROUP_SECONDS)
                await self._gather(expansion, children)
                del children
                if drawing.error is not None:
                    raise drawing.error
        finally:
            drawing.stop(operator.context.threads.submit)

    # -- memory

    async def _admit(self, expansion: Expansion, count: int) -> None:
        """Wait until there is room for so many elements, as heavy as those before."""
        part = expansion.part
        if part is None:
            part = expansion.part = Part(expansion, count, count)
        part.count = part.weight = count
        # The others leave room for one element of the first, which is the one that is needed next.
        spare = 0 if self.order.leads(expansion) else self._weight or self.operator.budget.least
        await self._admission.admit(part, spare=spare)

    async def _gather(self, expansion: Expansion, children: list[Any]) -> None:
        """Put elements into the expansion, in place of what was charged for them; wait while it holds enough."""
        operator, part = self.operator, expansion.part
        if part is None:  # a list was made, and nobody was asked before
            part = Part(expansion, len(children), len(children))
            part.admit()
        nbytes = total_size(children)
        if children:
            operator.look_at(children[-1])
            if nbytes and nbytes != len(children) * self._weight:
                self._element.learn(nbytes, len(children))
                self._weight = self._element.expect(1)
                operator.budget.need(operator.depth, self._weight)
        self._admission.settle(part, nbytes)
        expansion.charged -= nbytes
        expansion.nbytes += nbytes
        expansion.children.extend(children)
        del children
        if operator.progress.waiting and self.order.leads(expansion):
            operator.progress.open()
        while len(expansion.children) >= 2 * CHUNK_ITEMS and not expansion.unwanted:
            await expansion.gate.wait()

    def note_taken(self) -> None:
        """Let workers go on whose expansions have room again."""
        for each in self._open:
            if each.gate.waiting and len(each.children) < 2 * CHUNK_ITEMS:
                each.gate.open()

    def _is_next(self, expansion: Expansion, _: int) -> bool:
        """Return whether the consumer waits for this item's next child before all others: see `budget`."""
        if self.operator.sending or not self.operator.clear_ahead():
            return False
        reach = list(self.order.reach())
        return expansion in reach and not any(each.children or each.active for each in reach)
