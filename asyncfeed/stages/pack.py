"""Pack: several short sequences become one row of a fixed length, with little padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from asyncfeed.axes import Axes, PaddedTo
from asyncfeed.errors import PipelineError
from asyncfeed.position import Position, Positions, members, parts
from asyncfeed.stacking.collate import INLINE, Column, Where, common_dtype, ready, transpose
from asyncfeed.stacking.foreign import is_foreign
from asyncfeed.stacking.pool import Pool, shared_pool
from asyncfeed.stages.base import Node, check_count
from asyncfeed.stages.pad import check_values, fill_value, values_of
from asyncfeed.stages.steps import Algorithm, Held, MemberError, Place, Step, Work
from asyncfeed.stats import PACK, SlowPaths
from asyncfeed.trees import Tree, flatten, map_leaves, size_of, unflatten

if TYPE_CHECKING:
    from numpy.typing import NDArray

TooLong = Literal["raise", "split", "cut"]
FILLED = PACK + "places with data"
EMPTY = PACK + "places with padding"


class Packed(NamedTuple):
    """A row of several sequences, or a batch of such rows. `pack` makes it."""

    values: Any
    """The sequences one after the other, then padding: one array for each leaf of a sample."""
    segment_ids: NDArray[np.int32]
    """The number of the sequence at each place, counted from 1; 0 where there is padding."""
    positions: NDArray[np.int32]
    """The place in its sequence, counted from 0; 0 where there is padding."""


@dataclass(frozen=True)
class Pack(Node):
    """Puts sequences into rows of `size` places, each into the first of the open rows that has room for it.

    `bins` rows are open at a time. If none has room, the oldest one goes out. A sample is an array, or a tree of
    arrays whose first axes are equally long, such as tokens and their labels.
    """

    size: int
    bins: int = 64
    value: Any = 0
    too_long: TooLong = "raise"

    method: ClassVar[str] = "pack"
    positional: ClassVar[tuple[str, ...]] = ("size",)
    makes_items: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("pack", "length", self.size, 1)
        check_count("pack", "bins", self.bins, 1)
        if self.too_long not in ("raise", "split", "cut"):
            raise PipelineError(f'pack: too_long must be "raise", "split" or "cut", not {self.too_long!r}')
        check_values("pack", self.value)

    def steps(self) -> Sequence[Step]:
        """Return two steps: one chooses the rows of sequences, one makes each row. Before them one may split."""
        slow_paths = SlowPaths()
        row = Row(self, slow_paths)
        rows = Work(row, "thread", placed=True, inline=row.fits, cost=row.size_of, slow_paths=slow_paths)
        steps: list[Step] = [FirstFit(self.size, self.bins, cut=self.too_long == "cut"), rows]
        if self.too_long == "split":
            steps.insert(0, Work(Split(self.size), "thread", shape="flat", inline=_any))
        return steps

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return the rule that the first axis has one size."""
        return PaddedTo((self.size,))


class FirstFit(Algorithm):
    """Collects the sequences of each row in a list, and returns the lists that are full.

    A sequence that fits into no row, or has no length, is a row of its own: whoever makes the row raises.
    """

    looks = True
    starts_anywhere = True

    def __init__(self, size: int, bins: int, *, cut: bool = False) -> None:
        self._size = size
        self._bins = bins
        self._cut = cut
        self._start()

    def _start(self) -> None:
        self._rooms: list[int] = []
        """The places that are left in each open row, the oldest row first."""
        self._items: list[list[Any]] = []
        self._positions: list[list[Position]] = []

    @property
    def held(self) -> int:
        """Number of sequences in open rows."""
        return sum(map(len, self._items))

    def push(self, items: list[Any], positions: Positions) -> tuple[list[Any], Positions]:
        """Return the rows that are full, and the oldest one whenever a sequence has room in none."""
        rows: list[Any] = []
        places: list[Position] = []
        rooms = self._rooms
        for item, position in zip(items, positions, strict=True):
            length = length_of(item)
            if length is not None and self._cut:
                length = min(length, self._size)
            if length is None or length > self._size:
                rows.append([item])
                places.append(members([position]))
                continue
            row = 0
            for room in rooms:
                if room >= length:
                    break
                row += 1
            if row == len(rooms):
                if row == self._bins:
                    self._close(0, rows, places)
                    row -= 1
                rooms.append(self._size)
                self._items.append([])
                self._positions.append([])
            rooms[row] -= length
            self._items[row].append(item)
            self._positions[row].append(position)
            if not rooms[row]:
                self._close(row, rows, places)
        return rows, places

    def _close(self, row: int, rows: list[Any], places: list[Position]) -> None:
        del self._rooms[row]
        rows.append(self._items.pop(row))
        places.append(members(self._positions.pop(row)))

    def flush(self) -> tuple[list[Any], Positions]:
        """Return the rows that are open, the oldest first."""
        rows, places = self._items, [members(each) for each in self._positions]
        self._start()
        return rows, places

    def state(self) -> Held:
        """Return the sequences of the open rows, how many each row has, and the places that are left in each."""
        items, positions = list(chain(*self._items)), list(chain(*self._positions))
        return Held(items, positions, {"held": list(map(len, self._items)), "rooms": list(self._rooms)})

    def restore(self, held: Held) -> None:
        """Continue from a state."""
        items, positions = iter(held.items), iter(held.positions)
        self._rooms = list(held.numbers["rooms"])
        self._items = [list(islice(items, count)) for count in held.numbers["held"]]
        self._positions = [list(islice(positions, count)) for count in held.numbers["held"]]

    def fact(self, item: Any) -> int | None:
        """Return the length of a sequence."""
        return length_of(item)

    def stand_in(self, fact: Any = None) -> Tree:
        """Return a sequence of this length that takes no memory."""
        return () if fact is None else np.broadcast_to(np.int8(0), (fact,))

    def inputs(self, position: Position) -> Positions:
        """Return the positions of the sequences of a row."""
        return parts(position)

    def remake(self, items: list[Any], position: Position, label: Any) -> list[Any]:
        """Return the row of these sequences."""
        return items


