"""The event loop of a background thread."""

from __future__ import annotations

import os
from asyncio import AbstractEventLoop
from contextlib import ExitStack

try:
    from uvloop import new_event_loop as _new_event_loop
except ImportError:  # Windows, or a Python that uvloop has no build for
    from asyncio import new_event_loop as _new_event_loop

PIPES = 4
"""A loop of uvloop needs seven descriptors. If one of them is missing, uvloop writes a line to the log."""


def new_event_loop() -> AbstractEventLoop:
    """Return a new event loop.

    Raises:
        OSError: The process has too few file descriptors left.
    """
    with ExitStack() as spare:
        for _ in range(PIPES):
            for each in os.pipe():
                spare.callback(os.close, each)
    loop: AbstractEventLoop = _new_event_loop()
    return loop
