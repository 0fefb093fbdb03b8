"""The stations of a chain of steps: each says where it stands at the consumer's place, and goes on from there.

A place in a stream is the number of ends before it, and the position of the last item between the last of these
ends and the place. `follow` brings a station to a place in what it sends. It then brings the station before it to
the place in what it has taken in. Invariants:

* A station never goes back, and is never further than what it has sent: all events up to the place are recorded.
* A station has passed as many ends as the place says. So in a run that resumes, all stages are in the same epoch.
* The state of a station, what is under way behind it, and the items that the stations before it have yet to send
  are together what the consumer has not received.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from copy import copy
from typing import Any, NamedTuple, Protocol

from asyncfeed.engine.checkpoint.gates import LinkGate
from asyncfeed.engine.checkpoint.record import CUT, Came, Log, Record
from asyncfeed.engine.constants import CHUNK_ITEMS
from asyncfeed.engine.emitter import TransformLink
from asyncfeed.engine.epochs import EpochCounter
from asyncfeed.engine.provenance import Provenance
from asyncfeed.epoch_end import EpochEnd
from asyncfeed.errors import StateError
from asyncfeed.position import (
    NOWHERE,
    Position,
    Positions,
    canonical,
    equal,
    first_number,
    from_json,
    to_json,
)
from asyncfeed.stages.steps import Held


class Again(NamedTuple):
    """What a run that resumes needs of a station."""

    station: Station
    positions: list[Position]
    """The items that must come again."""
    passes: list[int] | None = None
    """The epoch at whose start the station must begin. None if it begins at the consumer's place."""


class Root(Protocol):
    """A station that begins the stream of a chain: a source or a merge."""

    epochs: EpochCounter
    """The epoch at the consumer's place."""
    provenance: Provenance
    """The provenance of the items."""


class Station(Protocol):
    """What the track asks of each station."""

    in_order: bool
    """Whether its items come in the same order whenever it begins again."""

    def follow(self, ends: int, last: Position | None) -> None:
        """Go on to a place."""
        ...

    def state(self, wanted: list[Position]) -> tuple[dict[str, Any], list[Again]]:
        """Return what `resume` needs, as JSON, and what it needs of the stations before.

        `wanted` are the results that later stations want again.
        """
        ...

    def restart(self, passes: list[int]) -> tuple[dict[str, Any], list[Again]]:
        """Return the same for a run in which this station begins at the start of an epoch."""
        ...

    def resume(self, state: dict[str, Any], wanted: list[Position]) -> list[Again]:
        """Prepare a run that goes on from a state, and return what it needs of the stations before."""
        ...

    def begin(self) -> None:
        """Let go of all steps: the run begins. When it has ended, its feed may be kept, and must hold no items."""
        ...

    @property
    def logs(self) -> list[Log[Any]]:
        """What is recorded."""
        ...

    @property
    def waiting(self) -> int:
        """About how many chunks are recorded."""
        ...

    @property
    def refuses_rest(self) -> str:
        """Why nobody else can do the rest of its work. Empty if other processes can."""
        ...


