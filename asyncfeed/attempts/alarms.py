"""Things to do at a later time, with one timer for all of them."""

from __future__ import annotations

import asyncio
import math


class Alarm:
    """Something to do at a time."""

    __slots__ = ("when",)

    when: float
    """The time on the clock of the loop; infinity for never."""

    def ring(self, late: float) -> None:
        """Do it. The alarm is not set any more, unless this sets it anew.

        `late` says for how many seconds the loop was busy with something else when the time came.
        """
        raise NotImplementedError


class Alarms:
    """Rings alarms. While some are set, a timer comes when the first of them is due, or before.

    When the timer comes, it looks at all alarms and is set to the first one that is left. So an alarm that is
    unset in time costs no timer.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._set: set[Alarm] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._next = math.inf
        """When the timer comes."""

    def time(self) -> float:
        """Return the time on the clock of the loop."""
        return self._loop.time()

    def set(self, alarm: Alarm) -> None:
        """Ring an alarm at its time."""
        self._set.add(alarm)
        if alarm.when < self._next:
            self._set_timer(alarm.when)

    def unset(self, alarm: Alarm) -> None:
        """Do not ring an alarm any more."""
        self._set.discard(alarm)

    def all(self) -> list[Alarm]:
        """Return the alarms that are set."""
        return list(self._set)

    def drop(self) -> None:
        """End the timer. No alarm rings any more."""
        self._set.clear()
        self._set_timer(math.inf)

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next = when
        self._timer = None if when == math.inf else self._loop.call_at(when, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        late = now - self._next
        due = [each for each in self._set if each.when <= now]
        self._set.difference_update(due)
        self._set_timer(min((each.when for each in self._set), default=math.inf))
        for alarm in due:
            alarm.ring(late)
