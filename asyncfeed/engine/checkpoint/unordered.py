"""The station of a function whose results are sent as they come.

What the consumer has received is then no beginning of the stream. Its state has the items that had come to the
function, and whose results were not received: they are fewer than may be under way. However long one item takes,
and however many overtake it, it is one.
"""

from __future__ import annotations

from typing import Any

from asyncfeed.engine.checkpoint.record import Log, WorkRecord
from asyncfeed.engine.checkpoint.stations import Again, Station, unique
from asyncfeed.epoch_end import EpochEnd
from asyncfeed.position import Position, Positions, canonical, equal, from_json, to_json


class UnorderedStation:
    """A function whose results are sent as they come."""

    refuses_rest = ""

    def __init__(self, before: Station, record: WorkRecord) -> None:
        self._before = before
        self.in_order = False
        self._record = record
        self._under_way: dict[Position, Position] = {}
        """The items that came, up to the last one whose result was received, without those that were received."""
        self._ends = 0
        self._came: Position | None = None
        """The last of these items since the last end."""
        self._moved = False

    @property
    def logs(self) -> list[Log[Any]]:
        """What is recorded."""
        return [self._record.came, self._record.left]

    def begin(self) -> None:
        """Do nothing: it refers to no step."""

    @property
    def waiting(self) -> int:
        """Number of events that are recorded."""
        return len(self._record.came) + len(self._record.left)

    def follow(self, ends: int, last: Position | None) -> None:
        """Go through what was sent."""
        left = self._record.left
        while self._ends < ends or last is not None:
            event = left.popleft()
            if isinstance(event, EpochEnd):
                self._pass_end()
                continue
            assert isinstance(event, tuple)
            sent, gone = event
            if self._ends == ends and last is not None:
                place = next((place for place, each in enumerate(sent) if equal(each, last)), None)
                if place is not None:
                    stop = place + 1
                    self._receive(sent[:stop])
                    received = set(map(canonical, sent[:stop]))
                    rest = [each for each in gone if canonical(each) not in received]
                    if rest:
                        left.appendleft((sent[stop:], rest))
                    break
            self._receive(gone)
        if self._moved:
            self._moved = False
            self._before.follow(ends, self._came)

    def _receive(self, positions: Positions) -> None:
        under_way = self._under_way
        for each in map(canonical, positions):
            while each not in under_way:
                came = self._record.came.popleft()
                assert not isinstance(came, EpochEnd)
                under_way.update(zip(map(canonical, came), came, strict=True))
                self._came, self._moved = came[-1], True
            del under_way[each]

    def _pass_end(self) -> None:
        self._ends += 1
        while not isinstance(self._record.came.popleft(), EpochEnd):
            pass  # items that were skipped with the rest of their epoch
        self._under_way.clear()
        self._came, self._moved = None, True

    def state(self, wanted: list[Position]) -> tuple[dict[str, Any], list[Again]]:
        """Return the items that are under way."""
        under_way = list(self._under_way.values())
        return {"under way": to_json(under_way)}, [Again(self._before, unique([*wanted, *under_way]))]

    def restart(self, passes: list[int]) -> tuple[dict[str, Any], list[Again]]:
        """Return no state."""
        return {}, [Again(self._before, [], passes)]

    def resume(self, state: dict[str, Any], wanted: list[Position]) -> list[Again]:
        """Let the record keep what was under way."""
        under_way = from_json(state.get("under way", []))
        self._under_way = dict(zip(map(canonical, under_way), under_way, strict=True))
        if state:
            self._record.resume(under_way, wanted)
        return [Again(self._before, unique([*wanted, *under_way]))]
