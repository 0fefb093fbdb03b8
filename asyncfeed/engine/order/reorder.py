"""The reorder buffer of a stage: groups of items, with their results as they come, in the order they are sent.

No IO, and no loop: what is accepted, and what is ready. Invariants:

* A result is sent once. In order, it is sent after all before it. As they come, results of one entry go in the
  order in which they came.
* The end of an epoch, or a failure from upstream, is sent after all results of its entry and of the entries
  before. Nothing overtakes it.
* Whether an item is done, and whether it has a result, is told beside the results (`done`, `lost`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from asyncfeed.engine.order.piece import Piece, sifted
from asyncfeed.errors import Failure
from asyncfeed.position import Positions
from asyncfeed.stages.steps import Chunk
from asyncfeed.trees import total_size


class Entry:
    """A chunk in the window: its items, their results, and how far it has come."""

    __slots__ = (
        "awaited", "big", "boundary", "charged", "costs", "done", "failure", "items", "lost", "number", "order",
        "out", "positions", "sent", "share", "taken", "untaken", "waiting", "weight",
    )  # fmt: skip

    def __init__(self, chunk: Chunk, number: int) -> None:
        self.number = number
        """How many items the stage had taken in before."""
        self.items = chunk.items
        self.positions = chunk.positions
        self.boundary = chunk.boundary
        self.failure = chunk.failure
        self.out: list[Any] = [None] * len(chunk.items)
        """The results, each in the place of its item."""
        self.done = bytearray(len(chunk.items))
        """1 in the place of each item whose outcome is known."""
        self.lost: dict[int, Failure | None] = {}
        """The places of items without a result: how each failed, or None if it was left out."""
        self.order: list[int] | None = None
        """If results are sent as they come: the places of those that came."""
        self.charged = chunk.nbytes
        self.share = chunk.nbytes // max(1, len(chunk.items))
        self.big = False
        self.costs: list[int] = []
        """Where it is big: what each item weighs."""
        self.untaken: Iterator[tuple[int, Any]] = enumerate(chunk.items)
        """What workers take from, each item once; `taken` counts along where somebody needs to know."""
        self.taken = 0
        self.waiting = 0
        """How many taken items wait for memory, or to be taken again."""
        self.weight: int | None = None
        """What the results will weigh together; None where they are weighed one by one."""
        self.sent = 0
        self.awaited = -1
        """The place whose result the sending task sleeps for."""

    @property
    def ends(self) -> bool:
        """Whether something comes after its results: an end, or a failure from upstream."""
        return self.boundary is not None or self.failure is not None

    def accept(self, start: int, values: list[Any]) -> None:
        """Put the results of a group in their places; those of lost items stand for nothing."""
        stop = start + len(values)
        self.out[start:stop] = values
        self.done[start:stop] = b"\1" * len(values)

    def lose(self, place: int, failure: Failure | None) -> None:
        """Note that an item failed, or that it is left out."""
        self.lost[place] = failure
        self.done[place] = 1

    def results(self, start: int, stop: int) -> list[Any]:
        """Return the results from a place to another, without the items that have none."""
        if not self.lost:
            return self.out[start:stop]
        return [self.out[place] for place in range(start, stop) if place not in self.lost]


def untaken_from(items: list[Any], place: int) -> Iterator[tuple[int, Any]]:
    """Go through the items from a place on, as `enumerate` does; not beyond the end that the list has by then."""
    while place < len(items):
        yield place, items[place]
        place += 1


class ReorderBuffer:
    """The entries of a stage, whose results are sent in the order of the items."""

    def __init__(self) -> None:
        self.entries: deque[Entry] = deque()
        self.held = 0
        """How many items were taken in and not sent on."""
        self.gone = 0
        """How many were sent on or left out."""
        self.ends = 0
        """How many entries have no items: they only end an epoch or the stream."""

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, entry: Entry) -> None:
        """Add an entry behind all others."""
        self.entries.append(entry)
        self.held += len(entry.out)
        self.ends += not entry.out

    def clear(self) -> None:
        """Forget everything."""
        for entry in self.entries:
            entry.items.clear()  # a worker that is in it finds no more
        self.entries.clear()
        self.held = self.ends = 0

    def is_next(self, entry: Entry, place: int) -> bool:
        """Return whether nothing can be sent before the result of this item is there: see `budget`."""
        return bool(self.entries) and self.entries[0] is entry and entry.sent == place

    def ready(self) -> Piece | None:
        """Take what can be sent now; None where the next result is not there yet."""
        if not self.entries:
            return None
        entry = self.entries[0]
        out, start, count = entry.out, entry.sent, len(entry.out)
        stop = entry.done.find(0, start)
        if stop < 0:
            stop = count
        if start == stop < count:
            entry.awaited = start
            return None
        entry.sent = stop
        places = range(start, stop)
        if start == 0 and stop == count:
            return self._take(entry, places, out, entry.positions)
        piece, positions = out[start:stop], entry.positions[start:stop]
        out[start:stop] = [None] * (stop - start)  # sent: not ours to keep alive
        return self._take(entry, places, piece, positions)

    def _take(self, entry: Entry, places: Sequence[int], results: list[Any], positions: Positions) -> Piece:
        self.held -= len(places)
        self.gone += len(places)
        piece = sifted(results, positions, places, entry.lost) if entry.lost else Piece(results, positions)
        piece.nbytes = total_size(piece.results)
        moved = min(piece.nbytes, entry.charged)
        entry.charged -= moved
        piece.change = piece.nbytes - moved
        if entry.sent == len(entry.out) and entry is self.entries[0]:
            self.entries.popleft()
            self.ends -= not entry.out
            piece.change -= entry.charged
            entry.charged = 0
            piece.boundary, piece.failure = entry.boundary, entry.failure
        return piece


class CompletionBuffer(ReorderBuffer):
    """The same for results that are sent as they come."""

    def add(self, entry: Entry) -> None:
        """Add an entry behind all others."""
        entry.order = []
        super().add(entry)

    def is_next(self, entry: Entry, place: int) -> bool:
        """Return whether nothing can be sent before the result of this item is there: see `budget`."""
        for each in self.entries:
            if each.taken - each.waiting > each.sent:
                return False  # one is being worked on, or there to be sent
            if each is entry:
                return True
            if each.ends:
                return False  # nothing overtakes the end of an epoch
        return False

    def ready(self) -> Piece | None:
        """Take the results that are there; None where there are none."""
        for entry in self.entries:
            order = entry.order or []
            places = order[entry.sent :]
            complete = len(order) == len(entry.out)
            if places or (complete and entry is self.entries[0]):
                entry.sent = len(order)
                results = [entry.out[place] for place in places]
                for place in places:
                    entry.out[place] = None
                return self._take(entry, places, results, [entry.positions[place] for place in places])
            if entry.ends:
                return None
        return None
