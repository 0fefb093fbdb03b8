"""Batch: consecutive samples become one tree of arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from asyncfeed.axes import Axes, Batched, Fixed, Unknown
from asyncfeed.errors import PipelineError
from asyncfeed.position import Position, Positions, join, members, parts
from asyncfeed.stages.base import Node, Source, check_count
from asyncfeed.stages.collating import check_collate, collating, maker, refuse_pad
from asyncfeed.stages.pad import Pad
from asyncfeed.stages.steps import Algorithm, Held, Step, Timed


@dataclass(frozen=True)
class Batch(Node):
    """Stacks each `size` samples along a new first axis. The last batch of an epoch may be smaller."""

    size: int
    drop_remainder: bool = False
    collate: Callable[[list[Any]], Any] | None = None
    timeout: float | None = None
    """Seconds that a sample waits at most for others. None is without end."""
    padding: Pad | None = field(default=None, repr=False)
    """The `pad` that follows. Only `absorb` sets it."""
    made_by: Node | None = field(default=None, repr=False, compare=False)
    """The earlier stage that calls a function of the user's, for messages. Only `Pipeline` sets it."""

    method: ClassVar[str] = "batch"
    positional: ClassVar[tuple[str, ...]] = ("size",)
    functions: ClassVar[tuple[str, ...]] = ("collate",)
    makes_items: ClassVar[bool] = True
    regroups: ClassVar[tuple[str, ...]] = ("size",)

    def __post_init__(self) -> None:
        check_count("batch", "size", self.size, 1)
        check_collate("batch", self.collate)
        _check_timeout(self.timeout, self.drop_remainder)

    def after(self, source: Source, stages: Sequence[Node]) -> Node:
        """Return this stage with the stage that makes its samples. Raise if the samples are unread files."""
        return replace(self, made_by=maker(self, source, stages))

    def steps(self) -> Sequence[Step]:
        """Return two steps: one groups samples, one stacks each group."""
        group: Step = Group(self.size, self.drop_remainder)
        if self.timeout is not None:
            group = Timed(Group(self.size), self.timeout)
        return [group, collating(self.collate, self.padding, self.made_by)]

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return the axis of the batch, and those of the samples."""
        if self.collate is not None:
            return Unknown()  # a function of the user's makes it
        whole = self.drop_remainder or (endless and self.timeout is None)
        if self.padding is not None:
            return Batched(whole, self.padding.axes(upstream, endless=endless))
        # A batch of several samples has compared their axes. A batch of one sample has not.
        alike = self.size > 1 and not isinstance(upstream, Batched)
        return Batched(whole, Fixed() if alike else upstream)

    def length(self, upstream: int) -> int | None:
        """Return the number of batches; None if it depends on when the samples come."""
        if self.timeout is not None:
            return None
        return upstream // self.size if self.drop_remainder else -(-upstream // self.size)

    def gathers(self) -> int:
        """Return how many samples make a batch."""
        return self.size

    def absorb(self, following: Node) -> Batch | None:
        """Return a batch that pads while it stacks, if a `pad` follows."""
        if isinstance(following, Pad) and self.collate is not None:
            raise refuse_pad(self.method)
        if isinstance(following, Pad) and self.padding is None:
            return replace(self, padding=following)
        return None


def _check_timeout(timeout: object, drop_remainder: bool) -> None:
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
        raise PipelineError(f"batch: timeout must be a number of seconds greater than 0, not {timeout!r}")
    if drop_remainder:
        raise PipelineError("batch: timeout sends smaller batches, and drop_remainder drops them: leave out one")


class Unfinished(list[Any]):
    """A list of items for which functions are called, and of which no batch is made."""


class Group(Algorithm):
    """Cuts a stream into lists of `size` items; the position of a list is that of each of its items."""

    looks = False
    starts_anywhere = True

    def __init__(
        self,
        size: int,
        drop_remainder: bool = False,
        make: Callable[[list[Any]], Any] | None = None,
        *,
        sends_unfinished: bool = False,
    ) -> None:
        self._sends_unfinished = sends_unfinished
        """Whether items of which no batch is made go on, too: functions behind it must see all items."""
        self._make = make
        """Makes of the items of a list what comes out instead of the list. None if the list itself does."""
        self._size = size
        self._drop = drop_remainder
        self._items: list[Any] = []
        self._positions: Positions = ()

    @property
    def held(self) -> int:
        """Number of items that wait until their list is full."""
        return len(self._items)

    def push(self, items: list[Any], positions: Positions) -> tuple[list[Any], Positions]:
        """Return the lists that are full."""
        size = self._size
        if len(self._items) + len(items) < size:
            self._items += items
            self._positions = join(self._positions, positions)
            return [], ()
        if self._items:
            items, positions = self._items + items, join(self._positions, positions)
        whole = len(items) - len(items) % size
        starts = range(0, whole, size)
        self._items, self._positions = items[whole:], positions[whole:]
        lists = [items[at : at + size] for at in starts]
        return lists if self._make is None else list(map(self._make, lists)), [
            members(positions[at : at + size]) for at in starts
        ]

    def flush(self) -> tuple[list[Any], Positions]:
        """Return the list that is not full, unless it must be dropped."""
        items, positions = self._items, self._positions
        self._items, self._positions = [], ()
        if not items or (self._drop and not self._sends_unfinished):
            return [], ()
        if self._drop:
            return [self._unfinished(items)], [members(positions)]
        return [items if self._make is None else self._make(items)], [members(positions)]

    def cut_off(self) -> tuple[list[Any], Positions]:
        """Return the list that is not full: one of its items may fail in a function behind it."""
        if not self._items or not self._sends_unfinished:
            return [], ()
        return [self._unfinished(self._items)], [members(self._positions)]

    def _unfinished(self, items: list[Any]) -> Unfinished:
        return Unfinished(items if self._make is None else self._make(items))

    def state(self) -> Held:
        """Return the items of the list that is not full."""
        return Held(list(self._items), self._positions, {})

    def restore(self, held: Held) -> None:
        """Continue from a state."""
        self._items, self._positions = list(held.items), held.positions

    def inputs(self, position: Position) -> Positions:
        """Return the positions of the items of a list."""
        return parts(position)

    def remake(self, items: list[Any], position: Position, label: Any) -> Any:
        """Return the list of these items."""
        return items if self._make is None else self._make(items)
