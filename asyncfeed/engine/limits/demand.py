"""How many items a second the consumer could take, as far as it has shown.

A stage asks this before it makes more calls at a time. The consumer trains on a batch, comes back for the next
one, and waits if there is none. If data were always ready, it would take this many items a second:

    items in a batch / seconds of a step of training

Both are measured from a mark to now. There are two marks, and they move on every few batches. So an old rate is
soon forgotten, and so is the first step, which may have compiled a model. The higher of the two rates counts.

If the consumer has not come back since a mark, nobody knows how long a step lasts. The rate is then

    items begun since the mark / STEP_SECONDS

and rises while the consumer waits, so a long wait allows many calls. Each batch that the consumer takes afterwards
divides the shortest step that is believed by `RETURN_FACTOR`. A consumer that comes back at once is not believed
at once: it may put its first batches into a queue of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from asyncfeed.engine.constants import RETURN_FACTOR, STEP_SECONDS, WINDOW_BATCHES


class Shown(NamedTuple):
    """What the consumer of a run has done so far."""

    busy: float
    """The seconds since its first draw in which it did not wait."""
    taken: int
    """How many batches, or other items of the last stage, it has taken."""
    ready: int
    """How many are ready for it."""
    waits: bool
    """Whether it waits now."""


class Mark(NamedTuple):
    """How far the consumer and the stage had come at some time."""

    busy: float
    taken: int
    made: int
    """How many batches were taken or ready."""
    begun: int
    """How many items the stage had begun."""
    sent: int
    """How many of them had left it."""


class Demand:
    """Measures how many items of one stage the consumer could take in a second."""

    def __init__(self, shown: Callable[[], Shown], taken: Callable[[], int]) -> None:
        self.sent = 0
        """How many items have left the stage, with those that failed or were left out."""
        self._shown = shown
        self._taken = taken
        self._marks = (Mark(0.0, 0, 0, 0, 0),) * 2

    def note(self, begun: int) -> None:
        """Move the marks on if it is time; `begun` is the number of items that the stage has begun."""
        last = self._marks[1]
        if self._taken() >= last.taken + WINDOW_BATCHES:
            busy, taken, ready, _ = self._shown()
            self._marks = last, Mark(busy, taken, taken + ready, begun, self.sent)

    def rate(self, begun: int) -> float:
        """Return the number of items a second that the consumer could take: rather too high than too low."""
        shown = self._shown()
        return max(self._since(mark, shown, begun) for mark in self._marks)

    def _since(self, mark: Mark, shown: Shown, begun: int) -> float:
        steps = shown.taken - mark.taken
        # Part of a step may lie before the mark, and the last step may not have ended. So many steps may be one
        # more than there were batches. Of few steps, only those count that have ended.
        steps += 1 if steps >= WINDOW_BATCHES else -(not shown.waits)
        if steps <= 0:
            items, assumed = float(begun - mark.begun), STEP_SECONDS
        else:
            made = shown.taken + shown.ready - mark.made
            items = steps * (self.sent - mark.sent) / max(1, made)
            assumed = STEP_SECONDS / RETURN_FACTOR ** min(steps, WINDOW_BATCHES)
        return items / max(shown.busy - mark.busy, assumed)
