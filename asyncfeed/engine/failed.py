"""How a feed learns that its run has failed. It is apart, because feeds exist before the engine is imported."""

from __future__ import annotations

from asyncfeed.engine.constants import KEPT_FAILURES
from asyncfeed.errors import Failure


class Failed(Exception):
    """The run has failed. `Handoff.failure` is the failure."""


def fault(error: BaseException) -> Failure:
    """Return a failure for the consumer that belongs to no item."""
    return Failure(error, "engine", "none", None, 0, traceback=error.__traceback__)


class Skips:
    """The failures of the items that a run has left out."""

    def __init__(self) -> None:
        self.count = 0
        self.kept: list[Failure] = []
        """The first `KEPT_FAILURES` failures."""

    def note(self, failure: Failure) -> None:
        """Add a failure."""
        self.count += 1
        if len(self.kept) < KEPT_FAILURES:
            self.kept.append(failure)
