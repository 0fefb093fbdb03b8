"""The one place where tests reach into the engine: a function for each need.

If the parts of the engine change, this file changes, and no test. Other tests see a run through its feed
(`outside.py`), or test a part that this file names by its public methods.
"""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import asyncfeed as af
from asyncfeed.engine import channel, constants, coroutines, explain, fair, plan
from asyncfeed.engine.checkpoint import record, track
from asyncfeed.engine.checkpoint.in_hand import InHand
from asyncfeed.engine.closed_loop import watch_on
from asyncfeed.engine.consumers import Delivered
from asyncfeed.engine.driver import EXIT, Driver
from asyncfeed.engine.epochs import ENDLESS, EpochCounter
from asyncfeed.engine.fair import FairLimiter, computing
from asyncfeed.engine.handoff import Handoff
from asyncfeed.engine.limits import group_size
from asyncfeed.engine.limits.budget import Budget
from asyncfeed.engine.limits.demand import Demand, Shown
from asyncfeed.engine.limits.tuner import Tuner
from asyncfeed.engine.limits.worker_pool import WorkerPool
from asyncfeed.engine.loops import new_event_loop
from asyncfeed.engine.meter import ASKED, NEITHER, READY, Meter
from asyncfeed.engine.operators import call_async, dispatch, expand, source
from asyncfeed.engine.operators.parts import Parts
from asyncfeed.engine.operators.threaded_iterator import ThreadedIterator
from asyncfeed.engine.order import expansions
from asyncfeed.engine.order.expansions import Expansion, expansions_of
from asyncfeed.engine.order.outcomes import Outcomes
from asyncfeed.engine.order.piece import Piece
from asyncfeed.engine.order.reorder import CompletionBuffer, Entry, ReorderBuffer
from asyncfeed.engine.processes import block_writer, blocks, mapping, shared, worker
from asyncfeed.engine.processes.block_writer import BlockPool, BlockWriter
from asyncfeed.engine.processes.blocks import Blocks
from asyncfeed.engine.processes.kept import KeptWorkers, kept
from asyncfeed.engine.processes.process import Worker
from asyncfeed.engine.processes.shared import Arena, Failed, RemoteTraceback
from asyncfeed.engine.processes.stage import Processes
from asyncfeed.engine.provenance import ItemPlace, Provenance
from asyncfeed.engine.run import Run
from asyncfeed.engine.threads import CapacityLimiter, Threads
from asyncfeed.feed import session_of
from asyncfeed.limits import Part, ProcessMemory, process_memory
from asyncfeed.machine import runs_python_in_parallel
from asyncfeed.reading.reader import Waits
from asyncfeed.stages import chain, segment, together
from asyncfeed.stages.load_batch import ReadBatch
from asyncfeed.stages.steps import Work

__all__ = [
    "ASKED", "Arena", "BlockPool", "Blocks", "BlockWriter", "Budget", "CompletionBuffer", "WorkerPool", "Demand", "ENDLESS", "EXIT", "Entry", "EpochCounter",
    "Expansion", "Outcomes", "Piece", "ReorderBuffer",
    "Failed", "FairLimiter", "InHand", "KeptWorkers", "CapacityLimiter", "Meter", "NEITHER", "Handoff", "Part", "Parts", "ProcessMemory", "READY", "RemoteTraceback", "Run",
    "Shown", "ThreadedIterator", "Threads", "Tuner", "Worker", "computing", "expansions_of", "kept", "process_memory", "watch_on",
]  # fmt: skip

