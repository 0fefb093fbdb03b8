"""Imports the engine without blocking the caller's loop."""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module

EVERYTHING = "asyncfeed.engine.everything"


def is_ready() -> bool:
    """Return whether all modules that a run needs are imported. An import that another thread has begun is not."""
    return hasattr(sys.modules.get(EVERYTHING), "COMPLETE")


async def get_ready() -> None:
    """Import all modules that a run needs, on a thread. Later calls in the process find them imported."""
    await asyncio.get_running_loop().run_in_executor(None, import_module, EVERYTHING)
