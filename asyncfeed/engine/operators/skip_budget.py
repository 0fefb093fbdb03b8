"""What a stage does with items that fail."""

from __future__ import annotations

from collections.abc import Callable

from asyncfeed.attempts.skip import Skip
from asyncfeed.engine.operators.step import RunContext
from asyncfeed.errors import Failure, note


class SkipBudget:
    """Decides which failed items are left out. All other failures end the run.

    If a stage has two steps, such as reading and decoding, both leave out items of one budget.
    """

    def __init__(self, skip: Skip | Callable[[Failure], bool] | None, context: RunContext) -> None:
        self._skip = skip
        self._context = context
        self.left_out = 0
        """Number of items that were left out. A run that resumes counts on."""

    @property
    def counts(self) -> bool:
        """Whether items may be left out."""
        return self._skip is not None

    def allows(self, failure: Failure, good: int) -> bool:
        """Return whether a failed item is left out after `good` results. Called for each failure, in order."""
        skip = self._skip
        if skip is None or not isinstance(failure.error, Exception):
            return False  # Ctrl-C and an exit are no bad items
        if not isinstance(skip, Skip):
            allowed = self._asked(failure)
        else:
            allowed = skip.allows(self.left_out + 1, good)
            if not allowed:
                text = f"{self.left_out + 1} items of this run failed, which is more than {skip} allows"
                note(failure.error, f"asyncfeed: {text}")
        if allowed:
            self.left_out += 1
            self._context.skipped(failure)
        return allowed

    def _asked(self, failure: Failure) -> bool:
        """Ask the user's function. If it raises, the item is not left out, and the error says why."""
        assert callable(self._skip)
        try:
            return bool(self._skip(failure))
        except Exception as error:  # noqa: BLE001 - the failure of the item is the one to raise
            note(failure.error, f"asyncfeed: on_error={self._skip!r} raised {type(error).__name__}: {error}")
            return False
