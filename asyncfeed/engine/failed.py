"""What tells a feed that its run has failed; apart, because a feed is made before the engine is imported."""

from __future__ import annotations

from asyncfeed.errors import Failure


class Failed(Exception):
    """The run has failed; `Outlet.failure` says how."""


def fault(error: BaseException) -> Failure:
    """Return a failure for the consumer that is no item's."""
    return Failure(error, "engine", "none", None, 0, traceback=error.__traceback__)
