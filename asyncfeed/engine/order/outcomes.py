"""What became of the items of a group, told beside their values: no value of the user's is ever taken for it."""

from __future__ import annotations

from typing import Any


class Outcomes:
    """The outcomes of the first items of a group; the group may be longer, and the rest is called again."""

    __slots__ = ("lost", "values")

    def __init__(self) -> None:
        self.values: list[Any] = []
        """A value for each item; None for one that has none."""
        self.lost: dict[int, BaseException | None] = {}
        """The places of the items that have none: what was raised, or None if the item is left out."""

    def __len__(self) -> int:
        return len(self.values)

    def lose(self, error: BaseException | None) -> None:
        """Add an item that raised; or that is left out, by a filter or because it is not wanted any more."""
        self.lost[len(self.values)] = error
        self.values.append(None)

    def leave_out(self, count: int) -> None:
        """Add items that are not wanted any more, because the stream ends before them."""
        for _ in range(count):
            self.lose(None)
