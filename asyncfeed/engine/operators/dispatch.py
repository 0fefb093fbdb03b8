"""Calling a sync function on a thread, for several items per group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from time import perf_counter, thread_time
from typing import Any

import numpy as np

from asyncfeed.engine.constants import (
    BUSY_FACTOR,
    FIRST_THREADS,
    GROUP_BYTES,
    GROUP_SECONDS,
    GROUP_SHARED_FACTOR,
    LATE_FACTOR,
    SECOND_THREAD_SECONDS,
    SURE_FACTOR,
    WAITED_FACTOR,
)
from asyncfeed.engine.limits.group_size import GroupSize, as_heavy
from asyncfeed.engine.order.outcomes import Outcomes
from asyncfeed.engine.provenance import ItemPlace
from asyncfeed.engine.threads import CapacityLimiter, Threads
from asyncfeed.functions.checks import refuse_awaitable
from asyncfeed.machine import usable_cores
from asyncfeed.stages.steps import Work
from asyncfeed.trees import SMALL_KINDS, size_of


class ThreadDispatch:
    """Groups the items of a stage into groups of about 2 ms or 1 MB of work."""

    def __init__(self, threads: Threads, work: Work, name: str, unit: int) -> None:
        self._threads = threads
        self.limiter = CapacityLimiter()
        self._fn = work.fn
        self._filters = work.shape == "filter"
        self._goes_on = work.on_error == "skip"
        self._name = name
        self._bound = SECOND_THREAD_SECONDS * unit
        self._cores = usable_cores()
        self._size = GroupSize()
        self.room = GROUP_SHARED_FACTOR * GROUP_BYTES
        """How many bytes a group may have at most."""
        self._scale = 1
        """How many times as large as others its groups are."""
        self._over = False
        self.slow = False
        """Whether items take so long that a second thread may help."""
        self._waits: float | None = None
        """How many times as long an item takes as it needs the processor."""

    @property
    def worth(self) -> int:
        """How many threads to begin with: as many as a core keeps up with, one for each core at least."""
        return max(self._cores, min(FIRST_THREADS, int(self._waits or 1)))

    @property
    def most(self) -> int:
        """How many threads all cores keep up with, and twice that where they wait: more would wait for a core."""
        waits = self._waits or 1
        return self._cores if waits < BUSY_FACTOR else int(2 * self._cores * waits)

    def group(self, count: int, costs: Sequence[int], ratio: float) -> int:
        """Return how many of `count` items go into the next group.

        `costs` is what they weigh, and `ratio` what a result weighs against its item; none where all are small.
        """
        size = self._size.share(count)
        if size > 1 and costs:
            room = min(self._scale * GROUP_BYTES, self.room)
            return as_heavy(size, [cost * ratio for cost in costs[:size]], room)
        return size

    async def run(self, items: list[Any], places: list[ItemPlace] | None) -> Outcomes:
        """Call the function on a thread, and learn from how long it took."""
        limiter = self.limiter
        beside = min(limiter.busy, limiter.width - 1)
        outcomes, wall, cpu = await self._threads.run(self._name, self._timed, items, places, limiter=limiter)
        # Where threads fight over the GIL each waits for all the others; that says nothing about the item.
        took = max(cpu, wall - beside * cpu)
        waits = took / max(cpu, 1e-6)
        if self._waits is None:
            self._waits = waits
        elif waits > self._waits or beside < self._cores:
            # Among many threads nothing can be told from waits for the GIL: what was known before holds.
            self._waits += 0.25 * (waits - self._waits)
        self._learn(took / max(1, len(outcomes)), max(cpu, took / WAITED_FACTOR) / max(1, len(outcomes)))
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
        late = perf_counter() + LATE_FACTOR * self._scale * GROUP_SECONDS if len(items) > 1 else math.inf
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
        # One slow group may be the machine's fault; one that is far too slow is not.
        over = work > self._bound
        if over is self._over or work > SURE_FACTOR * self._bound:
            self.slow = over
        self._over = over
        self._scale = GROUP_SHARED_FACTOR if self.slow and (self._waits or 1) < WAITED_FACTOR else 1
        self._size.learn(seconds, self._scale * GROUP_SECONDS)
