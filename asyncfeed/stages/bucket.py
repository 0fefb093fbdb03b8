"""Bucket: batches of samples of about the same length."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from inspect import iscoroutinefunction
from itertools import chain, islice
from operator import index
from typing import Any, ClassVar

import numpy as np

from asyncfeed.axes import Axes, Batched, Unknown
from asyncfeed.errors import PipelineError
from asyncfeed.functions.checks import refuse_awaitable
from asyncfeed.position import Position, Positions, members, parts
from asyncfeed.stacking.foreign import is_foreign
from asyncfeed.stages.base import Node, Source, check_count
from asyncfeed.stages.collating import check_collate, collating, maker, refuse_pad
from asyncfeed.stages.pad import Pad
from asyncfeed.stages.steps import Algorithm, Held, Step, Work
from asyncfeed.trees import Tree, flatten


@dataclass(frozen=True)
class Bucket(Node):
    """Batches samples with others of about their length, as TensorFlow's `bucket_by_sequence_length` does.

    Bucket 0 takes lengths below `boundaries[0]`, the next bucket those below `boundaries[1]`, and the last bucket
    all others. A bucket makes a batch when it holds `size` samples, or its own entry of `size`. At the end of an
    epoch the remaining samples make smaller batches, the shortest samples first. The length is axis 0 of the first
    array in a sample, or the result of `length_of(sample)`, which may be async.
    """

    boundaries: tuple[int, ...]
    size: int | tuple[int, ...]
    length_of: Callable[[Any], Any] | None = None
    drop_remainder: bool = False
    collate: Callable[[list[Any]], Any] | None = None
    padding: Pad | None = field(default=None, repr=False)
    """The `pad` that follows. Only `absorb` sets it."""
    made_by: Node | None = field(default=None, repr=False, compare=False)
    """The earlier stage that calls a function of the user's, for messages. Only `Pipeline` sets it."""

    method: ClassVar[str] = "bucket"
    makes_items: ClassVar[bool] = True
    pads: ClassVar[bool] = True

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "boundaries", tuple(self.boundaries))
        except TypeError:
            raise PipelineError(
                f"bucket: boundaries must be a list of lengths, [50, 100] say, not {self.boundaries!r}"
            ) from None
        for boundary in self.boundaries:
            check_count("bucket", "each boundary", boundary, 1)
        if not self.boundaries or any(a >= b for a, b in zip(self.boundaries, self.boundaries[1:], strict=False)):
            raise PipelineError(
                f"bucket: boundaries must be increasing lengths, at least one, not {list(self.boundaries)}"
            )
        if isinstance(self.size, Sequence):
            object.__setattr__(self, "size", tuple(self.size))
        for size in self.sizes:
            check_count("bucket", "size", size, 1)
        if len(self.sizes) != len(self.boundaries) + 1:
            raise PipelineError(
                f"bucket: {len(self.boundaries)} boundaries make {len(self.boundaries) + 1} buckets, "
                f"but size has {len(self.sizes)} entries; give one for each bucket, or one number for all"
            )
        if self.length_of is not None and not callable(self.length_of):
            raise PipelineError(f"bucket: length_of must be a function of a sample, not {self.length_of!r}")
        check_collate("bucket", self.collate)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The batch size of each bucket."""
        return self.size if isinstance(self.size, tuple) else (self.size,) * (len(self.boundaries) + 1)

    def after(self, source: Source, stages: Sequence[Node]) -> Node:
        """Return this stage with the stage that makes its samples. Raise if the samples are unread files."""
        return replace(self, made_by=maker(self, source, stages))

    def steps(self) -> Sequence[Step]:
        """Return three steps: one measures samples, one groups them, one stacks each group."""
        if self.length_of is None:
            measure = Work(Measure(first_axis), "thread", inline=always)
        elif is_async(self.length_of):
            measure = Work(MeasureAsync(self.length_of), "async")
        else:
            measure = Work(Measure(self.length_of), "thread")
        group = GroupByLength(self.boundaries, self.sizes, self.drop_remainder)
        return [measure, group, collating(self.collate, self.padding, self.made_by)]

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return the axis of the batch, and those that are padded to a given size."""
        if self.collate is not None:
            return Unknown()  # a function of the user's makes it
        whole = self.drop_remainder and len(set(self.sizes)) == 1
        sample = Unknown() if self.padding is None else self.padding.axes(upstream, endless=endless)
        return Batched(whole, sample)

    def gathers(self) -> int:
        """Return how many samples make a batch, at least."""
        return self.size if isinstance(self.size, int) else min(self.size)

    def absorb(self, following: Node) -> Bucket | None:
        """Return a bucket that pads while it stacks, if a `pad` follows."""
        if isinstance(following, Pad) and self.collate is not None:
            raise refuse_pad(self.method)
        if isinstance(following, Pad) and self.padding is None:
            return replace(self, padding=following)
        return None


