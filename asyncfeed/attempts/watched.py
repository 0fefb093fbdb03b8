"""A call that is watched: it is cancelled at its deadline, and made a second time if it is slow."""

from __future__ import annotations

import math

from asyncfeed.attempts.alarms import Alarm, Alarms
from asyncfeed.attempts.hedging import BUSY_SHARE, Hedging


class Watched(Alarm):
    """One call, from its start to its end. A subclass cancels it, and makes it a second time."""

    __slots__ = ("_alarms", "_deadline", "_hedging", "_slow_at", "began", "is_late", "seconds")

    def watch(self, alarms: Alarms, seconds: float, hedging: Hedging | None) -> None:
        """Watch the call, which begins now and may take so many seconds."""
        self._alarms = alarms
        self.seconds = seconds
        self._hedging = hedging
        self.is_late = False
        """Whether it was cancelled at its deadline."""
        self.began = alarms.time()
        self._deadline = self.began + seconds
        self._slow_at = math.inf
        if hedging is not None:
            hedging.begin()
            self._slow_at = self.began + hedging.delay
        self.when = min(self._deadline, self._slow_at)
        alarms.set(self)

    def unset(self) -> None:
        """Watch the call no more, because it has ended."""
        self._alarms.unset(self)

    def cancel(self) -> None:
        """Cancel the call."""
        raise NotImplementedError

    def begin_second(self) -> None:
        """Make the call a second time."""
        raise NotImplementedError

    def returned(self) -> None:
        """Note that the call, or the second one, has returned a result."""
        if self._hedging is not None:
            self._hedging.note(self._alarms.time() - self.began)

    def ring(self, late: float) -> None:
        """Cancel the call if it is late, or make it a second time if it is slow.

        A loop that was busy has held up the call, too. So the call is given as much time again.
        """
        now = self._alarms.time()
        if now >= self._deadline:
            self.is_late = True
            self.cancel()
            return
        hedging = self._hedging
        if hedging is not None and late > BUSY_SHARE * hedging.delay:
            self._slow_at = now + late
        else:
            self._slow_at = math.inf
            if hedging is not None and hedging.allows():
                self.begin_second()
        self.when = min(self._deadline, self._slow_at)
        self._alarms.set(self)
