"""Tools for testing code that uses asyncio: virtual time, seeded schedules, leaks, cancellation.

::

    run_virtual(main, seed=3)                   # virtual time; tasks run in a random order that repeats
    with no_leaks(types=(Feed,)):               # fails if threads, files, tasks or objects are left
        run_virtual(main)
    cancel_everywhere(main, lambda turn: ...)   # cancels the coroutine at each possible place

Nothing here needs a test runner, or more than the standard library.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import selectors
import sys
import threading
import time
import traceback
import tracemalloc
import weakref
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack

import asyncfeed.engine.everything  # noqa: F401 - otherwise the first run of a process takes more turns
from asyncfeed.engine.loops import new_event_loop
from asyncfeed.engine.workers import workers

if TYPE_CHECKING:
    from concurrent.futures import Executor

__all__ = [
    "Deadlock",
    "Leaks",
    "VirtualLoop",
    "cancel_everywhere",
    "end_kept_processes",
    "memory_growth",
    "no_leaks",
    "run_virtual",
]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# Names of the callbacks that the C and the Python `Task` put into the loop's queue, since Python 3.11.
_TASK_STEPS = frozenset({"TaskStepMethWrapper", "task_wakeup", "TaskWakeupMethWrapper", "__step", "__wakeup"})
_TURNS_TO_SETTLE = 1_000
_TURNS_TO_END = 100_000


class Deadlock(AssertionError):
    """Nothing can run any more. The message says where each task waits."""


class _Selector(selectors.DefaultSelector):
    """Replaces the waits of a loop. asyncio passes the time to wait, and the virtual clock jumps by it."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.loop._turn() or timeout == 0:
            return super().select(0)
        if timeout is None or self.loop._scheduled[0].when() == float("inf"):  # that timer never fires
            if not (events := super().select(self.loop.patience)):
                raise Deadlock(f"nothing could run for {self.loop.patience} s\n{_report(self.loop)}")
            return events
        # A busy thread may have begun to wait for the loop, which causes no event. So look every millisecond.
        # `_busy` is called before `select`, so that the last event of a thread that has finished is seen.
        until = time.monotonic() + self.loop.patience
        busy = True
        while busy:
            busy = self.loop._busy() and time.monotonic() < until
            if events := super().select(0.001 if busy else 0):
                return events
        self.loop._jump()
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with a virtual clock, whose tasks run in an order drawn from `seed`.

    `time()` starts at 0, and stands still while anything can run. Then it jumps to the next timer.

    asyncio runs the task that became ready first, but its documentation does not promise that. So each turn of
    this loop shuffles the tasks that are ready. A race that needs an unlucky order occurs with some seed, and
    occurs again with the same seed. Other callbacks (`call_soon`) keep their order, which is promised. `seed=None`
    shuffles nothing.

    Work on a thread takes no virtual time. While a call of `run_in_executor` or of asyncfeed's own threads runs,
    the clock does not jump, for up to `patience` real seconds. Other threads, sockets and subprocesses do not stop
    the clock, so a time-out may come before they finish. For these, set `threads_busy`. If nothing can run and
    there is no timer, the loop waits for a thread, and raises `Deadlock` after `patience` real seconds.
    """

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, seed: int | None = None) -> None:
        selector = _Selector()
        selector.loop = self
        self.patience = 10.0
        """Maximum real seconds to wait for a thread. It has no effect on a test that passes."""
        self.threads_busy: Callable[[], bool] | None = None
        """Returns whether a thread still works, so that the clock must not jump. None: see the class."""
        self.on_turn: Callable[[], object] | None = None
        """Called in each turn of the loop, before the callbacks that are ready run."""
        self.complaints: list[dict[str, Any]] = []
        """The contexts of errors that nothing caught. Objects are text there: a collected task must not live."""
        self._now = 0.0
        self._random = None if seed is None else random.Random(seed)  # noqa: S311 - it must be repeatable
        self._in_executor = 0
        super().__init__(selector)

    def time(self) -> float:
        """Return the virtual time, in seconds."""
        return self._now

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an error that nothing caught, and keep it in `complaints`."""
        self.complaints.append({k: v if k in ("message", "exception") else repr(v) for k, v in context.items()})
        super().call_exception_handler(context)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Call `func(*args)` on a thread. The clock waits for it."""
        future = super().run_in_executor(executor, func, *args)
        self._in_executor += 1
        future.add_done_callback(self._left_executor)
        return future

    def _left_executor(self, _: asyncio.Future[Any]) -> None:
        self._in_executor -= 1

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Join the standard pool without the time-out of newer Pythons: the clock would jump to it."""
        await super().shutdown_default_executor()

    def _turn(self) -> bool:
        """Begin a turn. Return whether any callback is ready."""
        if self.on_turn is not None:
            self.on_turn()
        if self._random is not None:
            # Threads may append callbacks meanwhile. So take those that are there, and put them back in front.
            handles = [self._ready.popleft() for _ in range(len(self._ready))]
            places = [i for i, handle in enumerate(handles) if _is_task_step(handle)]
            steps = [handles[i] for i in places]
            self._random.shuffle(steps)
            for i, step in zip(places, steps, strict=True):
                handles[i] = step
            self._ready.extendleft(reversed(handles))
        return bool(self._ready)

    def _jump(self) -> None:
        self._now = max(self._now, self._scheduled[0].when())

    def _busy(self) -> bool:
        if self.threads_busy is not None:
            return self.threads_busy()
        runs = [run for run in [*workers.runs, *workers.closing] if run.loop is self]
        return self._in_executor > 0 or any(run.computes for run in runs)


