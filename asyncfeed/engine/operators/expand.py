"""One item in, any number out: the step of `flat_map` and `unbatch`.

Each item has an expansion that its children gather in. `expansions.py` says which are sent when. When an expansion
holds enough, its worker waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Iterable
from typing import Any

from asyncfeed.engine.channel import Channel
from asyncfeed.engine.closing import IteratingAsync, complain
from asyncfeed.engine.constants import CHUNK_ITEMS, FLAT_CALLS, FLAT_OPEN_ITEMS, GROUP_BYTES, GROUP_SECONDS
from asyncfeed.engine.limits.group_size import GroupSize
from asyncfeed.engine.limits.weighing import Estimate
from asyncfeed.engine.operators.drawing import Drawing
from asyncfeed.engine.operators.operator import Operator
from asyncfeed.engine.operators.step import Gate, RunContext
from asyncfeed.engine.order.expansions import Expansion, Expansions, expansions_of
from asyncfeed.engine.provenance import ItemPlace, Provenance, is_own_cancellation, raise_if_cancelled
from asyncfeed.stages.steps import Chunk, Work
from asyncfeed.trees import total_size


class FlatStep(Operator):
    """Runs one `Work` of shape "flat"."""

    def __init__(
        self,
        work: Work,
        name: str,
        context: RunContext,
        levels: int,
        inbox: Channel,
        provenance: Provenance,
        unit: int,
    ) -> None:
        # One worker until an element has been weighed, or takes long: many at once might be too many.
        super().__init__(work, name, context, levels, inbox, provenance, 1)
        self._buffer: Expansions = expansions_of(work)
        self._open: set[Expansion] = set()
        """Those that a worker is at."""
        self._untaken: deque[Expansion] = deque()
        self._most = max(2, FLAT_OPEN_ITEMS // unit)
        if work.turns is not None:
            self._most = max(self._most, work.turns.cycle + FLAT_CALLS)
        self._limit = FLAT_CALLS if work.concurrency == "auto" else work.concurrency
        self._element = Estimate()
        """What an element weighs."""
        self._weight = 0
        """The same as a whole number; 0 while it is unknown."""

    def skip(self, level: int, ended: int) -> None:
        """Draw nothing more for the items of that epoch: what they expand to may have no end."""
        super().skip(level, ended)
        passed = self._passed.copy()
        for expansion in self._buffer:
            if expansion.boundary is not None:
                passed.note(expansion.boundary)
            elif expansion.gate is not None and self.skips(passed):
                expansion.unwanted = True
                expansion.gate.open()

    def drop(self) -> None:
        """Forget what is held."""
        self._open.clear()
        self._untaken.clear()
        self._buffer.clear()
        super().drop()

    async def _feed(self) -> None:
        last = False
        while not last:
            chunk = await self._inbox.get()
            last = chunk.ends_stream
            share = chunk.nbytes // max(1, len(chunk.items))
            self.budget.charge(share * len(chunk.items) - chunk.nbytes)
            for item, position in zip(chunk.items, chunk.positions, strict=True):
                while len(self._buffer) >= self._most and not self.skips(self._fed):
                    await self._room.wait()
                if self.skips(self._fed):
                    self.budget.charge(-share)
                    continue
                expansion = Expansion(item, position, share)
                expansion.gate = Gate()
                self._buffer.add(expansion)
                self._untaken.append(expansion)
                self._pool.wake_one()
            if chunk.ends:
                while len(self._buffer) >= self._most:  # a source of no items can send ends for ever
                    await self._room.wait()
                if chunk.boundary is not None:
                    self._fed.note(chunk.boundary)
                self._buffer.add(Expansion.end(chunk.boundary, chunk.failure))
                if self._progress.waiting:
                    self._progress.open()
            elif self.budget.waiting and self.skips(self._fed):
                self.budget.wake_waiters()
            del chunk

    async def _labour(self) -> None:
        task = asyncio.current_task()
        pool = self._pool
        pool.worker_started()
        while True:
            if not self._untaken:
                await pool.park()
                continue
            expansion = self._untaken.popleft()
            expansion.active = True
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
                    complain(self.context.loop, self.name, error)  # nobody waits for the item any more
                    return
                expansion.failure = self._provenance.failure(error, self.name, expansion.position, expansion.item)
            expansion.item = None
            expansion.done, expansion.active = True, False
            self._open.discard(expansion)
            if self._pool.limit < self._limit:
                self._go_on()
            reserved = expansion.reserved
            if expansion.charged or reserved:
                self.budget.charge(-expansion.charged - reserved, -reserved if self._element.unknown else 0)
                expansion.charged = expansion.reserved = 0
            if self._progress.waiting:
                self._progress.open()
            del expansion

    async def _expand(self, expansion: Expansion) -> None:
        work, item = self._work, expansion.item
        args = (item, ItemPlace(self._provenance, expansion.position)) if work.placed else (item,)
        if work.kind == "async" or (work.inline is not None and work.inline(item)):
            made = work.fn(*args)
        else:
            made = await self.context.threads.run(self.name, work.fn, *args)
        if isinstance(made, Awaitable) and not isinstance(made, AsyncIterable):  # some cursors are both
            made = await made
            raise_if_cancelled()
        if isinstance(made, AsyncIterable):
            async with IteratingAsync(made, self.name, self.context.in_peace) as iterator:
                await self._expand_on_loop(expansion, iterator)
        elif isinstance(made, (list, tuple)):
            for start in range(0, len(made), CHUNK_ITEMS):
                if expansion.unwanted:
                    return
                await self._gather(expansion, list(made[start : start + CHUNK_ITEMS]))
        elif isinstance(made, Iterable):
            await self._expand_on_thread(expansion, made)
        else:
            message = f"{self.name} must return an iterable or an async iterable, not {type(made).__name__}"
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
        drawing = Drawing(made, self.name, self.context.loop, max(GROUP_BYTES, self.budget.limit // 16))
        group = GroupSize()
        try:
            while not (drawing.ended or expansion.unwanted):
                most = GROUP_BYTES // max(1, self._weight or GROUP_BYTES)
                size = max(1, min(group.items, most))
                await self._admit(expansion, size)
                children, seconds = await self.context.threads.run(self.name, drawing.draw, size)
                group.learn(seconds / max(1, len(children)), GROUP_SECONDS)
                await self._gather(expansion, children)
                del children
                if drawing.error is not None:
                    raise drawing.error
        finally:
            drawing.stop(self.context.threads.submit)

    async def _admit(self, expansion: Expansion, count: int) -> None:
        """Wait until the budget has room for so many elements, as heavy as those before."""
        budget, element = self.budget, self._element
        if element.unknown and self._pool.limit < self._limit:
            self._let_first_go_alone()
        first = self._buffer.leads(expansion)
        # The others leave room for one element of the first, which is the one that is needed next.
        spare = 0 if first else self._weight or budget.least
        expansion.asked = count
        predicted = count * budget.share(self._limit) if element.unknown else element.expect(count)
        if budget.fits(predicted, self.depth, spare, predicted if element.unknown else 0):
            expansion.reserved = predicted
            return
        expansion.active = False

        def needed() -> int:
            return count * budget.least if element.unknown else element.expect(count)

        def entered() -> None:
            expansion.active = True
            expansion.reserved = needed()

        def guess() -> int:
            return needed() if element.unknown else 0

        await budget.admit(needed, self.depth, lambda: self._is_next(expansion), spare, entered, guess=guess)

    def _correct(self) -> None:
        """Charge what is being made with what is known by now."""
        change = guess = 0
        for expansion in self._buffer:
            if expansion.reserved:
                reserved = self._element.expect(expansion.asked)
                change += reserved - expansion.reserved
                guess += expansion.reserved
                expansion.reserved = reserved
        self.budget.charge(change, -guess)
        if self.budget.waiting:
            self.budget.wake_waiters()

    def _weigh(self, nbytes: int, count: int) -> None:
        """Learn what an element weighs; once that is known, all workers may come."""
        guessed = self._element.unknown
        self._element.learn(nbytes, count)
        if self._element.unknown:
            return
        self._weight = self._element.expect(1)
        self.budget.need(self.depth, self._weight)
        if guessed:
            self._correct()
            if self._alone is not None:
                self._alone.cancel()
            self._go_on()

    def _go_on(self) -> None:
        """Let others begin beside the first item, or after it."""
        if self._pool.limit < self._limit:
            self._pool.limit = self._limit
            if self._untaken:
                self._pool.wake_one()

    async def _gather(self, expansion: Expansion, children: list[Any]) -> None:
        """Put elements into the expansion, in place of what was reserved for them; wait while it holds enough."""
        nbytes = total_size(children)
        self.budget.charge(nbytes - expansion.reserved, -expansion.reserved if self._element.unknown else 0)
        expansion.reserved = 0
        if children:
            self.look_at(children[-1])
            if nbytes != len(children) * self._weight:
                self._weigh(nbytes, len(children))
        expansion.nbytes += nbytes
        expansion.children.extend(children)
        del children
        if self._progress.waiting and self._buffer.leads(expansion):
            self._progress.open()
        while len(expansion.children) >= 2 * CHUNK_ITEMS and not expansion.unwanted:
            await expansion.gate.wait()

    def _is_next(self, expansion: Expansion) -> bool:
        """Return whether the consumer waits for this item's next child before all others: see `budget`."""
        if self.sending or not self.clear_ahead():
            return False
        reach = list(self._buffer.reach())
        return expansion in reach and not any(each.children or each.active for each in reach)

    def _ready(self) -> Chunk | None:
        """Take the children that can be sent on now; None where there are none yet.

        Those of several items go together, or each item with a few children would cost a chunk.
        """
        before = len(self._buffer)
        ready = self._buffer.ready(CHUNK_ITEMS)
        for each in self._open:
            if each.gate.waiting and len(each.children) < 2 * CHUNK_ITEMS:
                each.gate.open()
        if ready.children:
            self._seen += len(ready.children)
            if not self.skips(self._passed):
                return Chunk(ready.children, ready.positions, nbytes=ready.nbytes)
            self.budget.charge(-ready.nbytes)
        elif ready.end is not None:
            return self._end(ready.end)
        elif len(self._buffer) == before:
            return None
        return Chunk([], ())  # lets others run: items without children may come for ever

    def _end(self, expansion: Expansion) -> Chunk:
        """Return the end of an epoch or the failure that this one stands for."""
        failure = expansion.failure
        if failure is not None and expansion.has_item:  # its own, not one that came from upstream
            unwanted = self.skips(self._passed)
            if unwanted or self._skip_budget.allows(failure, self._seen):
                failure = None
        if expansion.boundary is not None:
            self._passed.note(expansion.boundary)
        return Chunk([], (), expansion.boundary, failure)
