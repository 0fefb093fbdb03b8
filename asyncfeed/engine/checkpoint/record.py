"""What came to an algorithm since the consumer's place, as positions.

An algorithm is ahead of the consumer: what it has sent may be queued, or with a later stage. So each algorithm has
a `Record` of what came, and a twin, a second instance that gets the same from the record when the consumer has
received the results. What the twin holds is the state of the stage at the consumer's place.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from asyncfeed.epoch_end import EpochEnd
from asyncfeed.position import Positions
from asyncfeed.stages.steps import Algorithm


class Came(NamedTuple):
    """Items that came. `facts` has what the algorithm looks at in each, or is None."""

    positions: Positions
    facts: list[Any] | None


CUT = "cut"
"""Stands for a flush in the middle of an epoch."""

Event = Came | EpochEnd | str


class Record:
    """What came to one algorithm, and its twin has not seen. The loop appends, any thread takes."""

    __slots__ = ("_algorithm", "events")

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm
        self.events: deque[Event] = deque()

    def note_items(self, items: list[Any], positions: Positions) -> None:
        """Note items that came."""
        facts = [self._algorithm.fact(item) for item in items] if self._algorithm.looks else None
        self.events.append(Came(positions, facts))

    def note_end(self, boundary: EpochEnd) -> None:
        """Note an end, whether the algorithm flushes there or not."""
        self.events.append(boundary)

    def note_cut(self) -> None:
        """Note a flush in the middle of an epoch."""
        self.events.append(CUT)
