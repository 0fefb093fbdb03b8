"""How a run ends if its event loop is closed before the run has ended.

This happens when an interrupt is raised out of `loop.run_until_complete` and the loop is then closed. Nothing can
be awaited any more.

A closed loop drops its timers. So each run schedules a timer on its loop that never fires. When the loop drops
that timer, the run releases everything: inside `loop.close()`, on the thread that calls it, without a garbage
collection. For each kind of thing:

| a run holds | what happens to it |
|---|---|
| task | Its coroutine is cancelled at each `await` until the coroutine ends, so its `finally` blocks run |
| worker thread, idle | It ends |
| worker thread that waits for the loop | It is woken, and ends |
| worker thread in a call | It ends after the call |
| sync iterator | The thread that draws from it closes it. If no thread does, it is closed at once |
| worker process, idle | It is killed |
| worker process in a call | It ends, or is kept, after the call |
| reader of a store | `abandon` is called, or `close` if its methods block |
| wait for memory | It ends, and the memory goes to no other task |
| draw that waits | It is never woken, as its task is the user's. Later draws raise `ClosedError` |

The coroutines that are cancelled include async functions, async iterators and files of `lines`.

Nothing is scheduled on the closed loop, and no thread is started. Exceptions of closing are logged. asyncio does
not report the run's tasks as pending, because their coroutines have ended.

Tasks that the run left behind after its grace end in the same way when the loop is closed.

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
from asyncfeed.machine import runs_python_in_parallel

log = logging.getLogger("asyncfeed")


class Watch(weakref.ref[Any]):
    """A weak reference that calls `gone` when its object goes.

    The callback of `weakref.finalize` is Python code. This one is written in C: see `Run.watch`.
    """

    __slots__ = ("gone",)
    gone: Callable[[], object]


def watch(owner: object, gone: Callable[[], object]) -> Watch:
    """Return a `Watch`. If it is still referred to when the last reference to `owner` goes, `gone` is called."""
    made = Watch(owner, methodcaller("gone"))
    made.gone = gone
    return made


def watch_on(loop: asyncio.AbstractEventLoop, owner: object, gone: Callable[[], object]) -> Watch:
    """Return a `Watch` that has a loop of another thread call `gone`, unless that thread has closed it."""
    call: Callable[[], object] = partial(loop.call_soon_threadsafe, gone)
    if isinstance(loop, asyncio.BaseEventLoop) or runs_python_in_parallel():
        # Such a call takes several steps, and the thread may close the loop between them.
        call = partial(_unless_closed, call)
    return watch(owner, call)


def _unless_closed(call: Callable[[], object]) -> None:
    with suppress(RuntimeError):
        call()


class _Held:
    """The function of a run's timer. The loop's only reference to the run leads through it."""

    __slots__ = ("__weakref__", "closed")

    def __init__(self, closed: Callable[[], object]) -> None:
        self.closed: Callable[[], object] | None = closed
        """A reference to the run, so a run that has not ended lives until its loop is closed."""

    def __call__(self) -> None:
        pass


class Hold:
    """Keeps a run alive while its loop is open. Calls `closed` when the loop is closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, closed: Callable[[], object]) -> None:
        held = _Held(closed)
        # Only the loop may hold the function and its timer. Otherwise they would outlive `loop.close()`.
        self._held = weakref.ref(held)
        self._timer: Callable[[], asyncio.TimerHandle | None] = lambda: None
        self._watch: Watch | None = watch(held, closed)
        try:
            self._timer = weakref.ref(loop.call_at(math.inf, held, context=Context()))
        except (OverflowError, ValueError):
            # This loop takes no infinite time, so its close is not noticed. A run then ends only through its feed.
            self._watch = None

    def release(self, name: str, left: set[asyncio.Task[None]]) -> None:
        """Let the loop hold the run no more. Tasks that are `left` end at the latest when the loop closes."""
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
    """Keep asyncio from reporting these tasks as pending. They will never be done, and the run has ended them."""
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - as `asyncio.gather` does


def unwind(name: str, tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks of a closed loop until they end, on this thread. Log their exceptions."""
    tasks = [task for task in tasks if not task.done()]
    say_nothing_of(tasks)
    for task in tasks:
        # Cancel all tasks before any coroutine runs, so that a coroutine that ends finds no task to wake.
        with suppress(RuntimeError):  # the closed loop raises after the task and its future are marked cancelled
            task.cancel()
    for task in tasks:
        try:
            _cancel_until_it_ends(task.get_coro())
        except (StopIteration, asyncio.CancelledError, GeneratorExit):
            pass
        except BaseException as error:  # the other tasks must end, too
            log.warning(
                "%s: task %r failed when it was cancelled because its event loop was closed",
                name,
                task.get_name(),
                exc_info=error,
            )


def close_main(task: asyncio.Task[Any] | None) -> None:
    """End the main task of a run whose loop is closed.

    It is closed and not cancelled: after a cancellation `Run.main` would wait for the end of the run.
    """
    if task is None:
        return
    say_nothing_of([task])
    asyncio._unregister_task(task)  # noqa: SLF001 - documented, for those who extend asyncio
    coroutine: Any = task.get_coro()
    coroutine.close()


def _cancel_until_it_ends(coroutine: Any) -> None:
    for _ in range(CLOSED_LOOP_CANCELLATIONS):
        # `close` is the last resort: before Python 3.13 it leaves an async iterator in the middle of an item.
        coroutine.throw(asyncio.CancelledError())
    coroutine.close()
