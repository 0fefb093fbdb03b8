"""The tuner's search for the best number of calls at a time: which number to try next, and which to keep.

The search reads no clock. It is told the rate of the present number, and moves `limit`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from asyncfeed.engine.constants import (
    BETTER_FACTOR,
    CALM_INTERVALS,
    CHANGED_RATES,
    EQUAL_SHARE,
    LEAST_ITEMS,
    LOOK_DOWN_FACTOR,
    LOOK_UP_FACTOR,
    PAYS_SHARE,
    STEP_FACTOR,
    UNLIKELY_RATES,
    WORSE_SHARE,
)


@dataclass(slots=True)
class Trial:
    """A limit that is being tried."""

    before: int
    """The limit before."""
    rate: float
    """The rate at that limit."""
    doubted: bool = False
    """Whether one interval did not decide, so that another one is measured."""


class Search:
    """Moves `limit` between 1 and `most`.

    At the start, and whenever the rate has changed by itself, it searches: in large steps, between a limit that
    was too low and one that was too high. After that it watches the rate, and probes in small steps.
    """

    def __init__(self, start: int, most: int, least_items: int = LEAST_ITEMS) -> None:
        self.limit = min(start, most)
        self.most = most
        self.least_items = least_items
        """Number of items from which a rate can be told."""
        self.enough = math.inf
        """Upper bound for growth: the calls for the rate that the consumer could take, times `SPARE_FACTOR`."""
        self.moved: int | None = None
        """By how much the limit was last moved, 0 if it was confirmed. The tuner sets it to None."""
        self._found: float | None = None
        """The rate at the limit that the search found; None during a search."""
        self._trial: Trial | None = None
        self._factor = STEP_FACTOR
        self._bounds = 0, most + 1
        """A limit that was too low, and a limit that was too high."""
        self._calm = 0
        """Number of intervals since the last probe."""
        self._upwards = True
        """Whether the last probe was upwards."""

    def forget(self) -> None:
        """Stay at the limit. The next `judge` starts a new search from there."""
        self._found = self._trial = None
        self._factor = STEP_FACTOR
        self._bounds = 0, self.most + 1

    @property
    def expected(self) -> float:
        """The rate that this limit should at least reach. If it does not, the tuner ends the interval early."""
        trial = self._trial
        if trial is None:
            return 0.0 if self._found is None else self._found / 5
        return trial.rate / (1 if self.limit > trial.before else 2)

    @property
    def needed(self) -> int:
        """Number of items in an interval: two rounds of calls in a search, more for the small gain of a probe."""
        if self._found is None:
            return max(self.least_items, 2 * self.limit) * (1 + (self._trial is not None and self._trial.doubted))
        return max(2 * self.least_items, 8 * self.limit)

    def judge(self, rate: float) -> None:
        """Continue with the measured rate of the present limit."""
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
        """Try `factor` times the limit. Keep the limit if none is left to try between the known bounds."""
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
        """Stay at the limit, because the consumer could not take more items. A search continues later."""
        if self._found is not None:
            self._keep(self.limit, rate)
        elif self._trial is not None:
            self._trial = None
            self.go(self.limit)

    def _more(self, rate: float, trial: Trial) -> None:
        """Judge a higher limit: keep it and try more, or return to the knee."""
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
            trial.doubted = True  # a few slow calls may have hidden the gain: measure once more
        else:
            knee = math.ceil(1.1 * before * gain) if gain > 1 else before
            self._keep(min(knee, self.limit), max(rate, trial.rate))

    def _less(self, rate: float, trial: Trial) -> None:
        """Judge a lower limit: keep it, perhaps try fewer, or return to the limit before."""
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
        """End a search or a probe, and stay at this limit."""
        self._calm = CALM_INTERVALS // 2 if self._found is None else 0
        self._trial, self._found = None, rate
        self.go(limit)

    def go(self, limit: int) -> None:
        """Move the limit, or confirm it."""
        self.moved = limit - self.limit
        self.limit = min(limit, self.most)