class SourceStation:
    """A source. It has sent everything up to an ordinal."""

    refuses_rest = ""

    def __init__(
        self, epochs: EpochCounter, provenance: Provenance, place_of: Callable[[int, int], int] | None
    ) -> None:
        self.epochs = epochs
        self.provenance = provenance
        self.in_order = True
        self._place_of = place_of
        self.resumes = False
        """Whether the source begins where the state says, and sends what stages held."""
        self.next: int | None = None
        """The place of the next item in its epoch. None at the start of an epoch."""
        self.again: list[int] = []
        """The positions of the items to send again first."""
        self.ended: Log[EpochEnd] = Log()
        """The ends that were sent and not followed."""
        self.marks: Log[tuple[int, list[str | None]]] = Log()
        """The marks of items that were sent, and the number of the first of them: see `Source.mark`."""
        self.mark: str | None = None
        """The mark of the last item that was received."""
        self._ends = 0

    @property
    def logs(self) -> list[Log[Any]]:
        """What is recorded."""
        return [self.ended, self.marks]

    def begin(self) -> None:
        """Do nothing: it refers to no step."""

    @property
    def waiting(self) -> int:
        """Number of events that are recorded."""
        return len(self.ended) + len(self.marks)

    def follow(self, ends: int, last: Position | None) -> None:
        """Note the place."""
        while self._ends < ends:
            self._ends += 1
            self.epochs.go_on(self.ended.popleft().depth)
        self.next = self.mark = None
        if last is not None:
            number = first_number(last)
            self.next = self.place(number) + 1
            self._find_mark(number)

    def _find_mark(self, number: int) -> None:
        marks = self.marks
        while marks:
            start, found = marks[0]
            if number < start + len(found):
                self.mark = found[number - start]
                return
            marks.popleft()

    def place(self, number: int) -> int:
        """Return the place of an item in its epoch."""
        epoch = self.provenance.epoch(number)
        ordinal = number - self.provenance.start(epoch)
        return ordinal if self._place_of is None else self._place_of(ordinal, epoch)

    def state(self, wanted: list[Position]) -> tuple[dict[str, Any], list[Again]]:
        """Return the epoch, and the place of the next item."""
        state = {"passes": self.epochs.passes, "next": self.next or 0}
        return state if self.mark is None else {**state, "last": self.mark}, []

    def restart(self, passes: list[int]) -> tuple[dict[str, Any], list[Again]]:
        """Return the epoch."""
        return {"passes": passes}, []

    def resume(self, state: dict[str, Any], wanted: list[Position]) -> list[Again]:
        """Note where to start, and what to send again."""
        self.next, self.mark = state.get("next"), state.get("last")
        self.resumes = self.next is not None
        self.again = sorted(map(first_number, wanted))
        return []


