"""The tuner: finds how many calls a stage should make at a time, for `concurrency="auto"`.

The search relies on Little's law. As long as the store or service that is called keeps up, twice as many calls at
a time have twice the throughput. Beyond that, calls only wait in a queue there.

* The tuner raises the number of calls while that raises the throughput.
* If an increase does not raise the throughput in proportion, the tuner returns to the knee: the smallest number
  that would have reached the measured rate at full gain. From there it sometimes probes a few more or a few fewer
  calls.
* If the rate changes by itself, earlier measurements are void. After a rise the tuner tries more calls. After a
  drop it tries fewer. This is cheap: an overloaded store recovers, and a saturated one is unaffected. If instead
  each call takes longer, fewer calls soon show a lower rate, and the tuner tries more.
* An interval counts only if nearly all workers were busy throughout. A stage that waits for its input or for the
  consumer can measure nothing, and needs no more calls.

More calls help only if the consumer waits. By Little's law the consumer needs (items that it takes per second) x
(seconds per call) calls on average. Any more only fill the queue to the consumer sooner. So two rules depend on
how long the consumer waits:

* The number grows only while the consumer waits for at least `HUNGRY_SHARE` of the time. A burst of calls that
  fills the queue at the start shows nothing.
* While the consumer waits for at most `FED_SHARE` of the time and some workers are parked, the average number of
  busy workers is what the consumer needs. The number then drops to `SPARE_FACTOR` times that, by at most half at a
  time. If the consumer waits afterwards, the search starts again at once, and the next such drop comes later
  (`PATIENCE_FACTOR`).

A consumer that waits could not necessarily take more items. It always waits for its first batch, and a batch may
need many rounds of calls. So the number has a second bound, from what the consumer could take:

* Invariant: no search and no probe raises the number above `SPARE_FACTOR` x (items per second that the consumer
  could take) x (seconds per call). `demand.py` measures the first, and the rate of the stage gives the second. A
  search at least doubles the number. So it pauses while the bound is lower, and continues when the bound has
  risen. Calls that a probe downwards took away come back without this check.
* Until the consumer has come back for a second batch, it is assumed to take all items begun so far in one second.
  So the number may double after a wait of 1 s, and then every 0.5 s. From 32 it reaches 512 after 2.5 s.
* If a training step lasts S seconds, a trainer needs (items in a batch) x (seconds per call) / S calls on average.
  So the first batch raises the number to at most `SPARE_FACTOR` x S times what the trainer needs. It may be more
  if one slow call delays the batch, because calls for later batches begin meanwhile.
* If the consumer comes back at once, the bound has no effect after one to three batches. Only the first batches
  come later because of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from asyncfeed.engine.constants import (
    CALM_INTERVALS,
    EASE_ITEMS,
    FED_SHARE,
    HUNGRY_SHARE,
    IDLE_SHARE,
    INTERVAL_SECONDS,
    LEAST_ITEMS,
    LOOK_DOWN_FACTOR,
    PATIENCE_FACTOR,
    SPARE_FACTOR,
)
from asyncfeed.engine.limits.search import Search


@dataclass(slots=True)
class Interval:
    """The counts at the start of the interval that is being measured."""

    settling: bool = True
    """Whether the interval has not begun yet, because calls that began under another limit are still running."""
    begun: int = 0
    """Number of items that had been begun."""
    since: float = 0.0
    """Time, by the clock of the loop."""
    idle: float = 0.0
    """Seconds that workers had been parked, added up."""
    hungry: float = 0.0
    """Seconds that the consumer had waited."""


@dataclass(slots=True)
class Easing:
    """The state of `ease`, which measures its own intervals."""

    since: tuple[int, float, float, float] | None = None
    """The counts at the start of the interval, in the order of `Interval`; None before it has begun."""
    patience: int = 1
    """Factor for the length of the interval. It doubles each time that a drop was too large."""
    done: bool = False
    """Whether `ease` has lowered the limit, and the search has not raised it since."""


class Tuner:
    """Moves `limit` between 1 and `most`, by the rate at which items are begun."""

    def __init__(
        self,
        start: int,
        most: int,
        hungry_for: Callable[[], float],
        can_take: Callable[[int], float] | None = None,
        least_items: int = LEAST_ITEMS,
    ) -> None:
        self._hungry_for = hungry_for
        self._can_take = can_take
        self._search = Search(start, most, least_items)
        self._interval = Interval()
        self._easing = Easing()
        self._last = -math.inf

    @property
    def limit(self) -> int:
        """Number of calls to make at a time."""
        return self._search.limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._search.limit = limit

    @property
    def most(self) -> int:
        """Maximum of `limit`."""
        return self._search.most

    @most.setter
    def most(self, most: int) -> None:
        self._search.most = most

    def look(self, begun: int, now: float, idle: float) -> int:
        """Return the limit, after `begun` items were begun and workers were parked for `idle` seconds in all.

        To be called while all workers are busy, at any frequency.
        """
        search, interval = self._search, self._interval
        if now == self._last:
            return search.limit  # many items begin at the same time: measure from the first of them
        self._last = now
        items, seconds = begun - interval.begun, now - interval.since
        # There are too many calls, or the rate has dropped. Do not wait for the rest of the interval.
        least = search.least_items
        late = seconds * search.expected > 2 * max(least, search.limit)
        if interval.settling and not late:
            # Some running calls began under another limit. They have ended when `limit` more were begun.
            if items >= search.limit:
                self._restart(begun, now, idle)
        elif seconds >= INTERVAL_SECONDS and (
            items >= search.needed or (late and items >= min(least, search.limit))
        ):
            measured, self._interval = interval, self._restart(begun, now, idle)
            if idle - measured.idle <= IDLE_SHARE * seconds * search.limit:
                self._judge(begun, items / seconds, (self._interval.hungry - measured.hungry) / seconds)
        return search.limit

    def _judge(self, begun: int, rate: float, hunger: float) -> None:
        """Continue the search with a measured rate, if the consumer waited for enough of the time (`hunger`)."""
        search = self._search
        if hunger < HUNGRY_SHARE:
            search.forget()
            return
        if self._can_take is not None:
            search.enough = SPARE_FACTOR * self._can_take(begun) * search.limit / rate
        search.judge(rate)
        self._restart_if_moved()

    def ease(self, begun: int, now: float, idle: float) -> int:
        """Return the limit, lowered if fewer calls are enough while the consumer does not wait.

        To be called while some workers are parked and results have just been sent on, at any frequency.
        """
        search, easing = self._search, self._easing
        here = begun, now, idle, self._hungry_for()
        if easing.since is None:
            easing.since = here
            return search.limit
        items, seconds, rested, waited = (new - old for new, old in zip(here, easing.since, strict=True))
        if waited > FED_SHARE * seconds:
            easing.since = here
        elif (
            seconds >= INTERVAL_SECONDS
            and items >= max(EASE_ITEMS, CALM_INTERVALS * search.limit) * easing.patience
        ):
            easing.since = here
            at_work = search.limit - rested / seconds
            enough = max(1, math.ceil(SPARE_FACTOR * at_work), search.limit // 2)
            if enough < LOOK_DOWN_FACTOR * search.limit:
                easing.done = True
                search.forget()
                search.go(enough)
                self._restart_if_moved()
        return search.limit

    def _restart(self, begun: int, now: float, idle: float) -> Interval:
        self._interval = Interval(False, begun, now, idle, self._hungry_for())
        return self._interval

    def _restart_if_moved(self) -> None:
        """Begin new intervals if the search has moved or confirmed the limit."""
        moved, self._search.moved = self._search.moved, None
        if moved is None:
            return
        easing = self._easing
        if easing.done and moved > 0:
            # The calls that `ease` took away were needed. Measure for longer before the next time.
            easing.done = False
            easing.patience = min(2 * easing.patience, PATIENCE_FACTOR)
        self._interval.settling, easing.since = True, None
