"""One item in, any number out: the step of `flat_map` and `unbatch`.

Each item has a slot that its children gather in; the slots are sent in order. Only the first slot streams; the
children of a later one wait in it, and when it holds enough its worker waits too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Iterable, Iterator
from itertools import repeat
from typing import Any

from asyncfeed.engine.channel import SPAN, Channel
from asyncfeed.engine.closing import IteratingAsync, complain
from asyncfeed.engine.crew import Crew, Policy
from asyncfeed.engine.drawing import Drawing
from asyncfeed.engine.epochs import Marks
from asyncfeed.engine.hop import HOP_BYTES, HOP_SECONDS
from asyncfeed.engine.origin import ItemPlace, Origin, from_outside, heed_cancel
from asyncfeed.engine.step import Gate, Means, Step
from asyncfeed.engine.work import ALONE
from asyncfeed.errors import Failure
from asyncfeed.stages.steps import NO_MARK, Span, Work
from asyncfeed.trees import total_size

AUTO = 4
"""What concurrency="auto" amounts to: enough to open the next ones while the first streams."""
SLOTS = 64
"""How many items may be open or wait their turn."""


class Slot:
    """One item and its children; or, with no item, what comes after the items before it."""

    __slots__ = (
        "active", "asked", "charged", "children", "done", "failure", "gate", "item", "mark", "nbytes", "ordinal",
        "reserved", "sent", "unwanted",
    )  # fmt: skip

    def __init__(self, item: Any, ordinal: Any, charged: int) -> None:
        self.item = item
        self.ordinal = ordinal
        self.charged = charged
        self.children: list[Any] = []
        self.nbytes = 0
        self.asked = 0
        """How many children are being made."""
        self.reserved = 0
        """What is charged for those."""
        self.sent = 0
        self.active = False
        """Whether a worker is at it, and does not wait for memory."""
        self.done = False
        self.unwanted = False
        """Whether nobody asks for more children: a later stage has left the epoch of this item."""
        self.failure: Failure | None = None
        self.mark = NO_MARK
        self.gate = Gate()


class FlatStep(Step):
    """Runs one `Work` of shape "flat"."""

    def __init__(
        self, work: Work, name: str, means: Means, levels: int, inbox: Channel, origin: Origin, unit: int
    ) -> None:
        super().__init__(name, means, levels)
        self._work = work
        self._inbox = inbox
        self._origin = origin
        self._slots: deque[Slot] = deque()
        self._untaken: deque[Slot] = deque()
        self._most = max(2, SLOTS // unit)
        self._limit = AUTO if work.concurrency == "auto" else work.concurrency
        # One worker until an element has been weighed, or takes long: many at once might be too many.
        self._crew = Crew(1, means.loop, lambda: self.task(self._labour(), "worker"), means.hungry_for)
        self._weight: int | None = None
        self._alone: asyncio.TimerHandle | None = None
        self._policy = Policy(work, means)
        self._progress = Gate()
        self._room = Gate()
        self._fed = Marks(levels)
        self._passed = Marks(levels)
        self._seen = 0

    def start(self) -> None:
        """Start the feeding and the sending task; workers start when there is work."""
        self.means.budget.need(self.depth, unknown=True)
        self.task(self._feed(), "feed")
        self.task(self._send(), "send")

    @property
    def busy(self) -> bool:
        """Whether an item has been taken in and not sent on."""
        return self.sending or bool(self._slots)

    @property
    def calls(self) -> int:
        """How many calls of the user's function it may make at a time."""
        return self._crew.limit

    def skip(self, level: int, ended: int) -> None:
        """Draw nothing more for the items of that epoch: what they expand to may have no end."""
        super().skip(level, ended)
        marks = self._passed.copy()
        for slot in self._slots:
            if slot.mark != NO_MARK:
                marks.note(slot.mark)
            elif self.skips(marks):
                slot.unwanted = True
                slot.gate.open()

    def drop(self) -> int:
        """Forget what is held."""
        nbytes = sum(slot.charged + slot.nbytes + slot.reserved for slot in self._slots) + self._inbox.clear()
        for slot in self._slots:
            slot.reserved = 0
        self._slots.clear()
        self._untaken.clear()
        if self._alone is not None:
            self._alone.cancel()
        return nbytes

    def forget_guesses(self) -> int:
        """Return what is charged by guess."""
        return sum(slot.reserved for slot in self._slots) if self._weight is None else 0

    async def _feed(self) -> None:
        last = False
        while not last:
            span = await self._inbox.get()
            last = span.last
            share = span.nbytes // max(1, len(span.items))
            self.means.budget.charge(share * len(span.items) - span.nbytes)
            for item, ordinal in zip(span.items, span.ordinals, strict=True):
                while len(self._slots) >= self._most and not self.skips(self._fed):
                    await self._room.wait()
                if self.skips(self._fed):
                    self.means.budget.charge(-share)
                    continue
                slot = Slot(item, ordinal, share)
                self._slots.append(slot)
                self._untaken.append(slot)
                self._crew.hire()
            if span.mark != NO_MARK or span.failure is not None:
                while len(self._slots) >= self._most:  # a source of no items can send ends for ever
                    await self._room.wait()
                end = Slot(None, None, 0)
                end.mark, end.failure, end.done = span.mark, span.failure, True
                if span.mark != NO_MARK:
                    self._fed.note(span.mark)
                self._slots.append(end)
                if self._progress.waiting:
                    self._progress.open()
            elif self.means.budget.waiting and self.skips(self._fed):
                self.means.budget.poke()
            del span

    async def _labour(self) -> None:
        task = asyncio.current_task()
        crew = self._crew
        crew.arrived()
        while True:
            if not self._untaken:
                await crew.rest()
                continue
            slot = self._untaken.popleft()
            slot.active = True
            if self._untaken and crew.short_handed:
                crew.hire()
            try:
                if not slot.unwanted:
                    await self._expand(slot)
            except BaseException as error:
                if from_outside(error, task):
                    raise
                if task is not None and task.cancelling():
                    complain(self.means.loop, self.name, error)  # nobody waits for the item any more
                    return
                slot.failure = self._origin.failure(error, self.name, slot.ordinal, slot.item)
            slot.item = None
            slot.done, slot.active = True, False
            if self._weight is None:
                self._weigh(0, 1)
            self.means.budget.charge(-slot.charged - slot.reserved)
            slot.charged = slot.reserved = 0
            if self._progress.waiting:
                self._progress.open()
            del slot

    async def _expand(self, slot: Slot) -> None:
        work, item = self._work, slot.item
        args = (item, ItemPlace(self._origin, slot.ordinal)) if work.placed else (item,)
        if work.kind == "async" or (work.inline is not None and work.inline(item)):
            made = work.fn(*args)
        else:
            made = await self.means.threads.run(self.name, work.fn, *args)
        if isinstance(made, Awaitable) and not isinstance(made, AsyncIterable):  # some cursors are both
            made = await made
            heed_cancel()
        if isinstance(made, AsyncIterable):
            async with IteratingAsync(made, self.name, self.means.in_peace) as iterator:
                await self._expand_on_loop(slot, iterator)
        elif isinstance(made, (list, tuple)):
            for start in range(0, len(made), SPAN):
                if slot.unwanted:
                    return
                await self._gather(slot, list(made[start : start + SPAN]))
        elif isinstance(made, Iterable):
            await self._expand_on_thread(slot, made)
        else:
            message = f"{self.name} must return an iterable or an async iterable, not {type(made).__name__}"
            raise TypeError(message)

    async def _expand_on_loop(self, slot: Slot, iterator: AsyncIterator[Any]) -> None:
        while not slot.unwanted:
            await self._admit(slot, 1)
            try:
                child = await anext(iterator)
                heed_cancel()
            except StopAsyncIteration:
                return
            await self._gather(slot, [child])
            del child

    async def _expand_on_thread(self, slot: Slot, made: Iterable[Any]) -> None:
        drawing = Drawing(made, self.name, self.means.loop, max(HOP_BYTES, self.means.budget.limit // 16))
        size = 1
        try:
            while not (drawing.ended or slot.unwanted):
                size = max(1, min(size, HOP_BYTES // max(1, self._weight or HOP_BYTES)))
                await self._admit(slot, size)
                children, seconds = await self.means.threads.run(self.name, drawing.draw, size)
                worth = int(HOP_SECONDS * max(1, len(children)) / max(seconds, 1e-9))
                size = max(1, min(worth, 2 * size, SPAN))
                await self._gather(slot, children)
                del children
                if drawing.error is not None:
                    raise drawing.error
        finally:
            drawing.stop(self.means.threads.submit)

    async def _admit(self, slot: Slot, count: int) -> None:
        """Wait until the budget has room for so many elements, as heavy as those before."""
        budget = self.means.budget
        if self._weight is None and self._alone is None and self._crew.limit < self._limit:
            self._alone = self.means.loop.call_later(ALONE, self._go_on)
        first = not self._work.ordered or self._slots[0] is slot
        # The others leave room for one element of the first, which is the one that is needed next.
        spare = 0 if first else budget.least if self._weight is None else self._weight
        slot.asked = count
        predicted = count * (budget.share(self._limit) if self._weight is None else self._weight)
        if budget.fits(predicted, self.depth, spare, predicted if self._weight is None else 0):
            slot.reserved = predicted
            return
        slot.active = False

        def needed() -> int:
            return count * (budget.least if self._weight is None else self._weight)

        def entered() -> None:
            slot.active = True
            slot.reserved = needed()

        def guess() -> int:
            return needed() if self._weight is None else 0

        await budget.admit(needed, self.depth, lambda: self._is_next(slot), spare, entered, guess=guess)

    def _correct(self) -> None:
        """Charge what is being made with what is known by now."""
        change = guess = 0
        for slot in self._slots:
            if slot.reserved:
                reserved = slot.asked * (self._weight or 0)
                change += reserved - slot.reserved
                guess += slot.reserved
                slot.reserved = reserved
        self.means.budget.charge(change, -guess)
        if self.means.budget.waiting:
            self.means.budget.poke()

    def _weigh(self, nbytes: int, count: int) -> None:
        """Learn what an element weighs; once that is known, all workers may come."""
        guessed = self._weight is None
        self._weight = max(nbytes // max(1, count), (self._weight or 0) * 7 // 8)
        self.means.budget.need(self.depth, self._weight)
        if guessed:
            self._correct()
            if self._alone is not None:
                self._alone.cancel()
            self._go_on()

    def _go_on(self) -> None:
        """Let others begin beside the first item, or after it."""
        if self._crew.limit < self._limit:
            self._crew.limit = self._limit
            if self._untaken:
                self._crew.hire()

    async def _gather(self, slot: Slot, children: list[Any]) -> None:
        """Put elements into the slot, in place of what was reserved for them; wait while it holds enough."""
        nbytes = total_size(children)
        self.means.budget.charge(nbytes - slot.reserved, -slot.reserved if self._weight is None else 0)
        slot.reserved = 0
        if children:
            self.look_at(children[-1])
            self._weigh(nbytes, len(children))
        slot.nbytes += nbytes
        slot.children.extend(children)
        del children
        if self._progress.waiting and (not self._work.ordered or self._slots[0] is slot):
            self._progress.open()
        while len(slot.children) >= 2 * SPAN and not slot.unwanted:
            await slot.gate.wait()

    def _is_next(self, slot: Slot) -> bool:
        """Return whether the consumer waits for this item's next child before all others: see `budget`."""
        if self.sending or not self.clear_ahead():
            return False
        reach = list(self._reach())
        return slot in reach and not any(each.children or each.active for each in reach)

    def _reach(self) -> Iterator[Slot]:
        """Go through the items whose children may be sent now."""
        for slot in self._slots:
            yield slot
            if self._work.ordered or slot.mark != NO_MARK or slot.failure is not None:
                return

    async def _send(self) -> None:
        await self.out.start()
        while not self.out.finished:
            span = self._ready()
            if span is not None:
                await self.send(span)
                del span
                continue
            if self.means.budget.waiting:
                self.means.budget.poke()
            await self._progress.wait()

    def _ready(self) -> Span | None:
        """Take the children that can be sent on now; None where there are none yet.

        Those of several items go together, or each item with a few children would cost a span.
        """
        slots = self._slots
        children: list[Any] = []
        ordinals: list[Any] = []
        nbytes = 0
        before = len(slots)
        ended = None
        while slots and len(children) < SPAN:
            if self._work.ordered:
                nbytes += self._take(slots[0], children, ordinals)
            else:
                nbytes += sum([self._take(slot, children, ordinals) for slot in self._reach() if slot.children])
            slot = slots[0]
            if not slot.done:
                break
            if slot.mark != NO_MARK or slot.failure is not None:
                ended = None if children else slots.popleft()  # it comes after them
                break
            slots.popleft()
        if len(slots) < before and self._room.waiting:
            self._room.open()
        if ended is not None:
            return self._end(ended)
        if not children:
            # Items without children: a span without any lets others run.
            return Span([], ()) if len(slots) < before else None
        self._seen += len(children)
        if self.skips(self._passed):
            self.means.budget.charge(-nbytes)
            return Span([], ())
        return Span(children, ordinals, nbytes=nbytes)

    def _take(self, slot: Slot, children: list[Any], ordinals: list[Any]) -> int:
        """Add the children that a slot holds to those that are sent; return what they weigh."""
        if not slot.children:
            return 0
        start = slot.sent
        slot.sent = stop = start + len(slot.children)
        ordinals.extend(zip(repeat(slot.ordinal, stop - start), range(start, stop), strict=True))
        children.extend(slot.children)
        slot.children.clear()
        nbytes, slot.nbytes = slot.nbytes, 0
        if slot.gate.waiting:
            slot.gate.open()
        return nbytes

    def _end(self, slot: Slot) -> Span:
        """Return the end of an epoch or the failure that this slot stands for."""
        failure = slot.failure
        if failure is not None and slot.ordinal is not None:  # its own, not one that came from upstream
            unwanted = self.skips(self._passed)
            if unwanted or self._policy.forgives(failure, self._seen):
                failure = None
        if slot.mark != NO_MARK:
            self._passed.note(slot.mark)
        return Span([], (), slot.mark, failure)
