"""The station of a `flat_map`, an `interleave` or an `unbatch`: their items have children.

An item is open if some of its children may still come. Open items come again in a run that resumes, and the
children that were received are left out when they are made. Invariants:

* An item is open from the time when the stages before it have sent it, at the consumer's place, until its last
  child was received. Items come to the stage one after the other, and so they are opened.
* An item that failed stays open, until a child of a later item shows that the failure was skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from asyncfeed.engine.checkpoint.gates import ChildGate, FlatLeft, RestGate
from asyncfeed.engine.checkpoint.record import Log, WorkRecord
from asyncfeed.engine.checkpoint.stations import Again, Station, unique
from asyncfeed.engine.emitter import Link
from asyncfeed.engine.order.expansions import DONE, AsTheyCome, Expansions, Resumed, Sent
from asyncfeed.epoch_end import EpochEnd
from asyncfeed.errors import StateError
from asyncfeed.position import Position, canonical, child_of, from_json, to_json
from asyncfeed.stages.steps import Turns

GROUPS_APART = (
    "a state was taken in the middle of a batch that flat_map or unbatch takes apart. Other processes make other "
    "batches, and do not know which part of them was received: put shard behind that stage, or leave out the batch"
)


class Slots:
    """The slots of an `interleave` at the consumer's place, and whose turn it is: see `InTurns`."""

    def __init__(self, turns: Turns) -> None:
        self._block = turns.block
        self.items: list[Position | None] = [None] * turns.cycle
        self.turn = self.sent_this_turn = 0

    def restore(self, slots: list[int], items: list[Position], turn: int, sent_this_turn: int) -> None:
        """Take over what a state says."""
        for slot, item in zip(slots, items, strict=True):
            self.items[slot] = item
        self.turn, self.sent_this_turn = turn % len(self.items), sent_this_turn

    def begin(self) -> None:
        """Begin an epoch."""
        self.items = [None] * len(self.items)
        self.turn = self.sent_this_turn = 0

    def receive(self, item: Position, count: int) -> None:
        """Note that children of an item were received."""
        self._find(item)
        self.sent_this_turn += count
        if self.sent_this_turn == self._block:
            self._next_turn()

    def close(self, item: Position) -> None:
        """Note that an item has no further children."""
        self._find(item)
        self.items[self.turn] = None
        self._next_turn()

    def _find(self, item: Position) -> None:
        """Give the item the slot whose turn it is, or pass empty slots: no items are left for these."""
        if item not in self.items:
            self.items[self.turn] = item
        while self.items[self.turn] != item:
            self._next_turn()

    def _next_turn(self) -> None:
        self.turn = (self.turn + 1) % len(self.items)
        self.sent_this_turn = 0


