"""What tells a feed that its run has failed; apart, because a feed is made before the engine is imported."""

from __future__ import annotations

from asyncfeed.errors import Failure

KEPT = 1000
"""How many skipped failures are kept; all are counted."""


class Failed(Exception):
    """The run has failed; `Outlet.failure` says how."""


def fault(error: BaseException) -> Failure:
    """Return a failure for the consumer that is no item's."""
    return Failure(error, "engine", "none", None, 0, traceback=error.__traceback__)


class Skips:
    """The failures that a run has left out."""

    def __init__(self) -> None:
        self.count = 0
        self.kept: list[Failure] = []
        """The first of them."""

    def note(self, failure: Failure) -> None:
        """Add one."""
        self.count += 1
        if len(self.kept) < KEPT:
            self.kept.append(failure)
