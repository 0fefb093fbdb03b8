"""Tells users when their code blocks their event loop."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from types import FrameType

from asyncfeed.engine.constants import NOTICED_SECONDS

log = logging.getLogger("asyncfeed")


def refuse_coroutine() -> None:
    """Raise `RuntimeError` if the caller runs in a coroutine: to wait for an item would block its event loop."""
    name = _coroutine()
    if name is not None:
        raise RuntimeError(
            f"a plain `for` or `next` over a feed blocks the event loop that runs {name}(): write `async for`, "
            "and `async with` instead of `with`, or draw from the feed on a thread with "
            "`await asyncio.to_thread(...)`"
        )


def report_held_up(seconds: float) -> None:
    """Warn if closing a feed in a coroutine blocked the event loop for longer than `NOTICED_SECONDS`."""
    if seconds <= NOTICED_SECONDS or (name := _coroutine()) is None:
        return
    log.warning(
        "closing a feed blocked the event loop that runs %s() for %.2f s: write `async with` instead of `with`, "
        "or `async with contextlib.aclosing(pipeline.open()) as feed` if threads draw from the feed",
        name,
        seconds,
    )


def _coroutine() -> str | None:
    """Return the name of the coroutine that the caller runs in, or None.

    The cell of a notebook and a line typed at `python -m asyncio` run on the thread of a loop, too. They do not
    count, because nothing else needs that loop meanwhile.
    """
    if asyncio._get_running_loop() is None:  # noqa: SLF001 - the public function raises if no loop runs
        return None
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - documented, and CPython is what runs this
    while frame is not None and not frame.f_code.co_name.startswith(("<module", "<cell")):
        if frame.f_code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            return frame.f_code.co_name
        frame = frame.f_back
    return None
