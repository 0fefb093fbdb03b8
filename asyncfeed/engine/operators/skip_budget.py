"""The policy of a stage for items that fail."""

from __future__ import annotations

import math

from asyncfeed.engine.operators.step import RunContext
from asyncfeed.errors import Failure, note
from asyncfeed.stages.steps import Work


class SkipBudget:
    """Decides which failed items are left out. All other failures end the run."""

    def __init__(self, work: Work, context: RunContext) -> None:
        self._skips = work.on_error == "skip"
        self._limit = work.skip_limit
        self._context = context
        self._left_out = 0

    def allows(self, failure: Failure, good: int) -> bool:
        """Return whether a failed item is left out after `good` results. Called for each failure, in order."""
        if not self._skips or not isinstance(failure.error, Exception):
            return False  # Ctrl-C and `SystemExit` are not the fault of an item
        self._left_out += 1
        limit = self._limit
        allowed = limit if limit >= 1 else math.ceil(limit * (good + self._left_out))
        if self._left_out > allowed:
            note(
                failure.error,
                f"asyncfeed: {self._left_out} items of this run failed, which is more than skip_limit={limit:g} "
                "allows",
            )
            return False
        self._context.skipped(failure)
        return True
