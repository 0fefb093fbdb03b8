"""Take and Skip: they keep or leave out the first items of each epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from asyncfeed.axes import Axes
from asyncfeed.places import shift
from asyncfeed.position import Positions
from asyncfeed.stages.base import Node, check_count
from asyncfeed.stages.steps import Arranging, Held, Indexed, Step, leaves_out


@dataclass(frozen=True)
class Take(Node):
    """Keeps the first `count` items of each epoch, or all items if there are fewer."""

    count: int

    method: ClassVar[str] = "take"
    positional: ClassVar[tuple[str, ...]] = ("count",)
    arranges: ClassVar[bool] = True
    counts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("take", "count", self.count, 0)

    def index(self, upstream: Indexed) -> Indexed | None:
        """Return the first items of upstream; None if some may be left out. Then only a stream can count them."""
        if leaves_out(upstream):
            return None
        return Slice(upstream, 0, self.length(len(upstream)))

    def steps(self) -> Sequence[Step]:
        """Return the step that counts the items of a stream."""
        return [TakeFirst(self.count)]

    def may_precede(self, other: Node) -> bool:
        """Return whether it may run before a stage, so that fewer items are read and the same are kept."""
        return other.one_to_one or other.is_queue

    def endless(self, *, upstream: bool) -> bool:
        """Return False: it ends."""
        return False

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return `upstream`: the items stay as they are."""
        return upstream

    def length(self, upstream: int) -> int:
        """Return `count`, or the number of items if there are fewer."""
        return min(self.count, upstream)


@dataclass(frozen=True)
class Skip(Node):
    """Leaves out the first `count` items of each epoch."""

    count: int

    method: ClassVar[str] = "skip"
    positional: ClassVar[tuple[str, ...]] = ("count",)
    arranges: ClassVar[bool] = True
    counts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("skip", "count", self.count, 0)

    def index(self, upstream: Indexed) -> Indexed | None:
        """Return upstream from item `count` on; None if some may be left out."""
        if leaves_out(upstream):
            return None
        return Slice(upstream, self.count, self.length(len(upstream)))

    def steps(self) -> Sequence[Step]:
        """Return the step that counts the items of a stream."""
        return [SkipFirst(self.count)]

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return `upstream`: the items stay as they are."""
        return upstream

    def may_precede(self, other: Node) -> bool:
        """Return whether it may run before a stage. It may not before a function, whose calls the user expects."""
        return other.only_reads or other.is_queue

    @property
    def leaves_out_first(self) -> int:
        """Number of items that it leaves out."""
        return self.count

    def length(self, upstream: int) -> int:
        """Return the number of items that are left."""
        return max(0, upstream - self.count)


class Slice:
    """A range of upstream's places."""

    def __init__(self, upstream: Indexed, start: int, length: int) -> None:
        self.on_thread = upstream.on_thread
        self._upstream = upstream
        self._start = start
        self._length = length

    def __len__(self) -> int:
        return self._length

    def pick(self, epoch: int, places: Sequence[int]) -> list[Any]:
        """Return the items at these places of the slice."""
        return self._upstream.pick(epoch, shift(places, self._start))

    def key(self, epoch: int, place: int) -> str:
        """Return the name of the item at this place of the slice."""
        return self._upstream.key(epoch, place + self._start)


class TakeFirst(Arranging):
    """Sends `count` items of each epoch. It is `done` after the last of them, and drops all later items."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._begin(count)

    def push(self, items: list[Any], positions: Positions) -> tuple[list[Any], Positions]:
        """Return the items that are still wanted."""
        if len(items) > self._left:
            items, positions = items[: self._left], positions[: self._left]
        self._begin(self._left - len(items))
        return items, positions

    def flush(self) -> tuple[list[Any], Positions]:
        """Begin the next epoch."""
        self._begin(self._count)
        return [], ()

    def state(self) -> Held:
        """Return how many items are still wanted."""
        return Held([], (), {"left": self._left})

    def restore(self, held: Held) -> None:
        """Continue from a state."""
        self._begin(held.numbers["left"])

    def _begin(self, left: int) -> None:
        self._left = left
        self.done = left == 0


class SkipFirst(Arranging):
    """Drops `count` items of each epoch and sends all later ones."""

    def __init__(self, count: int) -> None:
        self._count = self._left = count

    def push(self, items: list[Any], positions: Positions) -> tuple[list[Any], Positions]:
        """Return the items after those to drop."""
        dropped = min(self._left, len(items))
        if dropped:
            self._left -= dropped
            return items[dropped:], positions[dropped:]
        return items, positions

    def flush(self) -> tuple[list[Any], Positions]:
        """Begin the next epoch."""
        self._left = self._count
        return [], ()

    def state(self) -> Held:
        """Return how many items are still to drop."""
        return Held([], (), {"left": self._left})

    def restore(self, held: Held) -> None:
        """Continue from a state."""
        self._left = held.numbers["left"]
