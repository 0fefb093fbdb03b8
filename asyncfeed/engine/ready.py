"""Importing the engine without holding up the caller's loop."""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module

EVERYTHING = "asyncfeed.engine.everything"


def is_ready() -> bool:
    """Return whether a run finds imported whatever it needs; half imported, on another thread, is not."""
    return hasattr(sys.modules.get(EVERYTHING), "COMPLETE")


async def get_ready() -> None:
    """Import whatever a run needs, on a thread; once in a process."""
    await asyncio.get_running_loop().run_in_executor(None, import_module, EVERYTHING)
