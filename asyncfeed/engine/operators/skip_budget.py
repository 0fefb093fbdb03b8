"""What a stage does with items that fail."""

from __future__ import annotations

from collections.abc import Callable

from asyncfeed.attempts.skip import Skip
from asyncfeed.engine.operators.step import RunContext
from asyncfeed.epoch_end import EpochEnd
from asyncfeed.errors import Failure, note


class SkipBudget:
    """Decides which failed items are left out. All other failures end the run.

    It counts over the whole run, unless a later stage may end an epoch early. Then it counts each epoch by itself:
    what was read ahead behind the end of one has no influence on the next.

    Args:
        skip: The limits, or a function that decides. None if every failure ends the run.
        context: The run, which is told of each item that is left out.
        cut: The level of the epochs that a later stage may end early. None if there is no such stage.
    """

    def __init__(
        self, skip: Skip | Callable[[Failure], bool] | None, context: RunContext, cut: int | None = None
    ) -> None:
        self._skip = skip
        self._context = context
        self.cut = cut
        self._left_out = 0
        self._good = 0

    @property
    def counts(self) -> bool:
        """Whether items may be left out."""
        return self._skip is not None

    def go_on(self, good: int, left_out: int) -> None:
        """Count on what was sent and left out before a checkpoint."""
        self._good += good
        self._left_out += left_out

    def add(self, good: int) -> None:
        """Count results that were sent on. What a run that resumes sends again was counted before."""
        self._good += good

    def end(self, boundary: EpochEnd) -> None:
        """Note the end of an epoch."""
        if self.cut is not None and boundary.ends(self.cut):
            self._good = self._left_out = 0

    def allows(self, failure: Failure, good: int) -> bool:
        """Return whether a failed item is left out, after `good` more results. Call this for each, in order."""
        skip = self._skip
        if skip is None or not isinstance(failure.error, Exception):
            return False  # Ctrl-C and an exit are no bad items
        if not isinstance(skip, Skip):
            allowed = self._asked(failure)
        else:
            allowed = skip.allows(self._left_out + 1, self._good + good)
            if not allowed:
                which = "run" if self.cut is None else "epoch"
                text = f"{self._left_out + 1} items of this {which} failed, which is more than {skip} allows"
                note(failure.error, f"asyncfeed: {text}")
        if allowed:
            self._left_out += 1
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