AHEAD_ITEMS = constants.AHEAD_ITEMS
"""How many small items leave the last queue together."""
CHUNK = constants.CHUNK_ITEMS
"""The largest number of items that a stage sends on together, if it is free to choose."""
LATE = constants.LATE_FACTOR
"""A group ends early if it takes this many times as long as it should."""
MANY = constants.FIRST_THREADS
"""The largest number of threads that a stage begins with."""
SHARED = constants.GROUP_SHARED_FACTOR
"""How many times larger groups are if several threads compute."""
DYING = 2 if runs_python_in_parallel() else 0
"""The number of objects that may be alive though they were dropped. Without the GIL, an object that another thread
drops dies when the thread that made it runs again."""
KERNEL_THREADS = constants.KERNEL_THREADS
"""The number of threads for files that the kernel reads without the GIL."""
REST = worker.REST
"""What a worker process is told when a run no longer needs it."""
KEEP = constants.ARENA_KEEP_BYTES
"""The size to which an arena of shared memory shrinks again."""
COPIES = constants.BLOCK_AFTER_COPIES
"""The number of arrays that a worker process copies before it makes another block."""
KEPT_BYTES = constants.BLOCKS_KEPT_BYTES
"""The bytes of free blocks that a worker process keeps between runs."""
START = constants.ARENA_START_BYTES
"""The size of a new arena of shared memory."""


# -- what decides about time and size


@contextmanager
def chunks_of(length: int) -> Iterator[None]:
    """Let no chunk hold more items than this; with `CHUNK`, as many as without."""
    with ExitStack() as patches:
        for module in (channel, expand, expansions, group_size, plan, source):
            patches.enter_context(mock.patch.object(module, "CHUNK_ITEMS", length))
        if length < CHUNK:  # what is only picked is sent on in chunks of their own size
            patches.enter_context(mock.patch.multiple(source, PICKED_FIRST_ITEMS=length, PICKED_ITEMS=length))
        yield


@contextmanager
def tracked(events: int) -> Iterator[None]:
    """Bring the records of a run to the consumer's place when they have more than this many events."""
    with mock.patch.object(track, "TRACKED_EVENTS", events):
        yield


@contextmanager
def recorded_at_most(events: int) -> Iterator[None]:
    """Record no more than this many chunks of a stage."""
    with mock.patch.object(record, "RECORDED_EVENTS", events):
        yield


@contextmanager
def groups_that_end_after(late: float, *, slow: bool = False) -> Iterator[None]:
    """Let a group on a thread end early after this many times the time it should take; -1: after its first item.

    If `slow`, all items pass for slow ones, which several threads call.
    """
    with ExitStack() as patches:
        for module in (dispatch, expand):
            patches.enter_context(mock.patch.object(module, "LATE_FACTOR", late))
        if slow:
            patches.enter_context(mock.patch.object(dispatch, "SECOND_THREAD_SECONDS", 0.0))
        yield


@contextmanager
def group_clocks(wall: Callable[[], float], processor: Callable[[], float] | None = None) -> Iterator[None]:
    """Measure groups on threads by these clocks."""
    with (
        mock.patch.object(dispatch, "perf_counter", wall),
        mock.patch.object(expand, "perf_counter", wall),
        mock.patch.object(dispatch, "thread_time", processor or dispatch.thread_time),
    ):
        yield


@contextmanager
def counted_jobs() -> Iterator[Callable[[], int]]:
    """Give a function that returns how many jobs were handed to threads."""
    with mock.patch.object(Threads, "submit", autospec=True, side_effect=Threads.submit) as submit:
        yield lambda: int(submit.call_count)


@contextmanager
def one_core_is(least: float, most: float) -> Iterator[None]:
    """Let functions that compute for such shares of the time pass for those that have one core."""
    with mock.patch.multiple(explain, ONE_CORE=(least, most), HELD_BACK_SHARE=0.0):
        yield


@contextmanager
def counted_groups() -> Iterator[Callable[[], int]]:
    """Give a function that returns for how many groups a sync function was called."""
    call = dispatch.ThreadDispatch.call
    with mock.patch.object(dispatch.ThreadDispatch, "call", autospec=True, side_effect=call) as called:
        yield lambda: int(called.call_count)


