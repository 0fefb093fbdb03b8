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

* The number grows only while the consumer waits for a share of the time (`HUNGRY`). A burst that fills the queue
  at the start proves nothing.
* While the consumer does not wait (`FED`) and callers rest, the average number of callers at work is what it
  needs. The number then goes back, by half at most each time, to `SPARE` times that. If the consumer waits
  afterwards, the search begins anew at once, and the next time that calls are taken back comes later (`PATIENCE`).

That the consumer waits does not prove that it could take more. It always waits for its first batch, and a batch
may need many rounds of calls. So the number is bounded by what the consumer could take, too:

* Invariant: no search or look raises the number above `SPARE` x (items a second that the consumer could take) x
  (seconds a call takes). `demand.py` measures the first, and the rate of the stage tells the second. A search at
  least doubles the number, so it stays where it is while the bound is lower, and goes on when the bound has risen.
  Calls that were taken away to see whether fewer would do come back without a question.
* Until the consumer has come back, it is assumed to take in a second all that was begun. So the number may double
  when the wait has lasted a second, and then every half second. From 32 it reaches 512 after 2.5 s.
* A trainer needs (items in a batch) x (seconds a call takes) / S calls on average, if a step of training lasts S
  seconds. The first batch thus raises the number to at most `SPARE` x S times what the trainer needs. It may be
  more if one slow call holds up the batch, as calls for later batches are begun meanwhile.
* If the consumer comes back at once, the bound is out of the way after one to three batches. Only the first
  batches come later for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

PAYS: Final = 0.25
"""The share of what more calls could gain at best that they must gain, to be kept."""
EQUAL: Final = 0.97
"""Fewer calls that do this share of the work are as good."""
WORSE: Final = 0.9
"""More calls that do less than this share are too many."""
CHANGED: Final = (0.75, 1.25)
"""A rate that leaves this range without our doing is another's."""
BETTER: Final = 1.1
"""A rate that rises by this factor by itself is a reason to look at more calls at once: the other side may allow
more now, and the calls that there are gain little from it. A smaller factor looks more often because of noise."""
UNLIKELY: Final = (0.6, 1.6)
"""So is one that leaves this range when we look around."""
CALM: Final = 8
"""How many intervals go by between two looks; the first comes sooner."""
STEP: Final = 4.0
"""By how much to grow while nothing is known; twice that much work for nothing is soon seen."""
MORE, LESS = 1.25, 0.875
"""What to look at when all is calm: each look costs little where it finds nothing."""
IDLE: Final = 0.25
"""The share of the callers' time that may be spent resting."""
SECONDS: Final = 0.01
"""What an interval lasts at least; a loop's clock may tick in milliseconds."""
HUNGRY: Final = 0.05
"""Try more calls only if the consumer waits for at least this share of the time. A lower value adds calls that can
gain less than that; a higher one misses calls that would pay."""
FED: Final = 0.01
"""Try fewer calls only if the consumer waits for less than this share of the time."""
SPARE: Final = 2.0
"""How many times the average number of calls in flight to keep, when there are more. Closer to 1, calls that take
longer for a while keep the consumer waiting; higher, more calls begin at once when the consumer makes room."""
CYCLE: Final = 512
"""Minimum number of items to see before fewer calls are tried. The queue to the consumer is filled in one go and
emptied in another, and an average over less than both is wrong."""
PATIENCE: Final = 64
"""How many times as many items to see at most, after fewer calls were too few."""


