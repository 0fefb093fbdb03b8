"""Fetch: reads the items of a source whose `[number]` is the user's code.

The source sends the numbers of the places, and this stage replaces each number by its item: on
threads, or on the loop if `[number]` is async. So the concurrency, the order, the memory limit, the failures and
`on_error` are those of `map`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from asyncfeed.attempts.skip import skip_of
from asyncfeed.axes import Axes, Unknown
from asyncfeed.given import explain_missing
from asyncfeed.numbered import Numbered
from asyncfeed.places import shift
from asyncfeed.stages.base import Node
from asyncfeed.stages.steps import Asked, Indexed, Reading, Work


class Places:
    """The places of `upstream` by number, over all epochs: place p of epoch e is `e * n + p`."""

    on_thread = None

    def __init__(self, upstream: Indexed) -> None:
        self._upstream = upstream

    def __len__(self) -> int:
        return len(self._upstream)

    def pick(self, epoch: int, places: Sequence[int]) -> list[int]:
        """Return the numbers of these places."""
        return list(shift(places, epoch * len(self._upstream)))

    def key(self, epoch: int, place: int) -> str:
        """Return the name of the item at this place."""
        return self._upstream.key(epoch, place)


@dataclass(frozen=True)
class Fetch(Node):
    """Replaces the numbers from `Places` by the items of `upstream`."""

    upstream: Indexed
    reading: Reading
    name: str

    method: ClassVar[str] = "fetch"
    hidden: ClassVar[bool] = True

    def steps(self) -> Sequence[Work]:
        """Return one step, which reads each item with one call."""
        reading = self.reading
        fetch = self._fetch()

        async def fetch_async(number: int) -> object:
            return await _answered(fetch(number))

        return [
            Work(
                fetch_async if reading.awaits else fetch,
                "async" if reading.awaits else "thread",
                many=self._fetch_many if reading.together and not reading.awaits else None,
                read=self._read if reading.together and not reading.awaits else None,
                concurrency=reading.concurrency,
                skip=skip_of(reading.on_error, reading.skip_limit),
            )
        ]

    def _fetch(self) -> Callable[[int], Any]:
        """Return the function that reads the item of a number."""
        upstream, count = self.upstream, len(self.upstream)
        one = upstream.one if isinstance(upstream, Numbered) else None
        if one is not None:
            return lambda number: one(number % count)

        def fetch(number: int) -> Any:
            epoch, place = divmod(number, count)
            # A range, because a shuffle looks it up in a block of places that it keeps.
            (item,) = upstream.pick(epoch, range(place, place + 1))
            return item

        return fetch

    def _read(self, numbers: Sequence[int]) -> tuple[list[Any], int]:
        """Read the items of many numbers for a chain, whose first function this is."""
        return self._fetch_many(numbers), 1

    def _fetch_many(self, numbers: Sequence[int]) -> list[Any]:
        """Read the items of many numbers, with one call for all that follow each other in an epoch."""
        count = len(self.upstream)
        found: list[Any] = []
        start = 0
        while start < len(numbers):
            epoch, place = divmod(numbers[start], count)
            length = 1
            most = min(count - place, len(numbers) - start)
            while length < most and numbers[start + length] == numbers[start] + length:
                length += 1
            found += self.upstream.pick(epoch, range(place, place + length))
            start += length
        return found

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return `Unknown`: the items decide the axes."""
        return Unknown()

    def put(self, stages: Sequence[Node]) -> list[Node]:
        """Insert this stage into the stages of a stream, after those that only order the items."""
        place = 0
        # If items are left out, `take` and `skip` must count only the items that could be read.
        if self.reading.on_error == "raise":
            while place < len(stages) and stages[place].arranges:
                place += 1
        return [*stages[:place], self, *stages[place:]]

    def __str__(self) -> str:
        """Return the call that makes the source, which errors name."""
        return self.name


async def _answered(item: Any) -> Any:
    """Await an item that was `Asked` for. If `enumerate` or `zip` made a tuple, await all its parts."""
    if type(item) is Asked:
        try:
            return await item.dataset[item.number]
        except (IndexError, KeyError) as error:
            explain_missing(error, item.dataset, item.number)
            raise
    if type(item) is not tuple:
        return item
    parts = [await _answered(part) for part in item]
    changed = any(part is not old for part, old in zip(parts, item, strict=True))
    return tuple(parts) if changed else item
