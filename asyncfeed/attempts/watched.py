"""A call that is watched: it is cancelled at its deadline, and made a second and third time if it is slow."""

from __future__ import annotations

import math

from asyncfeed.attempts.alarms import Alarm, Alarms
from asyncfeed.attempts.hedging import BUSY_SHARE, MOST_BESIDE, Hedging


class Watched(Alarm):
    """One call, from its start to its end. A subclass cancels it, and makes it again beside itself."""

    __slots__ = ("_alarms", "_beside", "_hedging", "_slow_at", "began", "is_late", "seconds")

    def watch(self, alarms: Alarms, seconds: float, hedging: Hedging | None) -> None:
        """Watch the call, which begins now and may take so many seconds."""
        self._alarms = alarms
        self.seconds = seconds
        self._hedging = hedging
        self.is_late = False
        """Whether it was cancelled at its deadline."""
        self._beside = 0
        """How many calls were made beside it."""
        self.began = alarms.time()
        self._slow_at = math.inf
        if hedging is not None:
            hedging.begin()
            self._slow_at = self.began + hedging.delay
        self.when = min(self.began + self.seconds, self._slow_at)
        alarms.set(self)

    def unset(self) -> None:
        """Watch the call no more, because it has ended."""
        self._alarms.unset(self)

    def cancel(self) -> None:
        """Cancel the call."""
        raise NotImplementedError

    def begin_beside(self) -> None:
        """Make the call once more, beside itself."""
        raise NotImplementedError

    def returned(self) -> None:
        """Note that the call, or one beside it, has returned a result."""
        if self._hedging is not None and self._hedging.note(self._alarms.time() - self.began):
            for each in self._alarms.all():
                if isinstance(each, Watched):
                    each.delay_is_known()

    def delay_is_known(self) -> None:
        """Take notice: when the call began, nobody knew what is slow."""
        if self._hedging is not None:
            self._slow_at = max(self._alarms.time(), self.began + self._hedging.delay)
            self.when = min(self.began + self.seconds, self._slow_at)
            self._alarms.set(self)

    def ring(self, late: float) -> None:
        """Cancel the call if it is late, or make it once more if it is slow.

        A loop that was busy has held up the call, too. So the call is given as much time again. If too many calls
        were made beside others, it is looked at later, each time after twice as long.
        """
        now = self._alarms.time()
        if now >= self.began + self.seconds:
            self.is_late = True
            self.cancel()
            return
        hedging = self._hedging
        if hedging is not None and late > BUSY_SHARE * hedging.delay:
            self._slow_at = now + late
        elif hedging is not None:
            wait = hedging.delay
            if hedging.allows():
                self._beside += 1
                self.begin_beside()
            else:
                wait = max(wait, now - self.began)
            self._slow_at = now + wait if self._beside < MOST_BESIDE else math.inf
        self.when = min(self.began + self.seconds, self._slow_at)
        self._alarms.set(self)
