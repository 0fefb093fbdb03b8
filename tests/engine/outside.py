"""What can be seen of a run from outside: its threads, its tasks, its processes, what is ready."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import asyncfeed as af

NAME = re.compile(r"asyncfeed-(\d+|worker)")
"""The names of runs, of their loops' threads, and of the workers of all runs."""


def run_threads() -> list[threading.Thread]:
    """Return the threads of all runs."""
    return [each for each in threading.enumerate() if NAME.match(each.name)]


def loop_threads() -> list[threading.Thread]:
    """Return the threads that run the loops of feeds whose consumers have none."""
    return [each for each in run_threads() if each.name.endswith("-loop")]


def threads_ended(seconds: float = 10.0) -> bool:
    """Wait until the threads of all runs have ended; return whether they did.

    A run that was just told to stop may start more threads.
    """
    deadline = time.monotonic() + seconds
    while (running := run_threads()) and (left := deadline - time.monotonic()) > 0:
        running[0].join(left)
    return not run_threads()


def run_tasks() -> list[asyncio.Task[Any]]:
    """Return the task of each run on this loop."""
    return [task for task in asyncio.all_tasks() if NAME.match(task.get_name())]


def drawn_at_once(feed: af.Feed[Any], most: int | None = None) -> list[Any]:
    """Return what is ready on this loop: the items of all draws that need no turn of the loop."""
    drawn: list[Any] = []
    while most is None or len(drawn) < most:
        draw = feed.__anext__()
        try:
            draw.send(None)
        except StopIteration as returned:
            drawn.append(returned.value)
        except StopAsyncIteration:
            break
        else:
            draw.close()
            break
    return drawn


def timers_set() -> list[asyncio.TimerHandle]:
    """Return the timers of the running loop that have not come yet."""
    loop: Any = asyncio.get_running_loop()
    return [each for each in loop._scheduled if not each.cancelled()]


async def until(condition: Callable[[], object]) -> None:
    """Give the loop turns until this holds."""
    while not condition():
        await asyncio.sleep(0)
