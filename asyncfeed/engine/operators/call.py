"""A stage's function, called for many items at a time, in the order of the stream.

One task feeds chunks into a window, up to K workers take the items in it one after the other, and one task sends
on what is ready from its front. Invariants:

* An item is in exactly one place: untaken, with one worker, or in its place among the results.
* The results are sent in the order of the entries; a piece of an entry goes as soon as all before it is done.
  Unordered, results go as they come, but never past the end of an epoch.
* At most K calls run at any time: a worker makes one call (or one group) at a time, and where there is one
  worker more, its group waits in a limiter that is K threads wide.
* No task, future, lock or closure is made for an item whose function does not wait.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from functools import partial
from typing import Any, ClassVar

from asyncfeed.engine.channel import Channel
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
from asyncfeed.engine.limits.weighing import Part, Weights
from asyncfeed.engine.operators.operator import Operator
from asyncfeed.engine.operators.step import RunContext
from asyncfeed.engine.order.reorder import CompletionBuffer, Entry, Piece, ReorderBuffer
from asyncfeed.engine.provenance import Provenance
from asyncfeed.errors import Failure
from asyncfeed.position import Position, Positions
from asyncfeed.stages.steps import Chunk, Work
from asyncfeed.trees import size_of, total_size


class WorkStep(Operator):
    """Runs one `Work` of shape "map" or "filter"; the two kinds differ in how a worker calls."""

    most: ClassVar[int]
    """What concurrency="auto" goes up to."""

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
        limit = self.most if work.concurrency == "auto" else work.concurrency
        super().__init__(work, name, context, levels, inbox, provenance, limit)
        self._auto = work.concurrency == "auto"
        self._window_size = max(WINDOW_ITEMS // unit, 2 * limit)
        self._backlog = BACKLOG_ITEMS // unit
        self._shares = AUTO_SHARES if work.concurrency == "auto" else work.concurrency
        self._weights = Weights(work)
        self._measured: set[int] = set()
        """The numbers of items that are just being measured."""
        self._guessed: set[Part] = set()
        """What began, or waited for room, before anybody knew what a result weighs, and has no result yet."""
        self._entering = 0
        """How many calls were let in after they waited for room, and have yet to begin."""
        self._buffer: ReorderBuffer = ReorderBuffer() if work.ordered else CompletionBuffer()
        self._untaken: deque[Entry] = deque()
        self._current: Entry | None = None
        self._probing = False
        """Whether the first call is alone."""
        self._together = False
        """Whether it need not be: it takes too long, or something was weighed."""

    @property
    def _unknown(self) -> bool:
        return self._weights.unknown

    def drop(self) -> None:
        """Forget what is held."""
        self._untaken.clear()
        self._current = None
        self._buffer.clear()
        super().drop()

    # -- taking chunks in

    async def _feed(self) -> None:
        buffer, budget = self._buffer, self.budget
        last = False
        number = 0
        while not last:
            chunk = await self._inbox.get()
            last = chunk.ends_stream
            if chunk.items and self.skips(self._fed):
                budget.charge(-chunk.nbytes)
                chunk = Chunk([], (), chunk.boundary, chunk.failure)
            if chunk.boundary is not None:
                self._fed.note(chunk.boundary)
            entry = Entry(chunk, number)
            number += len(chunk.items)
            alone = not buffer
            buffer.add(entry)
            if chunk.items:
                weight = self._weights.predict(entry)
                if weight is not None:
                    if not budget.fits(weight, self.depth):
                        is_next = partial(self._is_next, entry, 0)
                        await budget.admit(weight, self.depth, is_next, number=entry.number)
                    entry.charged += weight
                    entry.weight = weight
                if alone and self._progress.waiting:
                    entry.awaited = 0  # before a worker can have its first item
                self._untaken.append(entry)
                self._current = self._untaken[0]
                self._pool.wake_one()
            elif self._progress.waiting:
                self._progress.open()
            while not last and self._has_enough():
                await self._room.wait()

    def _has_enough(self) -> bool:
        """Return whether to take nothing more in for now."""
        if len(self._untaken) > 1:
            return True  # the workers have enough at hand; the rest stays where it is
        most = self._window_size
        if self.sending:
            most = max(min(self._backlog, BACKLOG_BYTES // max(1, self._weights.each)), self._pool.limit)
        # A source of no items can send the ends of its epochs for ever.
        return self._buffer.held >= most or self._buffer.ends >= WINDOW_EPOCH_ENDS

    def _is_next(self, entry: Entry, place: int) -> bool:
        """Return whether the consumer waits for this item before all others."""
        return not self.sending and self._buffer.is_next(entry, place) and self.clear_ahead()

    # -- working

    def _advance(self) -> None:
        """Go to the next entry with untaken items."""
        self._begun += len(self._untaken.popleft().out)
        self._current = self._untaken[0] if self._untaken else None
        if self._room.waiting:
            self._room.open()

    def _failed(self, entry: Entry, i: int, item: Any, error: BaseException) -> None:
        entry.lose(i, self._provenance.failure(error, self.name, entry.positions[i], item))

    # -- memory, where items are big

    async def _admit(self, entry: Entry, place: int, count: int, weight: int) -> Part:
        """Wait until the budget has room for the results of `count` items that weigh so much; return their part.

        Before the first result is there, that is a share of the limit for each call, or less if that is not free.
        """
        budget, weights = self.budget, self._weights
        while self._entering:  # noqa: ASYNC110 - it goes on in this turn of the loop or the next
            await asyncio.sleep(0)  # so that calls begin in the order of the stream
        guessed = weights.unknown
        if guessed and not self._together:
            self._probing = True
            self._let_first_go_alone()
        expected = budget.share(self._shares) * count if guessed else weights.expect(weight, count)
        part = Part(entry, count, weight, expected)
        number = entry.number + place
        # What comes before and is still being measured finds room for as much.
        spare = part.nbytes if min(self._measured, default=number) < number else 0
        if guessed:
            self._guessed.add(part)
        if budget.fits(part.nbytes, self.depth, spare, self._guess(part)):
            part.admit()
            return part
        if guessed:
            part.nbytes = budget.least * count
        entry.waiting += count

        def entered() -> None:
            entry.waiting -= count
            part.admit()
            self._entering += 1

        is_next = partial(self._is_next, entry, place)
        try:
            await budget.admit(
                lambda: part.nbytes, self.depth, is_next, spare, entered, number, lambda: self._guess(part)
            )
        finally:
            if part.admitted:
                self._entering -= 1
        return part

    def _guess(self, part: Part) -> int:
        return part.nbytes if part in self._guessed else 0

    def _forget_guesses(self) -> int:
        """Forget what is charged by guess, and return how many bytes."""
        guess = sum(part.nbytes for part in self._guessed if part.admitted)
        self._guessed.clear()
        return guess

    def _recharge(self, part: Part, nbytes: int) -> None:
        change = part.correct(nbytes)
        self.budget.charge(change, change if part in self._guessed else 0)

    def _weighed(self, entry: Entry, start: int, stop: int, part: Part) -> None:
        """Book what the results really weigh, and let go of what they were made from."""
        results = entry.results(start, stop)
        actual = self._weights.learn(results, part.weight)
        if results:
            self.look_at(results[-1])
        each = self._weights.each
        self._inbox.most = (
            max(1, min(self._backlog, TOGETHER_BYTES // each)) if each > SMALL_ITEM_BYTES else sys.maxsize
        )
        self.budget.need(self.depth, actual // (stop - start))
        guess = self._guess(part)
        change = part.correct(actual - entry.share * (stop - start))
        self._guessed.discard(part)
        if self._guessed and not self._weights.unknown:
            # All at once: nobody is let in because one guess was too high, before all are corrected.
            others = list(self._guessed)
            guess += self._forget_guesses()
            change += sum(other.correct(self._weights.expect(other.weight, other.count)) for other in others)
            self.budget.charge(change, -guess)
            self.budget.wake_waiters()  # some may have waited for more than they need
        else:
            self.budget.charge(change, -guess)
        if self._probing:
            self._begin_next()
        if self._alone is not None and not self._weights.unknown:
            self._alone.cancel()
            self._alone = None

    def _go_on(self) -> None:
        """Let others begin beside the first call, which takes long."""
        self._together = True
        self._begin_next()

    def _begin_next(self) -> None:
        self._probing = False
        self._pool.worker_started()
        if self._current is not None:
            self._pool.wake_one()

    def _sample(self, entry: Entry, start: int, items: list[Any]) -> None:
        """Look at results that nobody weighs, as those before were small: at the last of them, for them all.

        If it is large, they are weighed, and all that is not begun is admitted one by one.
        """
        stop = start + len(items)
        if self._work.shape == "filter" or stop - 1 in entry.lost:
            return
        last = entry.out[stop - 1]
        self.look_at(last)
        if size_of(last) <= SURPRISE_BYTES:
            return
        for each in self._untaken:
            self._weights.break_up(each)
        part = Part(entry, len(items), sum(self._weights.costs(items)), 0)
        part.admit()
        self._weighed(entry, start, stop, part)

    # -- sending on

    def _ready(self) -> Chunk | None:
        piece = self._buffer.ready()
        if piece is None:
            return None
        entry, results, positions = piece.entry, piece.results, piece.positions
        failure = None
        if entry.lost:
            results, positions, failure = self._sift(piece, ignore=self.skips(self._passed))
        elif self.skips(self._passed):
            results, positions = [], ()
        self._seen += len(results)
        nbytes = total_size(results)
        moved = min(nbytes, entry.charged)
        entry.charged -= moved
        self.budget.charge(nbytes - moved)
        chunk = Chunk(results, positions, None, failure, nbytes)
        if failure is None and piece.last:
            self._buffer.end(entry)
            self.budget.charge(-entry.charged)
            entry.charged = 0
            chunk.boundary, chunk.failure = entry.boundary, entry.failure
            if chunk.boundary is not None:
                self._passed.note(chunk.boundary)
        return chunk

    def _was_sent(self) -> None:
        self._demand.sent = self._buffer.gone

    def _sift(self, piece: Piece, *, ignore: bool) -> tuple[list[Any], Positions, Failure | None]:
        """Leave out the items without a result; stop before an item that failed, unless the policy skips it."""
        kept: list[Any] = []
        positions: list[Position] = []
        lost = piece.entry.lost
        for place, item, position in zip(piece.places, piece.results, piece.positions, strict=True):
            if place in lost:
                failure = lost.pop(place)
                if (
                    failure is not None
                    and not ignore
                    and not self._skip_budget.allows(failure, self._seen + len(kept))
                ):
                    return kept, positions, failure
            elif not ignore:
                kept.append(item)
                positions.append(position)
        return kept, positions, None
