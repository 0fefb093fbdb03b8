"""Tells users when their code blocks their event loop."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from types import FrameType

from asyncfeed.engine.constants import NOTICED_SECONDS

log = logging.getLogger("asyncfeed")

ON_A_THREAD = "under trio, draw on a thread: `await trio.to_thread.run_sync(next, feed)`"


def refuse_coroutine() -> None:
    """Raise `RuntimeError` if the caller runs in a coroutine: to wait for an item would block its event loop."""
    if _in_trio():
        raise RuntimeError(f"a plain `for` or `next` over a feed blocks trio's loop: {ON_A_THREAD}")
    name = _coroutine()
    if name is not None:
        raise RuntimeError(
            f"a plain `for` or `next` over a feed blocks the event loop that runs {name}(): write `async for`, "
            "and `async with` instead of `with`, or draw from the feed on a thread with "
            "`await asyncio.to_thread(...)`"
        )


def refuse_own_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Raise `RuntimeError` if the caller runs on this loop, which makes the items that it wants to wait for."""
    if asyncio._get_running_loop() is loop:  # noqa: SLF001 - the public function raises if no loop runs
        raise RuntimeError(
            "`next` over a feed was called by an async function that the feed itself runs: its event loop would "
            "wait for itself"
        )


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop that runs here. Raise `RuntimeError` if there is none, or it is not asyncio's."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        if not _in_trio():
            raise
    raise RuntimeError(f"`async for` and `async with` over a feed need asyncio's event loop: {ON_A_THREAD}")


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


def _in_trio() -> bool:
    trio = sys.modules.get("trio")
    if trio is None:
        return False
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return False
    return True


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
