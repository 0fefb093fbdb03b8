"""Rebatch: batches of another size, without taking them apart into samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple

import numpy as np

from asyncfeed.axes import Axes, Batched, Unknown
from asyncfeed.position import Position, Positions, canonical, children, members, parts
from asyncfeed.stacking.collate import INLINE, Column, Where, common_dtype, ready, transpose
from asyncfeed.stacking.foreign import is_foreign, to_array
from asyncfeed.stacking.pool import Pool, shared_pool
from asyncfeed.stages.base import Node, check_count
from asyncfeed.stages.steps import Algorithm, Held, Place, Step, Work
from asyncfeed.trees import Tree, flatten, leaf_name, map_leaves, size_of, unflatten


@dataclass(frozen=True)
class Rebatch(Node):
    """Makes batches of `size` rows of batches of any size. The last batch of an epoch may be smaller."""

    size: int
    drop_remainder: bool = False

    method: ClassVar[str] = "rebatch"
    positional: ClassVar[tuple[str, ...]] = ("size",)
    makes_items: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("rebatch", "size", self.size, 1)

    def steps(self) -> Sequence[Step]:
        """Return three steps: one counts rows, one chooses the rows of each batch, one joins them."""
        joining = Join()
        return [
            Work(count_rows, "thread", placed=True, inline=_any),
            Regroup(self.size, self.drop_remainder),
            Work(joining, "thread", placed=True, inline=joining.fits, cost=joining.size_of),
        ]

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return the axis of the batch, and those of the samples."""
        sample = upstream.sample if isinstance(upstream, Batched) else Unknown()
        return Batched(self.drop_remainder or endless, sample)

    def gathers(self) -> int:
        """Return how many rows make a batch."""
        return self.size


class Rows(NamedTuple):
    """The rows from `start` to `stop` of a batch. A list of them becomes one batch."""

    batch: Tree
    start: int
    stop: int


class Regroup(Algorithm):
    """Cuts pairs (number of rows, batch) into lists of `Rows` that have `size` rows together."""

    looks = True

    def __init__(self, size: int, drop_remainder: bool = False) -> None:
        self._size = size
        self._drop = drop_remainder
        self._start()

    def _start(self) -> None:
        self._rows: list[Rows] = []
        self._positions: list[Position] = []
        """The position of each row, as `unbatch` would give it."""
        self._count = 0
        """Number of rows that wait until their batch is full."""

    @property
    def held(self) -> int:
        """Number of batches whose rows wait."""
        return len(self._rows)

    def push(self, items: list[Any], positions: Positions) -> tuple[list[Any], Positions]:
        """Return the lists that are full."""
        full: list[Any] = []
        places: list[Position] = []
        for (count, batch), position in zip(items, positions, strict=True):
            start = 0
            while start < count:
                stop = min(count, start + self._size - self._count)
                self._rows.append(Rows(batch, start, stop))
                self._positions += children(position, range(start, stop))
                self._count += stop - start
                start = stop
                if self._count == self._size:
                    full.append(self._rows)
                    places.append(members(self._positions))
                    self._start()
        return full, places

    def flush(self) -> tuple[list[Any], Positions]:
        """Return the list that is not full, unless it must be dropped."""
        rows, positions = self._rows, self._positions
        self._start()
        return ([], ()) if self._drop or not rows else ([rows], [members(positions)])

    def state(self) -> Held:
        """Return the batches whose rows wait, and which rows of each."""
        starts = accumulate((each.stop - each.start for each in self._rows), initial=0)
        batches = [parts(self._positions[start])[0] for start, _ in zip(starts, self._rows, strict=False)]
        return Held(
            [(each.stop - each.start, each.batch) for each in self._rows],
            batches,
            {"rows": [[each.start, each.stop] for each in self._rows]},
        )

    def restore(self, held: Held) -> None:
        """Continue from a state."""
        self._start()
        for (_, batch), position, (start, stop) in zip(
            held.items, held.positions, held.numbers["rows"], strict=True
        ):
            self._rows.append(Rows(batch, start, stop))
            self._positions += children(position, range(start, stop))
            self._count += stop - start

    def fact(self, item: Any) -> int:
        """Return the number of rows."""
        return int(item[0])

    def stand_in(self, fact: Any = None) -> tuple[int, None]:
        """Return a pair without a batch."""
        return fact or 0, None

    def inputs(self, position: Position) -> Positions:
        """Return the positions of the batches whose rows are in a list."""
        return [parts(first)[0] for first, _ in _runs(position)]

    def remake(self, items: list[Any], position: Position, label: Any) -> list[Rows]:
        """Return the list of these rows of these batches."""
        return [
            Rows(batch, int(parts(first)[1]), int(parts(last)[1]) + 1)  # type: ignore[arg-type]
            for (_, batch), (first, last) in zip(items, _runs(position), strict=True)
        ]


