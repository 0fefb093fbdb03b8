"""The reorder buffers of a stage: they accept results in any order, and say which can be sent now.

They do no IO and know no event loop. Invariants:

* Each result is sent once. A `ReorderBuffer` sends it after the results of all earlier items. A
  `CompletionBuffer` sends the results of an entry in the order in which they completed.
* The end of an epoch, or a failure from upstream, is sent after all results of its entry and of all earlier
  entries. No later result overtakes it.
* `done` and `missing` say whether an item is done and whether it has a result. No result value says so, because
  any value may be the user's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from asyncfeed.engine.order.piece import Piece, without_missing
from asyncfeed.errors import Failure
from asyncfeed.position import Positions
from asyncfeed.stages.steps import Chunk
from asyncfeed.trees import total_size


class Entry:
    """A chunk that a stage has taken in, with the results of its items. An index counts the items of the entry."""

    __slots__ = (
        "awaited", "boundary", "bytes_per_item", "charged", "completed", "costs", "done", "failure", "items",
        "missing", "number", "one_by_one", "positions", "sent", "taken", "untaken", "values", "waiting", "weight",
    )  # fmt: skip

    def __init__(self, chunk: Chunk, number: int) -> None:
        self.number = number
        """Number of items that the stage took in before this entry."""
        self.items = chunk.items
        self.positions = chunk.positions
        self.boundary = chunk.boundary
        self.failure = chunk.failure
        self.values: list[Any] = [None] * len(chunk.items)
        """The results, each at the index of its item."""
        self.done = bytearray(len(chunk.items))
        """1 at the index of each item whose outcome is known."""
        self.missing: dict[int, Failure | None] = {}
        """The items without a result, by index: how the item failed, or None if it is left out."""
        self.completed: list[int] | None = None
        """The indices of the results so far, in the order of completion. None if results are sent in order."""
        self.charged = chunk.nbytes
        """Bytes that the entry is charged with now."""
        self.bytes_per_item = chunk.nbytes // max(1, len(chunk.items))
        """Bytes that each of its items is charged with."""
        self.one_by_one = False
        """Whether its items are admitted to the budget one by one or by the group, and not all at once."""
        self.costs: list[int] = []
        """What each item weighs, if the items are admitted one by one."""
        self.untaken: Iterator[tuple[int, Any]] = enumerate(chunk.items)
        """The items that no worker has taken, with their indices. Async workers take items from it."""
        self.taken = 0
        """Number of items that workers have taken. The fastest path of async workers does not count it."""
        self.waiting = 0
        """Number of taken items that wait for room in the budget, or were given back to be taken again."""
        self.weight: int | None = None
        """Bytes that all results are predicted to weigh. None if they are admitted one by one."""
        self.sent = 0
        """Number of items whose outcome was sent on."""
        self.awaited = -1
        """The index of the result that the sending task waits for. -1 if it waits for none of this entry."""

    @property
    def ends(self) -> bool:
        """Whether an end of an epoch, or a failure from upstream, comes after its results."""
        return self.boundary is not None or self.failure is not None

    def accept(self, start: int, values: list[Any]) -> None:
        """Store the results of a group. Values of missing items are ignored."""
        stop = start + len(values)
        self.values[start:stop] = values
        self.done[start:stop] = b"\1" * len(values)

    def set_missing(self, index: int, failure: Failure | None) -> None:
        """Note that an item has no result: it failed, or it is left out (None)."""
        self.missing[index] = failure
        self.done[index] = 1

    def results(self, start: int, stop: int) -> list[Any]:
        """Return the results from index `start` to `stop`, without those of missing items."""
        if not self.missing:
            return self.values[start:stop]
        return [self.values[index] for index in range(start, stop) if index not in self.missing]


def untaken_from(items: list[Any], index: int) -> Iterator[tuple[int, Any]]:
    """Iterate over the items from an index on, as `enumerate` does. Stop early if the list has become shorter."""
    while index < len(items):
        yield index, items[index]
        index += 1


class ReorderBuffer:
    """The entries of a stage. Their results are sent in the order of the items."""

    def __init__(self) -> None:
        self.entries: deque[Entry] = deque()
        self.held = 0
        """Number of items that were taken in and not sent on."""
        self.sent_total = 0
        """Number of items that were sent on, including those that failed or were left out."""
        self.empty_entries = 0
        """Number of held entries without items. They only end an epoch or the stream."""

    @property
    def needs_input(self) -> bool:
        """Whether no result can be sent before another entry is added."""
        return not self.entries

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, entry: Entry) -> None:
        """Add an entry behind all other entries."""
        self.entries.append(entry)
        self.held += len(entry.values)
        self.empty_entries += not entry.values

    def clear(self) -> None:
        """Drop all entries."""
        for entry in self.entries:
            entry.items.clear()  # a worker that still iterates over them finds no more
        self.entries.clear()
        self.held = self.empty_entries = 0

    def is_next(self, entry: Entry, index: int) -> bool:
        """Return whether this item's result must come before anything else can be sent (see `budget.py`)."""
        return bool(self.entries) and self.entries[0] is entry and entry.sent == index

    def ready(self) -> Piece | None:
        """Remove and return what can be sent now. Return None if the next result is not there yet."""
        if not self.entries:
            return None
        entry = self.entries[0]
        values, start, count = entry.values, entry.sent, len(entry.values)
        stop = entry.done.find(0, start)
        if stop < 0:
            stop = count
        if start == stop < count:
            entry.awaited = start
            return None
        entry.sent = stop
        indices = range(start, stop)
        if start == 0 and stop == count:
            return self._take(entry, indices, values, entry.positions)
        piece, positions = values[start:stop], entry.positions[start:stop]
        values[start:stop] = [None] * (stop - start)  # the buffer must not keep sent results alive
        return self._take(entry, indices, piece, positions)

    def _take(self, entry: Entry, indices: Sequence[int], results: list[Any], positions: Positions) -> Piece:
        self.held -= len(indices)
        self.sent_total += len(indices)
        piece = (
            without_missing(results, positions, indices, entry.missing)
            if entry.missing
            else Piece(results, positions)
        )
        piece.nbytes = total_size(piece.results)
        moved = min(piece.nbytes, entry.charged)
        entry.charged -= moved
        piece.charge_change = piece.nbytes - moved
        if entry.sent == len(entry.values) and entry is self.entries[0]:
            self.entries.popleft()
            self.empty_entries -= not entry.values
            piece.charge_change -= entry.charged
            entry.charged = 0
            piece.boundary, piece.failure = entry.boundary, entry.failure
        return piece


class CompletionBuffer(ReorderBuffer):
    """Entries whose results are sent as they complete, in any order within an epoch."""

    def add(self, entry: Entry) -> None:
        """Add an entry behind all other entries."""
        entry.completed = []
        super().add(entry)

    def is_next(self, entry: Entry, index: int) -> bool:
        """Return whether this item's result must come before anything else can be sent (see `budget.py`)."""
        for each in self.entries:
            if each.taken - each.waiting > each.sent:
                return False  # a call is running, or a result is ready to be sent
            if each is entry:
                return True
            if each.ends:
                return False  # no later result overtakes the end of an epoch
        return False

    def ready(self) -> Piece | None:
        """Remove and return results of the first entry that has some. Return None if there are none."""
        for entry in self.entries:
            completed = entry.completed or []
            indices = completed[entry.sent :]
            complete = len(completed) == len(entry.values)
            if indices or (complete and entry is self.entries[0]):
                entry.sent = len(completed)
                results = [entry.values[index] for index in indices]
                for index in indices:
                    entry.values[index] = None
                return self._take(entry, indices, results, [entry.positions[index] for index in indices])
            if entry.ends:
                return None
        return None
