"""The rules of the queues, without tasks, threads or locks.

Each operation on a queue is an `Attempt` that is pushed. Two lists hold the attempts that wait, one for enqueues
and closes, one for dequeues. These rules hold after every call:

- Only the first attempt of a list makes progress. Those behind it wait, whatever they ask for.
- Neither first attempt can make progress: everything that can happen has happened.
- An element is in one place: not entered yet, in the store, or in `taken` of one dequeue. None is lost or doubled.
- Only the first dequeue holds elements. Withdrawing it puts them back where they came from.
- A close waits in line behind the enqueues that came before it; after it, `closed` never changes back.
- A finished attempt has either its whole effect or an `error`, and is in no list.

Every call returns the attempts that it has finished. The caller wakes their owners. The rules are those
of TensorFlow's queue kernels (`QueueBase` and its four classes).
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Sequence

from asyncfeed.errors import AsyncfeedError, ClosedError
from asyncfeed.queues.stores import Counted, Element, Store


class OutOfRangeError(AsyncfeedError):
    """The queue is closed and has fewer elements than were asked for: the end of the data."""


# -- attempts


def nobody() -> bool:
    """Wake no owner: the attempt was finished at once, or its owner checks it itself."""
    return True


class Attempt:
    """One operation on a queue, and its outcome."""

    __slots__ = ("error", "finished", "wake")

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.finished = False
        self.wake: Callable[[], object] = nobody
        """Called once when the attempt has finished. It returns False if its owner's loop is closed."""

    def fail(self, error: Exception) -> None:
        """Finish with an error and no effect."""
        self.error = error
        self.finished = True


class Enqueue(Attempt):
    """Add elements one by one when there is room."""

    __slots__ = ("elements", "entered")

    def __init__(self, elements: Sequence[Element]) -> None:
        super().__init__()
        self.elements = elements
        self.entered = 0
        """Number of elements that have entered. They stay in the queue, whatever happens to the attempt."""
        self.finished = not elements


class Close(Attempt):
    """Close the queue once the enqueues before it have finished."""

    __slots__ = ()


class Dequeue(Attempt):
    """Take `count` elements. With `up_to`, take fewer if the queue is closed and has no more."""

    __slots__ = ("count", "taken", "up_to")

    def __init__(self, count: int, *, up_to: bool = False) -> None:
        super().__init__()
        self.count = count
        self.up_to = up_to
        self.taken: list[Element] = []
        self.finished = not count


# -- the algorithm


