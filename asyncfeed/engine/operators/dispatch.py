"""Calls the sync function of a stage on threads, for a group of items at a time."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from time import perf_counter, process_time, thread_time
from typing import Any

import numpy as np

from asyncfeed.engine.constants import (
    BUSY_FACTOR,
    DOUBTFUL_SHARE,
    FIRST_THREADS,
    GIL_FACTOR,
    GROUP_BYTES,
    GROUP_SECONDS,
    GROUP_SHARED_FACTOR,
    HEAVY_FACTOR,
    HELD_SHARE,
    KERNEL_THREADS,
    LATE_FACTOR,
    MANY_FACTOR,
    READ_BLOCKS,
    READ_SHARE,
    SECOND_THREAD_SECONDS,
    SURE_FACTOR,
    WAITED_FACTOR,
)
from asyncfeed.engine.fair import FairLimiter, computing, holding
from asyncfeed.engine.limits.group_size import GroupSize, as_heavy
from asyncfeed.engine.limits.slowness import Slowness
from asyncfeed.engine.operators.gathering import Gathering, Members
from asyncfeed.engine.operators.parts import Parts
from asyncfeed.engine.order.outcomes import Outcomes
from asyncfeed.engine.provenance import ItemPlace
from asyncfeed.engine.threads import CapacityLimiter, Threads
from asyncfeed.functions.checks import refuse_awaitable
from asyncfeed.machine import runs_python_in_parallel, thread_waits, usable_cores
from asyncfeed.reading.reader import Waits
from asyncfeed.stages.chain import Chain, NoBatch
from asyncfeed.stages.steps import Work
from asyncfeed.trees import SMALL_KINDS, size_of


class ThreadDispatch:
    """Decides the size of a stage's groups, about 2 ms or 1 MB of work, and calls the function for a group."""

    def __init__(self, threads: Threads, work: Work, name: str, unit: int) -> None:
        self._threads = threads
        self.limiter = CapacityLimiter()
        self._fn = work.fn
        self._parts = None if work.many is None else Parts(work.many, work.fn)
        self._chain: Chain | None = work.fn if work.members else None  # type: ignore[assignment]
        """What makes batches of lists, member by member."""
        self._single = work.fn if isinstance(work.fn, Chain) and not work.members else None
        """What calls several functions for each item."""
        self.members = GroupSize()
        """How many members of a list a thread calls at a time."""
        self._shares = work.concurrency != 1
        """Whether several threads may work on a list."""
        self._waits = work.waits
        self._filters = work.shape == "filter"
        self._skips_failures = work.skip is not None
        self._name = name
        self._unit = unit
        self._slow_seconds = SECOND_THREAD_SECONDS * unit
        self._cores = usable_cores()
        self._in_parallel = runs_python_in_parallel()
        self._finds_threads = work.concurrency == "auto" and not self._in_parallel
        """Whether the number of threads is found. Then waits for the GIL must not look like waits for IO."""
        self._limits_itself = work.concurrency in ("auto", 1)
        """Whether it may get fewer threads than were asked for."""
        self._size = GroupSize()
        self.room = GROUP_SHARED_FACTOR * GROUP_BYTES
        """Bytes of results at which a group ends."""
        self._size_factor = 1
        """How many times larger groups are than usual, because several threads compute."""
        self._slowness = Slowness()
        self._wait_ratio: float | None = None
        """Time of an item divided by its CPU time. None before the first group."""
        self._lost_seconds = 0.0
        """How long a group waits for the GIL or for a core. It is known of groups that wait for nothing else."""
        self._kernel_share = 0.0
        """The share of the time of a group in which the kernel reads, without the GIL. Functions hold it."""
        self.in_turn = work.concurrency == 1 and work.inline is None
        """Whether items are called in their order."""
        self._turn = 0
        """The number of the item that is called next, if so."""
        self._was_heavy = False
        """Whether the results of the last group take so long to copy that memory is the limit."""

    @property
    def member_peak(self) -> int:
        """Bytes that the functions of a chain need for a member at most."""
        return 0 if self._chain is None else self._chain.peak.nbytes

    @property
    def reads(self) -> bool:
        """Whether the files of a list are read together."""
        return self._chain is not None and self._chain.read is not None

    def list_bytes(self, gathering: Gathering) -> int:
        """Return how many bytes a list needs at most while a batch is made of it, as far as that is known."""
        assert self._chain is not None
        return gathering.read_bytes + self._chain.peak.of_list(gathering.count)

    @property
    def slow(self) -> bool:
        """Whether items take so long that a second thread may help."""
        return self._slowness.slow

    @property
    def first_threads(self) -> int:
        """Number of threads to begin with: as many as keep one core busy, but at least one for each core."""
        return max(self._cores, min(FIRST_THREADS, int(self._wait_ratio or 1)))

    @property
    def max_threads(self) -> int:
        """Maximum number of threads: twice as many as keep all cores busy. More threads would wait for a core.

        If items do not wait, this is one thread for each core.
        """
        ratio = self._wait_ratio or 1
        return self._cores if ratio < BUSY_FACTOR else int(2 * self._cores * ratio)

    @property
    def quick_threads(self) -> int:
        """Number of threads for items that are quick. One, if they compete for the GIL."""
        if self._in_parallel:
            return self._cores
        helps = self._kernel_share > READ_SHARE and not self._crowded and not self._was_heavy
        return min(self._cores, KERNEL_THREADS) if helps else 1

    @property
    def _fair(self) -> FairLimiter | None:
        """Where groups wait for their turn beside those of other runs. None if they wait for something else."""
        if not self._limits_itself:
            return None
        if self.slow:
            return computing if self.max_threads <= self._cores else None
        return computing if self.quick_threads > 1 or self._wait_ratio is None else holding

    @property
    def _crowded(self) -> bool:
        """Whether other threads hold the GIL, or the cores, most of the time."""
        return self._lost_seconds > GROUP_SECONDS

    @property
    def _late_seconds(self) -> float:
        """How long a group may take before it ends early. Its rest is handed over, which waits for the GIL."""
        return LATE_FACTOR * (self._size_factor * GROUP_SECONDS + self._threads.lag)

    def group(self, count: int, costs: Sequence[int], ratio: float) -> int:
        """Return how many of `count` items go into the next group.

        `costs` says what each item weighs, and is empty if all items are small. A result weighs `ratio` times as
        much as its item.
        """
        size = self._size.share(count)
        if size > 1 and costs:
            factor = self._size_factor if self._parts is None else max(self._size_factor, MANY_FACTOR)
            room = min(factor * GROUP_BYTES, self.room)
            return as_heavy(size, [cost * ratio for cost in costs[:size]], room)
        return size

    async def run(self, items: list[Any], places: list[ItemPlace] | None, number: int) -> Outcomes:
        """Call the function for a group on a thread, and learn from the time it took.

        `number` is that of the first item. There are no outcomes if the turn of the group has not come: an earlier
        group has ended early, and its rest comes first.
        """
        limiter = self.limiter
        limiter.fair = self._fair
        others = min(limiter.busy, limiter.width - 1)
        outcomes, wall, cpu, (switches, blocks, elsewhere) = await self._threads.run(
            self._name, self._timed, items, places, number, limiter=limiter
        )
        limiter.computed += cpu
        amount = outcomes.amount
        if not amount:
            return outcomes
        waits = Waits.UNKNOWN if self._waits is None else self._waits()
        gone = wall - cpu
        from_disk = blocks >= READ_BLOCKS * max(1, outcomes.called or amount * self._unit)
        gil = self._threads.lag
        held = elsewhere > HELD_SHARE * gone
        if held:
            gil = max(gil, sys.getswitchinterval() / GIL_FACTOR)
        waited = from_disk or gone > GIL_FACTOR * gil * switches
        doubtful = self._finds_threads and not from_disk and elsewhere > DOUBTFUL_SHARE * gone
        if self._finds_threads and not waited and others < self._cores:
            wall = max(cpu, outcomes.read_seconds + cpu - outcomes.read_cpu)
        read_wall, read_cpu = wall, cpu
        if self._chain is not None:
            read_wall, read_cpu = outcomes.read_seconds, outcomes.read_cpu
        lost = gone if held and not waited and others < self._cores else 0.0
        # Threads that compete for the GIL wait for each other, and for the loop. This time says nothing about the
        # item.
        turns = others + 1 if others else 0
        took = max(cpu, wall - turns * cpu)
        # The functions of a chain may wait for anything, whatever the reader has waited for.
        called = max(cpu - read_cpu, wall - read_wall - turns * (cpu - read_cpu))
        share = read_cpu / max(cpu, 1e-9) if waits is Waits.KERNEL else 0.0
        self._kernel_share = share if self._chain is None else 0.75 * self._kernel_share + 0.25 * share
        if waits in (Waits.KERNEL, Waits.NONE):
            took, lost = read_cpu + called, max(0.0, read_wall - read_cpu)
        self._lost_seconds += 0.25 * (lost - self._lost_seconds)
        ratio = took / max(cpu, 1e-6)
        first = self._wait_ratio is None
        if self._wait_ratio is None:
            self._wait_ratio = ratio
        elif others < self._cores or (ratio > self._wait_ratio and waited):
            # With many threads a lower ratio is not believed: they wait for the GIL and for each other.
            self._wait_ratio += 0.25 * (ratio - self._wait_ratio)
        if outcomes.called:
            self.members.learn(called / outcomes.called, self._size_factor * GROUP_SECONDS)
        together = waits is Waits.TOGETHER
        read = took - called
        # All files of a list are read before the first of its members is called.
        reads = amount if self._chain is None else max(1, outcomes.read_lists)
        self._learn(
            called / amount + (read_cpu if together else read) / reads,
            max(cpu - read_cpu, called / WAITED_FACTOR) / amount + max(read_cpu, read / WAITED_FACTOR) / reads,
            surely_slow=together,
            doubtful=doubtful,
            working=others + 1,
            imports=first and not waited,
        )
        return outcomes

    def _timed(
        self, items: list[Any], places: list[ItemPlace] | None, number: int
    ) -> tuple[Outcomes, float, float, tuple[int, int, float]]:
        """Return what a group came to, how long it took, and how long it computed.

        Then how often its thread waited, how many blocks it read, and how long other threads computed meanwhile.
        """
        if self.in_turn and number != self._turn:
            return Outcomes(), 0.0, 0.0, (0, 0, 0.0)
        switches, blocks = thread_waits()
        everything, wall, cpu = process_time(), perf_counter(), thread_time()
        outcomes = self.call(items, places)
        outcomes.amount = outcomes.amount or len(outcomes)
        if self._single is not None:
            outcomes.peak = self._single.peak.nbytes
        self._turn = number + len(outcomes)
        wall, cpu = perf_counter() - wall, thread_time() - cpu
        switched, read = thread_waits()
        return outcomes, wall, cpu, (switched - switches, read - blocks, process_time() - everything - cpu)

    def _call_lists(self, lists: list[tuple[Gathering, Members]], places: list[ItemPlace]) -> Outcomes:
        """Call the functions for members of lists. Return the batches of the lists that are done then.

        There are fewer if members take unexpectedly long, if the run ends, or if other threads have members of a
        list. Then a part of the next list is done.
        """
        chain, threads, room = self._chain, self._threads, self.room
        assert chain is not None
        began = perf_counter()
        deadline = began + self._late_seconds
        if not self._shares and len(lists) == 1:
            deadline = math.inf

        def late() -> bool:
            return threads.ending or perf_counter() > deadline

        outcomes = Outcomes()
        only_read = self.slow and self._shares  # so that other threads get the members at once
        for (gathering, members), place in zip(lists, places, strict=True):
            did = gathering.call(members, chain, place, late, only_read=only_read)
            outcomes.rest = did.rest
            outcomes.amount += did.called / gathering.count
            outcomes.read_seconds += did.read_seconds
            outcomes.read_cpu += did.read_cpu
            outcomes.read_lists += did.read_seconds > 0
            outcomes.called += did.called
            if not did.over:
                break
            try:
                result = gathering.batch(chain, place)
            except BaseException as error:  # noqa: BLE001 - the consumer gets it
                outcomes.add_missing(error)
                outcomes.leave_out(len(lists) - len(outcomes))
                break
            if type(result) is NoBatch:
                outcomes.add_missing(None)
            else:
                outcomes.values.append(result)
            outcomes.rest = None
            nbytes = size_of(result)
            room -= nbytes
            # The rows and their batch exist at the same time, and one member with what its functions make of it.
            outcomes.peak += gathering.read_bytes + 2 * nbytes + chain.peak.nbytes
            if room < 0 or late():
                break
        self._was_heavy = self.room - room > HEAVY_FACTOR * GROUP_BYTES
        return outcomes

    def call(self, items: list[Any], places: list[ItemPlace] | None) -> Outcomes:
        """Call the function for the items, and return their outcomes.

        There are fewer outcomes than items if the items take unexpectedly long, if their results are large, or if
        the run ends.
        """
        if self._chain is not None:
            assert places is not None
            return self._call_lists(items, places)
        made = None if self._parts is None else self._parts.of(items)
        fn: Callable[..., Any] = self._fn if made is None else made
        threads = self._threads
        deadline = perf_counter() + self._late_seconds if len(items) > 1 else math.inf
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
                    outcomes.add_missing(None)
            except BaseException as error:  # noqa: BLE001 - the consumer gets it
                outcomes.add_missing(error)
                if not self._skips_failures:
                    # The stream ends at this item, so the rest of the group is not needed.
                    outcomes.leave_out(len(items) - len(values))
                    break
            if room < 0 or threads.ending or (perf_counter() > deadline and (made is None or not made.ready)):
                break
        if self._parts is not None:
            self._parts.learn(heavy=room < 0)
        self._was_heavy = self.room - room > HEAVY_FACTOR * GROUP_BYTES
        return outcomes

    def _learn(
        self, seconds: float, work: float, *, surely_slow: bool, doubtful: bool, working: int, imports: bool
    ) -> None:
        """Learn from a group in which an item took `seconds`. Another thread may save `work` seconds of them.

        A group that waits for the disk is slow however little it works: the disk serves several groups at a time.
        `working` threads worked at the same time. If a group is `doubtful`, it perhaps waited for the GIL. If it
        perhaps `imports` a library, it says nothing about others.
        """
        if not imports:
            is_slow = surely_slow or work > self._slow_seconds
            sure = surely_slow or (work > SURE_FACTOR * self._slow_seconds and not doubtful)
            self._slowness.note(is_slow, sure=sure, doubtful=doubtful, working=working)
        shared = self.slow and (self._wait_ratio or 1) < WAITED_FACTOR
        self._size_factor = GROUP_SHARED_FACTOR if shared or self._crowded else 1
        self._size.learn(seconds, self._size_factor * GROUP_SECONDS)
