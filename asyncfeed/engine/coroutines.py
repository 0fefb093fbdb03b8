"""The caller's event loop, which must not be blocked."""

from __future__ import annotations

import asyncio
import inspect
import sys
from types import FrameType


def refuse_coroutine() -> None:
    """Raise where a coroutine would block its event loop by waiting for the next item.

    A cell of a notebook, and a line typed at `python -m asyncio`, runs on a loop's thread as well. There nothing
    else is to run meanwhile, so it passes.
    """
    if asyncio._get_running_loop() is None:  # noqa: SLF001 - the public one raises where none runs
        return
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - documented, and CPython is what runs this
    while frame is not None and not frame.f_code.co_name.startswith(("<module", "<cell")):
        if frame.f_code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            raise RuntimeError(
                f"a plain `for` or `next` over a feed blocks the event loop that runs {frame.f_code.co_name}(): "
                "write `async for`, or move the loop to a thread with `await asyncio.to_thread(...)`"
            )
        frame = frame.f_back