@contextmanager
def turn_clock(clock: Callable[[], float]) -> Iterator[None]:
    """Measure by this clock for how long an async function keeps the loop."""
    with mock.patch.object(call_async, "perf_counter", clock):
        yield


@contextmanager
def cores(count: int) -> Iterator[None]:
    """Let stages find this many processor cores, and a GIL."""
    with threads_run_python_at_the_same_time(count, yes=False):
        yield


@contextmanager
def threads_run_python_at_the_same_time(count: int, *, yes: bool) -> Iterator[None]:
    """Let stages find this many processor cores, and no GIL or one."""
    with (
        mock.patch.object(dispatch, "usable_cores", lambda: count),
        mock.patch.object(dispatch, "runs_python_in_parallel", lambda: yes),
    ):
        yield


@contextmanager
def background_loops(make: Callable[[], asyncio.AbstractEventLoop]) -> Iterator[None]:
    """Let feeds whose consumers have no loop run on such loops."""
    with mock.patch("asyncfeed.engine.loops.new_event_loop", make):
        yield


@contextmanager
def engine_imported_in(seconds: float) -> Iterator[None]:
    """Let each feed find the engine not imported, and its import take this long on the loop's clock."""
    with (
        mock.patch("asyncfeed.session.is_ready", lambda: False),
        mock.patch("asyncfeed.session.get_ready", partial(asyncio.sleep, seconds)),
    ):
        yield


@contextmanager
def held_up_is_reported_after(seconds: float) -> Iterator[None]:
    """Report a feed if closing it holds up a coroutine's loop for longer than this."""
    with mock.patch.object(coroutines, "NOTICED_SECONDS", seconds):
        yield


# -- a run


def _run(feed: af.Feed[Any]) -> Run:
    run = session_of(feed).run
    assert run is not None
    return run


def recorded(feed: af.Feed[Any]) -> int:
    """Return about how many chunks are recorded for the next state."""
    run = session_of(feed).run
    assert run is not None
    return sum(each.waiting for each in run.track.stations)


def memory_used(feed: af.Feed[Any]) -> int:
    """Return the bytes that a feed is charged with, after what its consumer has just freed is counted."""
    run = _run(feed)
    run.handoff.settle()
    return run.budget.used


def memory_guessed(feed: af.Feed[Any]) -> int:
    """Return how many of the bytes that a feed is charged with are for results of unknown weight."""
    return _run(feed).budget.guessed


@contextmanager
def handoff_locked(feed: af.Feed[Any]) -> Iterator[None]:
    """Hold the lock under which consumers take items, as the thread that the garbage collector runs on may."""
    with _run(feed).handoff._lock:
        yield


@contextmanager
def called_while_a_state_is_taken(feed: af.Feed[Any], call: Callable[[], object]) -> Iterator[None]:
    """Call a function once, in the middle of the next state: the lock of the records is held."""
    kind = type(_run(feed).track)
    follow = kind._follow

    def calling(track: Any, taken: int) -> None:
        kind._follow = follow  # type: ignore[method-assign]
        call()
        follow(track, taken)

    kind._follow = calling  # type: ignore[method-assign]
    try:
        yield
    finally:
        kind._follow = follow  # type: ignore[method-assign]


def limit_threads(feed: af.Feed[Any], limit: Callable[[], int]) -> None:
    """Let the last stage have `limit()` threads whenever one of its workers takes a group of items."""
    step: Any = _run(feed).steps[-1]
    take = step.executor._next_group

    def take_limited() -> Any:
        step.pool.limit = limit()
        return take()

    step.executor._next_group = take_limited


def stopped_at_exit_before_its_start(feed: af.Feed[Any]) -> str | None:
    """Let the interpreter exit when a feed has its run but no thread yet; return why the run then stops."""
    run = session_of(feed).new_run(new_event_loop())
    driver = Driver(run)
    driver._at_exit()
    driver.start()
    driver.join()
    return run.handoff.stopped


# -- what bridges see of a feed


