"""The search for the number of calls at a time that is worth it: which to try next, and which to keep.

It knows no clock. It is told the rate that the present number has, and moves `limit`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from asyncfeed.engine.constants import (
    BETTER_FACTOR,
    CALM_INTERVALS,
    CHANGED_RATES,
    EQUAL_SHARE,
    LOOK_DOWN_FACTOR,
    LOOK_UP_FACTOR,
    PAYS_SHARE,
    STEP_FACTOR,
    UNLIKELY_RATES,
    WORSE_SHARE,
)


@dataclass(slots=True)
class Trial:
    """Another limit is tried: the one before, its rate, and whether one look was not enough."""

    before: int
    rate: float
    doubted: bool = False


class Search:
    """Moves `limit`, between 1 and `most`.

    It searches, from the beginning and whenever the rate has changed by itself: in big steps, between a limit
    that was too low and one that was too high. Then it watches, and looks around in small steps.
    """

    def __init__(self, start: int, most: int) -> None:
        self.limit = min(start, most)
        self.most = most
        self.enough = math.inf
        """How many calls to grow to at most: what the consumer could take, and spare ones."""
        self.moved: int | None = None
        """By how much the limit was moved since somebody looked; 0 if it was confirmed."""
        self._found: float | None = None
        """The rate of the limit that was found; None while searching."""
        self._trial: Trial | None = None
        self._factor = STEP_FACTOR
        self._bounds = 0, most + 1
        """A limit that was too low, and one that was too high."""
        self._calm = 0
        """How many intervals went by without a look at another limit."""
        self._upwards = True
        """Whether the last such look was at a higher one."""

    def forget(self) -> None:
        """Stay at the limit, and search anew from there when the consumer waits."""
        self._found = self._trial = None
        self._factor = STEP_FACTOR
        self._bounds = 0, self.most + 1

    @property
    def expected(self) -> float:
        """The rate to expect at least."""
        trial = self._trial
        if trial is None:
            return 0.0 if self._found is None else self._found / 5
        return trial.rate / (1 if self.limit > trial.before else 2)

    @property
    def needed(self) -> int:
        """How many items make an interval: two rounds of calls while searching, more to see small gains."""
        if self._found is None:
            return max(32, 2 * self.limit) * (1 + (self._trial is not None and self._trial.doubted))
        return max(64, 8 * self.limit)

    def judge(self, rate: float) -> None:
        """Go on from the rate of the present limit."""
        if self._trial is not None:
            self._judge_trial(rate, self._trial)
        elif self._found is None:
            self._try(self._factor, rate)
        elif rate < CHANGED_RATES[0] * self._found:
            self._search(rate, 0.5)
        elif rate > CHANGED_RATES[1] * self._found:
            self._search(rate, STEP_FACTOR)
        else:
            better = rate > BETTER_FACTOR * self._found
            self._found = rate
            self._calm += 1
            if self._calm >= CALM_INTERVALS or better:
                self._upwards = better or not self._upwards
                self._try(LOOK_UP_FACTOR if self._upwards else LOOK_DOWN_FACTOR, rate)

    def _judge_trial(self, rate: float, trial: Trial) -> None:
        if self._found is not None and not UNLIKELY_RATES[0] < rate / trial.rate < UNLIKELY_RATES[1]:
            self._search(rate, 0.5 if rate < trial.rate else STEP_FACTOR)
        elif self.limit > trial.before:
            self._more(rate, trial)
        else:
            self._less(rate, trial)

    def _search(self, rate: float, factor: float) -> None:
        self._found = None
        self._bounds = 0, self.most + 1
        self._try(factor, rate)

    def _try(self, factor: float, rate: float) -> None:
        """Go to another limit to see what it does; stay where there is none between those known to be worse."""
        limit = math.ceil(factor * self.limit) if factor > 1 else int(factor * self.limit)
        low, high = self._bounds
        if limit >= high:
            limit = self.most if high > self.most else math.isqrt(self.limit * high)
        elif limit <= low:
            limit = math.isqrt(self.limit * low) if low else 1
        self._factor = factor
        if self._trial is not None:
            self._trial.doubted = False
        searching = self._found is None
        if self.limit < limit and self.enough < limit:
            limit = min(limit, 2 * self.limit)
            if self.enough < limit:
                self._hold(rate)
                return
        if limit == self.limit or (searching and low and 1 / LOOK_UP_FACTOR < limit / self.limit < LOOK_UP_FACTOR):
            self._keep(self.limit, rate)
        else:
            self._trial = Trial(self.limit, rate)
            self.go(limit)

    def _hold(self, rate: float) -> None:
        """Stay, because the consumer could not take what more calls would bring; a search is not over."""
        if self._found is not None:
            self._keep(self.limit, rate)
        elif self._trial is not None:
            self._trial = None
            self.go(self.limit)

    def _more(self, rate: float, trial: Trial) -> None:
        """Keep a higher limit, and go further; or return to the knee."""
        before, gain = trial.before, rate / trial.rate
        if gain >= 1 + PAYS_SHARE * (self.limit / before - 1):
            if self._found is None:
                self._bounds = before, self._bounds[1]
                self._try(self._factor, rate)
            else:
                self._search(rate, 2.0)
        elif gain < WORSE_SHARE:
            high, self.limit = self.limit, before
            if self._found is None:
                self._bounds = self._bounds[0], high
                self._try(2.0 if self._factor > 2 else 0.5, trial.rate)
            else:
                self._keep(before, trial.rate)
        elif not trial.doubted:
            trial.doubted = True  # some calls take long: look again before giving up
        else:
            knee = math.ceil(1.1 * before * gain) if gain > 1 else before
            self._keep(min(knee, self.limit), max(rate, trial.rate))

    def _less(self, rate: float, trial: Trial) -> None:
        """Keep a lower limit, and go further where that pays; or return."""
        before, gain = trial.before, rate / trial.rate
        if gain >= EQUAL_SHARE:
            if self._found is None:
                self._bounds = self._bounds[0], before
                self._try(0.5, rate)
            elif gain > 1 / EQUAL_SHARE:
                self._try(LOOK_DOWN_FACTOR, rate)
            else:
                self._keep(self.limit, rate)
        elif self._found is None:
            low, self.limit = self.limit, before
            self._bounds = low, self._bounds[1]
            self._try(2.0, trial.rate)
        else:
            self._keep(before, trial.rate)

    def _keep(self, limit: int, rate: float) -> None:
        """End a search or a look."""
        self._calm = CALM_INTERVALS // 2 if self._found is None else 0
        self._trial, self._found = None, rate
        self.go(limit)

    def go(self, limit: int) -> None:
        """Move the limit, or confirm it."""
        self.moved = limit - self.limit
        self.limit = min(limit, self.most)
