"""Items that become several, in the order in which these are sent: decided here, without IO.

Each item has an `Expansion` that its children gather in. Invariants:

* A child is sent once, after the children of the same item that came before it.
* The end of an epoch is sent after everything that was added before it, and before everything added after it.
* `reach` names the expansions whose children may be sent now. In order that is the oldest alone. As they come
  these are all up to the next end. In turns it is the one whose turn it is.

In turns works as TensorFlow's `interleave` does: `cycle` items are open, and each gives `block` children at its
turn. One that has no more ends its turn. The next item takes its place when the turn comes to it again.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

from asyncfeed.engine.constants import CHUNK_ITEMS
from asyncfeed.engine.order.piece import Piece
from asyncfeed.epoch_end import EpochEnd
from asyncfeed.errors import Failure
from asyncfeed.position import Position, children
from asyncfeed.stages.steps import Turns, Work


class Expansion:
    """One item and its children; or, with no item, the end of an epoch or of the stream."""

    __slots__ = (
        "begun", "boundary", "charged", "children", "done", "failure", "gate", "has_item", "item", "nbytes",
        "part", "position", "sent", "unwanted", "waiting",
    )  # fmt: skip

    def __init__(self, item: Any, position: Position, charged: int) -> None:
        self.item = item
        self.position = position
        self.has_item = True
        """Whether it stands for an item; if not, for what ends after the items before it."""
        self.charged = charged
        self.children: list[Any] = []
        self.nbytes = 0
        self.part: Any = None
        """What the children that are being made have of the memory limit."""
        self.waiting = 0
        """How many children wait for memory, before they are made."""
        self.sent = 0
        self.begun = False
        """Whether a worker has taken it."""
        self.done = False
        self.unwanted = False
        """Whether nobody asks for more children: a later stage has left the epoch of this item."""
        self.failure: Failure | None = None
        self.boundary: EpochEnd | None = None
        self.gate: Any = None
        """Where the worker waits while enough children are held."""

    @classmethod
    def end(cls, boundary: EpochEnd | None, failure: Failure | None = None) -> Expansion:
        """Return what stands for an end, or for a failure from upstream."""
        end = cls(None, 0, 0)
        end.has_item = False
        end.boundary, end.failure, end.done = boundary, failure, True
        return end

    @property
    def active(self) -> bool:
        """Whether a worker is at it, and does not wait for memory."""
        return self.begun and not self.done and not self.waiting

    @property
    def ends(self) -> bool:
        """Whether something comes after its children: an end, or a failure."""
        return self.boundary is not None or self.failure is not None


class Gathered(Piece):
    """Children that can be sent together, or what ends after those before."""

    __slots__ = ("_positions",)

    def __init__(self) -> None:
        self._positions: list[Position] = []
        super().__init__([], self._positions)

    def take(self, expansion: Expansion, most: int = sys.maxsize) -> int:
        """Add up to `most` of the children that an expansion holds; return how many."""
        held = expansion.children
        count = min(len(held), most)
        if not count:
            return 0
        start = expansion.sent
        expansion.sent = stop = start + count
        self._positions.extend(children(expansion.position, range(start, stop)))
        nbytes = expansion.nbytes * count // len(held)
        self.results.extend(held[:count])
        del held[:count]
        self.nbytes += nbytes
        expansion.nbytes -= nbytes
        return count

    def note_end(self, expansion: Expansion) -> None:
        """Add what ends after the children, if anything does: all children of the expansion were taken."""
        self.boundary = expansion.boundary
        if expansion.failure is None:
            return
        if expansion.has_item:
            self.failures.append((len(self.results), expansion.failure))
        else:
            self.failure = expansion.failure


class Expansions:
    """The expansions of a stage in the order in which they were added; this one sends in that order."""

    def __init__(self) -> None:
        self._all: deque[Expansion] = deque()
        self.gone = 0
        """How many were sent on as a whole."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Expansion]:
        return iter(self._all)

    def add(self, expansion: Expansion) -> None:
        """Add one behind all others."""
        self._all.append(expansion)

    def clear(self) -> None:
        """Forget all."""
        self._all.clear()

    def reach(self) -> Iterator[Expansion]:
        """Go through those whose children may be sent now."""
        if self._all:
            yield self._all[0]

    def leads(self, expansion: Expansion) -> bool:
        """Return whether the children of this one may be sent now."""
        return any(each is expansion for each in self.reach())

    def ready(self) -> Piece | None:
        """Take what can be sent now: children, if there are any, and an end; None if nothing can be sent."""
        piece, before = Gathered(), len(self._all)
        while self._all and len(piece.results) < CHUNK_ITEMS:
            for each in self.reach():
                piece.take(each)
            first = self._all[0]
            if not first.done:
                break
            self._all.popleft()
            if first.ends:
                piece.note_end(first)
                break
        return self._sent(piece, before)

    def _sent(self, piece: Piece, before: int) -> Piece | None:
        self.gone += before - len(self._all)
        return piece if piece.results or len(self._all) < before else None


class AsTheyCome(Expansions):
    """Sends children in the order in which they were made."""

    def reach(self) -> Iterator[Expansion]:
        """Go through all up to the next end: nothing overtakes that."""
        for each in self._all:
            yield each
            if each.ends:
                return

    def leads(self, expansion: Expansion) -> bool:
        """Return True: any may be the one that is needed next."""
        return True


class InTurns(Expansions):
    """Sends `block` children of each of `cycle` open items at a time."""

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self._block = turns.block
        self._places: list[Expansion | None] = [None] * turns.cycle
        self._waiting: deque[Expansion] = deque()
        """Those that have no place yet."""
        self._turn = 0
        self._given = 0
        """How many children the one whose turn it is has given."""

    def add(self, expansion: Expansion) -> None:
        """Add one behind all others."""
        super().add(expansion)
        self._waiting.append(expansion)

    def clear(self) -> None:
        """Forget all."""
        self._waiting.clear()
        self._places = [None] * len(self._places)
        super().clear()

    def reach(self) -> Iterator[Expansion]:
        """Return the one whose turn it is, or the end that is due; none if the next item has not come yet."""
        current = self._current()
        if current is not None:
            yield current

    def ready(self) -> Piece | None:
        """Take the children whose turn it is, and an end; None if nothing can be sent."""
        piece, before = Gathered(), len(self._all)
        while len(piece.results) < CHUNK_ITEMS and (current := self._current()) is not None:
            self._given += piece.take(current, self._block - self._given)
            if self._given == self._block:
                self._go_on()
            elif not current.done:
                break
            else:
                self._all.remove(current)
                if not current.has_item:
                    self._waiting.popleft()
                    self._turn = self._given = 0
                else:
                    self._places[self._turn] = None
                    self._go_on()
                if current.ends:
                    piece.note_end(current)
                    break
        return self._sent(piece, before)

    def _current(self) -> Expansion | None:
        while self._places[self._turn] is None:
            waiting = self._waiting[0] if self._waiting else None
            if waiting is None:
                return None
            if waiting.has_item:
                self._places[self._turn] = self._waiting.popleft()
            elif not any(self._places):
                return waiting  # an end: all before it were sent
            else:
                self._go_on()
        return self._places[self._turn]

    def _go_on(self) -> None:
        self._turn = (self._turn + 1) % len(self._places)
        self._given = 0


def expansions_of(work: Work) -> Expansions:
    """Return where the children of a stage's items gather."""
    if work.turns is not None:
        return InTurns(work.turns)
    return Expansions() if work.ordered else AsTheyCome()