class GroupByLength(Algorithm):
    """Collects pairs (length, item) in a list for each bucket, and returns each list when it is full."""

    looks = True
    starts_anywhere = True

    def __init__(self, boundaries: Sequence[int], sizes: Sequence[int], drop_remainder: bool = False) -> None:
        self._boundaries = boundaries
        self._sizes = sizes
        self._drop = drop_remainder
        self._items: list[list[Any]] = [[] for _ in sizes]
        self._positions: list[list[Position]] = [[] for _ in sizes]

    def push(self, items: list[Any], positions: Positions) -> tuple[list[Any], Positions]:
        """Return the lists that are full, in the order in which they became full."""
        full: list[Any] = []
        groups: list[Position] = []
        for (length, item), position in zip(items, positions, strict=True):
            bucket = bisect_right(self._boundaries, length)
            held = self._items[bucket]
            held.append(item)
            self._positions[bucket].append(position)
            if len(held) == self._sizes[bucket]:
                full.append(held)
                groups.append(members(self._positions[bucket]))
                self._items[bucket], self._positions[bucket] = [], []
        return full, groups

    def flush(self) -> tuple[list[Any], Positions]:
        """Return the lists that are not full, the shortest samples first, unless they must be dropped."""
        left = list(filter(None, self._items))
        groups = list(map(members, filter(None, self._positions)))
        self._items, self._positions = [[] for _ in self._sizes], [[] for _ in self._sizes]
        return ([], ()) if self._drop else (left, groups)

    def state(self) -> Held:
        """Return the items of all buckets, and how many each bucket has. The lengths are not needed any more."""
        items, positions = [(0, each) for each in chain(*self._items)], list(chain(*self._positions))
        return Held(items, positions, {"held": list(map(len, self._items))})

    def restore(self, held: Held) -> None:
        """Continue from a state."""
        items = iter([item for _, item in held.items])
        positions = iter(held.positions)
        self._items = [list(islice(items, count)) for count in held.numbers["held"]]
        self._positions = [list(islice(positions, count)) for count in held.numbers["held"]]

    def fact(self, item: Any) -> int:
        """Return the length."""
        return int(item[0])

    def stand_in(self, fact: Any = None) -> tuple[int, None]:
        """Return a pair without an item."""
        return fact or 0, None

    def inputs(self, position: Position) -> Positions:
        """Return the positions of the items of a list."""
        return parts(position)

    def remake(self, items: list[Any], position: Position, label: Any) -> list[Any]:
        """Return the list of these items."""
        return [item for _, item in items]


@dataclass(frozen=True, slots=True)
class Measure:
    """Makes an item a pair with its length."""

    length_of: Callable[[Any], Any]

    def __call__(self, item: Tree) -> tuple[int, Tree]:
        """Return (length, item)."""
        return whole(self.length_of(item)), item


@dataclass(frozen=True, slots=True)
class MeasureAsync:
    """Makes an item a pair with its length, which is awaited."""

    length_of: Callable[[Any], Any]

    async def __call__(self, item: Tree) -> tuple[int, Tree]:
        """Return (length, item)."""
        return whole(await self.length_of(item)), item


def first_axis(sample: Tree) -> int:
    """Return the length of axis 0 of the first array in a sample."""
    for leaf in flatten(sample)[0]:
        if isinstance(leaf, np.ndarray) and leaf.ndim:
            return len(leaf)
        if is_foreign(leaf) and len(getattr(leaf, "shape", ())):  # a tensor of another library
            return int(leaf.shape[0])
    raise ValueError("bucket: there is no array in this sample to measure; say how: .bucket(..., length_of=len)")


def whole(length: object) -> int:
    """Return a length as a Python int. NumPy's whole numbers are accepted, floats are not."""
    try:
        return index(length)  # type: ignore[arg-type]
    except TypeError:
        refuse_awaitable("bucket: length_of", length)
        raise ValueError(f"bucket: length_of must return a whole number, not {length!r}") from None


def always(_item: Tree) -> bool:
    """Return True: the loop itself may measure any item, because that only reads a shape."""
    return True


def is_async(fn: Callable[..., Any]) -> bool:
    """Return whether calling `fn` makes a coroutine."""
    return iscoroutinefunction(fn) or iscoroutinefunction(type(fn).__call__)
