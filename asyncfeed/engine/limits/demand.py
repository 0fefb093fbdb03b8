"""Estimates how many items per second the consumer could take.

The tuner of a stage needs this before it makes more calls at a time. The consumer trains on a batch, comes back
for the next one, and waits if none is ready. If data were always ready, it would take this many items per second:

    items in a batch / seconds of a training step

Both are measured from a mark to the present. There are two marks, which move on every few batches. So an old rate
is soon forgotten, and so is the first step, which may have compiled a model. The higher of the two rates counts.

If the consumer has not come back since a mark, the duration of a step is unknown. The rate is then

    items begun since the mark / STEP_SECONDS

It rises while the consumer waits, so a long wait allows many calls. At first no step counts as shorter than
`STEP_SECONDS`. Each batch that the consumer takes divides this bound by `RETURN_FACTOR`. A consumer that comes
back at once is not believed at once, because it may put its first batches into a queue of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from asyncfeed.engine.constants import RETURN_FACTOR, STEP_SECONDS, WINDOW_BATCHES


class Shown(NamedTuple):
    """What the consumer of a run has done so far. "Batch" stands for any item of the last stage."""

    busy: float
    """Seconds since its first draw in which it did not wait."""
    taken: int
    """Number of batches that it has taken."""
    ready: int
    """Number of batches that are ready for it."""
    waits: bool
    """Whether it waits now."""


class Mark(NamedTuple):
    """The counts of the consumer and the stage at some time."""

    busy: float
    """Seconds in which the consumer had not waited."""
    taken: int
    """Number of batches taken."""
    made: int
    """Number of batches taken or ready."""
    begun: int
    """Number of items that the stage had begun."""
    sent: int
    """Number of these items that had left the stage."""


class Demand:
    """Estimates how many items of one stage the consumer could take per second."""

    def __init__(self, shown: Callable[[], Shown], taken: Callable[[], int]) -> None:
        self.sent = 0
        """Number of items that have left the stage, including those that failed or were left out."""
        self._shown = shown
        self._taken = taken
        self._marks = (Mark(0.0, 0, 0, 0, 0),) * 2

    def note(self, begun: int) -> None:
        """Move the marks on after enough batches. `begun` is the number of items that the stage has begun."""
        last = self._marks[1]
        if self._taken() >= last.taken + WINDOW_BATCHES:
            busy, taken, ready, _ = self._shown()
            self._marks = last, Mark(busy, taken, taken + ready, begun, self.sent)

    def rate(self, begun: int) -> float:
        """Return how many items per second the consumer could take, estimated too high rather than too low."""
        shown = self._shown()
        return max(self._since(mark, shown, begun) for mark in self._marks)

    def _since(self, mark: Mark, shown: Shown, begun: int) -> float:
        steps = shown.taken - mark.taken
        # The first step may have begun before the mark, and the last one may not have ended. So if there are many
        # steps, count one more than batches. If there are few, count only the steps that have ended.
        steps += 1 if steps >= WINDOW_BATCHES else -(not shown.waits)
        if steps <= 0:
            items, assumed = float(begun - mark.begun), STEP_SECONDS
        else:
            made = shown.taken + shown.ready - mark.made
            items = steps * (self.sent - mark.sent) / max(1, made)
            assumed = STEP_SECONDS / RETURN_FACTOR ** min(steps, WINDOW_BATCHES)
        return items / max(shown.busy - mark.busy, assumed)
