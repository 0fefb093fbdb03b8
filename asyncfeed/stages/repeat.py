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
    """Makes `count` epochs of what is above one epoch of what is below; without a count it never ends."""

    count: int | None = None

    method: ClassVar[str] = "repeat"
    positional: ClassVar[tuple[str, ...]] = ("count",)
    arranges: ClassVar[bool] = True
    begins_epochs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.count is not None:
            check_count("repeat", "count", self.count, 1)

    def index(self, upstream: Indexed) -> Indexed | None:
        """Return upstream's epochs after each other; None where they have no end, so no length."""
        return None if self.count is None else Repeated(upstream, self.count)

    def steps(self) -> Sequence[Step]:
        """Return the passes: what repeats is the source, which says where each epoch ends."""
        return [Passes(self.count)]

    def after(self, source: Source, stages: Sequence[Node]) -> Node:
        """Return this stage; raise if the items can be gone through only once."""
        if self.count != 1:
            source.check_repeatable()
        return self

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return the same: the items stay as they are."""
        return upstream

    def may_precede(self, other: Node) -> bool:
        """Return whether it may run before a stage: not before a function, which may draw random numbers."""
        return other.only_reads or other.is_queue

    def length(self, upstream: int) -> int | None:
        """Return the items of all epochs; None without an end."""
        return None if self.count is None else self.count * upstream

    def endless(self, *, upstream: bool) -> bool:
        """Return whether it has no end, or what it repeats has none."""
        return upstream or self.count is None

    def __str__(self) -> str:
        """Return `repeat()` where there is no count."""
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
        """Return the items at these places, asking upstream once for each of its epochs."""
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
        """Return what the item at this place is called."""
        number, offset = divmod(place, self._each)
        return self._upstream.key(epoch * self._count + number, offset)