def _is_task_step(handle: asyncio.Handle) -> bool:
    callback = getattr(handle, "_callback", None)
    return getattr(callback, "__name__", type(callback).__name__) in _TASK_STEPS and asyncio.isfuture(
        getattr(callback, "__self__", None)
    )


def run_virtual(
    main: Coroutine[Any, Any, T] | Callable[[], Coroutine[Any, Any, T]], *, seed: int | None = None
) -> T:
    """Run `main`, a coroutine or a function that returns one, on a new `VirtualLoop`. Return its result.

    Raises `AssertionError` if `main` left tasks that are not done, or if an error reached the loop's exception
    handler. Before that check, tasks may run as long as they can without a timer, and feeds that `main` left may
    take time to close. To set an option of the loop, call `asyncio.get_running_loop()` in `main`.

    >>> async def main() -> float:
    ...     await asyncio.sleep(3600)
    ...     return asyncio.get_running_loop().time()
    >>> run_virtual(main)
    3600.0
    """
    loop = VirtualLoop(seed)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        result = runner.run(main if isinstance(main, Coroutine) else main())
        runner.run(_settle(loop))
        _check_alone(loop)
    _check_quiet(loop)
    return result


def cancel_everywhere(
    make_coro: Callable[[], Coroutine[Any, Any, object]],
    check: Callable[[int], object] | None = None,
    *,
    seed: int | None = None,
) -> int:
    """Cancel a coroutine at each place where it can be cancelled. Return the number of places.

    The coroutine is made and run again and again, each time on a new `VirtualLoop(seed)`. Run `k` cancels its task
    in the `k`-th turn of the loop after the task's first step. So the task is cancelled while it waits, and also
    when its result has just arrived, which is where results get lost. Turns of other tasks count, so each wait is
    cancelled in every state that these can be in. The sweep ends when a run finishes before its turn `k`.

    After each cancelled run `check(k)` is called, when the loop is closed.

    Raises:
        AssertionError: A cancelled task swallowed the cancellation or raised another error, other tasks were left
            when the loop was idle, or an error reached the loop's exception handler.
    """
    swept = 0
    while _cancel_at(swept + 1, make_coro, seed):
        swept += 1
        if check is not None:
            check(swept)
    return swept


