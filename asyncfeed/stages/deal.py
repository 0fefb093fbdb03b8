"""Deal: keeps one part of a stream whose items are dealt out in turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from asyncfeed.position import Position, Positions, join
from asyncfeed.stages.steps import Arranging, Held


@dataclass(frozen=True, slots=True)
class Dealing:
    """One of each `count` blocks of `block` items: the one with this number, counted from 0.

    With `even`, blocks form rounds of `even` blocks. The last round is dropped if it is not complete. A block at
    the end of the data counts if it has at least `least` items. With `pad`, the last round is completed with the
    first items of the epoch. That is for blocks of 1 item.
    """

    number: int
    count: int
    block: int = 1
    least: int = 1
    even: int = 1
    limit: int | None = None
    """Number of items in the complete rounds, if it is known."""
    pad: bool = False


class Deal(Arranging):
    """Keeps the items of one part.

    With `even`, a block waits until its round is complete, unless the limit is known. With `pad`, the first items
    of the epoch are kept until it ends: as many as there are parts before this one. No other item can complete the
    last round of this part.
    """

    def __init__(self, dealing: Dealing) -> None:
        self._dealing = dealing
        self._begin()

    def _begin(self) -> None:
        self._seen = 0
        self._items: list[Any] = []
        self._positions: Positions = ()
        self.done = self._dealing.limit == 0

    @property
    def held(self) -> int:
        """Number of items that wait until their round is complete, or for the end of the epoch."""
        return len(self._items)

    def push(self, items: list[Any], positions: Positions) -> tuple[list[Any], Positions]:
        """Return the items of the part whose rounds are complete."""
        dealing = self._dealing
        if dealing.limit is not None:
            left = dealing.limit - self._seen
            items, positions = items[:left], positions[:left]
            self.done = len(items) == left
        elif dealing.even > 1:
            return self._push_rounds(items, positions)
        elif dealing.pad and self._seen < dealing.number:
            first = dealing.number - self._seen
            self._wait(items[:first], positions[:first])
        return self._keep(items, positions)

    def flush(self) -> tuple[list[Any], Positions]:
        """Return a last block that waits, if its round is complete except that its last block is short.

        With `pad`, return the item that completes the last round, if this part has none in it.
        """
        dealing = self._dealing
        more = self._seen % (dealing.block * (dealing.count if dealing.pad else dealing.even))
        last: tuple[list[Any], Positions] = [], ()
        if not dealing.pad:
            if more >= dealing.block * (dealing.even - 1) + dealing.least:
                last = self._items, self._positions
        elif 0 < more <= dealing.number:
            at = dealing.number - more if self._seen > more else dealing.number % more
            last = self._items[at : at + 1], self._positions[at : at + 1]
        self._begin()
        return last

    def state(self) -> Held:
        """Return the items that wait, how many items there were, and whether no more are needed."""
        return Held(list(self._items), self._positions, {"seen": self._seen, "done": self.done})

    def restore(self, held: Held) -> None:
        """Continue from a state."""
        self._seen, self.done = held.numbers["seen"], held.numbers["done"]
        self._items, self._positions = list(held.items), held.positions

    def _push_rounds(self, items: list[Any], positions: Positions) -> tuple[list[Any], Positions]:
        """Add items. Return those of the rounds that are complete now."""
        size = self._dealing.block * self._dealing.even
        ready: tuple[list[Any], Positions] = [], ()
        completes = (self._seen + len(items)) // size * size - self._seen
        if completes > 0:
            self._wait(*self._keep(items[:completes], positions[:completes]))
            ready = self._items, self._positions
            self._items, self._positions = [], ()
            items, positions = items[completes:], positions[completes:]
        self._wait(*self._keep(items, positions))
        return ready

    def _wait(self, items: list[Any], positions: Positions) -> None:
        """Keep items for later."""
        self._items += items
        self._positions = join(self._positions, positions)

    def _keep(self, items: list[Any], positions: Positions) -> tuple[list[Any], Positions]:
        """Count items. Return those of the part."""
        block, count = self._dealing.block, self._dealing.count
        period = block * count
        start = (self._dealing.number * block - self._seen) % period
        self._seen += len(items)
        if block == 1:
            return items[start::count], positions[start::count]
        own: list[Any] = []
        places: Positions = ()
        for at in range(start - period, len(items), period):  # the first block may have begun in an earlier push
            low, high = max(at, 0), max(at + block, 0)
            own += items[low:high]
            places = join(places, positions[low:high])
        return own, places


class Received(Protocol):
    """What other processes have received of an epoch."""

    def has(self, number: int, position: Position) -> bool:
        """Return whether the item with this number, at this position, was received."""
        ...


class LeftByOthers(Protocol):
    """What other processes have left of the epochs of a stream: see `merge_states`."""

    def of(self, epoch: int) -> Sequence[Received]:
        """Return what was received of an epoch. Each numbers the items that those before it have left."""
        ...


class DealRest(Deal):
    """Deals out what other processes have left of the first epochs, and then everything."""

    def __init__(self, dealing: Dealing, left: LeftByOthers) -> None:
        super().__init__(dealing)
        self._left = left
        self.begin(0)

    def begin(self, epoch: int) -> None:
        """Begin the epoch with this number."""
        self._received = self._left.of(epoch)
        self._came = [0] * len(self._received)
        """Number of items that each of these has numbered."""

    def push(self, items: list[Any], positions: Positions) -> tuple[list[Any], Positions]:
        """Return the items of the part that nobody has received."""
        if self._received:
            kept = [place for place, position in enumerate(positions) if self._is_left(position)]
            items, positions = [items[place] for place in kept], [positions[place] for place in kept]
        return super().push(items, positions)

    def _is_left(self, position: Position) -> bool:
        for layer, received in enumerate(self._received):
            self._came[layer] += 1
            if received.has(self._came[layer] - 1, position):
                return False
        return True

    def state(self) -> Held:
        """Return the same, and how many items were numbered."""
        held = super().state()
        held.numbers["came"] = self._came.copy()
        return held

    def restore(self, held: Held) -> None:
        """Continue from a state."""
        super().restore(held)
        self._came = list(held.numbers.get("came", self._came))
