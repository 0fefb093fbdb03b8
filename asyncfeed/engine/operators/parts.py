"""Calls a function for several items at once, for a caller that takes their results one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from asyncfeed.engine.constants import CHUNK_ITEMS

Many = Callable[[list[Any]], Sequence[Any]]


class Parts:
    """How many items of a stage go into one call: twice as many each time, as long as their results are light."""

    def __init__(self, many: Many, one: Callable[[Any], Any]) -> None:
        self._many = many
        self._one = one
        self._items = 1

    def of(self, items: list[Any]) -> Results:
        """Return the results of these items."""
        return Results(self._many, self._one, items, self._items)

    def learn(self, *, heavy: bool) -> None:
        """Note whether the results of a group had more bytes than a group may have."""
        self._items = max(1, self._items // 2) if heavy else min(CHUNK_ITEMS, 2 * self._items)


class Results:
    """The results of a group. It is called for each item in turn.

    If a call for several items raises, the function is called for each of them. So only an item that fails is
    reported, with its own error.
    """

    def __init__(self, many: Many, one: Callable[[Any], Any], items: list[Any], size: int) -> None:
        self._many = many
        self._one = one
        self._items = items
        self._size = size
        self._taken = 0
        self.ready: list[Any] = []
        """Results that nobody has taken yet, the next one last."""
        self._single = 0
        """Number of items that are called one by one from here on."""

    def __call__(self, item: Any, *place: Any) -> Any:
        """Return the result of the next item. Its place is used if the function is called for it alone."""
        if not self.ready and not self._single:
            self._call()
        if self.ready:
            return self.ready.pop()
        self._single -= 1
        return self._one(item, *place)

    def _call(self) -> None:
        part = self._items[self._taken : self._taken + self._size]
        self._taken += len(part)
        self._single = len(part)
        if len(part) == 1:
            return
        try:
            found = list(self._many(part))
        except Exception:  # noqa: BLE001 - the call for the item that fails raises again
            return
        except BaseException:
            self._single -= 1  # this item's outcome is the error
            raise
        if len(found) != len(part):
            self._single -= 1
            raise TypeError(f"a call for {len(part)} items returned {len(found)}")
        self._single = 0
        found.reverse()
        self.ready = found
