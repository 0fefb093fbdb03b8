"""What tells a feed that its run has failed; apart, because a feed is made before the engine is imported."""

from __future__ import annotations


class Failed(Exception):
    """The run has failed; `Outlet.failure` says how."""