class ChildrenStation:
    """A function that makes children of items."""

    refuses_rest = ""

    def __init__(
        self, before: Station, record: WorkRecord, links: list[Link], order: Expansions, turns: Turns | None
    ) -> None:
        self._before = before
        self.in_order = before.in_order and not isinstance(order, AsTheyCome)
        self._record = record
        self._links = links
        """The links behind it."""
        self._order: Expansions | None = order
        self._slots = None if turns is None else Slots(turns)
        self._coming: Iterator[Position] = iter(())
        """The rest of the items that came together."""
        self._open: dict[Position, tuple[Position, int]] = {}
        """The open items, and how many children of each were received."""
        self._closed: set[Position] = set()
        """Open items that had no further children at the checkpoint, and keep their slot until their turn."""
        self._ends = 0
        self._came: Position | None = None
        """The last item that was opened since the last end."""
        self._moved = False

    @property
    def logs(self) -> list[Log[Any]]:
        """What is recorded."""
        return [self._record.came, self._record.left]

    def begin(self) -> None:
        """Let go of the links, and of the order, which holds children."""
        self._links, self._order = [], None

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
            assert isinstance(event, list)
            rest = self._receive(event, last if self._ends == ends else None)
            if rest is not None:
                self._close_done(rest)
                break
        if self._moved:
            self._moved = False
            self._before.follow(ends, self._came)

    def _receive(self, sent: list[Sent], last: Position | None) -> list[Sent] | None:
        """Receive children up to the last one, and return the rest. Return None if that one is not among them."""
        parent, number = (None, 0) if last is None else child_of(last)
        if parent is not None:
            parent = canonical(parent)
        for place, (item, start, stop) in enumerate(sent):
            key = canonical(item)
            self._open_to(key)
            if stop < 0:
                self._close(key)
            elif key == parent and start <= number < stop:
                self._note(key, start, number + 1)
                rest = sent[place + 1 :]
                return [(item, number + 1, stop), *rest] if number + 1 < stop else rest
            else:
                self._note(key, start, stop)
        return None

    def _open_to(self, key: Position) -> None:
        while key not in self._open:
            item = next(self._coming, None)
            if item is None:
                came = self._record.came.popleft()
                assert not isinstance(came, EpochEnd)
                self._coming = iter(came)
                continue
            self._open[canonical(item)] = item, 0
            self._came, self._moved = item, True

    def _note(self, key: Position, start: int, stop: int) -> None:
        self._open[key] = self._open[key][0], stop
        if self._slots is not None:
            self._slots.receive(key, stop - start)

    def _close(self, key: Position) -> None:
        del self._open[key]
        if self._slots is not None:
            self._slots.close(key)

    def _close_done(self, rest: list[Sent]) -> None:
        """Close the items of which the last child was received, and put back what is left."""
        left = self._record.left
        while True:
            for place, (item, _, stop) in enumerate(rest):
                if stop != DONE:
                    left.appendleft(rest[place:])
                    return
                key = canonical(item)
                self._open_to(key)
                self._close(key)
            if not left or not isinstance(left[0], list):
                return
            rest = left.popleft()  # type: ignore[assignment]

    def _pass_end(self) -> None:
        self._ends += 1
        while not isinstance(self._record.came.popleft(), EpochEnd):
            pass  # items that were skipped with the rest of their epoch
        self._open.clear()
        self._coming = iter(())
        self._came, self._moved = None, True
        if self._slots is not None:
            self._slots.begin()

    def state(self, wanted: list[Position]) -> tuple[dict[str, Any], list[Again]]:
        """Return the open items, and how many children of each were received."""
        finished = self._finished()
        closed = [] if self._slots is None else [key for key in self._open if key in finished]
        opened = [key for key in self._open if key not in finished] + closed
        state: dict[str, Any] = {
            "open": to_json([self._open[key][0] for key in opened]),
            "received": [self._open[key][1] for key in opened],
        }
        slots = self._slots
        if slots is not None:
            state["slots"] = [slots.items.index(key) for key in opened]
            state["finished"] = len(closed)
            state["turn"] = [slots.turn, slots.sent_this_turn]
        return state, self._needs(wanted, [self._open[key][0] for key in opened if key not in finished])

    def _finished(self) -> set[Position]:
        """Return the open items that are known to have no further children."""
        finished = self._closed & set(self._open)
        undecided = set(self._open) - finished
        left = self._record.left
        for place in range(len(left)):  # by number, because the loop may append meanwhile
            event = left[place]
            if not undecided or isinstance(event, EpochEnd):
                break
            for item, start, stop in event:
                key = canonical(item)
                if key in undecided:
                    undecided.remove(key)
                    if stop == DONE and start == self._open[key][1]:
                        finished.add(key)
        return finished

    def restart(self, passes: list[int]) -> tuple[dict[str, Any], list[Again]]:
        """Return no state."""
        return {}, [Again(self._before, [], passes)]

    def resume(self, state: dict[str, Any], wanted: list[Position]) -> list[Again]:
        """Set a gate before the function and one behind it, and tell the order which children were received."""
        if not state:
            return self._needs(wanted, [])
        assert self._order is not None
        items = from_json(state["open"])
        keys, counts = list(map(canonical, items)), state["received"]
        self._open = {key: (item, count) for key, item, count in zip(keys, items, counts, strict=True)}
        opened = len(items) - state.get("finished", 0)
        resumed = Resumed(dict(zip(keys[:opened], counts, strict=False)))
        if self._slots is not None:
            slots = state["slots"]
            self._slots.restore(slots, keys, *state["turn"])
            self._closed = set(keys[opened:])
            resumed.slots = dict(zip(keys[:opened], slots, strict=False))
            resumed.finished = list(zip(items, counts, slots, strict=True))[opened:]
            resumed.turn, resumed.sent_this_turn = self._slots.turn, self._slots.sent_this_turn
        self._order.go_on(resumed)
        self._record.resume(items[:opened], [child_of(each)[0] for each in wanted])
        self._links.insert(0, ChildGate(wanted))
        return self._needs(wanted, items[:opened])

    def left(self, wanted: list[Position]) -> FlatLeft:
        """Return what was received of the children of a state."""
        opened = list(self._open.values())
        if any(isinstance(item, list | range) for item, _ in opened):
            raise StateError(GROUPS_APART)
        return FlatLeft([item for item, _ in opened], [received for _, received in opened], wanted)

    def leave_out(self, received: FlatLeft) -> None:
        """Send no children that other processes have received."""
        self._links.insert(0, RestGate(received))

    def _needs(self, wanted: list[Position], opened: list[Position]) -> list[Again]:
        return [Again(self._before, unique([*(child_of(each)[0] for each in wanted), *opened]))]
