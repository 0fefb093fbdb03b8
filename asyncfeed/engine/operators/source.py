"""The steps that draw from a source: by number, from an iterable on a thread, or from an async iterable.

A source runs through its epochs and says where each ends (see `EpochCounter`). An iterable that blocks holds up
nobody else: it is drawn on a thread of its own, and what it has yielded so far goes on its way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from asyncfeed.engine.checkpoint.stations import SourceStation
from asyncfeed.engine.closing import IteratingAsync, complain
from asyncfeed.engine.constants import CHUNK_ITEMS, PICKED_FIRST_ITEMS, PICKED_ITEMS
from asyncfeed.engine.epochs import EpochsEnded
from asyncfeed.engine.operators.intake import Intake
from asyncfeed.engine.operators.step import Step, StepSpec
from asyncfeed.engine.provenance import UNSIZED, is_own_cancellation, raise_if_cancelled
from asyncfeed.epoch_end import RESTORED
from asyncfeed.errors import PipelineError, StateError
from asyncfeed.places import shift
from asyncfeed.position import Positions
from asyncfeed.stages.base import Source
from asyncfeed.stages.numbering import Numbering
from asyncfeed.stages.steps import Chunk, Indexed
from asyncfeed.trees import size_of, total_size

OTHER_ITEMS = "some would be left out, or come twice; begin the epoch again, without the state"
UNBOUNDED = UNSIZED * UNSIZED
"""More than the number of any item."""


class SourceStep(Step):
    """What the three kinds of source share: epochs, their ends, and what to do at the end of each."""

    def __init__(self, spec: StepSpec, station: SourceStation) -> None:
        super().__init__(spec)
        self._station = station
        self._epochs = station.epochs.copy()  # the station counts those that the consumer has left
        self._ended = EpochsEnded(spec.levels)
        self._drawn = 0
        """The position of the next item, or of the first one of the epoch if places are counted beside it."""

    def start(self) -> None:
        """Start the task that draws."""
        self.task(self._draw(), "draw")

    async def _draw(self) -> None:
        task = asyncio.current_task()
        await self.out.start()
        self._epochs.resume(self._station.epochs.passes)
        resumes = self._station.resumes
        while not self.out.finished:
            self._drawn = self.provenance.start(self._epochs.number)
            try:
                if resumes:
                    resumes = False
                    await self._send_again()
                rest = await self._pass()
            except BaseException as error:
                if is_own_cancellation(error, task):
                    raise
                rest = []
                ending = task is not None and task.cancelling()
                if self._unwanted() or ending:
                    # It is not wanted any more, and what fails now is how it ends.
                    complain(self.context.loop, self.name, error)
                    if ending:
                        return
                else:
                    failure = self.provenance.failure(error, self.name, self._position())
                    del error
                    await self._end_again()
                    await self.send(Chunk([], (), failure=failure))
                    del failure
                    await self.wait_for_skip(self._ended)
            if not self.out.finished:
                await self._end_pass(rest)

    async def _pass(self) -> list[Any]:
        """Send the items of one epoch, and return the last of them for the end of the epoch to take along."""
        raise NotImplementedError

    async def _send_again(self) -> None:
        """Send what stages held at the checkpoint, as far as this can be done before the epoch begins."""
        raise NotImplementedError

    async def _end_again(self) -> None:
        """Send `RESTORED` if all that stages held was sent and it was not."""

    def _unwanted(self) -> bool:
        """Return whether nothing more of this epoch is wanted."""
        return self.out.finished or self.skips(self._ended)

    def _position(self) -> int:
        """Return the position of the next item."""
        return self._drawn

    def _number(self, count: int) -> Positions:
        """Return the positions of the next `count` items, and go on to the item after them."""
        start = self._drawn
        self._drawn += count
        return range(start, self._drawn)

    async def _emit(self, items: list[Any], nbytes: int = 0) -> None:
        """Send items on, numbered."""
        await self.send(Chunk(items, self._number(len(items)), nbytes=nbytes))

    async def _end_pass(self, items: list[Any]) -> None:
        positions = self._number(len(items))
        boundary = self._epochs.end(self.skipped_level(self._ended) or 0)
        self._ended.note(boundary)
        self._station.ended.append(boundary)
        await self.send(Chunk(items, positions, boundary))


class IndexedSource(SourceStep):
    """Draws from items that can be reached by number."""

    def __init__(self, spec: StepSpec, station: SourceStation, indexed: Indexed, numbering: Numbering) -> None:
        super().__init__(spec, station)
        self._indexed = indexed
        self._numbering = numbering
        self._chunk = PICKED_FIRST_ITEMS
        self._first = 0
        """The place at which the next epoch begins. Above 0 only in a run that resumes."""
        self._place = 0
        """The place of the next item in its epoch."""

    async def _send_again(self) -> None:
        self._first = self._station.next or 0
        for epoch, group in groupby(self._station.again, self.provenance.epoch):
            numbers, start = list(group), self.provenance.start(epoch)
            for at in range(0, len(numbers), CHUNK_ITEMS):
                wanted = numbers[at : at + CHUNK_ITEMS]
                places = [self._numbering.place(number - start, epoch) for number in wanted]
                await self.send(Chunk(self._indexed.pick(epoch, places), wanted))
        await self.send(Chunk([], (), RESTORED))

    async def _pass(self) -> list[Any]:
        epoch = self._epochs.number
        count = self._numbering.length(epoch)
        pick = self._indexed.pick
        self._place, self._first = self._first, 0
        while count - self._place > self._chunk:
            if self._unwanted():
                return []
            await self._emit(pick(epoch, range(self._place, self._place + self._chunk)))
            self._chunk = min(2 * self._chunk, PICKED_ITEMS)
        return pick(epoch, range(self._place, count)) if count and not self._unwanted() else []

    def _position(self) -> int:
        return self._drawn + self._ordinals(range(self._place, self._place + 1))[0]

    def _ordinals(self, places: Sequence[int]) -> Sequence[int]:
        return self._numbering.ordinals(places, self._epochs.number)

    def _number(self, count: int) -> Positions:
        start = self._place
        self._place += count
        return shift(self._ordinals(range(start, self._place)), self._drawn)


class Sieve(NamedTuple):
    """Lets through the items that a run needs to go on from a checkpoint."""

    again: Mapping[int, None]
    """The numbers of the items that stages held, in order."""
    first: int
    """The number of the first item that no stage had."""


class IterableSource(SourceStep):
    """Draws from what can only be iterated, sync or async. It is opened anew at `place` for each epoch."""

    def __init__(self, spec: StepSpec, station: SourceStation, source: Source, place: int) -> None:
        super().__init__(spec, station)
        self._source = source
        self._opening = source.open_at(place)
        self._place = place
        self._first = place
        """The place at which the next epoch is opened. Above `_place` only in a run that resumes."""
        self._sieve: Sieve | None = None
        """Lets through what a run that resumes needs. None if it needs everything."""

    async def _send_again(self) -> None:
        start, again = self._drawn, self._station.again
        for epoch, group in groupby([each for each in again if each < start], self.provenance.epoch):
            numbers = list(group)
            self._drawn = self.provenance.start(epoch)
            self._first = numbers[0] - self._drawn
            self._sieve = Sieve(dict.fromkeys(numbers), UNBOUNDED)
            await self._pass()
        numbers = [each for each in again if each >= start]
        self._drawn = start
        self._sieve = Sieve(dict.fromkeys(numbers), start + (self._station.next or 0))
        marked = [] if self._station.mark is None else [self._sieve.first - 1]
        self._first = max(self._place, min([*numbers, *marked, self._sieve.first]) - start)

    async def _emit(self, items: list[Any], nbytes: int = 0) -> None:
        sieve = self._sieve
        if sieve is None:
            self._note_marks(items)
            await super()._emit(items, nbytes)
            return
        self._check_mark(items, sieve.first - 1 - self._drawn)
        start = self._drawn
        self._drawn += len(items)
        numbers = [number for number in range(start, self._drawn) if number in sieve.again]
        again = [items[number - start] for number in numbers]
        weight = total_size(again)
        self.budget.charge(weight - nbytes)
        await self.send(Chunk(again, numbers, nbytes=weight))
        if self._drawn >= sieve.first:
            await self._end_again()
            if self.out.finished:
                return
            self._drawn = max(start, sieve.first)
            rest = items[self._drawn - start :]
            weight = total_size(rest)
            self.budget.charge(weight)
            self._note_marks(rest)
            await super()._emit(rest, weight)

    def _note_marks(self, items: list[Any]) -> None:
        if items and self._source.mark(items[0]) is not None:
            self._station.marks.append((self._drawn, list(map(self._source.mark, items))))

    def _check_mark(self, items: list[Any], index: int) -> None:
        """Raise if the last item that was received is not there any more. It is at `index`, or not among these."""
        mark = self._station.mark
        if mark is not None and 0 <= index < len(items) and self._source.mark(items[index]) != mark:
            raise StateError(f"{self.name} lists other files than when the state was taken: {OTHER_ITEMS}")

    async def _end_again(self) -> None:
        if self._sieve is not None and self._drawn >= self._sieve.first:
            self._sieve = None
            await self.send(Chunk([], (), RESTORED))

    def _unwanted(self) -> bool:
        """Return whether nothing more of this epoch is wanted."""
        sieve = self._sieve
        return super()._unwanted() or (sieve is not None and self._is_past(sieve))

    def _is_past(self, sieve: Sieve) -> bool:
        """Return whether an earlier epoch has no more items to send again."""
        return sieve.first == UNBOUNDED and self._drawn > max(sieve.again)

    async def _pass(self) -> list[Any]:
        opening, place = self._opening, self._place
        if self._first != place:
            place, self._first = self._first, place
            opening = self._source.open_at(place)
        self._drawn += place - opening.drop
        # A function of the user's may block, and what it returns tells which world it is of.
        made = await self.context.threads.run(self.name, opening.make) if opening.call else opening.make()
        if isinstance(made, Awaitable) and not isinstance(made, AsyncIterable):  # some cursors are both
            made = await made
        if isinstance(made, AsyncIterable):
            async with IteratingAsync(made, self.name, self.context.in_peace) as iterator:
                await self._draw_on_loop(iterator, opening.drop)
        elif isinstance(made, Iterable):
            await self._draw_on_thread(made, opening.drop)
        else:
            message = f"{self.name} must return an iterable or an async iterable, not {type(made).__name__}"
            raise PipelineError(message)
        if self._sieve is not None and self._sieve.first < UNBOUNDED:
            if self._drawn < self._sieve.first and not self._unwanted():
                raise StateError(f"{self.name} has fewer items than when the state was taken: {OTHER_ITEMS}")
            await self._end_again()  # the checkpoint was at the end of the epoch
        return []

    async def _draw_on_thread(self, iterable: Iterable[Any], drop: int) -> None:
        budget = self.budget
        intake = Intake(self.name, self.context.loop, self.context.threads, iterable, budget.limit // 8, drop)
        reserve = empty = 0
        future = self.context.threads.submit(f"drawing from {self.name}", intake.draw)
        future.add_done_callback(lambda _: intake.gate.open())
        try:
            while not self._unwanted():
                # What lies in the intake is not charged by the item; this much is set aside for it.
                room = intake.most - intake.held
                budget.charge(intake.most - reserve, room - empty)
                reserve, empty = intake.most, room
                ended = future.done()
                items, nbytes = intake.take()
                self._drawn += intake.take_dropped()
                if items:
                    budget.charge(0, nbytes)  # they are charged below
                    empty += nbytes
                    self.warn_if_unweighable(items[-1])
                    await budget.admit(nbytes, self.depth, self.path_is_clear)
                    intake.let_go(nbytes)
                    await self._emit(items, nbytes)
                    del items
                elif ended:
                    future.result()
                    return
                else:
                    await intake.wait()
        finally:
            budget.charge(-reserve, -empty)
            intake.stop()
            # Its outcome was taken above, or is nobody's; never looked at, asyncio would log it.
            if not self.context.loop.is_closed():
                future.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _draw_on_loop(self, iterator: AsyncIterator[Any], to_drop: int) -> None:
        budget = self.budget
        predicted = 0
        while not self._unwanted():
            if not budget.try_charge(predicted, self.depth):
                await budget.admit(predicted, self.depth, self.path_is_clear)
            try:
                item = await anext(iterator)
                raise_if_cancelled()
            except StopAsyncIteration:
                budget.charge(-predicted)
                return
            except BaseException as error:
                budget.charge(-predicted)
                if self._unwanted() and not is_own_cancellation(error, asyncio.current_task()):
                    return  # it failed at an item that nobody asks for any more
                raise
            if to_drop:
                to_drop -= 1
                self._drawn += 1
                budget.charge(-predicted)
                if not to_drop % CHUNK_ITEMS:
                    await asyncio.sleep(0)  # an iterator that never waits would keep the loop to itself
                continue
            nbytes = size_of(item)
            budget.charge(nbytes - predicted)
            predicted = nbytes
            self.warn_if_unweighable(item)
            await self._emit([item], nbytes)
            del item
