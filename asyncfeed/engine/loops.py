"""The event loop of a background thread."""

from __future__ import annotations

try:
    from uvloop import new_event_loop
except ImportError:  # Windows, or a Python that uvloop has no build for
    from asyncio import new_event_loop

__all__ = ["new_event_loop"]