class LinkStation:
    """An algorithm. Its twin is at the consumer's place."""

    def __init__(self, before: Station, root: Root, link: TransformLink, name: str, *, timed: bool) -> None:
        self._before = before
        self.in_order = before.in_order and not timed
        self._root = root
        self._link: TransformLink | None = link
        self._name = name
        self.level = link.level
        link.record = Record(link.algorithm)
        self._events = link.record.events
        self._twin = _twin_of(link, link.algorithm.state())
        self._under_way: deque[Position] = deque()
        """The results that the twin has made and the consumer has not received."""
        self._end: EpochEnd | None = None
        """The end behind these results."""
        self._flushed: Held | None = None
        """What the twin held before the flush that made these results."""
        self._received = 0
        """Number of results of that flush that were received."""
        self._labels: dict[Position, Any] = {}
        """The labels of results that the consumer has not received, if results have labels."""
        self._ends = 0
        self._last: Position | None = None
        """The last item that the twin took in since the last end."""

    @property
    def refuses_rest(self) -> str:
        """Why nobody else can do the rest of its work: another process does not know what came before."""
        return "" if self._twin.algorithm.starts_anywhere else f"{self._name} depends on the items before"

    def left(self, wanted: list[Position]) -> tuple[int, dict[str, Any], list[Position]]:
        """Return the epoch of a state, its numbers, and all that came and was not received."""
        held = self._twin.algorithm.state()
        own = [each for each in held.positions if each != NOWHERE]
        return self._twin.epochs.number, held.numbers, unique([*own, *self._under_way, *wanted])

    @property
    def logs(self) -> list[Log[Any]]:
        """What is recorded."""
        return [self._events]

    def begin(self) -> None:
        """Let go of the algorithm, which holds items."""
        self._link = None

    @property
    def waiting(self) -> int:
        """Number of events that are recorded."""
        return len(self._events) + len(self._labels) // CHUNK_ITEMS

    def follow(self, ends: int, last: Position | None) -> None:
        """Let the twin take in what the results up to a place were made of."""
        under_way = self._under_way
        moved = False
        while self._ends < ends or last is not None:
            if under_way:
                if self._ends == ends and last is not None and equal(under_way[0], last):
                    under_way.popleft()
                    self._received += 1
                    break
                under_way.popleft()
                self._received += 1
            elif self._end is not None:
                self._ends += 1
                self._end = self._flushed = self._last = None
                moved = True
            else:
                moved = self._take() or moved
        if moved:
            self._before.follow(ends, self._last)

    def _take(self) -> bool:
        """Let the twin take an event, and return whether it has items."""
        twin = self._twin
        event = self._events.popleft()
        if isinstance(event, Came):
            stand_in = twin.algorithm.stand_in
            count = len(event.positions)
            items = [stand_in()] * count if event.facts is None else list(map(stand_in, event.facts))
            made = twin.algorithm.push(items, event.positions)
            if len(made[1]) != event.made:
                raise StateError(
                    f"{self._name} made {event.made} results of {count} items, and {len(made[1])} of stand-ins: "
                    f"{type(twin.algorithm).__name__} looks at the items, so it must set `looks`, and say with "
                    "`fact` and `stand_in` what it sees in one"
                )
            self._add(made)
            self._last = event.positions[-1]
        elif event is CUT:
            self._add(twin.algorithm.flush())
        elif isinstance(event, EpochEnd):
            self._end = event
            if twin.is_flushed_by(event):
                self._received = twin.already
                self._flushed = twin.algorithm.state()
                self._add(twin.flush(event))
        return isinstance(event, Came)

    def _add(self, made: tuple[list[Any], Positions]) -> None:
        results, positions = made
        self._under_way.extend(positions)
        algorithm = self._twin.algorithm
        if algorithm.labels:
            self._labels.update(zip(map(canonical, positions), map(algorithm.label, results), strict=True))

    def state(self, wanted: list[Position]) -> tuple[dict[str, Any], list[Again]]:
        """Return what the algorithm holds, and the results that are under way."""
        held = self._twin.algorithm.state() if self._flushed is None else self._flushed
        state: dict[str, Any]
        again: list[Position] = list(held.positions)
        if self._flushed is None:
            state = {"under way": to_json(list(self._under_way))}
            received = self._twin.already
        else:
            inputs = self._twin.algorithm.inputs
            needed = {canonical(each) for result in self._under_way for each in inputs(result)}
            # No item that only received results were made of is read again.
            again = [each if canonical(each) in needed else NOWHERE for each in again]
            state, received = {}, self._received
        state["held"] = to_json(again)
        state["numbers"] = held.numbers
        if received:
            state["received"] = received
        if self._twin.algorithm.labels:
            self._labels = {each: self._labels[each] for each in map(canonical, (*wanted, *self._under_way))}
            state["labels"] = list(self._labels.values())
        return state, self._inputs([each for each in again if each != NOWHERE], wanted)

    def _inputs(self, held: list[Position], wanted: list[Position]) -> list[Again]:
        """Return the items of which all that is held and under way was made."""
        inputs = self._twin.algorithm.inputs
        made_of = [each for result in (*wanted, *self._under_way) for each in inputs(result)]
        return [Again(self._before, unique([*held, *made_of]))]

    def restart(self, passes: list[int]) -> tuple[dict[str, Any], list[Again]]:
        """Return no state."""
        return {}, [Again(self._before, [], passes)]

    def resume(self, state: dict[str, Any], wanted: list[Position]) -> list[Again]:
        """Set a gate before the algorithm, and bring the twin to the same state."""
        assert self._link is not None
        link, algorithm = self._link, self._link.algorithm
        link.epochs.resume(self._root.epochs.passes[link.level :])
        algorithm.begin(link.epochs.number)
        if not state:  # at the start of an epoch
            self._twin = _twin_of(link, algorithm.state())
            return [Again(self._before, [])]
        held: list[Position] = from_json(state["held"])
        under_way: list[Position] = from_json(state.get("under way", []))
        link.already = state.get("received", 0)
        if algorithm.labels:
            labelled = map(canonical, unique([*wanted, *under_way]))
            self._labels = dict(zip(labelled, state["labels"], strict=True))
        link.gate = LinkGate(held, state["numbers"], wanted, under_way, self._labels, self._name)
        self._twin = _twin_of(link, Held([algorithm.stand_in()] * len(held), held, state["numbers"]))
        self._under_way.extend(under_way)
        return self._inputs([each for each in held if each != NOWHERE], wanted)


def _twin_of(link: TransformLink, held: Held) -> TransformLink:
    algorithm = copy(link.algorithm)
    twin = TransformLink(algorithm, link.level, link.epochs.copy(), top=link.top)
    twin.already = link.already
    algorithm.restore(held)  # and so it shares nothing with the other
    return twin


def unique(positions: Iterable[Position]) -> list[Position]:
    """Return positions without those that come a second time."""
    given = list(positions)
    if set(map(type, given)) <= {int}:
        return list(dict.fromkeys(given))
    return list({canonical(each): each for each in given}.values())
