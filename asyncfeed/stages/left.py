"""What the parts of a whole have left: the algebra behind `merge_states`, without a run.

Several processes, each with one part, have received some of the items of an epoch. `Left` has the items that they
have left, in the order of the whole, so that these can be dealt out again to any number of parts. Invariants:

* Each item that nobody has received is in it once, and no other item is.
* The order follows from which items are left, and from nothing else.
* Any item is found in both directions without a walk over the others: by its number in `Left`, and by its part and
  its place there. The memory grows with the number of parts, and of the single items that are left.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from asyncfeed.errors import StateError

Pair = tuple[int, int]
"""The number of a part, and a place in it."""


class Segment(NamedTuple):
    """Rounds in which the same parts have a whole block left."""

    first: int
    """The first round."""
    stop: int
    """The round after the last one."""
    parts: list[int]
    before: int
    """Number of items in the segments before this one."""


class Left:
    """What is left of parts that were dealt out in rounds, a block of items to each part.

    Args:
        lengths: The number of items of each part.
        starts: The place from which on a part has received nothing.
        held: More items that were not received: pairs of a part and a place.
        block: The number of items of a block.
    """

    def __init__(
        self, lengths: Sequence[int], starts: Sequence[int], held: Iterable[Pair], block: int = 1
    ) -> None:
        self._block = block
        single = {(part, place) for part, place in held if 0 <= place < min(starts[part], lengths[part])}
        firsts, stops = [], []
        for part, (length, start) in enumerate(zip(lengths, starts, strict=True)):
            first, stop = -(-start // block), length // block  # what is no whole block is left item by item
            single.update((part, place) for place in range(start, min(first * block, length)))
            single.update((part, place) for place in range(max(start, stop * block), length))
            firsts.append(min(first, stop))
            stops.append(stop)
        self._segments: list[Segment] = []
        self._in_blocks = 0
        """Number of items in whole blocks."""
        for low, high in pairwise(sorted({*firsts, *stops})):
            parts = [part for part, first in enumerate(firsts) if first <= low and stops[part] >= high]
            if parts:
                self._segments.append(Segment(low, high, parts, self._in_blocks))
                self._in_blocks += (high - low) * len(parts) * block
        self._befores = [each.before for each in self._segments]
        self._rounds = [each.first for each in self._segments]
        self._single = sorted(single, key=lambda pair: (pair[1] // block, *pair))
        self._blocks_before = [self._before(part, place // block) for part, place in self._single]
        """How many items in whole blocks come before each single item."""
        self._numbers = [count + number for number, count in enumerate(self._blocks_before)]
        self._number_of = dict(zip(self._single, self._numbers, strict=True))

    def __len__(self) -> int:
        return self._in_blocks + len(self._single)

    def pair(self, number: int) -> Pair:
        """Return the part and the place of an item.

        >>> left = Left([3, 3], [2, 0], [(0, 1)])
        >>> [left.pair(number) for number in range(len(left))]
        [(1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
        """
        before = bisect_right(self._numbers, number)
        if before and self._numbers[before - 1] == number:
            return self._single[before - 1]
        number -= before
        segment = self._segments[bisect_right(self._befores, number) - 1]
        turn, offset = divmod(number - segment.before, self._block)
        row, which = divmod(turn, len(segment.parts))
        return segment.parts[which], (segment.first + row) * self._block + offset

    def number(self, part: int, place: int) -> int:
        """Return the number of the item at this place of a part: `pair` returns both.

        >>> Left([3, 3], [2, 0], [(0, 1)]).number(1, 2)
        4
        """
        single = self._number_of.get((part, place))
        if single is not None:
            return single
        row, offset = divmod(place, self._block)
        if not any(part in each.parts for each in self._segments if each.first <= row < each.stop):
            raise StateError(f"the state is damaged: place {place} of part {part} is not left")
        number = self._before(part, row) + offset
        return number + bisect_right(self._blocks_before, number)

    def _before(self, part: int, row: int) -> int:
        """Return how many items in whole blocks come before a round's block of this part."""
        at = bisect_right(self._rounds, row) - 1
        if at < 0:
            return 0
        segment = self._segments[at]
        blocks = (min(row, segment.stop) - segment.first) * len(segment.parts)
        blocks += bisect_left(segment.parts, part) if row < segment.stop else 0
        return segment.before + blocks * self._block
