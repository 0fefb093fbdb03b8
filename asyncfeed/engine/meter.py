"""Who waits for whom: the time of a run, as its consumers see it.

From the first draw on, each moment belongs to one of three:

| | data is ready | a consumer asks |
|---|---|---|
| READY: data waits for the trainer | yes | no |
| ASKED: the trainer waits for data | no | yes |
| NEITHER: both work | no | no |

A consumer that finds data takes it at once, so both together do not last. The clock is read only when one changes
into another: a consumer that always finds data costs nothing here.
"""

from __future__ import annotations

import threading
from asyncio import AbstractEventLoop, BaseEventLoop
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NEITHER, READY, ASKED = range(3)


class Meter:
    """Adds up the time in each state; the caller holds a lock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._state = NEITHER
        self._since = 0.0
        self._spent = [0.0, 0.0, 0.0]
        self.running = False
        self._over = False

    def begin(self) -> None:
        """Note the first draw."""
        if not self._over:
            self.running = True
            self._since = self._clock()

    def restart(self) -> None:
        """Forget what was, as if this were the first draw."""
        if self.running:
            self._spent = [0.0, 0.0, 0.0]
            self._since = self._clock()

    def turn(self, state: int) -> None:
        """Note a state; costs little if it is the one that lasts."""
        if state == self._state:
            return
        if self.running:
            now = self._clock()
            self._spent[self._state] += now - self._since
            self._since = now
        self._state = state

    def now(self) -> float:
        """Return the time, for `end`."""
        return self._clock()

    def end(self, at: float | None = None) -> None:
        """Note that the consumers saw the end, now or at an earlier time; from then on the time stands still."""
        if self.running:
            self._spent[self._state] += max(0.0, (self._clock() if at is None else at) - self._since)
            self.running = False
        self._over = True

    def times(self) -> tuple[float, float, float]:
        """Return the seconds since the first draw, those in ASKED, and those in READY."""
        spent = self._spent.copy()
        if self.running:
            spent[self._state] += self._clock() - self._since
        return sum(spent), spent[ASKED], spent[READY]


class Metered:
    """The part of the last queue of a run that bridges use, to say when the trainer has what they drew."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.ends_elsewhere = False
        """Whether a bridge draws: the trainer sees the end later than the bridge does."""
        self._lock = threading.Lock()
        self._meter = Meter(clock)
        self._cut_at: float | None = None
        """When it was stopped. A run that had ended by then has no loop left to note it."""
        self._held = 0

    def times(self) -> tuple[float, float, float]:
        """Return the seconds since the first draw, and how long consumers and data waited: see `FeedStats`."""
        with self._lock:
            if self._cut_at is not None and not self.ends_elsewhere:
                self._meter.end(self._cut_at)
            return self._meter.times()

    def hold(self) -> None:
        """Note that a bridge waits for the trainer to take what it has drawn: the data is still ready."""
        with self._lock:
            self._held += 1
            self._turn()

    def let_go(self) -> None:
        """Note that the trainer has taken what a bridge held."""
        with self._lock:
            self._held -= 1
            self._turn()

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Do both around a wait."""
        self.hold()
        try:
            yield
        finally:
            self.let_go()

    def restart(self) -> None:
        """Count the time from now on: the trainer begins after a bridge has looked at the first item."""
        with self._lock:
            self._meter.restart()

    def end_seen(self) -> None:
        """Note that the trainer behind a bridge has seen the end."""
        with self._lock:
            self._meter.end()

    def _turn(self) -> None:
        raise NotImplementedError


def clock_of(loop: AbstractEventLoop) -> Callable[[], float]:
    """Return the clock of a loop, or a real one if that of the loop stands still within a turn."""
    return loop.time if isinstance(loop, BaseEventLoop) else perf_counter
