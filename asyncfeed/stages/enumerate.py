"""Enumerate: each item with its number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from asyncfeed.axes import Axes
from asyncfeed.places import shift
from asyncfeed.position import Position, Positions
from asyncfeed.stages.base import Node, check_count
from asyncfeed.stages.steps import Algorithm, Held, Indexed, Step, leaves_out

LEAST = -(2**63)


@dataclass(frozen=True)
class Enumerate(Node):
    """Turns each item into a pair `(number, item)`. The numbers begin at `start` in each epoch."""

    start: int = 0

    method: ClassVar[str] = "enumerate"
    positional: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        check_count("enumerate", "start", self.start, LEAST)

    def index(self, upstream: Indexed) -> Indexed | None:
        """Return the items with their places; None if some may be left out. Then only a stream can count them."""
        if leaves_out(upstream):
            return None
        return Numbered(upstream, self.start)

    def steps(self) -> Sequence[Step]:
        """Return the step that counts the items of a stream."""
        return [Count(self.start)]

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return `upstream`: the items stay as they are."""
        return upstream

    def length(self, upstream: int) -> int:
        """Return `upstream`: as many items come out as go in."""
        return upstream


class Numbered:
    """Upstream's items as pairs with their places, counted from `start`."""

    def __init__(self, upstream: Indexed, start: int) -> None:
        self.on_thread = upstream.on_thread
        self._upstream = upstream
        self._start = start

    def __len__(self) -> int:
        return len(self._upstream)

    def pick(self, epoch: int, places: Sequence[int]) -> list[Any]:
        """Return the pairs at these places."""
        return list(zip(shift(places, self._start), self._upstream.pick(epoch, places), strict=True))

    def key(self, epoch: int, place: int) -> str:
        """Return the name of the item at this place."""
        return self._upstream.key(epoch, place)


class Count(Algorithm):
    """Turns each item of a stream into a pair with its number."""

    looks = False
    labels = True

    def __init__(self, start: int) -> None:
        self._start = self._next = start

    def push(self, items: list[Any], positions: Positions) -> tuple[list[Any], Positions]:
        """Return the items with their numbers."""
        first = self._next
        self._next += len(items)
        return list(zip(range(first, self._next), items, strict=True)), positions

    def flush(self) -> tuple[list[Any], Positions]:
        """Begin the next epoch."""
        self._next = self._start
        return [], ()

    def state(self) -> Held:
        """Return the next number."""
        return Held([], (), {"next": self._next})

    def restore(self, held: Held) -> None:
        """Continue from a state."""
        self._next = held.numbers["next"]

    def label(self, result: Any) -> int:
        """Return the number."""
        return int(result[0])

    def inputs(self, position: Position) -> Positions:
        """Return the position of the item."""
        return (position,)

    def remake(self, items: list[Any], position: Position, label: Any) -> tuple[int, Any]:
        """Return the pair."""
        return label, items[0]
