"""Calling a sync function on a thread, for several items per hop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from time import perf_counter, thread_time
from typing import Any

import numpy as np

from asyncfeed.engine.channel import SPAN
from asyncfeed.engine.origin import ItemPlace
from asyncfeed.engine.outcomes import Outcomes
from asyncfeed.engine.threads import Lane, Threads
from asyncfeed.functions.checks import refuse_awaitable
from asyncfeed.machine import usable_cores
from asyncfeed.stages.steps import Work
from asyncfeed.trees import SMALL_KINDS, size_of

HOP_SECONDS = 2e-3
HOP_BYTES = 1 << 20
"""A hop costs 15-25 us, and twice that where the GIL is wanted: it should carry about this much work."""
SHARED = 4
"""So many times as much where several threads compute. The loop then has no core of its own: a hop costs it some
200 us, and it may be stopped while it has the GIL, which all others wait for. JPEGs in batches, on two cores:
2,370 a second in hops of 2 ms, 3,080 in hops of 8."""
SLOW = 50e-6
"""Samples that compute for longer than this are worth a second thread; shorter ones only fight over the GIL: 4 KB
files in batches, read by one thread or by eight, make 138,000 a second or 41,000."""
WAITED = 2
"""Those that wait are if it is for so many times longer: it may be for the GIL, and then threads make it worse."""
SURE = 4
"""Items that take so many times longer than that need no second look."""
MANY = 32
"""How many threads to begin with at most: the rest is for the tuner to find."""
BUSY = 1.25
"""An item that takes at most this many times the processor's time waits for nothing."""
LATE = 4
"""A hop that takes this many times as long as it should ends early, and the rest of its items is taken anew."""


class Hops:
    """Groups the items of a stage into hops of about 2 ms or 1 MB of work."""

    def __init__(self, threads: Threads, work: Work, name: str, unit: int) -> None:
        self._threads = threads
        self.lane = Lane()
        self._fn = work.fn
        self._filters = work.shape == "filter"
        self._goes_on = work.on_error == "skip"
        self._name = name
        self._bound = SLOW * unit
        self._cores = usable_cores()
        self._size = 1
        self.room = SHARED * HOP_BYTES
        """How many bytes a hop may have at most."""
        self._scale = 1
        """How many times as large as others its hops are."""
        self._seconds: float | None = None
        self._over = False
        self.slow = False
        """Whether items take so long that a second thread may help."""
        self._waits: float | None = None
        """How many times as long an item takes as it needs the processor."""

    @property
    def worth(self) -> int:
        """How many threads to begin with: as many as a core keeps up with, one for each core at least."""
        return max(self._cores, min(MANY, int(self._waits or 1)))

    @property
    def most(self) -> int:
        """How many threads all cores keep up with, and twice that where they wait: more would wait for a core."""
        waits = self._waits or 1
        return self._cores if waits < BUSY else int(2 * self._cores * waits)

    def group(self, count: int, costs: Sequence[int], ratio: float) -> int:
        """Return how many of `count` items go into the next hop.

        `costs` is what they weigh, and `ratio` what a result weighs against its item; none where all are small.
        """
        # In equal parts: a small rest would cost as much as a whole hop.
        size = -(-count // max(1, round(count / self._size)))
        if size > 1 and costs:
            nbytes = 0.0
            for place in range(size):
                nbytes += costs[place] * ratio
                if nbytes > min(self._scale * HOP_BYTES, self.room):
                    return max(1, place)
        return size

    async def run(self, items: list[Any], places: list[ItemPlace] | None) -> Outcomes:
        """Call the function on a thread, and learn from how long it took."""
        lane = self.lane
        beside = min(lane.busy, lane.width - 1)
        outcomes, wall, cpu = await self._threads.run(self._name, self._timed, items, places, lane=lane)
        # Where threads fight over the GIL each waits for all the others; that says nothing about the item.
        took = max(cpu, wall - beside * cpu)
        waits = took / max(cpu, 1e-6)
        if self._waits is None:
            self._waits = waits
        elif waits > self._waits or beside < self._cores:
            # Among many threads nothing can be told from waits for the GIL: what was known before holds.
            self._waits += 0.25 * (waits - self._waits)
        self._learn(took / max(1, len(outcomes)), max(cpu, took / WAITED) / max(1, len(outcomes)))
        return outcomes

    def _timed(self, items: list[Any], places: list[ItemPlace] | None) -> tuple[Outcomes, float, float]:
        wall, cpu = perf_counter(), thread_time()
        outcomes = self.call(items, places)
        return outcomes, perf_counter() - wall, thread_time() - cpu

    def call(self, items: list[Any], places: list[ItemPlace] | None) -> Outcomes:
        """Call the function for the items, and return what became of them.

        Fewer, where they take unexpectedly long or turn out to be large, or where the run ends and nobody wants
        them.
        """
        fn, threads = self._fn, self._threads
        late = perf_counter() + LATE * self._scale * HOP_SECONDS if len(items) > 1 else math.inf
        filters = self._filters
        outcomes = Outcomes()
        values = outcomes.values
        room = self.room
        known: type | None = None
        heavy = False
        for i, item in enumerate(items):
            try:
                result = fn(item) if places is None else fn(item, places[i])
                if type(result) is not known:
                    refuse_awaitable(self._name, result)
                    known = type(result)
                    heavy = known not in SMALL_KINDS
                if heavy:
                    room -= result.nbytes if known is np.ndarray else size_of(result)
                if not filters:
                    values.append(result)
                elif result:
                    values.append(item)
                else:
                    outcomes.lose(None)
            except BaseException as error:  # noqa: BLE001 - it is the consumer's, whatever it is
                outcomes.lose(error)
                if not self._goes_on:
                    # The stream ends at this item; what comes after it in the group is not wanted.
                    outcomes.leave_out(len(items) - len(values))
                    break
            if room < 0 or perf_counter() > late or threads.ending:
                break
        return outcomes

    def _learn(self, seconds: float, work: float) -> None:
        """Note how long an item took, and how much of that another thread may save."""
        # One slow hop may be the machine's fault; one that is far too slow is not.
        over = work > self._bound
        if over is self._over or work > SURE * self._bound:
            self.slow = over
        self._over = over
        self._scale = SHARED if self.slow and (self._waits or 1) < WAITED else 1
        self._resize(seconds, self._scale * HOP_SECONDS)

    def _resize(self, seconds: float, worth: float) -> None:
        """Note how long an item took: so many go into a hop as take the time that one is worth."""
        before = self._seconds
        self._seconds = now = seconds if before is None else max(seconds, 0.75 * before + 0.25 * seconds)
        # Doubling on the way up, at once on the way down.
        self._size = max(1, min(int(worth / max(now, 1e-9)), 2 * self._size, SPAN))
