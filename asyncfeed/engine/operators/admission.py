"""Room in the memory limit for the results of calls, asked for before the calls begin."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from asyncfeed.engine.constants import ALONE_SECONDS
from asyncfeed.engine.operators.step import Step


class Holder(Protocol):
    """What items belong to that ask for room: an entry or an expansion."""

    charged: int
    """How many bytes it is charged with."""
    waiting: int
    """How many of its items wait for room."""


class Weighing(Protocol):
    """What is known about the weight of results."""

    @property
    def unknown(self) -> bool:
        """Whether nothing is known yet."""
        ...

    def expect(self, weight: int, count: int = 1) -> int:
        """Return what the results of `count` items of `weight` will weigh together."""
        ...


class Part:
    """What the results of some calls have of the memory limit. A guess is corrected while they run or wait."""

    __slots__ = ("admitted", "count", "holder", "nbytes", "weight")

    def __init__(self, holder: Holder, count: int, weight: int) -> None:
        self.holder = holder
        self.count = count
        """How many items these are."""
        self.weight = weight
        """What the items weigh."""
        self.nbytes = 0
        """What is charged for their results, or will be."""
        self.admitted = False
        """Whether it is charged. If not, the items wait for room."""

    def admit(self) -> None:
        """Note that it is charged."""
        self.admitted = True
        self.holder.charged += self.nbytes

    def correct(self, nbytes: int) -> int:
        """Replace what is charged, or will be; return by how much the charge changes."""
        change, self.nbytes = nbytes - self.nbytes, nbytes
        if not self.admitted:
            return 0
        self.holder.charged += change
        return change


class Admission:
    """Lets the calls of one operator begin when there is room for their results.

    Before the first result is there, nobody knows what a result weighs, so a call is charged a share of the limit
    (see `budget`). The first call is alone for a while, so that its result tells what the others will weigh.
    """

    def __init__(
        self,
        step: Step,
        weights: Weighing,
        shares: int,
        begin_next: Callable[[], None],
        is_next: Callable[[Any, int], bool],
    ) -> None:
        self._step = step
        self._weights = weights
        self._shares = shares
        """How many calls share the limit while nothing is known."""
        self._begin_next = begin_next
        """Wakes workers: the first call is not alone any more."""
        self._is_next = is_next
        """Says of a holder and a place in it whether the consumer waits for that before all else: see `budget`."""
        self.alone = False
        """Whether the first call is alone: no other call may begin."""
        self._together = False
        """Whether calls begin beside each other though nothing is known: the first one takes too long."""
        self._timer: asyncio.TimerHandle | None = None
        """Ends the time that the first call has for itself."""
        self._guessed: set[Part] = set()
        """What began, or waited for room, before anybody knew what a result weighs, and has no result yet."""
        self._entering = 0
        """How many calls were let in after they waited for room, and have yet to begin."""

    async def admit(self, part: Part, place: int = 0, number: int = 0, spare: int = 0) -> None:
        """Wait until there is room for the results of the items.

        They are at `place` in their holder, and at place `number` of the stream. `spare` bytes must stay free
        beside them.
        """
        budget, depth = self._step.budget, self._step.depth
        while self._entering:  # noqa: ASYNC110 - it goes on in this turn of the loop or the next
            await asyncio.sleep(0)  # so that calls begin in the order of the stream
        guessed = self._weights.unknown
        if guessed:
            self._let_first_go_alone()
            self._guessed.add(part)
            part.nbytes = budget.share(self._shares) * part.count
        else:
            part.nbytes = self._weights.expect(part.weight, part.count)
        if budget.fits(part.nbytes, depth, spare, part.nbytes if guessed else 0):
            part.admit()
            return
        if guessed:
            part.nbytes = budget.least * part.count
        part.holder.waiting += part.count

        def entered() -> None:
            part.holder.waiting -= part.count
            part.admit()
            self._entering += 1

        is_next = partial(self._is_next, part.holder, place)
        try:
            await budget.admit(
                lambda: part.nbytes, depth, is_next, spare, entered, number, lambda: self._guess(part)
            )
        finally:
            if part.admitted:
                self._entering -= 1

    def recharge(self, part: Part, nbytes: int) -> None:
        """Replace what a part is charged with, before its results are there."""
        change = part.correct(nbytes)
        self._step.budget.charge(change, change if part in self._guessed else 0)

    def settle(self, part: Part, nbytes: int) -> None:
        """Replace what a part is charged with by what its results weigh, which is known now."""
        budget = self._step.budget
        guess = self._guess(part)
        change = part.correct(nbytes)
        part.admitted = False
        self._guessed.discard(part)
        if self._guessed and not self._weights.unknown:
            # All at once: nobody is let in because one guess was too high, before all are corrected.
            others = list(self._guessed)
            guess += sum(other.nbytes for other in others if other.admitted)
            self._guessed.clear()
            change += sum(other.correct(self._weights.expect(other.weight, other.count)) for other in others)
            budget.charge(change, -guess)
            budget.wake_waiters()  # some may have waited for more than they need
        else:
            budget.charge(change, -guess)
        self.end_alone()

    def end_alone(self) -> None:
        """Let others begin beside the first call, or after it."""
        if self.alone:
            self.alone = False
            self._begin_next()
        if self._timer is not None and not self._weights.unknown:
            self._timer.cancel()
            self._timer = None

    def drop(self) -> None:
        """End the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _guess(self, part: Part) -> int:
        return part.nbytes if part in self._guessed else 0

    def _let_first_go_alone(self) -> None:
        if self._together:
            return
        self.alone = True
        self._timer = self._timer or self._step.context.loop.call_later(ALONE_SECONDS, self._begin_together)

    def _begin_together(self) -> None:
        """Let others begin beside the first call, which takes long."""
        self._together = True
        self.alone = False
        self._begin_next()
