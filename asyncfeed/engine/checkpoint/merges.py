"""The station of a merge: how many items of each input it has sent at the consumer's place.

The items of a merge have numbers of its own. So a merge notes which item of each input every item was made of,
until no later stage holds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asyncfeed.engine.checkpoint.record import Log
from asyncfeed.engine.checkpoint.stations import Again, Station, unique
from asyncfeed.engine.constants import CHUNK_ITEMS
from asyncfeed.engine.epochs import EpochCounter
from asyncfeed.engine.provenance import Provenance
from asyncfeed.epoch_end import EpochEnd
from asyncfeed.position import Position, Positions, first_number, from_json, to_json
from asyncfeed.stages.steps import Choice


class InputRecord:
    """What came from one input of a merge, and how much of it the consumer has received."""

    def __init__(self, station: Station, own_levels: int) -> None:
        self.station = station
        self.own_levels = own_levels
        self.events: Log[Positions | EpochEnd] = Log()
        self._ends = 0
        self._last: Position | None = None
        self._moved = False
        self.wanted: list[Position] = []
        """The items that must come again in a run that resumes."""

    def note(self, positions: Positions, boundary: EpochEnd | None) -> None:
        """Note a chunk that came. The end counts the levels of the input."""
        if positions:
            self.events.append(positions)
        if boundary is not None:
            self.events.append(boundary)

    def __len__(self) -> int:
        return len(self.events)

    def take(self, count: int) -> list[Position]:
        """Go on by this number of items, and return their positions."""
        taken: list[Position] = []
        while count:
            event = self.events.popleft()
            if isinstance(event, EpochEnd):
                self._pass_end()
                continue
            if len(event) > count:
                self.events.appendleft(event[count:])
                event = event[:count]
            taken += event
            count -= len(event)
            self._last = event[-1]
            self._moved = True
        return taken

    def pass_end(self, depth: int) -> None:
        """Go on behind the end of this depth. The merge counts the levels."""
        while True:
            event = self.events.popleft()
            if isinstance(event, EpochEnd):
                self._pass_end()
                if event.ends(self.own_levels + depth):
                    return

    def _pass_end(self) -> None:
        self._ends += 1
        self._last = None
        self._moved = True

    def follow(self) -> None:
        """Bring the station of the input to this place."""
        if self._moved:
            self._moved = False
            self.station.follow(self._ends, self._last)


Took = tuple[int, int]
"""Which input items were taken from, and how many. Input -1 stands for all."""
ENDED: Took = -1, 0
"""The input that was chosen has ended, and the merge asks for the next choice."""


class MergeRecord:
    """What a merge has sent, and its station has not seen. The loop appends, any thread takes."""

    def __init__(self, inputs: Sequence[InputRecord]) -> None:
        self.inputs = inputs
        self.events: Log[Took | EpochEnd] = Log()
        self.passes: list[int] | None = None
        """The passes after which the merge goes on. None if it begins."""
        self.state: dict[str, Any] | None = None
        """The state from which the merge goes on. None if it goes on at the start of an epoch."""
        self.labels: dict[int, list[Any]] = {}
        """What the items that later stages held were made of: an input's number, or -1, and positions."""
        self.wanted: list[Position] = []
        """The items that later stages held."""


