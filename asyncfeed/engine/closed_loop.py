"""What becomes of a run whose event loop is closed before the run has ended.

It happens when an interrupt is raised out of `loop.run_until_complete` and the loop is closed then. Nothing can be
awaited any more. A closed loop forgets its timers, so each run leaves it one that never comes. When that timer
goes, inside `loop.close()` and on the thread that calls it, the run lets go of everything. No garbage collection
is needed. For each kind of thing:

* A task: its coroutine is cancelled at its `await`, as asyncio would, until it ends. So async functions, async
  iterators and files of `lines` run their `finally`. What they await there is cancelled, too.
* A worker thread that has nothing to do ends. One that waits for the loop is woken, and ends. One that is in a
  call ends after it.
* A sync iterator is closed by the thread that it is drawn on. If it is on none, it is closed at once.
* A worker process that has nothing to do is killed. One that is in a call ends, or is kept, after the call.
* The reader of a store is told to let go (`abandon`), or closed if it is one that blocks.
* A wait for memory ends, and lets nobody else in.
* A draw that waits belongs to a task of the user's on that loop. Nobody wakes it. Later draws raise `ClosedError`.

Nothing is scheduled on the closed loop, and no thread is started. What closing raises is logged. asyncio does not
report the run's tasks as pending, because their coroutines have ended.

Tasks that the run has left behind after its grace, and that are still there, end with the loop in the same way.

A loop that is never closed and never runs again keeps its runs, as it keeps all other tasks.
"""

from __future__ import annotations

import asyncio
import logging
import math
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import Context
from functools import partial
from operator import methodcaller
from typing import Any

from asyncfeed.engine.constants import CLOSED_LOOP_CANCELLATIONS

log = logging.getLogger("asyncfeed")


class Watch(weakref.ref[Any]):
    """A weak reference that is told when its object has gone: by itself, as `weakref.finalize` is in Python."""

    __slots__ = ("gone",)
    gone: Callable[[], object]


def watch(owner: object, gone: Callable[[], object]) -> Watch:
    """Call `gone` when nobody holds `owner` any more, and somebody still holds what this returns."""
    made = Watch(owner, methodcaller("gone"))
    made.gone = gone
    return made


class _Held:
    """What a loop holds of a run: a timer's function."""

    __slots__ = ("__weakref__", "closed")

    def __init__(self, closed: Callable[[], object]) -> None:
        self.closed: Callable[[], object] | None = closed
        """It holds the run, so a run that has not ended lives as long as its loop is open."""

    def __call__(self) -> None:
        pass


class Hold:
    """Lets a loop hold a run while it is open; calls `closed` when the loop is closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, closed: Callable[[], object]) -> None:
        held = _Held(closed)
        # Nobody but the loop may hold either, or they would outlive its close.
        self._held = weakref.ref(held)
        self._timer: Callable[[], asyncio.TimerHandle | None] = lambda: None
        self._watch: Watch | None = watch(held, closed)
        try:
            self._timer = weakref.ref(loop.call_at(math.inf, held, context=Context()))
        except (OverflowError, ValueError):  # a loop whose timers need a number: only the feed can tell the run
            self._watch = None

    def release(self, name: str, left: set[asyncio.Task[None]]) -> None:
        """Let the loop hold the run no more. The tasks that are `left` behind end with the loop at the latest."""
        held, timer = self._held(), self._timer()
        if left and held is not None and self._watch is not None:
            held.closed = None
            self._watch.gone = partial(unwind, name, weakref.WeakSet(left))
            say_nothing_of(left)
            return
        self._watch = None
        if timer is not None:
            timer.cancel()


def say_nothing_of(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Keep asyncio from reporting tasks that will never be done: the run has done what can be done about them."""
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - as `asyncio.gather` does


def unwind(name: str, tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks whose loop is closed until they end, on this thread; log what else they raise."""
    tasks = [task for task in tasks if not task.done()]
    say_nothing_of(tasks)
    for task in tasks:
        # All of them first, so that what one does when it ends finds nobody to wake.
        with suppress(RuntimeError):  # the loop is closed, but the task and what it waits for count as cancelled
            task.cancel()
    for task in tasks:
        try:
            _cancel_until_it_ends(task.get_coro())
        except (StopIteration, asyncio.CancelledError, GeneratorExit):
            pass
        except BaseException as error:  # the others are to end, too
            log.warning("%s: its event loop was closed, and %r failed", name, task.get_name(), exc_info=error)


def close_main(task: asyncio.Task[Any] | None) -> None:
    """End the task that leads a run and whose loop is closed: it takes a cancellation for a reason to wait."""
    if task is None:
        return
    say_nothing_of([task])
    asyncio._unregister_task(task)  # noqa: SLF001 - documented, for those who extend asyncio
    coroutine: Any = task.get_coro()
    coroutine.close()


def _cancel_until_it_ends(coroutine: Any) -> None:
    for _ in range(CLOSED_LOOP_CANCELLATIONS):
        # Not `close`: until Python 3.13 that leaves an async iterator in the middle of an item.
        coroutine.throw(asyncio.CancelledError())
    coroutine.close()
