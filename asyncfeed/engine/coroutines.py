"""The caller's event loop, which must not be blocked."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from types import FrameType

from asyncfeed.engine.constants import NOTICED_SECONDS

log = logging.getLogger("asyncfeed")


def refuse_coroutine() -> None:
    """Raise where a coroutine would block its event loop by waiting for the next item."""
    name = _coroutine()
    if name is not None:
        raise RuntimeError(
            f"a plain `for` or `next` over a feed blocks the event loop that runs {name}(): write `async for`, "
            "and `async with` if the feed is opened by a `with`, or move the loop to a thread with "
            "`await asyncio.to_thread(...)`"
        )


def report_held_up(seconds: float) -> None:
    """Warn if closing a feed took long and has held up the event loop of a coroutine."""
    if seconds <= NOTICED_SECONDS or (name := _coroutine()) is None:
        return
    log.warning(
        "closing a feed held up the event loop that runs %s() for %.2f s: instead of `with` write `async with` "
        "or, if threads draw, `async with contextlib.aclosing(pipeline.open()) as feed`",
        name,
        seconds,
    )


def _coroutine() -> str | None:
    """Return the name of the coroutine that the caller runs in, if it runs in one.

    A cell of a notebook, and a line typed at `python -m asyncio`, runs on a loop's thread as well. There nothing
    else is to run meanwhile, so it is none.
    """
    if asyncio._get_running_loop() is None:  # noqa: SLF001 - the public one raises where none runs
        return None
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - documented, and CPython is what runs this
    while frame is not None and not frame.f_code.co_name.startswith(("<module", "<cell")):
        if frame.f_code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            return frame.f_code.co_name
        frame = frame.f_back
    return None
