"""When a call that has not ended is made a second time beside the first: decided without a clock."""

from __future__ import annotations

import math
from collections import deque
from typing import Final, Literal

QUANTILE: Final = 0.95
"""The share of calls that are not slow. A lower value makes more second calls, which a store must answer, too."""
AFTER_FACTOR: Final = 1.5
"""A call is slow if it takes this many times as long as the slowest of that share. With 1, most second calls are
made for calls that are about to return, and none may be left for those that are really slow."""
SHARE: Final = 0.05
"""The share of calls that may be made a second time. AWS advises 0.01 to 0.05."""
STORED: Final = 8.0
"""How many second calls that were not made may be made later. With more, a store that slows down gets a burst."""
LEARN_CALLS: Final = 32
"""How many calls must have returned before the first second call, and between two looks at how long they took."""
RECENT_CALLS: Final = 512
"""How many of the last calls tell what is slow."""
BUSY_SHARE: Final = 0.1
"""A loop that comes later than by this share of the time was busy, and has held up the calls."""


class Hedging:
    """Knows after how many seconds a call is slow, and how many second calls may still be made.

    The second calls are at most a share of all calls (`SHARE`). With `delay="auto"` a call is slow if
    it takes longer than most of the last calls did.
    """

    def __init__(self, delay: float | Literal["auto"]) -> None:
        self._auto = delay == "auto"
        self.delay = math.inf if delay == "auto" else delay
        """After how many seconds a call is slow; infinity while that is not known."""
        self._seconds: deque[float] = deque(maxlen=RECENT_CALLS)
        self._until_look = LEARN_CALLS
        """How many calls must return before the next look at how long they took."""
        self._allowed = 0.0
        """How many second calls may be made now."""

    def begin(self) -> None:
        """Note that a call has begun."""
        self._allowed = min(STORED, self._allowed + SHARE)

    def note(self, seconds: float) -> None:
        """Note how long a call took that returned."""
        if not self._auto:
            return
        self._seconds.append(seconds)
        self._until_look -= 1
        if not self._until_look:  # sorting for each call would cost more than the call
            self._until_look = LEARN_CALLS
            ranked = sorted(self._seconds)
            self.delay = AFTER_FACTOR * ranked[int(QUANTILE * len(ranked))]

    def allows(self) -> bool:
        """Return whether one more second call may be made, and count it."""
        if self._allowed < 1:
            return False
        self._allowed -= 1
        return True
