"""Imports the engine without blocking the caller's loop."""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module

EVERYTHING = "asyncfeed.engine.everything"
OF_STATES = (
    "asyncfeed.stages.rest",
    "asyncfeed.state.envelope",
    "asyncfeed.state.fingerprint",
    "asyncfeed.state.merging",
)


def is_ready() -> bool:
    """Return whether all modules that a run needs are imported. An import that another thread has begun is not."""
    return hasattr(sys.modules.get(EVERYTHING), "COMPLETE")


def import_state() -> None:
    """Import what a state needs, unless an event loop runs here: that takes some 15 ms.

    Otherwise a signal handler that takes a state might interrupt the import of the same module, and find half of
    it. Where a loop runs, `get_ready` imports on another thread, for which the handler waits.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        for each in OF_STATES:
            import_module(each)


async def get_ready() -> None:
    """Import all modules that a run needs, on a thread. Later calls in the process find them imported."""
    await asyncio.get_running_loop().run_in_executor(None, import_module, EVERYTHING)
