"""The gates of a run that resumes. They collect what its stages held at the checkpoint, which is read again.

The source first sends the items that stages held, then `RESTORED`, then the items that nobody has received.
Before `RESTORED`, a `LinkGate` stands in for its algorithm: it collects items, gives the algorithm those that it
held, and makes the results that later stages held. Behind a `flat_map`, a `FlatGate` drops the children that were
not held, and, after `RESTORED`, those that were received.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from asyncfeed.epoch_end import RESTORED
from asyncfeed.errors import StateError
from asyncfeed.position import NOWHERE, Position, Positions, canonical, child_of
from asyncfeed.stages.steps import Algorithm, Chunk, Held

Results = tuple[list[Any], Positions]


class LinkGate:
    """Stands in for an algorithm until everything that it held has come."""

    def __init__(
        self,
        held: Sequence[Position],
        numbers: dict[str, Any],
        wanted: Sequence[Position],
        under_way: Sequence[Position],
        labels: Mapping[Position, Any],
        name: str,
    ) -> None:
        self._held = held
        """What the algorithm held, with `NOWHERE` for items whose results were received."""
        self._numbers = numbers
        self._wanted = wanted
        """The results that later stages held."""
        self._under_way = under_way
        """The results that no later stage had."""
        self._labels = labels
        self._name = name
        self._came: dict[Position, Any] = {}

    def take(self, chunk: Chunk) -> None:
        """Keep the items of a chunk."""
        self._came.update(zip(map(canonical, chunk.positions), chunk.items, strict=True))

    def open(self, algorithm: Algorithm) -> tuple[Results, Results]:
        """Give the algorithm what it held. Return what later stages held, and the results that come next."""
        items = [algorithm.stand_in() if each == NOWHERE else self._item(each) for each in self._held]
        rebuilt, under_way = self._make(algorithm, self._wanted), self._make(algorithm, self._under_way)
        algorithm.restore(Held(items, self._held, self._numbers))
        return rebuilt, under_way

    def _make(self, algorithm: Algorithm, wanted: Sequence[Position]) -> Results:
        made = []
        for each in wanted:
            items = list(map(self._item, algorithm.inputs(each)))
            label = self._labels[canonical(each)] if algorithm.labels else None
            made.append(algorithm.remake(items, each, label))
        return made, list(wanted)

    def _item(self, position: Position) -> Any:
        try:
            return self._came[canonical(position)]
        except KeyError:
            raise StateError(
                f"{self._name} held item {position} when the state was taken, and it did not come again: a stage "
                "before it left it out, or delivers fewer items than before"
            ) from None


class FlatGate:
    """Drops children that nobody needs."""

    def __init__(self, wanted: Iterable[Position], received: Mapping[Position, int]) -> None:
        self._wanted = set(map(canonical, wanted))
        """The children that later stages held."""
        self._received = received
        """How many children of an item were received."""
        self._restored = False

    def look(self, chunk: Chunk) -> Chunk:
        """Return the chunk without the children that nobody needs."""
        if self._restored and not self._received:
            return chunk
        kept = [place for place, position in enumerate(chunk.positions) if self._keeps(position)]
        self._restored = self._restored or chunk.boundary is RESTORED
        if len(kept) == len(chunk.items):
            return chunk
        nbytes = chunk.nbytes  # the bytes of dropped children go with the others
        items, positions = [chunk.items[each] for each in kept], [chunk.positions[each] for each in kept]
        return Chunk(items, positions, chunk.boundary, chunk.failure, nbytes)

    def _keeps(self, position: Position) -> bool:
        if not self._restored:
            return canonical(position) in self._wanted
        parent, number = child_of(position)
        return number >= self._received.get(canonical(parent), 0)


class FlatLeft(NamedTuple):
    """What was received of the children of some items."""

    begun: list[Position]
    """Items of which the first children were received."""
    received: list[int]
    """How many of each."""
    held: list[Position]
    """Children that later stages held. All other children of their parents were received, unless a parent has
    begun."""


class RestGate:
    """Drops the children that other processes have received."""

    def __init__(self, left: FlatLeft) -> None:
        self._received = dict(zip(map(canonical, left.begun), left.received, strict=True))
        self._held = set(map(canonical, left.held))
        self._ended = {canonical(child_of(each)[0]) for each in left.held} - self._received.keys()

    def look(self, chunk: Chunk) -> Chunk:
        """Return the chunk without these children."""
        kept = [place for place, position in enumerate(chunk.positions) if self._keeps(position)]
        if len(kept) == len(chunk.items):
            return chunk
        nbytes = chunk.nbytes  # the bytes of dropped children go with the others
        items, positions = [chunk.items[each] for each in kept], [chunk.positions[each] for each in kept]
        return Chunk(items, positions, chunk.boundary, chunk.failure, nbytes)

    def _keeps(self, position: Position) -> bool:
        if canonical(position) in self._held:
            return True
        parent, number = child_of(position)
        parent = canonical(parent)
        return parent not in self._ended and number >= self._received.get(parent, 0)
