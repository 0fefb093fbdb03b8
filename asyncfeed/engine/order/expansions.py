"""The orders of `flat_map` and `interleave`: which children of which items are sent next. They do no IO.

Each item has an `Expansion`, which holds its children until they are sent. Invariants:

* Each child is sent once, after the earlier children of the same item.
* The end of an epoch is sent after all that was added before it, and before all that was added after it.
* `sendable` gives the expansions whose children may be sent now. `Expansions` gives the oldest one,
  `AsTheyCome` all up to the next end, and `InTurns` the one whose turn it is.

In a run that resumes, `go_on` says of which items some children were received. These items come again behind
`RESTORED`, before all others.

`InTurns` works like TensorFlow's `interleave`. `cycle` slots each hold an open item. At its turn, an item sends
`block` children. An item without further children ends its turn early. Its slot stays empty until the turn comes
to the slot again, and then gets the next item.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from asyncfeed.engine.constants import CHUNK_ITEMS
from asyncfeed.engine.order.piece import Piece
from asyncfeed.epoch_end import RESTORED, EpochEnd
from asyncfeed.errors import Failure
from asyncfeed.position import Position, canonical, children
from asyncfeed.stages.steps import Turns, Work


class Expansion:
    """One item and its children. Without an item, it stands for the end of an epoch or of the stream."""

    __slots__ = (
        "begun", "boundary", "charged", "children", "done", "failure", "gate", "has_item", "item", "made",
        "nbytes", "number", "part", "position", "received", "sent", "unwanted", "waiting",
    )  # fmt: skip

    def __init__(self, item: Any, position: Position, charged: int, number: int = 0) -> None:
        self.item = item
        self.position = position
        self.number = number
        """Number of items that the stage has taken in before."""
        self.made: Any = None
        """The outcome of the call for the item, if it was called together with an earlier one."""
        self.has_item = True
        """Whether this stands for an item. If not, it stands for an end, or for a failure from upstream."""
        self.charged = charged
        """Bytes that are charged for the item, and for the children that are being made."""
        self.children: list[Any] = []
        """The children that were made and not sent."""
        self.nbytes = 0
        """Bytes of these children."""
        self.part: Any = None
        """The part of the budget for the children that are being made."""
        self.waiting = 0
        """Number of children that wait for room in the budget before they are made."""
        self.sent = 0
        """Number of children that were sent, or left out because they were received."""
        self.received = 0
        """Number of further children to leave out: the consumer received them before a checkpoint."""
        self.begun = False
        """Whether a worker has taken the item."""
        self.done = False
        """Whether all children were made, or the item failed."""
        self.unwanted = False
        """Whether no more children are needed, because a later stage skips the epoch of this item."""
        self.failure: Failure | None = None
        self.boundary: EpochEnd | None = None
        self.gate: Any = None
        """Where the worker waits while the expansion holds enough children."""

    @classmethod
    def end(cls, boundary: EpochEnd | None, failure: Failure | None = None) -> Expansion:
        """Return an expansion without an item, for an end or for a failure from upstream."""
        end = cls(None, 0, 0)
        end.has_item = False
        end.boundary, end.failure, end.done = boundary, failure, True
        return end

    @property
    def active(self) -> bool:
        """Whether a worker expands this item now, and does not wait for room in the budget."""
        return self.begun and not self.done and not self.waiting

    @property
    def ends(self) -> bool:
        """Whether an end of an epoch, or a failure, comes after its children."""
        return self.boundary is not None or self.failure is not None

    def leave_out_received(self, children: list[Any]) -> list[Any]:
        """Return children that were made, without those that were received."""
        count = min(self.received, len(children))
        self.received -= count
        self.sent += count
        return children[count:]


DONE, FAILED = -1, -2
Sent = tuple[Position, int, int]
"""What was sent of an item: its children from a number to another. `DONE` in place of the second number says that
the item has no more children, and `FAILED` that it failed."""


class ChildPiece(Piece):
    """Children that are sent together, perhaps of several items, and what ends after them."""

    __slots__ = ("_positions", "parts")

    def __init__(self) -> None:
        self._positions: list[Position] = []
        self.parts: list[Sent] = []
        """What the children are, in their order."""
        super().__init__([], self._positions)

    def take(self, expansion: Expansion, most: int = sys.maxsize) -> int:
        """Move up to `most` children from an expansion into this piece. Return their number."""
        held = expansion.children
        count = min(len(held), most)
        if not count:
            return 0
        start = expansion.sent
        expansion.sent = stop = start + count
        self.parts.append((expansion.position, start, stop))
        self._positions.extend(children(expansion.position, range(start, stop)))
        nbytes = expansion.nbytes * count // len(held)
        self.results.extend(held[:count])
        del held[:count]
        self.nbytes += nbytes
        expansion.nbytes -= nbytes
        return count

    def note_end(self, expansion: Expansion) -> None:
        """Note that all children of an expansion were taken. Add its end or its failure, if there is one."""
        if expansion.has_item:
            self.parts.append((expansion.position, expansion.sent, DONE if expansion.failure is None else FAILED))
        self.boundary = expansion.boundary
        if expansion.failure is None:
            return
        if expansion.has_item:
            self.failures.append((len(self.results), expansion.failure))
        else:
            self.failure = expansion.failure


@dataclass
class Resumed:
    """Where a stage goes on, behind `RESTORED`."""

    received: dict[Position, int]
    """How many children were received of each item that was open, by its canonical position."""
    slots: dict[Position, int] = field(default_factory=dict)
    """The slot of each of these items, if they are sent in turns."""
    finished: list[tuple[Position, int, int]] = field(default_factory=list)
    """The items that have a slot and no further children: how many they had, and their slots."""
    turn: int = 0
    """The number of the slot whose turn it is."""
    sent_this_turn: int = 0
    """Number of children that were received of this turn."""
    restored: bool = False
    """Whether `RESTORED` was added."""


class Expansions:
    """The expansions of a stage. Children are sent in the order of their items."""

    def __init__(self) -> None:
        self._all: deque[Expansion] = deque()
        self.sent_total = 0
        """Number of expansions of which everything was sent."""
        self._resumed: Resumed | None = None
        """Where the stage goes on. None in a run from the start, and when all open items have come."""

    @property
    def needs_input(self) -> bool:
        """Whether no child can be sent before another item, or an end, is added."""
        return not self._all

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Expansion]:
        return iter(self._all)

    def add(self, expansion: Expansion) -> None:
        """Add an expansion behind all others."""
        self._all.append(expansion)
        if self._resumed is not None:
            self._resume(expansion, self._resumed)

    def clear(self) -> None:
        """Drop all expansions."""
        self._all.clear()

    def go_on(self, resumed: Resumed) -> None:
        """Go on from a checkpoint, behind `RESTORED`."""
        self._resumed = resumed

    def _resume(self, expansion: Expansion, resumed: Resumed) -> None:
        if expansion.boundary is RESTORED:
            resumed.restored = True
        elif resumed.restored and expansion.has_item:
            expansion.received = resumed.received.pop(canonical(expansion.position), 0)
            if not resumed.received:
                self._resumed = None
        elif resumed.restored:  # their epoch is skipped
            self._resumed = None

    def sendable(self) -> Iterator[Expansion]:
        """Yield the expansions whose children may be sent now."""
        if self._all:
            yield self._all[0]

    def may_be_next(self, expansion: Expansion) -> bool:
        """Return whether a child of this expansion may be sent next. In doubt, this is True."""
        return any(each is expansion for each in self.sendable())

    def ready(self) -> Piece | None:
        """Remove and return what can be sent now: children, an end, or both. Return None if there is nothing."""
        piece, before = ChildPiece(), len(self._all)
        while self._all and len(piece.results) < CHUNK_ITEMS:
            for each in self.sendable():
                piece.take(each)
            first = self._all[0]
            if not first.done:
                break
            self._all.popleft()
            piece.note_end(first)
            if first.ends:
                break
        return self._finish(piece, before)

    def _finish(self, piece: Piece, before: int) -> Piece | None:
        self.sent_total += before - len(self._all)
        return piece if piece.results or len(self._all) < before else None


class AsTheyCome(Expansions):
    """Children are sent as they are made, in any order within an epoch."""

    def sendable(self) -> Iterator[Expansion]:
        """Yield all expansions up to the next end. No later child overtakes that end."""
        for each in self._all:
            yield each
            if each.ends:
                return

    def may_be_next(self, expansion: Expansion) -> bool:
        """Return True, because this order sends children of any item."""
        return True


class InTurns(Expansions):
    """Sends `block` children of each of `cycle` open items in turn."""

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self._block = turns.block
        self._slots: list[Expansion | None] = [None] * turns.cycle
        """The open items."""
        self._queue: deque[Expansion] = deque()
        """The items that have no slot yet, and the ends among them."""
        self._turn = 0
        """The number of the slot whose turn it is."""
        self._sent_this_turn = 0
        """Number of children that were sent in this turn."""
        self._restores: Resumed | None = None
        """Where the stage goes on. None in a run from the start."""
        self._restoring = False
        """Whether `RESTORED` was sent, and the items that were open do not have their slots yet."""
        self._opened: dict[int, Expansion] = {}
        """The items that were open at the checkpoint and have come, by slot."""

    def add(self, expansion: Expansion) -> None:
        """Add an expansion behind all others."""
        resumed, slot = self._resumed, None
        if resumed is not None and resumed.restored and expansion.has_item:
            slot = resumed.slots.get(canonical(expansion.position))
        super().add(expansion)
        if slot is None:
            self._queue.append(expansion)
        else:
            self._opened[slot] = expansion

    @property
    def needs_input(self) -> bool:
        """Whether no child can be sent before another item, or an end, is added.

        The turn may be at an empty slot while other slots hold items.
        """
        return self._current() is None

    def clear(self) -> None:
        """Drop all expansions."""
        self._queue.clear()
        self._slots = [None] * len(self._slots)
        super().clear()

    def sendable(self) -> Iterator[Expansion]:
        """Yield the expansion whose turn it is, or the end that is due. Nothing if the next item is not there."""
        current = self._current()
        if current is not None:
            yield current

    def ready(self) -> Piece | None:
        """Remove and return the children whose turn it is, and an end. Return None if there is nothing."""
        piece, before = ChildPiece(), len(self._all)
        while len(piece.results) < CHUNK_ITEMS and (current := self._current()) is not None:
            self._sent_this_turn += piece.take(current, self._block - self._sent_this_turn)
            if self._sent_this_turn == self._block:
                self._next_turn()
            elif not current.done:
                break
            else:
                self._all.remove(current)
                piece.note_end(current)
                if current.has_item:
                    self._slots[self._turn] = None
                    self._next_turn()
                else:
                    self._queue.popleft()
                    self._begin(current)
                if current.ends:
                    break
        return self._finish(piece, before)

    def go_on(self, resumed: Resumed) -> None:
        """Go on from a checkpoint, behind `RESTORED`."""
        super().go_on(resumed)
        self._restores = resumed

    def _begin(self, end: Expansion) -> None:
        """Begin an epoch, or go on in the one of a checkpoint."""
        self._turn = self._sent_this_turn = 0
        restores = self._restores
        if restores is not None and end.boundary is RESTORED:
            self._turn, self._sent_this_turn = restores.turn, restores.sent_this_turn
            self._restoring = True

    def _current(self) -> Expansion | None:
        if self._restoring:
            if self._resumed is not None:
                return None  # some open items have not come
            self._restore()
        while self._slots[self._turn] is None:
            first = self._queue[0] if self._queue else None
            if first is None:
                return None
            if first.has_item:
                self._slots[self._turn] = self._queue.popleft()
            elif not any(self._slots):
                return first  # an end, and everything before it was sent
            else:
                self._next_turn()
        return self._slots[self._turn]

    def _restore(self) -> None:
        """Give the items that were open their slots."""
        self._restoring = False
        for slot, expansion in self._opened.items():
            self._slots[slot] = expansion
        for position, sent, slot in [] if self._restores is None else self._restores.finished:
            self._slots[slot] = finished = Expansion(None, position, 0)
            finished.sent, finished.done = sent, True
            self._all.appendleft(finished)

    def _next_turn(self) -> None:
        self._turn = (self._turn + 1) % len(self._slots)
        self._sent_this_turn = 0


def expansions_of(work: Work) -> Expansions:
    """Return the order that a stage asks for."""
    if work.turns is not None:
        return InTurns(work.turns)
    return Expansions() if work.ordered else AsTheyCome()
