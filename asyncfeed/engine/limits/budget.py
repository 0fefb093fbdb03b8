"""The byte budget of a run: what everything in flight may hold together.

Who is admitted. An item that fits is admitted, the deepest first. The item that is *next* is admitted whatever the
limit says, or bytes spent on later items would lock out the one that frees them. An item is next if

1. nothing is on the way between its step and the consumer (`Step.clear_ahead`): no chunk is queued, and no step
   there holds an item; and
2. its step has nothing to send and calls nothing that could come out before it. For a step that keeps the order
   this is the item at the front. For any other it is the first that waits, once every item that was taken waits,
   too. Items behind the end of an epoch or behind a failure do not count: they cannot come out yet.

So while the consumer waits, somebody works. Proof: look at the last step that holds an item. What it can send
goes out, as nothing is ahead. Otherwise each item that must come out first is being worked on or waits for memory,
and if all of them wait, one is next. None is left without a worker: workers take items in the order of the stream,
and a worker that gives items back takes them again before it rests. A step that holds no item is fed by the steps
before it, for which the same holds. A merge that waits for one of its branches counts as holding no item.

Every event that can make an item next calls `wake_waiters`: a chunk was sent, a step found nothing to send,
bytes were freed, an item began to wait.

What is charged for a result that nobody can weigh. Until a step has its first result, each of its calls is charged
a share of the limit (`share`), or `least` if a share is not free. The first result corrects every one of these
charges, of calls that run and of calls that wait for room. So the limit may be exceeded in two cases only:

* The item that is next weighs more than what is free (see above).
* A call that had begun returns more than it is charged. A result of up to `least` bytes never does: the other
  steps leave so much room for the first call of a step. A larger one exceeds the limit by its weight less its
  charge. While the run is over its limit, nothing begins but the item that is next.

What users are told (`known`, `peak`) is what was weighed, or predicted from what was weighed. What is only guessed
counts for the limit, and not for them: a share of the limit says nothing of what is in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from asyncfeed.engine.constants import GUESS_MIN_BYTES


@dataclass(slots=True, eq=False)
class _Waiter:
    payer: Budget | Account
    depth: int
    number: int
    nbytes: Callable[[], int]
    """What to charge; it may change while the item waits."""
    guess: Callable[[], int]
    """How much of it is a guess."""
    spare: int
    next_in_line: Callable[[], bool]
    entered: Callable[[], None] | None
    admitted: asyncio.Future[None]
    charged: int = 0


class Budget:
    """Bytes in flight, bounded.

    `admit` waits until there is room, or until the item is next (see above). `charge` never waits: it corrects an
    estimate, or releases.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.guessed = 0
        """How much of `used` is charged for what nobody has weighed, or set aside for it."""
        self.peak = 0
        """The most bytes that were `known`."""
        self.freed: Callable[[], int] = lambda: 0
        """Returns, once, what consumers have freed since it was last asked; set by the run."""
        self.waiting: list[_Waiter] = []
        """The items that wait for room. It is there to be asked whether it is empty."""
        self._needs: dict[int, int | None] = {}
        self._others: dict[int, int] = {}
        self._unknown: set[int] = set()
        """Steps of which no result has been seen, by depth."""
        self._guessing = 0
        """How many such steps there were at the start."""

    @property
    def budget(self) -> Budget:
        """The budget itself; of an `Account`, the one that it is part of."""
        return self

    @property
    def known(self) -> int:
        """How many bytes are in flight, without what is guessed."""
        return self.used - self.guessed

    def charge(self, nbytes: int, guess: int = 0) -> None:
        """Count bytes in (or, negative, out); `guess` says how many of them are a guess."""
        self.used += nbytes
        self.guessed += guess
        known = self.used - self.guessed
        if known > self.peak:
            self.peak = known
        if nbytes < 0 and self.waiting:
            self.wake_waiters()

    def need(self, depth: int, nbytes: int | None = None, *, unknown: bool = False) -> None:
        """Note that a step makes items, and what one weighs if that is known.

        The other steps leave so much room, so that its next item can pass. For a step that has not made one
        yet, that is as much as the heaviest that was seen elsewhere; and `least`, if nobody can tell beforehand
        what its results weigh (`unknown`).
        """
        if unknown:
            self._unknown.add(depth)
            self._guessing += 1
        if depth not in self._needs or (nbytes is not None and nbytes > (self._needs[depth] or 0)):
            if nbytes is not None:
                self._unknown.discard(depth)
            self._needs[depth] = nbytes
            self._leave_room()

    def forget(self, depth: int) -> None:
        """Leave no more room for a step: it makes nothing more."""
        if depth in self._needs:
            del self._needs[depth]
            self._unknown.discard(depth)
            self._leave_room()

    def _leave_room(self) -> None:
        heaviest = max((need or 0 for need in self._needs.values()), default=0)
        guess = max(heaviest, self.least)
        needs = {
            at: need if need is not None else guess if at in self._unknown else heaviest
            for at, need in self._needs.items()
        }
        self._others = {at: sum(needs.values()) - need for at, need in needs.items()}

    @property
    def least(self) -> int:
        """How many bytes an unknown result is charged with at least."""
        return min(GUESS_MIN_BYTES, self.limit // (2 * max(1, self._guessing)))

    def share(self, calls: int) -> int:
        """Return what to charge for an unknown result, so that all `calls` of all such steps fit together."""
        return max(self.least, self.limit // (calls * max(1, self._guessing)))

    def has_room(self, nbytes: int, depth: int) -> bool:
        """Return whether a step may charge as much, and leaves to the others what they need."""
        return self.used + nbytes + self._others.get(depth, 0) <= self.limit

    def fits(self, nbytes: int, depth: int, spare: int = 0, guess: int = 0) -> bool:
        """Charge `nbytes` and return True where that leaves `spare` bytes and nobody waits already."""
        if self.waiting or not self.has_room(nbytes + spare, depth):
            return False
        self.charge(nbytes, guess)
        return True

    async def admit(
        self,
        nbytes: int | Callable[[], int],
        depth: int,
        next_in_line: Callable[[], bool],
        spare: int = 0,
        entered: Callable[[], None] | None = None,
        number: int = 0,
        guess: Callable[[], int] = int,
        payer: Budget | Account | None = None,
    ) -> None:
        """Charge `nbytes`, waiting for room; `depth` is the step's place, the consumer being deepest.

        `nbytes` is a function if it may change while the item waits. It is asked when the item is let in, as is
        `guess`: how much of it is a guess.
        `number` is the place of the item in its step: the first of those that wait is let in first.
        `entered` is called when the item is let in, before anyone else is: the task itself goes on later. What is
        charged belongs to the caller from then on, also if the task is cancelled before it goes on.
        `payer` is the account that it is charged to.
        """
        payer = payer or self
        self.charge(-self.freed())
        weigh = nbytes if callable(nbytes) else partial(int, nbytes)
        if payer.fits(weigh(), depth, spare, guess()):
            if entered is not None:
                entered()
            return
        admitted = asyncio.get_running_loop().create_future()
        waiter = _Waiter(payer, depth, number, weigh, guess, spare, next_in_line, entered, admitted)
        # Deepest first, because only what reaches the consumer frees anything; then in the order of the stream.
        rank = (-depth, number)
        place = next((i for i, other in enumerate(self.waiting) if (-other.depth, other.number) > rank), None)
        place = len(self.waiting) if place is None else place
        self.waiting.insert(place, waiter)
        self.wake_waiters()
        try:
            await waiter.admitted
        except BaseException as error:  # cancelled, or the coroutine is closed, with its loop
            if waiter in self.waiting:
                self.waiting.remove(waiter)
            if not isinstance(error, GeneratorExit):
                if waiter.admitted.done() and not waiter.admitted.cancelled() and entered is None:
                    payer.charge(-waiter.charged)
                if self.waiting:
                    self.wake_waiters()  # it may have stood before others, which fit
            raise

    def wake_waiters(self) -> None:
        """Let in whoever may go now; called when bytes were freed or a step ran dry."""
        while (place := self._first_admissible()) is not None:
            waiter = self.waiting.pop(place)
            if not waiter.admitted.done():
                waiter.charged = waiter.nbytes()
                waiter.payer.charge(waiter.charged, waiter.guess())
                if waiter.entered is not None:
                    waiter.entered()
                waiter.admitted.set_result(None)

    def _first_admissible(self) -> int | None:
        for place, waiter in enumerate(self.waiting):
            # In this order: what the consumer took last may have been both what was in the way and the room.
            is_next = waiter.next_in_line()
            self.used -= self.freed()
            # Room goes to the deepest alone: a shallower step that fits would starve one that needs more.
            fits = place == 0 and self.has_room(waiter.nbytes() + waiter.spare, waiter.depth)
            if fits or is_next or waiter.admitted.done():
                return place
        return None


class Account:
    """What the steps of one input of a merge have of the budget.

    They charge to it as to the budget itself, and it adds up. So whatever they hold when the input is abandoned
    goes back to the budget at once: it may be anywhere, as in a task that has not heard of it yet. Invariants:

    * `held` is the sum of what was charged, less what went on to the merge. It counts in the budget, too.
    * What is charged after `close` counts nowhere: tasks still end then, and release what they had.
    """

    __slots__ = ("_above", "_closed", "_guessed", "_held", "budget", "limit", "waiting")

    def __init__(self, above: Budget | Account) -> None:
        self._above = above
        self.budget: Budget = above.budget
        self.limit: int = above.limit
        self.waiting: list[_Waiter] = above.waiting
        self._held = 0
        self._guessed = 0
        self._closed = False

    @property
    def least(self) -> int:
        """How many bytes an unknown result is charged with at least."""
        return self.budget.least

    def share(self, calls: int) -> int:
        """Return what to charge for an unknown result, so that all `calls` of all such steps fit together."""
        return self.budget.share(calls)

    def charge(self, nbytes: int, guess: int = 0) -> None:
        """Count bytes in (or, negative, out); `guess` says how many of them are a guess."""
        if not self._closed:
            self._held += nbytes
            self._guessed += guess
            self._above.charge(nbytes, guess)

    def hand_over(self, nbytes: int) -> None:
        """Note that items which are charged with so many bytes are the merge's now."""
        self._held -= nbytes

    def close(self) -> None:
        """Give back everything; it belongs to steps that were abandoned."""
        if not self._closed:
            self._closed = True
            self._above.charge(-self._held, -self._guessed)

    def need(self, depth: int, nbytes: int | None = None, *, unknown: bool = False) -> None:
        """Note that a step makes items, and what one weighs if that is known."""
        if not self._closed:
            self.budget.need(depth, nbytes, unknown=unknown)

    def forget(self, depth: int) -> None:
        """Leave no more room for a step: it makes nothing more."""
        self.budget.forget(depth)

    def fits(self, nbytes: int, depth: int, spare: int = 0, guess: int = 0) -> bool:
        """Charge `nbytes` and return True where that leaves `spare` bytes and nobody waits already."""
        if not self._closed and (self.waiting or not self.budget.has_room(nbytes + spare, depth)):
            return False
        self.charge(nbytes, guess)
        return True

    async def admit(
        self,
        nbytes: int | Callable[[], int],
        depth: int,
        next_in_line: Callable[[], bool],
        spare: int = 0,
        entered: Callable[[], None] | None = None,
        number: int = 0,
        guess: Callable[[], int] = int,
    ) -> None:
        """Charge `nbytes`, waiting for room."""
        await self.budget.admit(nbytes, depth, next_in_line, spare, entered, number, guess, self)

    def wake_waiters(self) -> None:
        """Let in whoever may go now."""
        self.budget.wake_waiters()
