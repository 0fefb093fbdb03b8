"""Numbering: which ordinals items have that are reached by number, and how these ordinals are called.

The random numbers of an item and its name in errors follow from its ordinal. So the items of a part of a pipeline
keep the ordinals that they have in the whole. Otherwise the first items of all parts would get the same random
numbers, and with another number of parts each item would get others.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncfeed.stages.steps import Indexed


class Numbering:
    """The ordinals of items: the place of each. In part `number` of `count` it is that place among all parts."""

    def __init__(self, indexed: Indexed, number: int = 0, count: int = 1) -> None:
        self.number = number
        self.count = count
        self.places = len(indexed)
        """Number of items."""
        self.size = self.places * count
        """Number of ordinals in an epoch."""
        self._indexed = indexed

    def ordinals(self, places: Sequence[int]) -> Sequence[int]:
        """Return the ordinals of the items at these places."""
        return strided(places, self.number, self.count)

    def name(self, epoch: int, ordinal: int) -> str:
        """Return the name of the item with this ordinal."""
        return self._indexed.key(epoch, ordinal // self.count)

    def of_part(self, indexed: Indexed, number: int, count: int) -> Numbering:
        """Return the ordinals of `indexed`, which is one of `count` parts of these items."""
        return NumberingOfPart(self, indexed, number, count)

    def rearranged(self, indexed: Indexed) -> Numbering:
        """Return the ordinals of `indexed`, which is made of these items in another order."""
        return Numbering(indexed, self.number, self.count)


class NumberingOfPart(Numbering):
    """The ordinals of a part: those of the whole. After the last place of the whole comes its first one again."""

    def __init__(self, whole: Numbering, part: Indexed, number: int, count: int) -> None:
        super().__init__(part, whole.number + whole.count * number, whole.count * count)
        self.size = whole.size
        self._whole = whole
        self._part = number, count

    def ordinals(self, places: Sequence[int]) -> Sequence[int]:
        """Return the ordinals of the items at these places of the part."""
        return self._whole.ordinals(strided(places, *self._part, self._whole.places))

    def name(self, epoch: int, ordinal: int) -> str:
        """Return the name of the item with this ordinal in the whole."""
        return self._whole.name(epoch, ordinal)


def strided(places: Sequence[int], first: int, step: int, size: int | None = None) -> Sequence[int]:
    """Return `first + step * place` for each place, modulo `size` if that is given. A `range` gives a `range`.

    >>> strided(range(2, 5), 1, 4), strided(range(2, 5), 1, 4, 12), strided([3, 0], 1, 4, 12)
    (range(9, 21, 4), [9, 1, 5], [1, 1])
    """
    if step == 1:
        return places
    wide: Sequence[int]
    if isinstance(places, range):
        wide = range(first + step * places.start, first + step * places.stop, step * places.step)
        if size is None or not wide or max(wide[0], wide[-1]) < size:
            return wide
    else:
        wide = [first + step * place for place in places]
    return wide if size is None else [place % size for place in wide]
