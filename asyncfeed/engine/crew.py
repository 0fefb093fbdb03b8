"""The workers of a stage: called one by one while there is work, resting in between; and what it forgives."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from asyncfeed.engine.origin import heed_cancel, note
from asyncfeed.engine.step import Means
from asyncfeed.errors import Failure
from asyncfeed.stages.base import Work


class Crew:
    """Up to `limit` long-lived workers.

    A worker that comes calls the next while items are left, so a stage whose function never waits keeps to one
    or two of them, and one that waits soon has all.
    """

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop, start: Callable[[], None]) -> None:
        self.limit = limit
        self._loop = loop
        self._start = start
        self._workers = 0
        self._resting: list[asyncio.Future[None]] = []
        self.short_handed = False
        """Whether another worker could be called now; only then is `hire` worth its price."""

    @property
    def working(self) -> int:
        """How many are not resting."""
        return self._workers - len(self._resting)

    def hire(self) -> None:
        """Call one more worker, if there is one."""
        self.short_handed = False
        if self._resting:
            resting = self._resting.pop()
            if not resting.done():
                resting.set_result(None)
        elif self._workers < self.limit:
            self._workers += 1
            self._start()

    def arrived(self) -> None:
        """Note that a called worker has come: another may be called."""
        self.short_handed = bool(self._resting) or self._workers < self.limit

    async def rest(self) -> None:
        """Wait to be called."""
        heed_cancel()
        resting = self._loop.create_future()
        self._resting.append(resting)
        await resting
        self.arrived()


class Policy:
    """What a stage does with items that fail: all of them end the run, or a limited number is left out."""

    def __init__(self, work: Work, means: Means) -> None:
        self._skips = work.on_error == "skip"
        self._limit = work.skip_limit
        self._means = means
        self._left_out = 0

    def forgives(self, failure: Failure, seen: int) -> bool:
        """Return whether the item may be left out, after `seen` good ones; asked in the order of the stream."""
        if not self._skips or not isinstance(failure.error, Exception):
            return False  # nobody means Ctrl-C or an exit when they allow for bad items
        self._left_out += 1
        limit = self._limit
        allowed = limit if limit >= 1 else math.ceil(limit * (seen + self._left_out))
        if self._left_out > allowed:
            note(
                failure.error,
                f"asyncfeed: {self._left_out} items failed, which is more than skip_limit={limit:g} allows",
            )
            return False
        self._means.skipped(failure)
        return True
