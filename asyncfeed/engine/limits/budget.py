"""The byte budget of a run: it limits the bytes of everything in flight.

Which items are admitted. An item that fits under the limit is admitted at once if no other item waits. Waiting
items stand in the order of their steps, the step nearest to the consumer first. The first of them is admitted as
soon as it fits. The item that is *next* is admitted even if it exceeds the limit. Otherwise the bytes of later
items could lock out the item that must be sent before they are freed. An item is next if

1. the path from its step to the consumer is clear (`Step.path_is_clear`): no chunk is queued there, and no step
   there holds an item; and
2. its step has nothing to send, and runs no call whose result could be sent before this item's result. If the
   step keeps the order, this is the item at the front. If not, it is the first waiting item, once all items that
   workers have taken wait. Items behind the end of an epoch or behind a failure do not count, because they cannot
   be sent yet.

Claim: while the consumer waits, some step makes progress. So no limit is small enough to stop a run.

Proof. Take the step nearest to the consumer that holds an item. The path from this step to the consumer is clear.

* If the step has something to send, it sends that. Nothing on the path holds it up.
* If not, look at the item at the front or, if the step does not keep the order, at all items that its workers have
  taken. None of them is left without a worker: workers take items in the order of the stream, and a worker that
  gives items back takes them again before it parks. So each of them is in a call, or waits for room. A call makes
  progress. If all of them wait, one of them is next, and is admitted.

A step that holds no item is fed by the steps before it, and the proof applies to those. A merge that waits for one
of its branches counts as a step that holds no item. So does an `interleave` whose turn is at an empty slot: it can
send nothing of its open items before the next item has come.

Every event that can make an item next calls `wake_waiters`: a chunk was sent, a step found nothing to send, bytes
were freed, or an item began to wait.

What is charged for results of unknown weight. Until a step has its first result, each of its calls is charged a
share of the limit (`guess_per_call`), or `min_guess` bytes if a share is not free. The first result corrects all
of these charges, both of running calls and of calls that wait for room. So the limit is exceeded in two cases
only:

* The item that is next weighs more than what is free.
* A running call returns more than it is charged. A result of up to `min_guess` bytes never exceeds the limit,
  because the other steps leave that much room for the first call of a step. A larger result exceeds the limit by
  its weight less its charge. While the run is over its limit, no call begins except for the item that is next.

`known` and `peak`, which users see, count the bytes that were weighed, or predicted from weighed results. A guess
counts for the limit only: a share of the limit says nothing about the memory in use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from asyncfeed.engine.constants import GUESS_MIN_BYTES, LIKELY_BYTES
from asyncfeed.limits import Part, process_memory


@dataclass(slots=True, eq=False)
class _Waiter:
    """An item that waits for room. The fields are the arguments of `Budget.admit`."""

    payer: Budget | Account
    depth: int
    number: int
    nbytes: Callable[[], int]
    guess: Callable[[], int]
    spare: int
    is_next: Callable[[], bool]
    on_admitted: Callable[[], None] | None
    admitted: asyncio.Future[None]
    charged: int = 0


class Budget:
    """Counts the bytes in flight, and limits them.

    `admit` waits until there is room, or until the item is next (see above). `charge` never waits. It corrects an
    earlier charge, or releases bytes.

    Args:
        limit: The limit in bytes. Without one, the feeds of the process share theirs.
    """

    def __init__(self, limit: int | None) -> None:
        self.whole = process_memory.limit if limit is None else limit
        """The limit if no other feed runs."""
        self._shares = limit is None
        self._part: Part | None = None
        """What the feed has of the limit of the process while it runs, if it shares that."""
        self.used = 0
        """Bytes that are charged now."""
        self.guessed = 0
        """Bytes of `used` that are charged for results of unknown weight, or set aside for items to come."""
        self.peak = 0
        """The highest value of `known` so far."""
        self.freed: Callable[[], int] = lambda: 0
        """Returns the bytes that consumers have freed since the last call. The run sets it."""
        self.waiting: list[_Waiter] = []
        """The items that wait for room. Other modules only ask whether there are any."""
        self._needs: dict[int, int | None] = {}
        """For each step that makes items, by depth: the bytes of its heaviest item. None before the first one."""
        self._needed_by_others: dict[int, int] = {}
        """For each of these steps: the bytes that it leaves free for all other steps."""
        self._unknown_steps: set[int] = set()
        """The depths of the steps whose results have unknown weight."""
        self._unknown_at_start = 0
        """Number of such steps when the run began."""

    @property
    def budget(self) -> Budget:
        """This budget. For an `Account`, this is the budget that it belongs to."""
        return self

    @property
    def limit(self) -> int:
        """The limit in bytes. If feeds share one, it changes with what the others use."""
        return self.whole if self._part is None else self._part.limit

    def begin(self) -> None:
        """Take a part of the limit of the process, if it is shared. `end` must be called."""
        if self._shares:
            self._part = process_memory.join()

    def end(self) -> None:
        """Leave the part to others."""
        part, self._part, self._shares = self._part, None, False
        if part is not None:
            process_memory.leave(part)

    @property
    def known(self) -> int:
        """Bytes in flight, without guesses."""
        return self.used - self.guessed

    def charge(self, nbytes: int, guess: int = 0) -> None:
        """Charge bytes, or release them if `nbytes` is negative. `guess` is how many of them are a guess."""
        self.used += nbytes
        self.guessed += guess
        part = self._part
        if part is not None and not part.least < self.used < part.most:
            part.note(self.used)
        known = self.used - self.guessed
        if known > self.peak:
            self.peak = known
        if nbytes < 0 and self.waiting:
            self.wake_waiters()

    def need(self, depth: int, nbytes: int | None = None, *, unknown: bool = False) -> None:
        """Note that a step makes items, and what one of them weighs, if that is known.

        The other steps leave this many bytes free, so that the step's next item can pass. Before the step's first
        item, they leave as much as the heaviest item of any step weighs. If the weight of the step's results is
        `unknown`, they leave at least `min_guess` bytes.
        """
        if unknown:
            self._unknown_steps.add(depth)
            self._unknown_at_start += 1
        if depth not in self._needs or (nbytes is not None and nbytes > (self._needs[depth] or 0)):
            if nbytes is not None:
                self._unknown_steps.discard(depth)
            self._needs[depth] = nbytes
            self._update_needed_by_others()

    def forget(self, depth: int) -> None:
        """Leave no more room for a step, because it makes no more items."""
        if depth in self._needs:
            del self._needs[depth]
            self._unknown_steps.discard(depth)
            self._update_needed_by_others()

    def _update_needed_by_others(self) -> None:
        heaviest = max((need or 0 for need in self._needs.values()), default=0)
        guess = max(heaviest, self.min_guess)
        needs = {
            at: need if need is not None else guess if at in self._unknown_steps else heaviest
            for at, need in self._needs.items()
        }
        self._needed_by_others = {at: sum(needs.values()) - need for at, need in needs.items()}

    @property
    def min_guess(self) -> int:
        """Minimum bytes charged for a result of unknown weight."""
        return min(GUESS_MIN_BYTES, self.limit // (2 * max(1, self._unknown_at_start)))

    def guess_per_call(self, calls: int) -> int:
        """Return the charge for a result of unknown weight, so that `calls` calls of every such step fit."""
        return max(self.min_guess, self.limit // (calls * max(1, self._unknown_at_start)))

    @property
    def likely_calls(self) -> int:
        """How many calls of a step may begin if the first one is slow, and its result is not weighed."""
        return self.limit // (LIKELY_BYTES * max(1, self._unknown_at_start))

    def has_room(self, nbytes: int, depth: int) -> bool:
        """Return whether a step may charge `nbytes` and still leaves the other steps what they need."""
        limit = self.whole if self._part is None else self._part.limit
        return self.used + nbytes + self._needed_by_others.get(depth, 0) <= limit

    def try_charge(self, nbytes: int, depth: int, spare: int = 0, guess: int = 0) -> bool:
        """Charge `nbytes` if that leaves `spare` bytes free and no item waits. Return whether it did."""
        if self.waiting or not self.has_room(nbytes + spare, depth):
            return False
        self.charge(nbytes, guess)
        return True

    async def admit(
        self,
        nbytes: int | Callable[[], int],
        depth: int,
        is_next: Callable[[], bool],
        spare: int = 0,
        on_admitted: Callable[[], None] | None = None,
        number: int = 0,
        guess: Callable[[], int] = int,
        payer: Budget | Account | None = None,
    ) -> None:
        """Wait until an item is admitted, and charge `nbytes` for it.

        Args:
            nbytes: The bytes to charge. A function is called when the item is admitted, because the number may
                change while the item waits.
            depth: The depth of the item's step. Depths grow towards the consumer.
            is_next: Returns whether the item is next (see above).
            spare: Bytes that must stay free beside the item.
            on_admitted: Called when the item is admitted, before any other item is. The waiting task itself
                continues later. From this call on the charge belongs to the caller, even if the task is cancelled
                before it continues.
            number: The number of the item in its step. Items of a step are admitted in this order.
            guess: Returns how many of the bytes are a guess. It is called when the item is admitted.
            payer: The account that is charged. By default it is this budget.
        """
        payer = payer or self
        self.charge(-self.freed())
        weigh = nbytes if callable(nbytes) else partial(int, nbytes)
        if payer.try_charge(weigh(), depth, spare, guess()):
            if on_admitted is not None:
                on_admitted()
            return
        admitted = asyncio.get_running_loop().create_future()
        waiter = _Waiter(payer, depth, number, weigh, guess, spare, is_next, on_admitted, admitted)
        # The deepest step is first, because only items that reach the consumer free bytes. The items of a step are
        # in the order of the stream.
        rank = (-depth, number)
        index = next((i for i, other in enumerate(self.waiting) if (-other.depth, other.number) > rank), None)
        index = len(self.waiting) if index is None else index
        self.waiting.insert(index, waiter)
        self.wake_waiters()
        try:
            await waiter.admitted
        except BaseException as error:  # the task is cancelled, or its coroutine is closed with the loop
            if waiter in self.waiting:
                self.waiting.remove(waiter)
            if not isinstance(error, GeneratorExit):
                if waiter.admitted.done() and not waiter.admitted.cancelled() and on_admitted is None:
                    payer.charge(-waiter.charged)
                if self.waiting:
                    self.wake_waiters()  # this item may have stood before items that fit
            raise

    def wake_waiters(self) -> None:
        """Admit all items that may be admitted now. Called if bytes were freed, or a step has nothing to send."""
        while (index := self._first_admissible()) is not None:
            waiter = self.waiting.pop(index)
            if not waiter.admitted.done():
                waiter.charged = waiter.nbytes()
                waiter.payer.charge(waiter.charged, waiter.guess())
                if waiter.on_admitted is not None:
                    waiter.on_admitted()
                waiter.admitted.set_result(None)

    def _first_admissible(self) -> int | None:
        for index, waiter in enumerate(self.waiting):
            # `is_next` comes before `freed`: the item that the consumer took last may have been on the path, and
            # its bytes may be the room that is needed.
            is_next = waiter.is_next()
            self.used -= self.freed()
            # Only the first item is admitted for fitting. A smaller item of an earlier step would starve it.
            fits = index == 0 and self.has_room(waiter.nbytes() + waiter.spare, waiter.depth)
            if fits or is_next or waiter.admitted.done():
                return index
        return None


class Account:
    """The share of the budget that the steps of one input of a merge hold.

    The steps charge to the account as to the budget, and the account adds up their bytes. When the input is
    abandoned, the account returns all of them at once. The steps could not: their bytes may be anywhere, for
    example in a task that has not been cancelled yet. Invariants:

    * `_held` is the sum of all charges, less the bytes of items that went to the merge. The budget counts it, too.
    * Charges after `close` count nowhere. They come from tasks that end later and release their bytes.
    """

    __slots__ = ("_closed", "_guessed", "_held", "_parent", "budget", "waiting")

    def __init__(self, parent: Budget | Account) -> None:
        self._parent = parent
        self.budget: Budget = parent.budget
        self.waiting: list[_Waiter] = parent.waiting
        self._held = 0
        self._guessed = 0
        self._closed = False

    @property
    def limit(self) -> int:
        """The limit of the budget."""
        return self.budget.limit

    @property
    def min_guess(self) -> int:
        """Minimum bytes charged for a result of unknown weight."""
        return self.budget.min_guess

    def guess_per_call(self, calls: int) -> int:
        """Return the charge for a result of unknown weight, so that `calls` calls of every such step fit."""
        return self.budget.guess_per_call(calls)

    @property
    def likely_calls(self) -> int:
        """How many calls of a step may begin if the first one is slow: see `Budget.likely_calls`."""
        return self.budget.likely_calls

    def charge(self, nbytes: int, guess: int = 0) -> None:
        """Charge bytes, or release them if `nbytes` is negative. `guess` is how many of them are a guess."""
        if not self._closed:
            self._held += nbytes
            self._guessed += guess
            self._parent.charge(nbytes, guess)

    def hand_over(self, nbytes: int) -> None:
        """Note that the merge has taken items that are charged with `nbytes`."""
        self._held -= nbytes

    def close(self) -> None:
        """Return all bytes to the budget, because the steps were abandoned."""
        if not self._closed:
            self._closed = True
            self._parent.charge(-self._held, -self._guessed)

    def need(self, depth: int, nbytes: int | None = None, *, unknown: bool = False) -> None:
        """Note that a step makes items, and what one of them weighs: see `Budget.need`."""
        if not self._closed:
            self.budget.need(depth, nbytes, unknown=unknown)

    def forget(self, depth: int) -> None:
        """Leave no more room for a step, because it makes no more items."""
        self.budget.forget(depth)

    def try_charge(self, nbytes: int, depth: int, spare: int = 0, guess: int = 0) -> bool:
        """Charge `nbytes` if that leaves `spare` bytes free and no item waits. Return whether it did."""
        if not self._closed and (self.waiting or not self.budget.has_room(nbytes + spare, depth)):
            return False
        self.charge(nbytes, guess)
        return True

    async def admit(
        self,
        nbytes: int | Callable[[], int],
        depth: int,
        is_next: Callable[[], bool],
        spare: int = 0,
        on_admitted: Callable[[], None] | None = None,
        number: int = 0,
        guess: Callable[[], int] = int,
    ) -> None:
        """Wait until an item is admitted, and charge `nbytes` to this account: see `Budget.admit`."""
        await self.budget.admit(nbytes, depth, is_next, spare, on_admitted, number, guess, self)

    def wake_waiters(self) -> None:
        """Admit all items that may be admitted now."""
        self.budget.wake_waiters()
