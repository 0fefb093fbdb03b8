"""The only module that creates tasks. `start_task` creates a task, and `ended` waits for one.

`start_task` keeps these invariants:

* The coroutine does not run before `start_task` has returned. So a caller can store the task before the coroutine
  runs.
* If a task is cancelled before its first step, its coroutine is closed, and Python does not warn that the
  coroutine was never awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

TURNS = 100
"""Number of turns of the loop in which a task may still end after the time limit. The task needs fewer than
ten."""


def start_task(
    where: asyncio.AbstractEventLoop | asyncio.TaskGroup,
    coroutine: Coroutine[Any, Any, T],
    *,
    loop: asyncio.AbstractEventLoop,
    name: str,
) -> asyncio.Task[T]:
    """Create a task in `where`, on `loop`. Its first step runs in a later turn of the loop.

    asyncio guarantees that only for a loop without a task factory. `asyncio.eager_task_factory` (Python 3.12) runs
    a task up to its first wait before `create_task` returns.
    """
    if loop.get_task_factory() is None:
        return where.create_task(coroutine, name=name)
    # Not `asyncio.Task(coroutine)`: it would bypass the user's factory, and a task group does not accept it.
    task = where.create_task(_in_a_later_turn(coroutine), name=name)
    # If the task is cancelled before its first step, asyncio closes only the outer coroutine.
    task.add_done_callback(lambda _: coroutine.close())
    return task


async def _in_a_later_turn(coroutine: Coroutine[Any, Any, T]) -> T:
    try:
        await asyncio.sleep(0)
    except BaseException:
        coroutine.close()  # the callback is not called if the loop was closed
        raise
    return await coroutine


def forget_cancellation(task: asyncio.Task[None]) -> None:
    """Drop the exception of a cancelled task. The task holds the exception, and its frames hold the task."""
    if task.cancelled():
        with suppress(asyncio.CancelledError):
            task.result()


async def ended(task: asyncio.Task[None], seconds: float) -> None:
    """Wait for a task to end, for up to `seconds`. A cancellation of this wait is raised at the end of the wait.

    The run's task ends by itself soon after the grace. The time limit is for a task whose next step was lost to an
    interrupt. On a busy machine the time may pass before the loop has run the task. So the loop gets `TURNS` more
    turns after the time limit.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    cancelled: asyncio.CancelledError | None = None
    turns = TURNS
    while not task.done() and turns:
        try:
            left = deadline - loop.time()
            if left > 0:
                await asyncio.wait([task], timeout=left)
            else:
                turns -= 1
                await asyncio.sleep(0)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
