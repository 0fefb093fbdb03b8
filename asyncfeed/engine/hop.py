"""Calling a sync function on a thread, for several items per hop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter, thread_time
from types import CoroutineType
from typing import Any

from asyncfeed.engine.channel import SPAN
from asyncfeed.engine.origin import ItemPlace
from asyncfeed.engine.threads import Threads
from asyncfeed.stages.base import Work
from asyncfeed.trees import size_of

HOP_SECONDS = 1e-3
HOP_BYTES = 1 << 20
"""A hop costs 15-25 us, so it should carry about this much work, whichever comes first."""
SLOW = 50e-6
"""Samples that take longer than this are worth a second thread; shorter ones only fight over the GIL: 4 KB files
in batches, read by one thread or by eight, make 138,000 a second or 41,000."""

DROPPED: Any = type("Dropped", (), {"__slots__": (), "__repr__": lambda _: "DROPPED"})()
"""Stands where an item was filtered out."""


class Raised:
    """Stands where the function raised."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Hops:
    """Groups the items of a stage into hops of about 1 ms or 1 MB of work."""

    def __init__(self, threads: Threads, work: Work, name: str, most: int, unit: int) -> None:
        self._threads = threads
        self._fn = work.fn
        self._filters = work.shape == "filter"
        self._goes_on = work.on_error == "skip"
        self._cost: Callable[[Any], int] = work.cost or size_of
        self._name = name
        self._auto = work.concurrency == "auto"
        self._most = most
        self._slow = SLOW * unit
        self._size = 1
        self._seconds: float | None = None
        self.limit = 1 if self._auto else most
        """How many threads are worth having now; one until the first hop has told."""

    def group(self, items: Sequence[Any], start: int, ratio: float) -> int:
        """Return how many of the items from `start` on go into the next hop.

        `ratio` is what a result weighs against its item; 0 where all are so small that nobody need look.
        """
        size = min(self._size, len(items) - start)
        if size > 1 and ratio:
            nbytes = 0.0
            for count in range(size):
                nbytes += self._cost(items[start + count]) * ratio
                if nbytes > HOP_BYTES:
                    return max(1, count)
        return size

    async def run(self, items: list[Any], places: list[ItemPlace] | None, working: int) -> list[Any]:
        """Call the function on a thread, one of `working` at it, and learn from how long it took."""
        results, wall, cpu = await self._threads.run(self._name, self._timed, items, places)
        # Where threads fight over the GIL each waits for all the others; that says nothing about the item.
        self._learn(max(cpu, wall - (working - 1) * cpu) / len(items))
        return results

    def _timed(self, items: list[Any], places: list[ItemPlace] | None) -> tuple[list[Any], float, float]:
        wall, cpu = perf_counter(), thread_time()
        results = self.call(items, places)
        return results, perf_counter() - wall, thread_time() - cpu

    def call(self, items: list[Any], places: list[ItemPlace] | None) -> list[Any]:
        """Call the function for each item, and return the results."""
        fn = self._fn
        filters = self._filters
        results: list[Any] = []
        for i, item in enumerate(items):
            try:
                result = fn(item) if places is None else fn(item, places[i])
                if type(result) is CoroutineType:
                    result.close()
                    message = f"{self._name} returned a coroutine; declare the function with `async def`"
                    raise TypeError(message)
                results.append(result if not filters else item if result else DROPPED)
            except BaseException as error:  # noqa: BLE001 - it is the consumer's, whatever it is
                results.append(Raised(error))
                if not self._goes_on:
                    # The stream ends at this item; what comes after it in the group is not wanted.
                    results.extend([DROPPED] * (len(items) - len(results)))
                    break
        return results

    def _learn(self, seconds: float) -> None:
        before = self._seconds
        self._seconds = now = seconds if before is None else max(seconds, 0.75 * before + 0.25 * seconds)
        # Towards what is worth a hop: doubling on the way up, at once on the way down.
        self._size = max(1, min(int(HOP_SECONDS / max(now, 1e-9)), 2 * self._size, SPAN))
        if self._auto:
            self.limit = self._most if now > self._slow else 1
