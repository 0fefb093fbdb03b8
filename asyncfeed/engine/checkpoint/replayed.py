"""The station of a function that carries something from item to item: `scan`.

What it carries is an object of the user's, and not in the state. A run that resumes begins at the start of an
epoch of this stage: everything before the function runs as at the first time, and so does the function. A gate
behind it drops the results that were received. The epoch is the present one, or an earlier one if later stages
hold results of it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from asyncfeed.engine.checkpoint.gates import ReplayGate
from asyncfeed.engine.checkpoint.record import Log
from asyncfeed.engine.checkpoint.stations import Again, Root, Station
from asyncfeed.epoch_end import EpochEnd
from asyncfeed.position import Position, equal


@dataclass
class Epoch:
    """What was received of an epoch of the stage."""

    passes: list[int]
    """The passes that had ended at its start."""
    number: int
    """The number of its first epoch of the source."""
    received: int = 0
    """Number of results."""
    ends: int = 0
    """Number of ends in it."""


class ReplayedStation:
    """A function that is called from the start of an epoch. `level` is the number of `repeat`s before it.

    For the links behind it, it is the root of the chain: the source may begin in an earlier epoch.
    """

    in_order = True
    refuses_rest = "scan carries something from item to item"

    def __init__(self, before: Station, root: Root, gate: ReplayGate, level: int) -> None:
        self._before = before
        self.provenance = root.provenance
        self._gate: ReplayGate = gate
        self._level = level
        self.epochs = root.epochs.copy()
        self._kept = deque([Epoch(self.epochs.passes, self.epochs.number)])
        """The epochs of which later stages may hold results, and the present one."""
        self._ends = 0
        self._earlier_ends = 0
        """Number of ends before the place where the run resumed, since the stages before the function began."""

    @property
    def logs(self) -> list[Log[Any]]:
        """What is recorded."""
        return [self._gate.events]

    def begin(self) -> None:
        """Do nothing: it refers to no step."""

    @property
    def waiting(self) -> int:
        """Number of events that are recorded."""
        return len(self._gate.events)

    def follow(self, ends: int, last: Position | None) -> None:
        """Count what was sent."""
        events, place = self._gate.events, last
        while self._ends < ends or place is not None:
            event = events.popleft()
            if isinstance(event, EpochEnd):
                self._pass_end(event)
                continue
            count = len(event)
            if self._ends == ends and place is not None:
                index = next((index for index, each in enumerate(event) if equal(each, place)), None)
                if index is not None:
                    count, place = index + 1, None
                    if count < len(event):
                        events.appendleft(event[count:])
            self._kept[-1].received += count
        self._before.follow(self._earlier_ends + ends, last)

    def _pass_end(self, boundary: EpochEnd) -> None:
        self._ends += 1
        self._kept[-1].ends += 1
        self.epochs.go_on(boundary.depth)
        if boundary.ends(self._level):
            self._kept.append(Epoch(self.epochs.passes, self.epochs.number))

    def state(self, wanted: list[Position]) -> tuple[dict[str, Any], list[Again]]:
        """Return what was received since the start of each epoch."""
        kept = self._kept
        earliest = min(map(self.provenance.epoch, wanted), default=kept[-1].number)
        while len(kept) > 1 and kept[1].number <= earliest:
            kept.popleft()
        epochs = [[each.passes, each.number, each.received, each.ends] for each in kept]
        return {"passes": self.epochs.passes, "epochs": epochs}, [Again(self._before, [], kept[0].passes)]

    def restart(self, passes: list[int]) -> tuple[dict[str, Any], list[Again]]:
        """Return the epoch."""
        return {"passes": passes}, [Again(self._before, [], passes)]

    def resume(self, state: dict[str, Any], wanted: list[Position]) -> list[Again]:
        """Let the gate drop what was received."""
        epochs = state.get("epochs", [[self.epochs.passes, self.epochs.number]])
        self._kept = deque(Epoch(*each) for each in epochs)
        if "epochs" in state:
            self._earlier_ends = sum(each.ends for each in self._kept)
            received = sum(each.received for each in self._kept)
            self._gate.resume(received, self._earlier_ends, wanted)
        return [Again(self._before, [])]
