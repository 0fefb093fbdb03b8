"""Loops with eager tasks: a task runs up to its first wait before `create_task` returns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

HAS_EAGER_TASKS = hasattr(asyncio, "eager_task_factory")
"""From Python 3.12 on."""


async def eagerly(main: Coroutine[Any, Any, Any] | Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run `main` with eager tasks; it is itself a task that starts eagerly."""
    loop = asyncio.get_running_loop()
    standard = isinstance(loop, asyncio.BaseEventLoop)
    # uvloop passes options that the factory of some Pythons does not know.
    loop.set_task_factory(asyncio.eager_task_factory if standard else _eager_task_factory)
    return await loop.create_task(main if isinstance(main, Coroutine) else main())


def _eager_task_factory(loop: Any, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    return asyncio.Task(coroutine, loop=loop, **(options | {"eager_start": True}))
