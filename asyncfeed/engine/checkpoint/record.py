"""What came to a stage since the consumer's place, as positions.

An algorithm is ahead of the consumer: what it has sent may be queued, or with a later stage. So each algorithm has
a `Record` of what came, and a twin, a second instance that gets the same from the record when the consumer has
received the results. What the twin holds is the state of the stage at the consumer's place.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple, TypeVar

from asyncfeed.engine.constants import RECORDED_EVENTS
from asyncfeed.engine.order.expansions import ChildPiece, Sent
from asyncfeed.engine.order.piece import Piece
from asyncfeed.epoch_end import RESTORED, EpochEnd
from asyncfeed.errors import StateError
from asyncfeed.position import Position, Positions, canonical
from asyncfeed.stages.steps import Algorithm, Chunk

T = TypeVar("T")


class Log(deque[T]):
    """Events that were not followed. Any thread may take them. Too many are not kept: it is `full` for good."""

    full = False

    def append(self, event: T) -> None:
        """Add an event."""
        if not self.full:
            super().append(event)
            self.full = len(self) > RECORDED_EVENTS

    def close(self) -> None:
        """Keep no events."""
        self.full = True
        self.clear()


class Came(NamedTuple):
    """Items that came. `facts` has what the algorithm looks at in each, or is None."""

    positions: Positions
    facts: list[Any] | None
    made: int
    """Number of results that the algorithm made of them."""


CUT = "cut"
"""Stands for a flush in the middle of an epoch."""

Event = Came | EpochEnd | str


class Record:
    """What came to one algorithm, and its twin has not seen. The loop appends, any thread takes."""

    __slots__ = ("_algorithm", "events")

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm
        self.events: Log[Event] = Log()

    def push(self, items: list[Any], positions: Positions) -> tuple[list[Any], Positions]:
        """Push items that came, and note them. Facts are taken out first, because `push` may change the items."""
        facts = [self._algorithm.fact(item) for item in items] if self._algorithm.looks else None
        made = self._algorithm.push(items, positions)
        self.events.append(Came(positions, facts, len(made[1])))
        return made

    def note_end(self, boundary: EpochEnd) -> None:
        """Note an end, whether the algorithm flushes there or not."""
        self.events.append(boundary)

    def note_cut(self) -> None:
        """Note a flush in the middle of an epoch."""
        self.events.append(CUT)


Left = tuple[Positions, Positions] | list[Sent]
"""The positions of results that were sent together, and of all items that are done with them. For children, what
they are."""


class WorkRecord:
    """What came to a function, and what it sent. The loop appends, any thread takes.

    In a run that resumes, it is also the gate before the function: before `RESTORED` it keeps the items that were
    under way, and sends them after it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.came: Log[Positions | EpochEnd] = Log()
        self.left: Log[Left | EpochEnd] = Log()
        self._kept: set[Position] | None = None
        """The items that were under way. None in a run from the start, and after `RESTORED`."""
        self._wanted: set[Position] = set()
        self._ready: dict[Position, tuple[Any, Position]] = {}
        """These items, as far as they have come."""
        self.follows: Chunk | None = None
        """What to send after the chunk that `look` has returned."""
        self.sends_again = False
        """Whether what is sent was noted before the checkpoint, because `RESTORED` was not sent."""

    def resume(self, under_way: list[Position], wanted: list[Position]) -> None:
        """Keep these items until `RESTORED`, and note nothing before. Let those pass that later stages want."""
        self._kept = set(map(canonical, under_way))
        self._wanted = set(map(canonical, wanted))
        self.sends_again = True

    def look(self, chunk: Chunk) -> Chunk:
        """Note a chunk that comes, and return it. Before `RESTORED`, return what is wanted of it."""
        kept = self._kept
        if kept is None:
            if chunk.items:
                self.came.append(chunk.positions)
            if chunk.boundary is not None:
                self.came.append(chunk.boundary)
            return chunk
        items, positions = [], []
        for item, position in zip(chunk.items, chunk.positions, strict=True):
            key = canonical(position)
            if key in kept:
                self._ready[key] = item, position
            if key in self._wanted:
                items.append(item)
                positions.append(position)
        if chunk.boundary is RESTORED:
            self._kept = None
            ready, self._ready = self._ready, {}
            for key in kept.difference(ready):
                raise did_not_come(self._name, key)
            self.follows = Chunk([item for item, _ in ready.values()], [at for _, at in ready.values()])
        return Chunk(items, positions, chunk.boundary, chunk.failure, chunk.nbytes)

    def note_left(self, piece: Piece) -> None:
        """Note what is sent."""
        if self.sends_again:
            self.sends_again = piece.boundary is not RESTORED
            return
        if isinstance(piece, ChildPiece):
            if piece.parts:
                self.left.append(piece.parts)
        elif piece.gone:
            self.left.append((piece.positions, piece.gone))
        if piece.boundary is not None:
            self.left.append(piece.boundary)


def did_not_come(name: str, position: Position) -> StateError:
    """Return the error of an item that a stage held when the state was taken, and that did not come again."""
    return StateError(
        f"{name} held item {position} when the state was taken, and it did not come again: a stage before it left "
        "it out, or delivers fewer items than before"
    )