def _runs(group: Position) -> list[tuple[Position, Position]]:
    """Return the first and the last row of each batch in a list of rows."""
    runs: list[tuple[Position, Position]] = []
    for row in parts(group):
        if runs and canonical(parts(runs[-1][0])[0]) == canonical(parts(row)[0]):
            runs[-1] = runs[-1][0], row
        else:
            runs.append((row, row))
    return runs


@dataclass(frozen=True, slots=True)
class Join:
    """Makes one batch of a list of `Rows`, as the function of a `Work`."""

    pool: Pool = field(default_factory=shared_pool, compare=False)

    def __call__(self, rows: list[Rows], place: Place) -> Tree:
        """Return the batch. `place` gives the names of the batches in messages."""
        parts = [map_leaves(partial(_cut, each), each.batch) for each in rows]
        if len(parts) == 1:
            return parts[0]
        starts = [0, *accumulate(each.stop - each.start for each in rows)]

        def name(part: int) -> str:
            return place.name(starts[part])

        columns, spec = transpose(parts, name)
        joined = [self._join(column, Where(spec, at, name)) for at, column in enumerate(columns)]
        return unflatten(spec, joined)

    def _join(self, column: Column, where: Where) -> Any:
        column = ready(column, where)
        if column[0] is None:
            return None
        dtype, shape = common_dtype(column, where), column[0].shape[1:]
        for number, part in enumerate(column):
            if part.shape[1:] != shape:
                raise ValueError(
                    f"rows of different shape cannot make a batch: those of {where.sample(0)} have {shape}, those "
                    f"of {where.sample(number)} have {part.shape[1:]}; pad them to one size with .pad(to=...)"
                )
        out = self.pool.empty((sum(map(len, column)), *shape), dtype)
        np.concatenate(column, out=out)
        return out

    def size_of(self, rows: list[Rows]) -> int:
        """Return how many bytes the batch needs."""
        return sum(size_of(batch) * (stop - start) // max(1, _length(batch)) for batch, start, stop in rows)

    def fits(self, rows: list[Rows]) -> bool:
        """Return whether the loop may make this batch: it copies little."""
        return len(rows) == 1 or self.size_of(rows) <= INLINE


def count_rows(batch: Tree, place: Place) -> tuple[int, Tree]:
    """Return the number of rows of a batch, and the batch.

    Raises ValueError if a leaf is no array with a first axis, or has not as many rows as the others.
    """
    leaves, spec = flatten(batch)
    counts: dict[int, int] = {}
    for number, leaf in enumerate(leaves):
        array = to_array(leaf, place.name) if is_foreign(leaf) else leaf
        if array is None:
            continue
        path = leaf_name(spec, number)
        called = f"{place.name()} at {path}" if path else place.name()
        if not isinstance(array, np.ndarray) or not array.ndim:
            raise ValueError(f"rebatch: {called} is {leaf!r}, which has no rows; put .batch(n) before it")
        counts.setdefault(len(array), number)
    if len(counts) != 1:
        raise ValueError(
            f"rebatch: the arrays of {place.name()} have {sorted(counts)} rows; give them the same number with "
            ".map() before"
        )
    return next(iter(counts)), batch


def _cut(rows: Rows, leaf: Any) -> Any:
    if leaf is None:
        return None
    array = to_array(leaf, lambda: "a batch") if is_foreign(leaf) else leaf
    return array[rows.start : rows.stop]


def _length(batch: Tree) -> int:
    return next((len(leaf) for leaf in flatten(batch)[0] if leaf is not None), 0)


def _any(_batch: Tree) -> bool:
    """Return True: the loop itself may count the rows of any batch, because that only reads shapes."""
    return True