def take_ready(feed: af.Feed[Any], most: int, nbytes: int) -> list[Any]:
    """Take up to `most` items of `nbytes` together that are ready, as a bridge does to cross with several."""
    return session_of(feed).take_ready(most, nbytes)


def wait_for_ready(feed: af.Feed[Any], count: int) -> None:
    """Wait until so many items lie in the last queue."""
    while len(_run(feed).handoff) < count:
        time.sleep(0.001)


def drawing_files() -> set[str]:
    """Return the files of the code that draws an item."""
    return {each.__code__.co_filename for each in (af.Feed.__next__, Handoff.take, Delivered.put_ahead)}


class Bridge:
    """What a bridge tells a running feed about the trainer behind it."""

    def __init__(self, feed: af.Feed[Any]) -> None:
        handoff = session_of(feed).handoff
        assert handoff is not None
        handoff.ends_elsewhere = True
        self._handoff = handoff

    def hold(self) -> None:
        """Say that an item which was drawn waits for the trainer."""
        self._handoff.hold()

    def let_go(self) -> None:
        """Say that the trainer has taken it."""
        self._handoff.let_go()

    def end_seen(self) -> None:
        """Say that the trainer has seen the end."""
        self._handoff.end_seen()


# -- how many items go to a thread together


class _Told:
    """Threads that say how long a group took, and run nothing."""

    ending = False
    lag = 0.0
    """How long the loop waits for the GIL."""
    waits = 1, 0, 0.0
    """How often a thread has waited in a group, how many blocks it has read, and how long others computed."""

    called = 0
    """For how many members of a list the functions were called."""

    def __init__(self, wall: float, cpu: float) -> None:
        self.told = wall, cpu

    async def run(self, what: str, fn: Any, items: list[Any], places: Any, number: int, *, limiter: Any) -> Any:
        outcomes = Outcomes()
        outcomes.values, outcomes.amount, outcomes.called = items, len(items), self.called
        return outcomes, *self.told, self.waits


class Groups:
    """What decides how many items go to a thread together, and how many threads are worth having.

    It is told how long calls take, and calls nothing.
    """

    def __init__(self, wall: float, cpu: float, *, unit: int = 1, waits: Waits = Waits.UNKNOWN) -> None:
        self._told = _Told(wall, cpu)
        self.waits = waits
        """What the calls say that they waited for."""
        work = Work(bytes, "thread", waits=lambda: self.waits)
        self._dispatch = dispatch.ThreadDispatch(self._told, work, "map(bytes)", unit)  # type: ignore[arg-type]

    def take(self, wall: float, cpu: float) -> None:
        """Let calls take this long from now on."""
        self._told.told = wall, cpu

    def wait(self, lag: float, times: int, blocks: int = 0, *, elsewhere: float = 0.0) -> None:
        """Let the loop wait so long for the GIL, and a thread wait so often in a group and read so many blocks.

        Other threads compute so many seconds meanwhile.
        """
        self._told.lag, self._told.waits = lag, (times, blocks, elsewhere)

    @property
    def quick_threads(self) -> int:
        """The number of threads for items that are quick."""
        return self._dispatch.quick_threads

    def measure(self, calls: int = 20, *, working: int = 1) -> None:
        """Measure some groups of one item, while this many threads work."""
        self._dispatch.limiter.width = self._dispatch.limiter.busy = working
        for _ in range(calls):
            asyncio.run(self._dispatch.run([1], None, 0))

    def call(self, sizes: list[int], fn: Callable[[int], Any] = bytes) -> int:
        """Make results of these sizes in bytes. Return their number."""
        with mock.patch.object(self._dispatch, "_fn", fn):
            return len(self._dispatch.call(sizes, None))

    def size(self, count: int = 6400, costs: Sequence[int] = (), ratio: float = 1.0) -> int:
        """Return how many of `count` items go together; items weigh `costs`, results `ratio` times as much."""
        return self._dispatch.group(count, costs, ratio)

    def measure_members(self, called: int) -> int:
        """Measure lists of which so many members were called. Return for how many that is done together then."""
        self._told.called = called
        with mock.patch.object(self._dispatch, "_chain", chain.Chain(())):
            self.measure()
        return self._dispatch.members.share(16)

    @property
    def slow(self) -> bool:
        """Whether items take so long that a second thread may help."""
        return self._dispatch.slow

    @property
    def threads(self) -> int:
        """The number of threads to begin with."""
        return self._dispatch.first_threads

    @property
    def most_threads(self) -> int:
        """The largest number of threads to try."""
        return self._dispatch.max_threads


