"""The workers of a stage whose function is sync: each takes a group of items to a thread, again and again.

Where the function is to run in processes, the thread takes the group on to one of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from asyncfeed.engine.channel import Channel
from asyncfeed.engine.hop import Hops, Raised
from asyncfeed.engine.origin import ItemPlace, Origin
from asyncfeed.engine.processes import ProcessHops
from asyncfeed.engine.step import Means
from asyncfeed.engine.window import Entry
from asyncfeed.engine.work import WorkStep
from asyncfeed.stages.base import Work

INLINE = 64 * 1024
"""What our own functions may be given on the loop, in bytes of results."""

Taken = tuple[Entry, int, list[Any], int | None]
"""Items for a hop: their entry, the place of the first, and their part of the budget where they have one."""


class ThreadWork(WorkStep):
    """Runs a `Work` of kind "thread" or "process"."""

    most = 256

    def __init__(
        self, work: Work, name: str, means: Means, levels: int, inbox: Channel, origin: Origin, unit: int
    ) -> None:
        super().__init__(work, name, means, levels, inbox, origin, unit)
        if work.kind == "process":
            self._hops: Hops = ProcessHops(means.threads, means.processes, work, name, unit)
        else:
            self._hops = Hops(means.threads, work, name, unit)
        self._left: deque[Taken] = deque()
        """What hops that took too long have given back."""
        self._spread = False
        """Whether auto has found that more than one thread may be worth having."""
        if self._auto:
            self._crew.tune(1, 1)

    def drop(self) -> int:
        """Forget what is held."""
        self._left.clear()
        return super().drop()

    async def _labour(self) -> None:
        """Take a group of items to a thread, again and again."""
        inline, placed, origin = self._work.inline, self._work.placed, self._origin
        crew, hops = self._crew, self._hops
        crew.arrived()
        while True:
            taken = None if crew.working > crew.limit else self._take()
            if taken is None:
                group = results = None
                await crew.rest()
                continue
            entry, i, group, predicted = taken
            on_loop = inline is not None and ((entry.weight or INLINE) < INLINE or all(map(inline, group)))
            if crew.short_handed and (self._current is not None or self._left) and not on_loop:
                crew.hire(self._begun + (self._current.taken if self._current is not None else 0))
            if entry.big:
                weight = sum(entry.costs[i : i + len(group)])
                if predicted is None:
                    predicted = await self._admit(entry, i, len(group), weight)
            places = [ItemPlace(origin, each) for each in entry.ordinals[i : i + len(group)]] if placed else None
            if on_loop:
                results = hops.call(group, places)
            else:
                results = await hops.run(group, places, crew.working)
                if self._auto:
                    self._heed()
            size = len(results)
            if size < len(group):
                rest = None if predicted is None else predicted * (len(group) - size) // len(group)
                self._left.append((entry, i + size, group[size:], rest))
                del group[size:]
                if predicted is not None and rest is not None:
                    weight, predicted = sum(entry.costs[i : i + size]), predicted - rest
                crew.arrived()
            entry.special |= self._work.shape == "filter"
            for place, result in enumerate(results, i):
                if type(result) is Raised:
                    self._failed(entry, place, group[place - i], result.error)
                else:
                    entry.out[place] = result
            if predicted is not None:
                self._weighed(entry, entry.out[i : i + size], weight, predicted)
            if entry.order is not None:
                entry.order.extend(range(i, i + size))
                if self._progress.waiting:
                    self._progress.open()
            elif i <= entry.awaited < i + size:
                self._progress.open()
            taken = group = results = places = result = None  # sent on: not ours to keep alive
            if on_loop:
                await asyncio.sleep(0)

    def _heed(self) -> None:
        """Let the crew have as many threads as the last hop says may help; the tuner finds how many do."""
        crew, hops = self._crew, self._hops
        most = min(self.most, hops.most) if hops.slow else 1
        if hops.slow is not self._spread:
            self._spread = hops.slow
            crew.tune(hops.worth, most)
        elif crew.tuner is not None:
            crew.tuner.most = most

    def _take(self) -> Taken | None:
        """Take the items of the next hop: first what an earlier one gave back; None where there is nothing."""
        if self._left:
            entry, i, group, predicted = self._left.popleft()
            size = self._hops.group(len(group), entry.costs[i:], self._weights.ratio)
            if size < len(group):
                rest = None if predicted is None else predicted * (len(group) - size) // len(group)
                self._left.appendleft((entry, i + size, group[size:], rest))
                del group[size:]
                if predicted is not None and rest is not None:
                    predicted -= rest
            return entry, i, group, predicted
        current = self._current
        if current is None or (current.big and self._probing):
            return None
        i, count = current.taken, len(current.out)
        if self._work.inline is not None and (current.weight or INLINE) < INLINE:
            size = count - i
        elif self._weights.unknown:
            size = 1
        else:
            size = self._hops.group(count - i, current.costs[i:], self._weights.ratio)
        group = current.items[i : i + size]
        current.items[i : i + size] = [None] * size
        current.taken = i + size
        if current.taken == count:
            self._advance()
        return current, i, group, None