def _cancel_at(turn: int, make_coro: Callable[[], Coroutine[Any, Any, object]], seed: int | None) -> bool:
    """Run once, and cancel at `turn`. Return whether the task was still running then."""
    place = ""
    turns = -1  # not 0, because the first turn comes before the task's first step

    def on_turn() -> None:
        nonlocal place, turns
        if task.done():
            return
        turns += 1
        if turns == turn:
            place = f"cancelled at turn {turn}, {loop.time()} s, at:\n{_where(task)}"
            task.cancel()
        elif turns > turn + _TURNS_TO_END:
            raise Deadlock(f"the task does not end, {place}")

    async def watch() -> None:
        await asyncio.wait([task])
        await _settle(loop)

    loop = VirtualLoop(seed)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.get_loop()
        task = loop.create_task(make_coro())
        loop.on_turn = on_turn
        try:
            runner.run(watch())
        except Deadlock as error:
            error.add_note(place)
            raise
        if not place:
            task.result()
        elif not task.cancelled():
            raised = task.exception()
            became = f"returned {task.result()!r}" if raised is None else f"raised {raised!r}"
            raise AssertionError(f"the task {became} instead of ending cancelled; {place}") from raised
        _check_alone(loop, place)
    _check_quiet(loop, place)
    return bool(place)


async def _settle(loop: VirtualLoop) -> None:
    """Let other tasks run as long as they can without a timer. Then wait for feeds that are closing."""
    for _ in range(_TURNS_TO_SETTLE):
        await asyncio.sleep(0)
        if not loop._ready:
            break
    if closing := [task for task in asyncio.all_tasks(loop) if task.get_name().endswith(": closing")]:
        await asyncio.wait(closing)


def _check_alone(loop: asyncio.AbstractEventLoop, place: str = "") -> None:
    if tasks := asyncio.all_tasks(loop):
        raise AssertionError(f"{len(tasks)} tasks are left; {place}\n{_report(loop)}")


def _check_quiet(loop: VirtualLoop, place: str = "") -> None:
    if loop.complaints:
        context = loop.complaints[0]
        raise AssertionError(f"nothing caught an error: {context}; {place}") from context.get("exception")


def _report(loop: asyncio.AbstractEventLoop) -> str:
    # A feed's own tasks are not in `all_tasks`.
    found = [o for o in gc.get_objects() if issubclass(type(o), asyncio.Task) and not o.done()]
    tasks = sorted((o for o in found if o.get_loop() is loop), key=lambda task: task.get_name())
    return "\n".join(f"task {task.get_name()!r} stands at:\n{_where(task)}" for task in tasks)