# -- places


def place_of_batch(ordinals: list[int]) -> ItemPlace:
    """Return what a function is told of where a batch stands, whose members have these places in the first epoch."""
    return ItemPlace(Provenance(None, None), ordinals)


def as_run(pipeline: af.Pipeline[Any]) -> list[Any]:
    """Return the stages of a pipeline in the order they run, with those of a segment as one."""
    return segment.joined(together.arrange(pipeline.stages))


def reads_batches(node: Any) -> bool:
    """Return whether a stage reads files straight into the rows of batches."""
    return isinstance(node, segment.Segment) and isinstance(node.steps()[-1].fn, ReadBatch)  # type: ignore[union-attr]


@contextmanager
def stages_apart(apart: bool = True) -> Iterator[None]:
    """Call the functions of each stage for themselves, as if there was a hand-over between all of them."""
    old, segment.JOINS = segment.JOINS, not apart
    try:
        yield
    finally:
        segment.JOINS = old


# -- worker processes


class LeftOut(Exception):  # noqa: N818 - it is no error
    """An item was not called, because nobody wants it any more."""


class OwnWorkers:
    """The worker processes of one stage outside any run; `kept` keeps them for the next."""

    def __init__(self, fn: Callable[..., Any], kept: KeptWorkers = kept, *, skips: bool = False) -> None:
        self._kept = kept
        skip = (lambda _: True) if skips else None
        self._processes = Processes(Work(fn, "process", concurrency=1, skip=skip), "map(fn)", kept)
        self._processes.room = constants.GROUP_BYTES

    def call(self, item: Any) -> Any:
        """Call the function for an item in a worker."""
        outcomes, _ = self._processes.call([item], None)
        if outcomes.missing:
            raise outcomes.missing[0] or LeftOut
        return outcomes.values[0]

    def call_group(self, items: list[Any], *, placed: bool = False) -> list[Any]:
        """Call the function for items that go to a worker together, until there is a result or error for each.

        Return them in parts, as the stage gets them.
        """
        got = []
        while items:
            places = [place_of_batch([0, 1]) for _ in items] if placed else None
            outcomes, _ = self._processes.call(items, places)
            got.append([outcomes.missing.get(at, value) for at, value in enumerate(outcomes.values)])
            items = items[len(outcomes) :]
        return got

    @property
    def deaths(self) -> int:
        """The number of workers that died."""
        return sum(count for _, count in self._processes.died.counts())

    def stop(self, *, with_threads: bool = True) -> None:
        """Let go of the workers; `with_threads=False` is the end of the interpreter, which starts no thread."""
        self._processes.stop(_Submits() if with_threads else _Refuses())  # type: ignore[arg-type]

    def kill(self) -> bool:
        """Kill the workers that have not answered; return whether there were any."""
        return bool(self._processes.kill())

    def release_idle(self) -> None:
        """Do what Python does at exit for the workers that have nothing to do, though this process goes on."""
        for each in self._processes._idle:
            each._release()

    def breaks_off(self) -> Any:
        """Let what reads an answer fail, for a `with` block."""
        return mock.patch("asyncfeed.engine.processes.stage._read", mock.Mock(side_effect=MemoryError))

    def take_kept(self) -> Worker:
        """Take a worker of this stage out of those that are kept."""
        worker = self._kept.take(self._processes._key)
        assert worker is not None
        return worker