class Attempts:
    """The attempts at one queue, and its elements.

    `capacity` is None if there is no bound. `keep` elements stay in the store as long as the queue is open. With
    `whole`, a dequeue takes no element before all that it wants are in the store.
    """

    def __init__(
        self, store: Store, *, name: str, capacity: int | None = None, keep: int = 0, whole: bool = False
    ) -> None:
        self.store = store
        self.name = name
        self.capacity = capacity
        self.keep = keep
        self.whole = whole
        self.closed = False
        self.enqueues: deque[Attempt] = deque()
        self.dequeues: deque[Dequeue] = deque()

    # -- the fast path, for one element while no attempt waits in the same list

    def put(self, element: Element) -> bool:
        """Add one element, or return False if an attempt must be pushed.

        If dequeues wait, call `flush` after it.
        """
        if self.closed or (self.capacity is not None and len(self.store) >= self.capacity):
            return False  # if enqueues wait, the queue is full
        self.store.put(element)
        return True

    def take(self) -> Element | None:
        """Take one element, or return None if an attempt must be pushed.

        If enqueues wait, call `flush` after it.
        """
        if self.dequeues or len(self.store) <= (0 if self.closed else self.keep):
            return None
        return self.store.take()

    # -- all other cases

    def push(self, attempt: Attempt) -> list[Attempt]:
        """Add an attempt to its list."""
        if attempt.finished:
            return [attempt]
        if isinstance(attempt, Dequeue):
            self.dequeues.append(attempt)
        else:
            self.enqueues.append(attempt)
        return self.flush()

    def would_finish(self, attempt: Attempt) -> bool:
        """Return whether `push` would finish it at once. Nothing changes."""
        line = self.dequeues if isinstance(attempt, Dequeue) else self.enqueues
        if attempt.finished or line:  # only the first of a list makes progress
            return attempt.finished
        rehearsal = Attempts(
            Counted(len(self.store)), name=self.name, capacity=self.capacity, keep=self.keep, whole=self.whole
        )
        rehearsal.closed = self.closed
        rehearsal.enqueues = deque(map(copy.copy, self.enqueues))
        rehearsal.dequeues = deque(map(copy.copy, self.dequeues))
        for each in rehearsal.dequeues:
            each.taken = list(each.taken)
        stand_in = copy.copy(attempt)
        if isinstance(stand_in, Dequeue):
            stand_in.taken = []
        return stand_in in rehearsal.push(stand_in)

    def withdraw(self, attempt: Attempt) -> list[Attempt]:
        """Withdraw an attempt that still waits, or that has finished without its owner having seen it.

        A dequeue puts its elements back. A single enqueued element is removed if it is still in the queue. Of
        several, those that have entered stay.
        """
        if isinstance(attempt, Dequeue):
            if not attempt.finished and attempt in self.dequeues:
                self.dequeues.remove(attempt)
            self.store.give_back(attempt.taken)
            attempt.taken = []
        elif not attempt.finished:
            if attempt in self.enqueues:
                self.enqueues.remove(attempt)
        elif isinstance(attempt, Enqueue) and len(attempt.elements) == attempt.entered == 1:
            self.store.discard(attempt.elements[0])
        return self.flush()

    def cut(self) -> list[Attempt]:
        """Close at once. Enqueues and closes that wait fail."""
        self.closed = True
        pending, self.enqueues = self.enqueues, deque()
        for attempt in pending:
            entered = ""
            if isinstance(attempt, Enqueue) and len(attempt.elements) > 1:
                entered = f"; {attempt.entered} of {len(attempt.elements)} elements had entered, and stay"
            attempt.fail(ClosedError(f"{self.name} was closed with cancel_pending_enqueues=True{entered}"))
        return [*pending, *self.flush()]

    def flush(self) -> list[Attempt]:
        """Advance both lists until neither first attempt makes progress."""
        finished: list[Attempt] = []
        progress = True
        while progress:
            progress = False
            while self.enqueues and self._advance(self.enqueues[0]):
                progress = True
                if not self.enqueues[0].finished:
                    break
                finished.append(self.enqueues.popleft())
            while self.dequeues and self._draw(self.dequeues[0]):
                progress = True
                if not self.dequeues[0].finished:
                    break
                finished.append(self.dequeues.popleft())
        return finished

    def _advance(self, attempt: Attempt) -> bool:
        """Advance the first enqueue or close. Return whether that changed anything."""
        if self.closed:
            attempt.fail(ClosedError(f"{self.name} is closed"))
        elif not isinstance(attempt, Enqueue):
            attempt.finished = self.closed = True
        else:
            left = len(attempt.elements) - attempt.entered
            room = left if self.capacity is None else min(left, self.capacity - len(self.store))
            if room <= 0:
                return False
            for element in attempt.elements[attempt.entered : attempt.entered + room]:
                self.store.put(element)
            attempt.entered += room
            attempt.finished = room == left
        return True

    def _draw(self, attempt: Dequeue) -> bool:
        """Advance the first dequeue. Return whether that changed anything."""
        missing = attempt.count - len(attempt.taken)
        there = len(self.store)
        if self.closed and there < missing:  # nothing more will come: put back, and take what there is or fail
            self.store.give_back(attempt.taken)
            attempt.taken = []
            missing = there = len(self.store)
            if not (attempt.up_to and there):
                wanted = f"{attempt.count} element{'s' if attempt.count > 1 else ''}"
                attempt.fail(OutOfRangeError(f"{self.name} is closed: {wanted} wanted, {there} left"))
                return True
        elif self.whole and there < missing:
            return False
        available = there if self.closed else there - self.keep
        if available <= 0:
            return False
        for _ in range(min(missing, available)):
            attempt.taken.append(self.store.take())
        attempt.finished = missing <= available
        return True
