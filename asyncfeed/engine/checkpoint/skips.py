"""The station of a function that leaves out items that fail: how many, so that limits count over all runs."""

from __future__ import annotations

from typing import Any

from asyncfeed.engine.checkpoint.record import Log
from asyncfeed.engine.checkpoint.stations import Again, Station
from asyncfeed.engine.operators.skip_budget import SkipBudget
from asyncfeed.engine.order.piece import Piece
from asyncfeed.epoch_end import RESTORED, EpochEnd
from asyncfeed.position import Position, Positions, equal

Results = tuple[Positions, list[int]]
"""The positions of results, and for each item that was left out the number of these results before it."""


class SkipRecord:
    """What a function sent, and what it left out. The loop appends, any thread takes."""

    def __init__(self) -> None:
        self.events: Log[Results | EpochEnd] = Log()
        self.sends_again = False
        """Whether what is sent was counted before the checkpoint."""

    def note(self, piece: Piece) -> None:
        """Note what is sent."""
        if self.sends_again:
            self.sends_again = piece.boundary is not RESTORED
            return
        if piece.positions or piece.failures:
            self.events.append((piece.positions, [before for before, _ in piece.failures]))
        if piece.boundary is not None:
            self.events.append(piece.boundary)


class SkipStation:
    """A function that leaves items out. Its budget gets what was counted before the checkpoint."""

    refuses_rest = ""

    def __init__(self, before: Station, record: SkipRecord, budget: SkipBudget) -> None:
        self._before = before
        self.in_order = before.in_order
        self._record = record
        self._budget: SkipBudget | None = budget
        self._cut = budget.cut
        self._good = 0
        """Number of results that were received."""
        self._left_out = 0
        """Number of items that were left out before the last of them."""
        self._ends = 0

    @property
    def logs(self) -> list[Log[Any]]:
        """What is recorded."""
        return [self._record.events]

    def begin(self) -> None:
        """Let go of the run."""
        self._budget = None

    @property
    def waiting(self) -> int:
        """Number of events that are recorded."""
        return len(self._record.events)

    def follow(self, ends: int, last: Position | None) -> None:
        """Count what was sent."""
        events, place = self._record.events, last
        while self._ends < ends or place is not None:
            event = events.popleft()
            if isinstance(event, EpochEnd):
                self._ends += 1
                if self._cut is not None and event.ends(self._cut):
                    self._good = self._left_out = 0
                continue
            positions, failed = event
            count, missing = len(positions), len(failed)
            if self._ends == ends and place is not None:
                index = next((index for index, each in enumerate(positions) if equal(each, place)), None)
                if index is not None:
                    place, count = None, index + 1
                    missing = sum(before < count for before in failed)
                    rest = positions[count:], [before - count for before in failed[missing:]]
                    if any(rest):
                        events.appendleft(rest)
            self._good += count
            self._left_out += missing
        self._before.follow(ends, last)

    def state(self, wanted: list[Position]) -> tuple[dict[str, Any], list[Again]]:
        """Return what was counted."""
        return {"good": self._good, "left out": self._left_out}, [Again(self._before, wanted)]

    def restart(self, passes: list[int]) -> tuple[dict[str, Any], list[Again]]:
        """Return no state."""
        return {}, [Again(self._before, [], passes)]

    def resume(self, state: dict[str, Any], wanted: list[Position]) -> list[Again]:
        """Count on from the state."""
        if state:
            assert self._budget is not None
            self._good, self._left_out = state["good"], state["left out"]
            self._budget.go_on(self._good, self._left_out)
            self._record.sends_again = True
        return [Again(self._before, wanted)]
