"""How many calls at a time a stage is worth: what concurrency="auto" finds.

Little's law is all there is to know: as long as the other side keeps up, twice as many calls at a time do twice
as much, and beyond that they only wait in its queue. So the number grows while that pays. Where it did not, it
goes back to the knee: the number that would have done as much, had it paid in full. There it stays, and looks now
and then whether a few more or a few less would do better.

When the rate changes by itself, what was learned is void. After a rise more calls are tried. After a fall fewer,
as that is never dear: a store that is overrun gets quicker, one that is full stays as it is, and where each call
takes longer that soon shows, and more are tried.

An interval counts only where nearly all callers were busy throughout: a stage that waits for its input, or for
the consumer, learns nothing, and needs nothing.

The consumer decides whether more calls are worth anything. By Little's law it needs (items it takes a second) x
(seconds a call takes) calls on average, and more only fill the queue to it sooner. So two things depend on how
long it waits:

* The number grows only while the consumer waits for a share of the time (`HUNGRY_SHARE`). A burst that fills the
  queue at the start proves nothing.
* While the consumer does not wait (`FED_SHARE`) and callers rest, the average number of callers at work is what it
  needs. The number then goes back, by half at most each time, to `SPARE_FACTOR` times that. If the consumer waits
  afterwards, the search begins anew at once, and the next time that calls are taken back comes later
  (`PATIENCE_FACTOR`).

That the consumer waits does not prove that it could take more. It always waits for its first batch, and a batch
may need many rounds of calls. So the number is bounded by what the consumer could take, too:

* Invariant: no search or look raises the number above `SPARE_FACTOR` x (items a second that the consumer could
  take) x (seconds a call takes). `demand.py` measures the first, and the rate of the stage tells the second. A
  search at least doubles the number, so it stays where it is while the bound is lower, and goes on when the
  bound has risen. Calls that were taken away to see whether fewer would do come back without a question.
* Until the consumer has come back, it is assumed to take in a second all that was begun. So the number may double
  when the wait has lasted a second, and then every half second. From 32 it reaches 512 after 2.5 s.
* A trainer needs (items in a batch) x (seconds a call takes) / S calls on average, if a step of training lasts S
  seconds. The first batch thus raises the number to at most `SPARE_FACTOR` x S times what the trainer needs. It
  may be more if one slow call holds up the batch, as calls for later batches are begun meanwhile.
* If the consumer comes back at once, the bound is out of the way after one to three batches. Only the first
  batches come later for it.
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
    LOOK_DOWN_FACTOR,
    PATIENCE_FACTOR,
    SPARE_FACTOR,
)
from asyncfeed.engine.limits.search import Search


@dataclass(slots=True)
class Interval:
    """What had been begun when the measured interval began, when that was, and the rests and waits so far."""

    settling: bool = True
    """Whether it has yet to begin: what is under way was begun under another limit."""
    begun: int = 0
    since: float = 0.0
    idle: float = 0.0
    hungry: float = 0.0


@dataclass(slots=True)
class Easing:
    """The same for `ease`, whose intervals are others."""

    since: tuple[int, float, float, float] | None = None
    patience: int = 1
    done: bool = False
    """Whether calls were taken back, and the search has not wanted them again since."""


class Tuner:
    """Raises and lowers `limit`, between 1 and `most`, by the rate at which items are begun."""

    def __init__(
        self,
        start: int,
        most: int,
        hungry_for: Callable[[], float],
        can_take: Callable[[int], float] | None = None,
    ) -> None:
        self._hungry_for = hungry_for
        self._can_take = can_take
        self._search = Search(start, most)
        self._interval = Interval()
        self._easing = Easing()
        self._last = -math.inf

    @property
    def limit(self) -> int:
        """How many calls to make at a time."""
        return self._search.limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._search.limit = limit

    @property
    def most(self) -> int:
        """How many to make at most."""
        return self._search.most

    @most.setter
    def most(self, most: int) -> None:
        self._search.most = most

    def look(self, begun: int, now: float, idle: float) -> int:
        """Return the limit, once `begun` items were begun and callers have rested for `idle` seconds in all.

        To be called while all callers are busy; how often does not matter.
        """
        search, interval = self._search, self._interval
        if now == self._last:
            return search.limit  # in a burst of begins: count whole bursts, from the first of one on
        self._last = now
        items, seconds = begun - interval.begun, now - interval.since
        # Too many calls, or a change for the worse: the rest of the interval need not be waited for.
        late = seconds * search.expected > 2 * max(32, search.limit)
        if interval.settling and not late:
            # What is under way was begun under another limit.
            if items >= search.limit:
                self._restart(begun, now, idle)
        elif seconds >= INTERVAL_SECONDS and (items >= search.needed or (late and items >= min(32, search.limit))):
            measured, self._interval = interval, self._restart(begun, now, idle)
            if idle - measured.idle <= IDLE_SHARE * seconds * search.limit:
                self._judge(begun, items / seconds, (self._interval.hungry - measured.hungry) / seconds)
        return search.limit

    def _judge(self, begun: int, rate: float, hunger: float) -> None:
        """Go on from a rate, if the consumer has waited for this share of the time."""
        search = self._search
        if hunger < HUNGRY_SHARE:
            search.forget()
            return
        if self._can_take is not None:
            search.enough = SPARE_FACTOR * self._can_take(begun) * search.limit / rate
        search.judge(rate)
        self._heed()

    def ease(self, begun: int, now: float, idle: float) -> int:
        """Return the limit, once it is seen that fewer calls would do while the consumer does not wait.

        To be called while some callers rest and something has just been sent on; how often does not matter.
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
                self._heed()
        return search.limit

    def _restart(self, begun: int, now: float, idle: float) -> Interval:
        self._interval = Interval(False, begun, now, idle, self._hungry_for())
        return self._interval

    def _heed(self) -> None:
        """Begin new intervals where the limit was moved or confirmed."""
        moved, self._search.moved = self._search.moved, None
        if moved is None:
            return
        easing = self._easing
        if easing.done and moved > 0:
            # What was eased was needed: look longer before the next time.
            easing.done = False
            easing.patience = min(2 * easing.patience, PATIENCE_FACTOR)
        self._interval.settling, easing.since = True, None
