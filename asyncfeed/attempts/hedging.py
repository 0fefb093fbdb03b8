"""When a call that has not ended is made once more beside the first: decided without a clock."""

from __future__ import annotations

import math
from collections import deque
from typing import Final, Literal

QUANTILE: Final = 0.95
"""The share of calls that are not slow. A lower value makes more calls beside others, which a store must answer,
too."""
AFTER_FACTOR: Final = 1.25
"""A call is slow if it takes this many times as long as the slowest of that share. With 1, most calls
beside others are made for calls that are about to return, and none may be left for those that are really slow."""
SHARE: Final = 0.05
"""Calls beside slow ones, as a share of all calls. AWS advises 0.01 to 0.05."""
MOST_BESIDE: Final = 3
"""How many calls may be made beside a slow one. If 2 in 100 calls are slow, both of two are slow for 4 in 10,000.
Each of these would hold up everything behind it."""
STORED: Final = 24.0
"""How many of these calls that were not made may be made later: the share of some 500 calls, which may be under
way together. With more, a store that slows down gets a burst."""
LEARN_CALLS: Final = 32
"""How many calls must have returned before it is known what is slow, and between two looks at their times."""
RECENT_CALLS: Final = 512
"""How many of the last calls tell what is slow."""
BUSY_SHARE: Final = 0.1
"""A loop that comes later than by this share of the time was busy, and has held up the calls."""


class Hedging:
    """Knows after how many seconds a call is slow, and how many calls may still be made beside slow ones.

    These are at most a share of all calls (`SHARE`). With `delay="auto"` a call is slow if
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
        """How many calls may be made now beside slow ones."""

    def begin(self) -> None:
        """Note that a call has begun."""
        self._allowed = min(STORED, self._allowed + SHARE)

    def note(self, seconds: float) -> bool:
        """Note how long a call took that returned. Return whether it tells what is slow for the first time."""
        if not self._auto:
            return False
        self._seconds.append(seconds)
        self._until_look -= 1
        if not self._until_look:  # sorting for each call would cost more than the call
            self._until_look = LEARN_CALLS
            ranked = sorted(self._seconds)
            before, self.delay = self.delay, AFTER_FACTOR * ranked[int(QUANTILE * len(ranked))]
            return before == math.inf
        return False

    def allows(self) -> bool:
        """Return whether a call may be made beside a slow one, and count it."""
        if self._allowed < 1:
            return False
        self._allowed -= 1
        return True
