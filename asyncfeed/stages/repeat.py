"""Repeat: several epochs as one, or epochs without end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from asyncfeed.axes import Axes
from asyncfeed.stages.base import Node, Source, check_count
from asyncfeed.stages.steps import Indexed, Passes, Step


@dataclass(frozen=True)
class Repeat(Node):
    """Joins `count` epochs of the stages before it into one epoch. Without a count it never ends."""

    count: int | None = None

    method: ClassVar[str] = "repeat"
    positional: ClassVar[tuple[str, ...]] = ("count",)
    arranges: ClassVar[bool] = True
    begins_epochs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.count is not None:
            check_count("repeat", "count", self.count, 1)

    def index(self, upstream: Indexed) -> Indexed | None:
        """Return the epochs of upstream one after the other; None if they have no end and so no length."""
        return None if self.count is None else Repeated(upstream, self.count)

    def steps(self) -> Sequence[Step]:
        """Return the passes: the source repeats its items, and says where each epoch ends."""
        return [Passes(self.count)]

    def after(self, source: Source, stages: Sequence[Node]) -> Node:
        """Return this stage. Raise if the items can be read only once."""
        if self.count != 1:
            source.check_repeatable()
        return self

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return `upstream`: the items stay as they are."""
        return upstream

    def may_precede(self, other: Node) -> bool:
        """Return whether it may run before a stage.

        It may not before a function, which may draw random numbers.
        """
        return other.only_reads or other.is_queue

    def length(self, upstream: int) -> int | None:
        """Return the number of items of all epochs; None if there is no end."""
        return None if self.count is None else self.count * upstream

    def endless(self, *, upstream: bool) -> bool:
        """Return whether it repeats without end, or its items have no end."""
        return upstream or self.count is None

    def __str__(self) -> str:
        """Return `repeat()` if there is no count."""
        return "repeat()" if self.count is None else super().__str__()


class Repeated:
    """`count` epochs of upstream as one: place p is item p % n of its epoch `epoch * count + p // n`."""

    def __init__(self, upstream: Indexed, count: int) -> None:
        self.on_thread = upstream.on_thread
        self._upstream = upstream
        self._count = count
        self._each = len(upstream)

    def __len__(self) -> int:
        return self._each * self._count

    def pick(self, epoch: int, places: Sequence[int]) -> list[Any]:
        """Return the items at these places. Upstream is asked once for each of its epochs."""
        first, each = epoch * self._count, self._each
        if isinstance(places, range) and places.step == 1:
            out: list[Any] = []
            start = places.start
            while start < places.stop:
                number, offset = divmod(start, each)
                length = min(places.stop - start, each - offset)
                out += self._upstream.pick(first + number, range(offset, offset + length))
                start += length
            return out
        groups: dict[int, list[int]] = {}
        for position, place in enumerate(places):
            groups.setdefault(place // each, []).append(position)
        scattered: list[Any] = [None] * len(places)
        for number, positions in groups.items():
            items = self._upstream.pick(first + number, [places[position] % each for position in positions])
            for position, item in zip(positions, items, strict=True):
                scattered[position] = item
        return scattered

    def key(self, epoch: int, place: int) -> str:
        """Return the name of the item at this place."""
        number, offset = divmod(place, self._each)
        return self._upstream.key(epoch * self._count + number, offset)
