"""What a stage does with items that fail."""

from __future__ import annotations

import math

from asyncfeed.engine.operators.step import RunContext
from asyncfeed.errors import Failure, note
from asyncfeed.stages.steps import Work


class SkipBudget:
    """All failures end the run, or a limited number of failed items is left out."""

    def __init__(self, work: Work, context: RunContext) -> None:
        self._skips = work.on_error == "skip"
        self._limit = work.skip_limit
        self._context = context
        self._left_out = 0

    def allows(self, failure: Failure, seen: int) -> bool:
        """Return whether a failed item may be left out after `seen` good ones. Failures come in order."""
        if not self._skips or not isinstance(failure.error, Exception):
            return False  # Ctrl-C and an exit are no bad items
        self._left_out += 1
        limit = self._limit
        allowed = limit if limit >= 1 else math.ceil(limit * (seen + self._left_out))
        if self._left_out > allowed:
            note(
                failure.error,
                f"asyncfeed: {self._left_out} items of this run failed, which is more than skip_limit={limit:g} "
                "allows",
            )
            return False
        self._context.skipped(failure)
        return True
