"""Numbering: which ordinals items have that are reached by number, and how these ordinals are called.

The random numbers of an item and its name in errors follow from its ordinal. So the items of a part of a pipeline
keep the ordinals that they have in the whole. Otherwise the first items of all parts would get the same random
numbers, and with another number of parts each item would get others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from asyncfeed.errors import StateError
from asyncfeed.stages.steps import Indexed


@dataclass(frozen=True, slots=True)
class Part:
    """Every `count`-th block of the places of a whole, from block `number` on.

    After the last block of the whole comes its first one. A block at the end counts if it has `least` items.
    """

    number: int
    count: int
    size: int
    """Number of items of the whole."""
    block: int = 1
    least: int = 1

    @property
    def blocks(self) -> int:
        """Number of blocks of the whole."""
        return self.size // self.block + (self.size % self.block >= self.least)

    def length(self, blocks: int) -> int:
        """Return the number of items of the first blocks of the part. Only the last one of these may be short."""
        if not blocks:
            return 0
        last = ((blocks - 1) * self.count + self.number) % self.blocks
        return (blocks - 1) * self.block + min(self.block, self.size - last * self.block)

    def places(self, places: Sequence[int]) -> Sequence[int]:
        """Return the places in the whole. A `range` gives a `range` if no place is beyond the last one.

        >>> Part(1, 4, 12).places(range(1, 3)), Part(1, 4, 12).places([2, 3])
        (range(5, 13, 4), [9, 1])
        >>> Part(1, 2, 10, block=3).places(range(6))
        [3, 4, 5, 9, 10, 11]
        """
        number, count, block = self.number, self.count, self.block
        if block > 1:
            blocks = self.blocks
            return [(place // block * count + number) % blocks * block + place % block for place in places]
        wide = strided(places, number, count)
        if isinstance(wide, range) and (not wide or max(wide[0], wide[-1]) < self.size):
            return wide
        return [place % self.size for place in wide]

    def place(self, whole: int) -> int:
        """Return the first place in the part of the item at this place of the whole.

        >>> Part(1, 4, 12).place(9), Part(1, 4, 6).place(3), Part(1, 2, 10, block=3).place(11)
        (2, 2, 5)
        """
        block = whole // self.block
        for _ in range(self.count + 1):
            if block >= self.number and not (block - self.number) % self.count:
                return (block - self.number) // self.count * self.block + whole % self.block
            block += self.blocks  # it completes the last round
        raise StateError("the state is damaged: it has an item of another part")


class Strided:
    """The items of a part by number."""

    def __init__(self, upstream: Indexed, part: Part, blocks: int) -> None:
        self.on_thread = upstream.on_thread
        self.part = part
        self.whole = upstream
        self._length = part.length(blocks)

    def __len__(self) -> int:
        return self._length

    def pick(self, epoch: int, places: Sequence[int]) -> list[Any]:
        """Return the items at these places of the part."""
        wide = self.part.places(places)
        # A single place as a range without steps: a shuffle looks it up in a block of places that it keeps.
        return self.whole.pick(epoch, range(wide[0], wide[0] + 1) if len(wide) == 1 else wide)

    def key(self, epoch: int, place: int) -> str:
        """Return the name of the item at this place of the part."""
        return self.whole.key(epoch, self.part.places([place])[0])


class Numbering:
    """The ordinals of items: the place of each. In part `number` of `count` it is that place among all parts."""

    def __init__(self, indexed: Indexed, number: int = 0, count: int = 1) -> None:
        self.number = number
        self.count = count
        self.size = len(indexed) * count
        """Number of ordinals in an epoch."""
        self._indexed = indexed

    def length(self, epoch: int) -> int:
        """Return the number of items of an epoch."""
        return len(self._indexed)

    def ordinals(self, places: Sequence[int], epoch: int = 0) -> Sequence[int]:
        """Return the ordinals of the items at these places."""
        return strided(places, self.number, self.count)

    def place(self, ordinal: int, epoch: int = 0) -> int:
        """Return the place of the item with this ordinal."""
        return ordinal // self.count

    def part_of(self, ordinal: int) -> int:
        """Return the number of the part that has the item with this ordinal."""
        return ordinal % self.count

    def name(self, epoch: int, ordinal: int) -> str:
        """Return the name of the item with this ordinal."""
        return self._indexed.key(epoch, ordinal // self.count)

    def of_part(self, indexed: Strided) -> Numbering:
        """Return the ordinals of `indexed`, which is a part of these items."""
        return NumberingOfPart(self, indexed)

    def rearranged(self, indexed: Indexed) -> Numbering:
        """Return the ordinals of `indexed`, which is made of these items in another order."""
        return Numbering(indexed, self.number, self.count)


class NumberingOfPart(Numbering):
    """The ordinals of a part: those of the whole. After the last place of the whole comes its first one again."""

    def __init__(self, whole: Numbering, indexed: Strided) -> None:
        part = indexed.part
        super().__init__(indexed, whole.number + whole.count * part.number, whole.count * part.count)
        self.size = whole.size
        self._whole = whole
        self._part = part

    def ordinals(self, places: Sequence[int], epoch: int = 0) -> Sequence[int]:
        """Return the ordinals of the items at these places of the part."""
        return self._whole.ordinals(self._part.places(places))

    def place(self, ordinal: int, epoch: int = 0) -> int:
        """Return the place in the part of the item with this ordinal."""
        return self._part.place(self._whole.place(ordinal))

    def part_of(self, ordinal: int) -> int:
        """Return the number of the part that has the item with this ordinal."""
        return self._whole.place(ordinal) // self._part.block % self._part.count

    def name(self, epoch: int, ordinal: int) -> str:
        """Return the name of the item with this ordinal in the whole."""
        return self._whole.name(epoch, ordinal)


def strided(places: Sequence[int], first: int, step: int) -> Sequence[int]:
    """Return `first + step * place` for each place. A `range` gives a `range`.

    >>> strided(range(2, 5), 1, 4), strided([3, 0], 1, 4)
    (range(9, 21, 4), [13, 1])
    """
    if step == 1 and not first:
        return places
    if isinstance(places, range):
        return range(first + step * places.start, first + step * places.stop, step * places.step)
    return [first + step * place for place in places]