class MergeStation:
    """A merge. Its choice is at the consumer's place."""

    refuses_rest = ""

    def __init__(
        self, record: MergeRecord, epochs: EpochCounter, provenance: Provenance, choice: Choice | None
    ) -> None:
        self.epochs = epochs
        self.provenance = provenance
        self.in_order = all(each.station.in_order for each in record.inputs)
        self._record = record
        self._choice = choice
        """A second instance of the choice. None if one item of each input is taken."""
        if choice is not None:
            choice.begin(epochs.number)
        self._ends = 0
        self._sent = 0
        """Number of items of this epoch that were sent."""
        self._labels = record.labels

    @property
    def logs(self) -> list[Log[Any]]:
        """What is recorded."""
        return [self._record.events, *(each.events for each in self._record.inputs)]

    def begin(self) -> None:
        """Do nothing: it refers to no step."""

    @property
    def waiting(self) -> int:
        """About how many chunks are recorded."""
        record = self._record
        return len(record.events) + sum(map(len, record.inputs)) + len(self._labels) // CHUNK_ITEMS

    def follow(self, ends: int, last: Position | None) -> None:
        """Let the choice go on, and bring the stations of the inputs to their places."""
        record = self._record
        while self._ends < ends:
            event = record.events.popleft()
            if isinstance(event, EpochEnd):
                self._pass_end(event)
            else:
                self._take(event)
        start = self.provenance.start(self.epochs.number)
        target = 0 if last is None else first_number(last) - start + 1
        while self._sent < target:
            event = record.events.popleft()
            assert not isinstance(event, EpochEnd)
            which, count = event
            if count > target - self._sent:
                record.events.appendleft((which, count - target + self._sent))
                count = target - self._sent
            self._take((which, count))
        for each in record.inputs:
            each.follow()

    def _take(self, took: Took) -> None:
        choice, inputs = self._choice, self._record.inputs
        which, count = took
        if took == ENDED:
            assert choice is not None
            choice.ended()
            return
        if which < 0:
            columns = [each.take(count) for each in inputs]
        else:
            assert choice is not None
            choice.took(count)
            columns = [inputs[which].take(count)]
        start = self.provenance.start(self.epochs.number) + self._sent
        for number, row in enumerate(zip(*columns, strict=True), start):
            self._labels[number] = [which, *row]
        self._sent += count

    def _pass_end(self, boundary: EpochEnd) -> None:
        self._ends += 1
        self._sent = 0
        for each in self._record.inputs:
            each.pass_end(boundary.depth)
        self.epochs.go_on(boundary.depth)
        if self._choice is not None:
            self._choice.begin(self.epochs.number)

    def state(self, wanted: list[Position]) -> tuple[dict[str, Any], list[Again]]:
        """Return the epoch, how many of its items were sent, and what the wanted items were made of."""
        self._labels = {first_number(each): self._labels[first_number(each)] for each in wanted}
        labels = [[label[0], to_json(label[1:])] for label in self._labels.values()]
        state = {"passes": self.epochs.passes, "sent": self._sent, "labels": labels}
        if self._choice is not None:
            state["choice"] = self._choice.state()
        return state, self._needs()

    def restart(self, passes: list[int]) -> tuple[dict[str, Any], list[Again]]:
        """Return the epoch."""
        inputs = self._record.inputs
        return {"passes": passes}, [Again(each.station, [], [0] * each.own_levels + passes) for each in inputs]

    def resume(self, state: dict[str, Any], wanted: list[Position]) -> list[Again]:
        """Note where the merge goes on."""
        if self._choice is not None:
            self._choice.begin(self.epochs.number)
        self._record.passes = self.epochs.passes
        if "sent" not in state:
            return [Again(each.station, []) for each in self._record.inputs]
        self._sent = state["sent"]
        if self._choice is not None:
            self._choice.restore(state["choice"])
        self._record.state, self._record.wanted = state, wanted
        labels = [[which, *from_json(row)] for which, row in state["labels"]]
        self._labels = self._record.labels = dict(zip(map(first_number, wanted), labels, strict=True))
        return self._needs()

    def _needs(self) -> list[Again]:
        inputs = self._record.inputs
        needed: list[list[Position]] = [[] for _ in inputs]
        for which, *row in self._labels.values():
            for number, position in enumerate(row):
                needed[number if which < 0 else which].append(position)
        for each, again in zip(inputs, needed, strict=True):
            each.wanted = unique(again)
        return [Again(each.station, each.wanted) for each in inputs]
