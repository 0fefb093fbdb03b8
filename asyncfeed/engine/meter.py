"""Measures how long consumers wait for data, and data for consumers.

From the first draw on, a run is always in one of three states:

| state | data is ready | a consumer waits |
|---|---|---|
| READY: data waits for the trainer | yes | no |
| ASKED: the trainer waits for data | no | yes |
| NEITHER: both work | no | no |

A consumer takes ready data at once, so there is no state in which both wait. The clock is read only when the state
changes, so a consumer that always finds data costs nothing here.
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
    """Adds up the time in each state. The caller must hold a lock."""

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
        """Forget the times so far, as if this were the first draw."""
        if self.running:
            self._spent = [0.0, 0.0, 0.0]
            self._since = self._clock()

    def turn(self, state: int) -> None:
        """Note the current state. This is cheap if the state has not changed."""
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
        """Note that the consumers saw the end, now or at an earlier time. The times no longer grow after it."""
        if self.running:
            self._spent[self._state] += max(0.0, (self._clock() if at is None else at) - self._since)
            self.running = False
        self._over = True

    def times(self) -> tuple[float, float, float]:
        """Return the seconds since the first draw, the seconds in ASKED, and the seconds in READY."""
        spent = self._spent.copy()
        if self.running:
            spent[self._state] += self._clock() - self._since
        return sum(spent), spent[ASKED], spent[READY]


class Metered:
    """The timekeeping part of the handoff. Bridges use it to say when the trainer has taken what they drew."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.ends_elsewhere = False
        """Whether a bridge is the consumer, so that the trainer sees the end later than the consumer does."""
        self._lock = threading.RLock()
        """Reentrant for handlers of signals: see `asyncfeed.engine.interruptions.py`."""
        self._meter = Meter(clock)
        self._cut_at: float | None = None
        """The time of the stop. It is kept, because a run that has ended has no loop left to note the end."""
        self._held = 0

    @property
    def lock(self) -> threading.RLock:
        """The lock of the queue, to ask whether a signal handler has interrupted it."""
        return self._lock

    def times(self) -> tuple[float, float, float]:
        """Return the seconds since the first draw, and those that consumers and data waited: see `FeedStats`."""
        with self._lock:
            if self._cut_at is not None and not self.ends_elsewhere:
                self._meter.end(self._cut_at)
            return self._meter.times()

    def hold(self) -> None:
        """Note that a bridge waits for the trainer to take a batch. The batch counts as ready data until then."""
        with self._lock:
            self._held += 1
            self._turn()

    def let_go(self) -> None:
        """Note that the trainer has taken the batch that a bridge held."""
        with self._lock:
            self._held -= 1
            self._turn()

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Call `hold` and `let_go` around a wait."""
        self.hold()
        try:
            yield
        finally:
            self.let_go()

    def restart(self) -> None:
        """Count the time from now on. A bridge that has looked at the first item calls this for the trainer."""
        with self._lock:
            self._meter.restart()

    def end_seen(self) -> None:
        """Note that the trainer behind a bridge has seen the end."""
        with self._lock:
            self._meter.end()

    def _end_seen(self) -> None:
        if not self.ends_elsewhere:
            self._meter.end()

    def _turn(self) -> None:
        raise NotImplementedError


def clock_of(loop: AbstractEventLoop) -> Callable[[], float]:
    """Return the clock of a loop; a real clock if the loop is not asyncio's and may stop its own during a turn."""
    return loop.time if isinstance(loop, BaseEventLoop) else perf_counter