@dataclass(frozen=True, slots=True)
class Split:
    """Cuts a sample that is longer than a row into pieces, as the function of a `Work`."""

    size: int

    def __call__(self, sample: Tree) -> list[Tree]:
        """Return the pieces. They are views of the sample."""
        length = length_of(sample)
        if length is None or length <= self.size:
            return [sample]
        return [part_of(sample, start, start + self.size) for start in range(0, length, self.size)]


@dataclass(frozen=True, slots=True)
class Row:
    """Makes a row of a list of sequences, as the function of a `Work`."""

    pack: Pack
    counts: SlowPaths
    """Counts the places with data and with padding."""
    pool: Pool = field(default_factory=shared_pool, compare=False)

    def __call__(self, sequences: list[Tree], place: Place) -> Packed:
        """Return the row. `place` gives the names of its members in messages."""
        size = self.pack.size
        for member, sequence in enumerate(sequences):
            length = length_of(sequence)
            if length is None or (length > size and self.pack.too_long != "cut"):
                raise MemberError(member, str(self.pack), unpackable(place.name(member), length, size))
            if length > size:
                sequences[member] = part_of(sequence, 0, size)
        columns, spec = transpose(sequences, place.name)
        values = values_of("pack", self.pack.value, spec)
        arrays = [
            self._join(column, value, Where(spec, number, place.name))
            for number, (column, value) in enumerate(zip(columns, values, strict=True))
        ]
        segment_ids = np.zeros(size, np.int32)
        positions = np.zeros(size, np.int32)
        start = 0
        for number, stop in enumerate(accumulate(map(len, columns[0])), 1):
            segment_ids[start:stop] = number
            positions[start:stop] = np.arange(stop - start, dtype=np.int32)
            start = stop
        self.counts.note(FILLED, start)
        self.counts.note(EMPTY, size - start)
        return Packed(unflatten(spec, arrays), segment_ids, positions)

    def _join(self, column: Column, value: Any, where: Where) -> NDArray[Any]:
        column = ready(column, where)
        dtype = common_dtype(column, where)
        shapes = [leaf.shape[1:] for leaf in column]
        for number, shape in enumerate(shapes):
            if shape != shapes[0]:
                raise ValueError(
                    f"sequences of different shape cannot make a row: {where.sample(0)} has {column[0].shape}, "
                    f"{where.sample(number)} has {column[number].shape}; all axes but the first must be equal"
                )
        row = self.pool.empty((self.pack.size, *shapes[0]), dtype)
        filled = sum(map(len, column))
        np.concatenate(column, out=row[:filled])
        row[filled:] = value if dtype.kind == "O" else fill_value(value, dtype, where, "pack")
        return row

    def size_of(self, sequences: list[Tree]) -> int:
        """Return how many bytes the row needs."""
        place = sum(size_of(sequence) for sequence in sequences) // max(1, sum(map(_places, sequences)))
        return self.pack.size * (place + 8)  # with the segment ids and the positions

    def fits(self, sequences: list[Tree]) -> bool:
        """Return whether the loop may make this row: it copies little."""
        return self.size_of(sequences) <= INLINE


def length_of(sample: Tree) -> int | None:
    """Return the size of the first axis, which all arrays of a sample have. None if there is none."""
    if type(sample) is np.ndarray and sample.ndim:
        return len(sample)
    lengths = set(map(_length, flatten(sample)[0]))
    return lengths.pop() if len(lengths) == 1 else None


def _length(leaf: Any) -> int | None:
    if isinstance(leaf, np.ndarray) or is_foreign(leaf):
        shape: Any = getattr(leaf, "shape", ())
        return int(shape[0]) if len(shape) else None
    return None


def _places(sample: Tree) -> int:
    return length_of(sample) or 0


def part_of(sample: Tree, start: int, stop: int) -> Tree:
    """Return the places from `start` to `stop` of a sample."""
    return map_leaves(lambda leaf: leaf[start:stop], sample)


def unpackable(name: str, length: int | None, size: int) -> ValueError:
    """Return the error for a sequence that can be in no row."""
    if length is None:
        return ValueError(
            f"pack: {name} has no length: a sample must be an array with a first axis, or a tree of arrays whose "
            "first axes are equally long (a list is a tree: make it one with .map(np.asarray)); leave out the "
            "rest with .map() before"
        )
    return ValueError(
        f"pack: {name} has {length} places, more than a row of {size}: choose a larger length, or "
        'too_long="split" (several pieces) or too_long="cut" (the first one)'
    )


def _any(_sample: Tree) -> bool:
    """Return True: the loop itself may split any sample, because the pieces are views."""
    return True
