"""Admission: each call waits until the byte budget has room for its result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from asyncfeed.engine.constants import ALONE_SECONDS
from asyncfeed.engine.operators.step import Step


class Holder(Protocol):
    """What the admitted items belong to: an entry or an expansion."""

    charged: int
    """Bytes that it is charged with."""
    waiting: int
    """Number of its items that wait for room."""


class Estimator(Protocol):
    """Predicts the weights of results."""

    @property
    def unknown(self) -> bool:
        """Whether the weight of a result cannot be predicted yet."""
        ...

    def expect(self, weight: int, count: int = 1) -> int:
        """Return the expected bytes of the results of `count` items that together weigh `weight`."""
        ...


class Part:
    """The share of the budget that the results of some calls hold.

    A charge that was only a guess is corrected while the calls run, or wait for room.
    """

    __slots__ = ("admitted", "count", "holder", "nbytes", "weight")

    def __init__(self, holder: Holder, count: int, weight: int) -> None:
        self.holder = holder
        self.count = count
        """Number of items that are called."""
        self.weight = weight
        """What these items weigh together."""
        self.nbytes = 0
        """Bytes that are charged for their results, or will be charged when they are admitted."""
        self.admitted = False
        """Whether these bytes are charged now."""

    def admit(self) -> None:
        """Note that the bytes are charged now."""
        self.admitted = True
        self.holder.charged += self.nbytes

    def correct(self, nbytes: int) -> int:
        """Replace the number of bytes. Return by how much the present charge changes."""
        change, self.nbytes = nbytes - self.nbytes, nbytes
        if not self.admitted:
            return 0
        self.holder.charged += change
        return change


class Admission:
    """Lets the calls of one operator begin when the budget has room for their results.

    The weight of a result is unknown until the first result is there. So a call is charged a share of the limit
    until then (see `budget.py`). The first call runs alone for `ALONE_SECONDS`, so that its result tells what
    others will weigh. If it takes longer, as many calls begin as have room if each makes `LIKELY_BYTES`. Twice as
    many may run after 3 times that time, 4 times as many after 9 times, and so on. So calls that wait for each
    other all begin, and few large results are made before one is weighed.
    """

    def __init__(
        self,
        step: Step,
        weights: Estimator,
        sharing_calls: int,
        wake_workers: Callable[[], None],
        is_next: Callable[[Any, int], bool],
    ) -> None:
        self._step = step
        self._weights = weights
        self._sharing_calls = sharing_calls
        """Number of calls that share the limit while the weight of results is unknown."""
        self._wake_workers = wake_workers
        """Wakes the workers that waited for the first call."""
        self._is_next = is_next
        """Tells whether the item at an index of a holder is next (see `budget.py`)."""
        self.holds_others = False
        """Whether no call may begin, because no result of an earlier one was weighed."""
        self._unweighed_calls = 1
        """Number of calls that may run before a result was weighed."""
        self._patience = ALONE_SECONDS
        """How long the next call waits for a result of the earlier ones. 0 when one of them has ended."""
        self._timer: asyncio.TimerHandle | None = None
        """Ends that time."""
        self._guessed_parts: set[Part] = set()
        """The parts that are charged a guess: their calls began, or wait for room, before the first result."""
        self._entering = 0
        """Number of calls that were admitted after waiting, and whose tasks have not continued yet."""

    async def admit(self, part: Part, index: int = 0, number: int = 0, spare: int = 0) -> None:
        """Wait until there is room for the results of some items.

        Args:
            part: Says which items these are, and is charged with their bytes.
            index: The index of the first item in its holder.
            number: The number of the first item in its step.
            spare: Bytes that must stay free beside the results.
        """
        budget, depth = self._step.budget, self._step.depth
        while self._entering:  # noqa: ASYNC110 - their tasks continue in this turn of the loop or the next
            await asyncio.sleep(0)  # so that calls begin in the order of the stream
        guessed = self._weights.unknown
        if guessed:
            self._guessed_parts.add(part)
            self._hold_others()
            part.nbytes = budget.guess_per_call(self._sharing_calls) * part.count
        else:
            part.nbytes = self._weights.expect(part.weight, part.count)
        if budget.try_charge(part.nbytes, depth, spare, part.nbytes if guessed else 0):
            part.admit()
            return
        if guessed:
            part.nbytes = budget.min_guess * part.count
        part.holder.waiting += part.count

        def on_admitted() -> None:
            part.holder.waiting -= part.count
            part.admit()
            self._entering += 1

        is_next = partial(self._is_next, part.holder, index)
        try:
            await budget.admit(
                lambda: part.nbytes, depth, is_next, spare, on_admitted, number, lambda: self._guessed_bytes(part)
            )
        finally:
            if part.admitted:
                self._entering -= 1

    def extend(self, part: Part, nbytes: int) -> bool:
        """Charge more bytes for a part, if the budget has room for them. Return whether it has."""
        if not self._step.budget.try_charge(nbytes, self._step.depth):
            return False
        part.correct(part.nbytes + nbytes)
        return True

    def recharge(self, part: Part, nbytes: int) -> None:
        """Replace the charge of a part before its results are there."""
        change = part.correct(nbytes)
        self._step.budget.charge(change, change if part in self._guessed_parts else 0)

    def settle(self, part: Part, nbytes: int) -> None:
        """Replace the charge of a part by the weight of its results, which are there now."""
        guess = self._guessed_bytes(part)
        change = part.correct(nbytes)
        part.admitted = False
        self._guessed_parts.discard(part)
        self._correct_guesses(change, guess)
        self.allow_others()

    def weight_is_known(self) -> None:
        """Note that the weight of results can be predicted from now on, before the first result is there."""
        self._correct_guesses(0, 0)
        self.allow_others()

    def _correct_guesses(self, change: int, guess: int) -> None:
        """Charge a change. If weights can be predicted now, correct all guesses in the same charge.

        Otherwise the bytes of the first corrected guess would admit an item while other guesses are still wrong.
        """
        budget = self._step.budget
        if not self._guessed_parts or self._weights.unknown:
            budget.charge(change, -guess)
            return
        others = list(self._guessed_parts)
        guess += sum(other.nbytes for other in others if other.admitted)
        self._guessed_parts.clear()
        change += sum(other.correct(self._weights.expect(other.weight, other.count)) for other in others)
        budget.charge(change, -guess)
        budget.wake_waiters()  # an item may have waited for more bytes than it needs

    def allow_others(self) -> None:
        """Let all calls begin: one has ended. If its result weighs nothing, or it failed, no other tells more."""
        self._patience = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._release()

    def _release(self) -> None:
        if self.holds_others:
            self.holds_others = False
            self._wake_workers()

    def drop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _guessed_bytes(self, part: Part) -> int:
        return part.nbytes if part in self._guessed_parts else 0

    def _hold_others(self) -> None:
        if not self._patience or len(self._guessed_parts) < self._unweighed_calls:
            return
        self.holds_others = True
        self._timer = self._timer or self._step.context.loop.call_later(self._patience, self._allow_one_more)

    def _allow_one_more(self) -> None:
        """Let another call begin beside those that run, because they take long."""
        self._timer = None
        self._patience *= 3
        self._unweighed_calls = max(2 * self._unweighed_calls, self._step.budget.likely_calls)
        self._release()
