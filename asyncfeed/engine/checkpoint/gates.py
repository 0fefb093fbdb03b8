"""The gates of a run that resumes. They collect what its stages held at the checkpoint, which is read again.

The source first sends the items that stages held, then `RESTORED`, then the items that nobody has received.
Before `RESTORED`, a `LinkGate` stands in for its algorithm: it collects items, gives the algorithm those that it
held, and makes the results that later stages held. Behind a `flat_map`, a `ChildGate` drops the children that no
later stage held.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from asyncfeed.engine.checkpoint.record import Log, did_not_come
from asyncfeed.epoch_end import RESTORED, EpochEnd
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
            raise did_not_come(self._name, position) from None


class ChildGate:
    """Drops children that no later stage held, until `RESTORED`."""

    def __init__(self, wanted: Iterable[Position]) -> None:
        self._wanted = set(map(canonical, wanted))
        """The children that later stages held."""
        self._restored = False
        self.follows: Chunk | None = None

    def look(self, chunk: Chunk) -> Chunk:
        """Return the chunk without the children that nobody needs."""
        if self._restored:
            return chunk
        self._restored = chunk.boundary is RESTORED
        kept = [place for place, each in enumerate(chunk.positions) if canonical(each) in self._wanted]
        nbytes = chunk.nbytes  # the bytes of dropped children go with the others
        items, positions = [chunk.items[each] for each in kept], [chunk.positions[each] for each in kept]
        return Chunk(items, positions, chunk.boundary, chunk.failure, nbytes)


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
        self.follows: Chunk | None = None
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


class ReplayGate:
    """Stands behind a function that is called from the start of an epoch. Drops results until the checkpoint."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.events: Log[Positions | EpochEnd] = Log()
        """The results that were sent, and the ends."""
        self.follows: Chunk | None = None
        """What to send after the chunk that `look` has returned."""
        self._wanted: set[Position] | None = None
        """The results that later stages held. None in a run from the start, and after `RESTORED`."""
        self._received = 0
        """Number of results up to the checkpoint that did not come again yet."""
        self._ends = 0
        """Number of these ends."""

    def resume(self, received: int, ends: int, wanted: Iterable[Position]) -> None:
        """Drop this number of results, and of ends. Let those pass that later stages want."""
        self._received, self._ends, self._wanted = received, ends, set(map(canonical, wanted))

    def look(self, chunk: Chunk) -> Chunk:
        """Note a chunk, and return it. Before `RESTORED`, return what is wanted of it."""
        if self._wanted is not None:
            chunk = self._replay(chunk, self._wanted)
            if self._wanted is None and self.follows is not None:
                self._note(self.follows)
        else:
            self._note(chunk)
        return chunk

    def _note(self, chunk: Chunk) -> None:
        if chunk.items:
            self.events.append(chunk.positions)
        if chunk.boundary is not None:
            self.events.append(chunk.boundary)

    def _replay(self, chunk: Chunk, wanted: set[Position]) -> Chunk:
        count = min(self._received, len(chunk.items))
        self._received -= count
        rest = chunk.split(count)
        if (rest.ends_stream and (self._received or self._ends)) or (rest.items and self._ends):
            raise StateError(
                f"{self._name} has not the results that it had when the state was taken: other items came"
            )
        kept = [place for place, each in enumerate(chunk.positions) if canonical(each) in wanted]
        chunk.items = [chunk.items[place] for place in kept]
        chunk.positions = [chunk.positions[place] for place in kept]
        if self._received or self._ends:
            self._ends -= rest.boundary is not None
            rest.boundary = None
        if not (self._received or self._ends):
            self._wanted = None
            chunk.boundary = RESTORED
        self.follows = rest
        return chunk
