"""The one place where tasks are created, so that a new task never runs inside the call that creates it.

`start_task` keeps these invariants; `ended` waits for a task:

* Nothing of the coroutine runs before `start_task` has returned. A caller may thus create the task first and note
  it afterwards, and the task finds everything noted.
* A task that is cancelled before its first step leaves no coroutine that was never awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

TURNS = 100
"""Turns of the loop that the run's task has after the time limit to end. It needs fewer than ten."""


def start_task(
    where: asyncio.AbstractEventLoop | asyncio.TaskGroup,
    coroutine: Coroutine[Any, Any, T],
    *,
    loop: asyncio.AbstractEventLoop,
    name: str,
) -> asyncio.Task[T]:
    """Create a task in `where`, on `loop`; its first step comes in a later turn of the loop.

    asyncio promises that only as long as the loop has no task factory. `asyncio.eager_task_factory` (Python 3.12)
    runs a task up to its first wait before `create_task` returns.
    """
    if loop.get_task_factory() is None:
        return where.create_task(coroutine, name=name)
    # Not `asyncio.Task(coroutine)`: that passes over the user's factory, and no group takes it.
    task = where.create_task(_in_a_later_turn(coroutine), name=name)
    # A task that is cancelled before its first step has begun neither coroutine, and only the outer one is closed.
    task.add_done_callback(lambda _: coroutine.close())
    return task


async def _in_a_later_turn(coroutine: Coroutine[Any, Any, T]) -> T:
    try:
        await asyncio.sleep(0)
    except BaseException:
        coroutine.close()  # the callback does not come if the loop was closed
        raise
    return await coroutine


def forget_cancellation(task: asyncio.Task[None]) -> None:
    """Drop the exception a cancelled task ended with: the task keeps it, and its frames keep the task."""
    if task.cancelled():
        with suppress(asyncio.CancelledError):
            task.result()


async def ended(task: asyncio.Task[None], seconds: float) -> None:
    """Wait for a task, also when this wait is cancelled: as a task group, which leaves nothing behind.

    The run's task ends by itself soon after the grace. The time limit is for one that was lost to an interrupt. On
    a busy machine it may pass before the loop came to run the task, so the loop has some turns beyond it.
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
