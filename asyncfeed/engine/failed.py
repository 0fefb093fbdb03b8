"""What tells a feed that its run has failed; apart, because a feed is made before the engine is imported."""

from __future__ import annotations

from asyncfeed.engine.constants import KEPT_FAILURES
from asyncfeed.errors import Failure


class Failed(Exception):
    """The run has failed; `Handoff.failure` says how."""


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
        if len(self.kept) < KEPT_FAILURES:
            self.kept.append(failure)
