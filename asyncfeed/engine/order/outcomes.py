"""The outcomes of a group of items. Failures are stored beside the values, so no value is mistaken for one."""

from __future__ import annotations

from typing import Any


class Outcomes:
    """The outcomes of a group, or of its first items only. The stage then calls the other items again."""

    __slots__ = ("amount", "called", "missing", "peak", "read_cpu", "read_lists", "read_seconds", "rest", "values")

    def __init__(self) -> None:
        self.values: list[Any] = []
        """The value of each item. It is None for a missing item, and may be None for others."""
        self.missing: dict[int, BaseException | None] = {}
        """The items without a value, by index: the exception that was raised, or None if the item is left out."""
        self.amount = 0.0
        """How many items were worked on. A list of which a part was done counts in part."""
        self.called = 0
        """Number of members of lists for which functions were called."""
        self.read_seconds = self.read_cpu = 0.0
        """The time in which a chain read files, by the clock and by that of the processor."""
        self.read_lists = 0
        """Number of lists of which it read files."""
        self.peak = 0
        """Bytes that there were at most while the values were made, if that is known to be more than theirs."""
        self.rest: list[Any] | None = None
        """The members of the next list that were not called. None if the list was not begun."""

    def __len__(self) -> int:
        return len(self.values)

    def add_missing(self, error: BaseException | None) -> None:
        """Add an item without a value: its exception, or None if it is left out."""
        self.missing[len(self.values)] = error
        self.values.append(None)

    def drop_last(self) -> None:
        """Drop the last item, which had no value. It is called again."""
        self.values.pop()
        del self.missing[len(self.values)]

    def leave_out(self, count: int) -> None:
        """Add `count` items that are left out, because the stream ends before them."""
        for _ in range(count):
            self.add_missing(None)