def _where(task: asyncio.Task[Any]) -> str:
    """Return the chain of awaits of a task as text, outermost first."""
    lines = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        kind = next((kind for kind in ("cr", "gi", "ag") if hasattr(awaited, f"{kind}_frame")), None)
        if kind is None or (frame := getattr(awaited, f"{kind}_frame")) is None:
            break
        lines.append(f"    {frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}")
        awaited = getattr(awaited, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")
    return "\n".join(lines) or "    its end"


class Leaks:
    """Records what exists now. Its methods describe what was added since.

    It records the threads that Python started, the open file descriptors (if the system lists them), the asyncio
    tasks that are not done (unless `tasks=False`), and the objects of `types`, if the garbage collector tracks
    them (not NumPy arrays). Threads that are just ending are joined, for `patience` seconds in all.
    """

    def __init__(self, *, types: tuple[type, ...] = (), tasks: bool = True, patience: float = 2.0) -> None:
        self._types = (*types, asyncio.Task) if tasks else types
        self._patience = patience
        self._threads = weakref.WeakSet(threading.enumerate())
        new_event_loop().close()  # the first one of uvloop makes a pipe that stays
        self._files = _open_files()
        self._objects = {id(o): _reference(o) for o in self._instances()}

    def found(self) -> list[str]:
        """Collect garbage, and describe all leaks."""
        gc.collect()
        threads = self.threads()
        gc.collect()  # again, because threads that were joined held objects
        return [*threads, *self.files(), *self.objects()]

    def threads(self, prefix: str = "") -> list[str]:
        """Describe the new threads whose names begin with `prefix`: name and stack."""
        deadline = time.monotonic() + self._patience
        new = [t for t in threading.enumerate() if t not in self._threads and t.name.startswith(prefix)]
        # A dummy thread stands for a thread that Python did not start. It cannot be joined.
        new = [t for t in new if type(t).__name__ != "_DummyThread" and t is not threading.current_thread()]
        for thread in new:
            thread.join(max(0.0, deadline - time.monotonic()))
        frames = sys._current_frames()
        return [
            f"thread {t.name!r}, at:\n{''.join(traceback.format_stack(frames[t.ident]))}"
            for t in new
            if t.ident in frames
        ]

    def files(self) -> list[str]:
        """Describe the file descriptors that are new, or that refer to another file now."""
        now = sorted(_open_files().items())
        return [f"file descriptor {fd}: {name}" for fd, name in now if self._files.get(fd) != name]

    def objects(self) -> list[str]:
        """Describe the new objects and the pending tasks."""
        new = []
        for found in self._instances():
            before = self._objects.get(id(found))
            if before is None or before() is not found:
                new.append(found)
        tasks = [o for o in new if isinstance(o, asyncio.Task)]
        others = {type(o).__qualname__: o for o in new if not isinstance(o, asyncio.Task)}
        counts = Counter(type(o).__qualname__ for o in new)
        return [
            *(f"task {task.get_name()!r}, at:\n{_where(task)}" for task in tasks),
            *(f"{counts[name]} of {name}, one is {one!r}" for name, one in others.items()),
        ]

    def _instances(self) -> list[Any]:
        if not self._types:
            return []
        # `type` and not `isinstance`, because a lazy proxy may run any code when asked for its class.
        found = [o for o in gc.get_objects() if issubclass(type(o), self._types)]
        return [o for o in found if not (isinstance(o, asyncio.Task) and o.done())]


def end_kept_processes() -> None:
    """End the worker processes that `map(fn, on="process")` keeps for its next run, and wait until they are gone.

    They end by themselves after five minutes without a run, and when the interpreter exits.
    """
    # The module is not imported here: if no run has imported it, no process is kept.
    if (module := sys.modules.get("asyncfeed.engine.processes.kept")) is not None:
        module.kept.end_all()


@contextmanager
def no_leaks(*, types: tuple[type, ...] = (), patience: float = 2.0) -> Iterator[Leaks]:
    """Raise `AssertionError` if threads, files, tasks or objects of `types` are left after the block.

    The message describes each of them. `Leaks` says what is counted. Worker processes that are kept for the next
    run are ended first. If the block raises, nothing is checked. Things that a process makes once and keeps,
    such as the pipe of uvloop's first loop, must be made before the block.
    """
    gc.collect()
    leaks = Leaks(types=types, patience=patience)
    yield leaks
    end_kept_processes()
    if found := leaks.found():
        raise AssertionError(f"{len(found)} leaks:\n" + "\n".join(found))


def _reference(found: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(found)
    except TypeError:
        return lambda: found


def _open_files() -> dict[int, str]:
    """Return the file that each open file descriptor refers to."""
    folder = next((f for f in ("/proc/self/fd", "/dev/fd") if os.path.isdir(f)), None)  # noqa: PTH112
    files = {}
    for name in os.listdir(folder) if folder else ():  # noqa: PTH208
        try:
            status = os.fstat(int(name))
            target = os.readlink(f"{folder}/{name}") if folder == "/proc/self/fd" else "?"  # noqa: PTH115
        except OSError:
            continue  # the descriptor that listed the folder
        files[int(name)] = f"{target} (device {status.st_dev}, inode {status.st_ino})"
    return files


def memory_growth(fn: Callable[[], object], *, warmup: int = 5, rounds: int = 20) -> float:
    """Return by how many bytes the memory in use grows with each call of `fn`, after `warmup` calls.

    Counts the allocations of Python and NumPy (`tracemalloc`), after a garbage collection. For a function that
    keeps nothing, the result is a few hundred bytes or less.
    """
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    try:
        for _ in range(warmup):
            fn()
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(rounds):
            fn()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        if not tracing:
            tracemalloc.stop()
    return (after - before) / rounds