def mappings() -> int:
    """Return how many blocks of worker processes this process has mapped."""
    return len(mapping.mapped)


@contextmanager
def new_blocks() -> Iterator[list[int]]:
    """Collect the sizes of the blocks that worker processes make."""
    made = []
    add = Blocks.add

    def note(self: Blocks, fds: list[int]) -> bool:
        made.extend(os.fstat(fd).st_size for fd in fds)
        return add(self, fds)

    with mock.patch.object(Blocks, "add", note):
        yield made


@contextmanager
def blocks_for_arrays_of(nbytes: int) -> Iterator[None]:
    """Show arrays of at least this many bytes in blocks, if both sides are in this process."""
    with (
        mock.patch.object(shared, "BLOCK_ARRAY_BYTES", nbytes),
        mock.patch.object(block_writer, "BLOCK_ARRAY_BYTES", nbytes),
    ):
        yield


@contextmanager
def blocks_bounded(
    *, nbytes: int = constants.BLOCKS_BYTES, few: int = 0, most: int = 1000, after_copies: int = 0
) -> Iterator[None]:
    """Let a worker have few blocks: `few` and `after_copies` are for a worker in this process only."""
    with (
        mock.patch.object(blocks, "BLOCKS_BYTES", nbytes),
        mock.patch.object(block_writer, "BLOCKS_FEW", few),
        mock.patch.object(block_writer, "BLOCK_AFTER_COPIES", after_copies),
        mock.patch.object(blocks, "most_mappings", lambda: most),
    ):
        yield


@contextmanager
def fork_under_way() -> Iterator[None]:
    """Do what the process does just before and after a fork, with the time between them for other threads."""
    mapping.SHOWN.before_fork()
    try:
        yield
    finally:
        mapping.SHOWN.after_fork()


def no_blocks_here() -> Any:
    """Let the system lack what blocks need, for a `with` block and a worker in this process."""
    return mock.patch.object(block_writer, "CAN_MAKE_BLOCKS", False)


def forks_wait() -> Any:
    """Hold the lock that a fork takes for its blocks, for a `with` block."""
    return mapping.SHOWN._lock


class _Submits:
    """The threads of a run, for one job at a time."""

    def submit(self, _: str, fn: Any, *args: Any) -> None:
        fn(*args)


class _Refuses:
    def submit(self, *_: Any) -> None:
        raise RuntimeError("can't start new thread")


@contextmanager
def workers_exit_within(seconds: float) -> Iterator[None]:
    """Kill a worker process that does not exit within this time when told to."""
    with mock.patch("asyncfeed.engine.processes.kept.WORKER_EXIT_SECONDS", seconds):
        yield


def run_finalizers() -> None:
    """Call what Python calls at exit for the objects of `weakref.finalize`."""
    weakref.finalize._exitfunc()  # type: ignore[attr-defined]


@contextmanager
def finalizers_run_before_a_worker_is_asked() -> Iterator[None]:
    """Have a thread that asks a worker process find, once, that Python has closed its memory at exit just now."""
    real, left = Processes._ask, [1]

    def ask(self: Processes, worker: Any, *args: Any) -> tuple[float, bool]:
        if left:
            left.pop()
            worker.forget()
        return real(self, worker, *args)

    with mock.patch.object(Processes, "_ask", ask):
        yield


def run_finalizers_before_a_worker_rests() -> None:
    """Have a thread that gives a worker process back find that Python, at exit, has closed its memory just now."""
    real = Processes._leave

    def leave(self: Processes, worker: Any) -> None:
        if worker.alive:
            run_finalizers()
        real(self, worker)

    Processes._leave = leave  # type: ignore[method-assign]


@contextmanager
def nobody_finds_what_hangs() -> Iterator[None]:
    """Let jobs that hang keep their places."""
    with mock.patch.object(fair.HangWatch, "begin"):
        yield
