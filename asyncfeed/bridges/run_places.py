"""Where a trainer is in the runs of a pipeline that follow each other, for `state_dict` and `load_state_dict`.

A framework iterates a bridge again and again, and each iteration is a run of its own. A `RunPlace` outlives its
run: a state can be taken between two iterations, and after a loop was left. It holds neither the run nor its feed,
so dropping the iterator still stops the run.
"""

from __future__ import annotations

import json
import threading
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from asyncfeed.errors import StateError
from asyncfeed.feed import session_of
from asyncfeed.session import Session

if TYPE_CHECKING:
    from asyncfeed.feed import Feed
    from asyncfeed.pipeline import Pipeline
    from asyncfeed.running import State


class RunPlace:
    """How many items of one run the trainer has received."""

    def __init__(self, session: Session, epoch: int) -> None:
        self.epoch = epoch
        """The number of the run."""
        self.over = False
        """Whether the trainer has seen the end of the run."""
        self.has_begun = False
        """Whether the trainer has received an item."""
        self._session = weakref.ref(session)
        self._kept = session.kept()
        self._received = 0
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether more items may be drawn from the run."""
        session = self._session()
        if session is None or self.over or session.stopped is not None:
            return False
        return session.handoff is None or session.handoff.failure is None

    def acknowledge(self, received: int) -> None:
        """Note how many items of this run the trainer has received: see `Session.acknowledge`.

        Several threads may call this, in any order: the highest number counts.
        """
        with self._lock:
            self._received = max(self._received, received)
            session = self._keep()
            session.acknowledge(self._received)

    def keep(self) -> None:
        """Keep what `acknowledge` and `state` need of a run that has begun, before it is dropped."""
        with self._lock:
            self._keep()

    def _keep(self) -> Session:
        session = self._session()
        if session is None:
            return self._kept
        if not self.has_begun and session.run is not None:
            self.has_begun = True
            self._kept = session.kept()
        return session

    def state(self) -> dict[str, Any]:
        """Return the state after what was received. After the end of the run, nothing of the run is left."""
        return (self._session() or self._kept).state()

    def load(self, state: State) -> None:
        """Go on from a state. Raise `StateError` if the run has begun."""
        session = self._session()
        assert session is not None
        session.load(state)
        self.epoch = session.first_run
        self._kept = session.kept()


class RunNumbers(Protocol):
    """The number of the next run."""

    def peek(self) -> int:
        """Return the number of the next run."""
        ...

    def begin(self) -> int:
        """Return the number of the next run, and count on."""
        ...

    def set(self, number: int) -> None:
        """Make this the number of the next run."""
        ...


class Counted:
    """The number of the next run, for one process."""

    def __init__(self) -> None:
        self._next = 0
        self._lock = threading.Lock()

    def peek(self) -> int:
        """Return the number of the next run."""
        return self._next

    def begin(self) -> int:
        """Return the number of the next run, and count on."""
        with self._lock:
            self._next += 1
            return self._next - 1

    def set(self, number: int) -> None:
        """Make this the number of the next run."""
        self._next = number


class RunPlaces:
    """Where the trainer is in all runs of one pipeline, and which run is next."""

    def __init__(self, pipeline: Pipeline[Any], numbers: RunNumbers | None = None) -> None:
        self._pipeline = pipeline
        self._known = self._session(0)
        """Has the fingerprint of the pipeline for all runs."""
        self.first: State | None = None
        """The state with which the next run begins."""
        self._numbers: RunNumbers = Counted() if numbers is None else numbers
        self._last: RunPlace | None = None
        self._least: int | None = None
        """After a state was loaded: the number of its run, or later the one after the last run. None before."""
        self._all: weakref.WeakSet[RunPlace] = weakref.WeakSet()
        self._lock = threading.Lock()

    @property
    def epoch(self) -> int:
        """The number of the run in which the trainer is: the last one, or the next one if the last one is over."""
        last = self._last
        return self._numbers.peek() if last is None or last.over else last.epoch

    def claim(self) -> tuple[int, State | None]:
        """Return the number of a new run, and the state with which it begins."""
        with self._lock:
            state, self.first = self.first, None
            number = self._numbers.begin()
            if self._least is not None:
                self._least = number + 1
            return number, state

    def add(self, feed: Feed[Any], epoch: int) -> RunPlace:
        """Return the place of a new run."""
        session = session_of(feed)
        session.known_as(self._known)
        place = self._last = RunPlace(session, epoch)
        self._all.add(place)
        return place

    def _session(self, epoch: int) -> Session:
        """Return a session that never begins."""
        return Session(self._pipeline, memory_limit=None, grace=0, epoch=epoch)

    def state(self) -> dict[str, Any]:
        """Return the state after what the trainer has received. Raise `StateError` if two runs are open."""
        last = self._last
        if any(each.is_open for each in list(self._all) if each is not last):
            raise StateError(
                "two iterators of these batches are open, so there is no one place: call state_dict() of the "
                "iterator whose place you want, or close() the other one"
            )
        if last is not None and not last.over:
            return last.state()
        session = self._session(self._numbers.peek())
        session.known_as(self._known)
        if self.first is not None:
            session.load(self.first)
        return session.state()

    def load(self, state: State) -> None:
        """Begin the next run with a state. Raise `StateError` if a run is open that has begun."""
        session = self._session(0)
        session.known_as(self._known)
        session.load(state)
        running = [each for each in list(self._all) if each.is_open]
        if len(running) > 1 or any(each.has_begun for each in running):
            raise StateError(
                "an iterator of these batches is open already: load a state before the first batch is drawn, or "
                "close() the iterator, or drop it"
            )
        if running:
            self.load_run(running[0], state)
        else:
            self._go_to(session.first_run, state, None)

    def load_run(self, place: RunPlace, state: State) -> None:
        """Go on from a state in a run that has not begun. The runs after it have the numbers after its number."""
        place.load(state)
        self._go_to(place.epoch + 1, None, place)

    def go_to_epoch(self, number: int) -> None:
        """Make this the number of the next run. Raise `StateError` if that would lose the place of a state.

        The number of the run in which the state is changes nothing.
        """
        least, last = self._least, self._last
        if least is not None and (number < least or (number > least and self.first is not None)):
            raise StateError(
                f"epoch {number} is asked for, but the state that was loaded goes on with epoch {least}: the "
                "trainer must count from there, or it would repeat or leave out batches"
            )
        if self.first is not None:
            return
        self._numbers.set(number)
        self._last = last if last is not None and last.is_open and last.has_begun else None

    def _go_to(self, number: int, first: State | None, last: RunPlace | None) -> None:
        with self._lock:
            self._numbers.set(number)
            self.first, self._last = first, last
            self._least = number if last is None else last.epoch


def one_leaf(state: dict[str, Any]) -> dict[str, str]:
    """Return a state as a dict with one text.

    `torch.distributed.checkpoint` and other libraries that save trees of leaves restore only the leaves that an
    object has at that time. So the leaves must not depend on the place.
    """
    return {"asyncfeed": json.dumps(state, separators=(",", ":"))}
