"""The workers of a stage whose function is async: each awaits it for one item after the other, on the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import islice
from time import perf_counter
from typing import Any

from asyncfeed.engine.channel import Channel
from asyncfeed.engine.origin import ItemPlace, Origin, from_outside, heed_cancel
from asyncfeed.engine.step import Means
from asyncfeed.engine.window import Entry
from asyncfeed.engine.work import WorkStep
from asyncfeed.stages.base import Work

FIRST = 32
"""How many calls at a time concurrency="auto" begins with."""
TURN = 1e-3
"""Seconds after which, or twice that, a worker whose function never waits lets others have the loop."""


class AsyncWork(WorkStep):
    """Runs a `Work` of kind "async"."""

    most = 512

    def __init__(
        self, work: Work, name: str, means: Means, levels: int, inbox: Channel, origin: Origin, unit: int
    ) -> None:
        super().__init__(work, name, means, levels, inbox, origin, unit)
        if self._auto:
            self._crew.tune(FIRST, self.most)

    async def _labour(self) -> None:
        """Await the function for one item after the other."""
        fn: Callable[..., Awaitable[Any]] = self._work.fn
        plain = not self._work.placed and self._work.shape == "map"
        crew, progress = self._crew, self._progress
        task = asyncio.current_task()
        crew.arrived()
        while True:
            entry = self._current
            if entry is None or crew.working > crew.limit or (entry.big and self._probing):
                item = out = None  # a resting worker must not keep the last items alive
                await crew.rest()
                continue
            if entry.big or entry.order is not None or not plain:
                if await self._labour_with_care(entry) and self._current is entry:
                    self._advance()
            else:
                out = entry.out
                late = perf_counter() + TURN
                i: int | None = 0
                size = 1  # twice as many from one look at the clock to the next
                while i is not None and perf_counter() < late:
                    i = None
                    # The hot path: nothing here that is not needed for every item.
                    for i, item in islice(entry.untaken, size):
                        if crew.short_handed and self._more(entry, i):
                            crew.hire(self._begun + i)
                        try:
                            out[i] = await fn(item)
                        except BaseException as error:
                            if from_outside(error, task):
                                raise
                            self._failed(entry, i, item, error)
                        if entry.awaited == i:
                            progress.open()
                        if crew.crowded:
                            break
                    if crew.crowded:
                        break
                    size *= 2
                if i is None and self._current is entry:
                    self._advance()
            entry = None
            heed_cancel()
            # Where nothing waits, this has had its turn: time for others on this loop.
            await asyncio.sleep(0)

    def _more(self, entry: Entry, i: int) -> bool:
        """Return whether items are left beyond this one."""
        return i + 1 < len(entry.out) or len(self._untaken) > 1

    async def _labour_with_care(self, entry: Entry) -> bool:
        """Do the same for items that need more: memory, their place, or an order of their own.

        Returns whether the entry has no items left.
        """
        work, window, origin = self._work, self._window, self._origin
        crew, out, order = self._crew, entry.out, entry.order
        task = asyncio.current_task()
        late = perf_counter() + TURN
        for i, item in entry.untaken:
            entry.taken = i + 1
            entry.items[i] = None
            if crew.short_handed and self._more(entry, i):
                crew.hire(self._begun + i)
            if entry.big:
                weight = entry.costs[i]
                predicted = await self._admit(entry, i, 1, weight)
            try:
                args = (item, ItemPlace(origin, entry.ordinals[i])) if work.placed else (item,)
                result = await work.fn(*args)
                out[i] = window.keep(entry, item, result) if work.shape == "filter" else result
            except BaseException as error:
                if from_outside(error, task):
                    raise
                self._failed(entry, i, item, error)
            if entry.big:
                item = result = None
                self._weighed(entry, [out[i]], weight, predicted)
            if order is not None:
                order.append(i)
                if self._progress.waiting:
                    self._progress.open()
            elif entry.awaited == i:
                self._progress.open()
            if crew.crowded or (entry.big and self._probing) or perf_counter() > late:
                return False
        return True