class Tuner:
    """Raises and lowers `limit`, between 1 and `most`, by the rate at which items are begun.

    It searches, from the beginning and whenever the rate has changed by itself: in big steps, between a limit
    that was too low and one that was too high. Then it watches, and looks around in small steps.
    """

    def __init__(
        self,
        start: int,
        most: int,
        hungry_for: Callable[[], float],
        can_take: Callable[[int], float] | None = None,
    ) -> None:
        self.limit = min(start, most)
        self.most = most
        self._hungry_for = hungry_for
        self._can_take = can_take
        self._enough = math.inf
        """How many calls to grow to at most: what the consumer could take, and spare ones."""
        self._rate: float | None = None
        """What the limit that was found does; None while searching."""
        self._tried_from: tuple[int, float] | None = None
        """While another limit is tried: the one before, and its rate."""
        self._factor = STEP
        self._low, self._high = 0, most + 1
        self._calm = 0
        self._upwards = True
        self._doubted = False
        # The interval that is measured: what had been begun, when, and the rest that callers had had.
        self._settling = True
        self._begun, self._since, self._idle, self._hungry = 0, 0.0, 0.0, 0.0
        self._last = -math.inf
        # The same for `ease`, whose intervals are others.
        self._eased_at: tuple[int, float, float, float] | None = None
        self._patience = 1
        self._eased = False

    def look(self, begun: int, now: float, idle: float) -> int:
        """Return the limit, once `begun` items were begun and callers have rested for `idle` seconds in all.

        To be called while all callers are busy; how often does not matter.
        """
        if now == self._last:
            return self.limit  # in a burst of begins: count whole bursts, from the first of one on
        self._last = now
        items, seconds = begun - self._begun, now - self._since
        # Too many calls, or a change for the worse: the rest of the interval need not be waited for.
        late = seconds * self._reference > 2 * max(32, self.limit)
        if self._settling and not late:
            # What is under way was begun under another limit.
            if items >= self.limit:
                self._settling = False
                self._restart(begun, now, idle)
        elif seconds >= SECONDS and (items >= self._needed or (late and items >= min(32, self.limit))):
            self._settling = False
            if idle - self._idle <= IDLE * seconds * self.limit:
                if self._hungry_for() - self._hungry >= HUNGRY * seconds:
                    rate = items / seconds
                    if self._can_take is not None:
                        self._enough = SPARE * self._can_take(begun) * self.limit / rate
                    self._judge(rate)
                else:
                    self._forget()
            self._restart(begun, now, idle)
        return self.limit

    def ease(self, begun: int, now: float, idle: float) -> int:
        """Return the limit, once it is seen that fewer calls would do while the consumer does not wait.

        To be called while some callers rest and something has just been sent on; how often does not matter.
        """
        here = begun, now, idle, self._hungry_for()
        if self._eased_at is None:
            self._eased_at = here
            return self.limit
        items, seconds, rested, waited = (new - old for new, old in zip(here, self._eased_at, strict=True))
        if waited > FED * seconds:
            self._eased_at = here
        elif seconds >= SECONDS and items >= max(CYCLE, CALM * self.limit) * self._patience:
            self._eased_at = here
            at_work = self.limit - rested / seconds
            enough = max(1, math.ceil(SPARE * at_work), self.limit // 2)
            if enough < LESS * self.limit:
                self._eased = True
                self._forget()
                self._go(enough)
        return self.limit

    def _forget(self) -> None:
        """Stay at the limit, and search anew from there when the consumer waits."""
        self._rate = self._tried_from = None
        self._factor = STEP
        self._low, self._high = 0, self.most + 1
        self._doubted = False

    @property
    def _reference(self) -> float:
        """The rate to expect at least."""
        if self._tried_from is None:
            return 0.0 if self._rate is None else self._rate / 5
        return self._tried_from[1] / (1 if self.limit > self._tried_from[0] else 2)

    @property
    def _needed(self) -> int:
        """How many items make an interval: two rounds of calls while searching, more to see small gains."""
        if self._rate is None:
            return max(32, 2 * self.limit) * (1 + self._doubted)
        return max(64, 8 * self.limit)

    def _restart(self, begun: int, now: float, idle: float) -> None:
        self._begun, self._since, self._idle, self._hungry = begun, now, idle, self._hungry_for()

    def _judge(self, rate: float) -> None:
        if self._tried_from is not None:
            before, rate_before = self._tried_from
            if self._rate is not None and not UNLIKELY[0] < rate / rate_before < UNLIKELY[1]:
                self._search(rate, 0.5 if rate < rate_before else STEP)
            elif self.limit > before:
                self._more(rate, before, rate_before)
            else:
                self._less(rate, before, rate_before)
        elif self._rate is None:
            self._try(self._factor, rate)
        elif rate < CHANGED[0] * self._rate:
            self._search(rate, 0.5)
        elif rate > CHANGED[1] * self._rate:
            self._search(rate, STEP)
        else:
            better = rate > BETTER * self._rate
            self._rate = rate
            self._calm += 1
            if self._calm >= CALM or better:
                self._upwards = better or not self._upwards
                self._try(MORE if self._upwards else LESS, rate)

    def _search(self, rate: float, factor: float) -> None:
        self._rate = None
        self._low, self._high = 0, self.most + 1
        self._try(factor, rate)

    def _try(self, factor: float, rate: float) -> None:
        """Go to another limit to see what it does; stay where there is none between those known to be worse."""
        limit = math.ceil(factor * self.limit) if factor > 1 else int(factor * self.limit)
        if limit >= self._high:
            limit = self.most if self._high > self.most else math.isqrt(self.limit * self._high)
        elif limit <= self._low:
            limit = math.isqrt(self.limit * self._low) if self._low else 1
        self._factor, self._doubted = factor, False
        searching = self._rate is None
        if self.limit < limit and self._enough < limit:
            limit = min(limit, 2 * self.limit)
            if self._enough < limit:
                self._hold(rate)
                return
        if limit == self.limit or (searching and self._low and 1 / MORE < limit / self.limit < MORE):
            self._keep(self.limit, rate)
        else:
            self._tried_from = self.limit, rate
            self._go(limit)

    def _hold(self, rate: float) -> None:
        """Stay, because the consumer could not take what more calls would bring; a search is not over."""
        if self._rate is not None:
            self._keep(self.limit, rate)
        elif self._tried_from is not None:
            self._tried_from = None
            self._go(self.limit)

    def _more(self, rate: float, before: int, rate_before: float) -> None:
        """Keep a higher limit, and go further; or return to the knee."""
        gain = rate / rate_before
        if gain >= 1 + PAYS * (self.limit / before - 1):
            if self._rate is None:
                self._low = before
                self._try(self._factor, rate)
            else:
                self._search(rate, 2.0)
        elif gain < WORSE:
            high, self.limit = self.limit, before
            if self._rate is None:
                self._high = high
                self._try(2.0 if self._factor > 2 else 0.5, rate_before)
            else:
                self._keep(before, rate_before)
        elif not self._doubted:
            self._doubted = True  # some calls take long: look again before giving up
        else:
            knee = math.ceil(1.1 * before * gain) if gain > 1 else before
            self._keep(min(knee, self.limit), max(rate, rate_before))

    def _less(self, rate: float, before: int, rate_before: float) -> None:
        """Keep a lower limit, and go further where that pays; or return."""
        gain = rate / rate_before
        if gain >= EQUAL:
            if self._rate is None:
                self._high = before
                self._try(0.5, rate)
            elif gain > 1 / EQUAL:
                self._try(LESS, rate)
            else:
                self._keep(self.limit, rate)
        elif self._rate is None:
            self._low, self.limit = self.limit, before
            self._try(2.0, rate_before)
        else:
            self._keep(before, rate_before)

    def _keep(self, limit: int, rate: float) -> None:
        """End a search or a look."""
        self._calm = CALM // 2 if self._rate is None else 0
        self._tried_from, self._rate, self._doubted = None, rate, False
        self._go(limit)

    def _go(self, limit: int) -> None:
        if self._eased and limit > self.limit:
            # What was eased was needed: look longer before the next time.
            self._eased = False
            self._patience = min(2 * self._patience, PATIENCE)
        self._settling, self._eased_at = True, None
        self.limit = min(limit, self.most)
