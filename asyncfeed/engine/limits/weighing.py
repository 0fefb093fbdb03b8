"""The weights of a stage's results in bytes: predicted from the items, and learned from earlier results."""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

from asyncfeed.engine.constants import PACKED_FACTOR, SMALL_ITEM_BYTES, WEIGHT_CLASS_BITS
from asyncfeed.engine.order.reorder import Entry, untaken_from
from asyncfeed.stages.steps import Work
from asyncfeed.trees import size_of, total_size

UNMEASURED = -1
"""The weight of an item that must first be read from its file."""


class Estimate:
    """How many bytes a result has for each unit of its item's weight, learned from earlier results.

    Before the first result it is unknown, which is not the same as 0. If results get heavier, the estimate follows
    at once. If they get lighter, it follows slowly.
    """

    __slots__ = ("ratio", "unknown")

    def __init__(self, *, unknown: bool = True) -> None:
        self.unknown = unknown
        self.ratio = 1.0

    def expect(self, weight: int, count: int = 1) -> int:
        """Return the expected bytes of the results of items that together weigh `weight`."""
        return int(weight * self.ratio)

    def learn(self, nbytes: int, units: int) -> None:
        """Learn that results of `nbytes` were made from `units`. Results of no bytes are ignored."""
        if nbytes:
            seen = nbytes / units
            self.ratio = seen if self.unknown else max(seen, 0.9 * self.ratio + 0.1 * seen)
            self.unknown = False


class Weights:
    """How heavy a stage's results are compared to their items, learned from earlier results.

    If `cost` says what an item's result weighs, results are expected in proportion to that. If not, only the
    weights of the items are known. A result may be in proportion to its item (an array), or not (a path). So items
    of about the same weight, a weight class, share an estimate. For the first item of a class, the latest estimate
    is used, but the result is not expected to be heavier than the last result, nor lighter than the item.
    """

    def __init__(self, work: Work) -> None:
        self._cost = work.cost
        self._measure = work.measure
        self._filters = work.shape == "filter"
        self._packed = work.packed
        self._measures_all = work.packed
        """Whether all items are measured, even if their cost is known."""
        self.result_bytes = 0
        """Bytes of a recent result. 0 until results are weighed."""
        self._cost_estimate = Estimate(unknown=(work.cost is None or work.grows) and not self._filters)
        self._latest_estimate = self._cost_estimate
        """The estimate that has learned most recently."""
        self._estimate_of_class: dict[int, Estimate] = {}
        """The estimate of each weight class, if there is no `cost`."""

    @property
    def unknown(self) -> bool:
        """Whether the weight of a result cannot be predicted yet."""
        return self._latest_estimate.unknown

    @property
    def ratio(self) -> float:
        """Bytes of recent results per byte of their items."""
        return self._latest_estimate.ratio

    def costs(self, items: list[Any]) -> list[int]:
        """Return what each item weighs. It is `UNMEASURED` if only `measure` can find out."""
        if self._cost is None:
            return [size_of(item) or 1 for item in items]
        if self._measures_all:
            return [UNMEASURED] * len(items)
        known = list(map(self._cost, items))
        return [UNMEASURED if cost is None else cost for cost in known]

    def measure(self, items: list[Any]) -> list[int]:
        """Look at each item, and return what it weighs. This blocks."""
        assert self._cost is not None
        assert self._measure is not None
        costs = list(map(self._measure, items))
        if self._packed:
            self._measures_all = sum(costs) > PACKED_FACTOR * sum(cost or 0 for cost in map(self._cost, items))
        return costs

    def predict(self, entry: Entry) -> int | None:
        """Return what the results of an entry will weigh together, or None if they are admitted one by one."""
        if self._filters:
            return 0  # the results are the items, which are charged already
        items = entry.items
        costs = None
        if not self.unknown:
            if self._cost is None:
                weight = self.expect(total_size(items), len(items))
            else:
                costs = self.costs(items)
                weight = self.expect(sum(costs), len(items)) if UNMEASURED not in costs else sys.maxsize
            if weight <= SMALL_ITEM_BYTES * len(items):
                return weight
        entry.one_by_one = True
        entry.costs = costs or self.costs(items)
        return None

    def break_up(self, entry: Entry) -> None:
        """Have the items of an entry that no worker has taken admitted one by one after all."""
        if not entry.one_by_one:
            entry.one_by_one = True
            entry.costs = [0] * entry.taken + self.costs(entry.items[entry.taken :])
            following = next(entry.untaken, None)
            if following is not None:
                # A worker that iterates over the old iterator finds its end, and continues with the new one.
                deque(entry.untaken, maxlen=0)
                entry.untaken = untaken_from(entry.items, following[0])

    def expect(self, weight: int, count: int = 1) -> int:
        """Return the expected bytes of the results of `count` items that together weigh `weight`."""
        if self._cost is not None:
            return self._cost_estimate.expect(weight)
        weight = max(weight, count)
        estimate = self._estimate_of_class.get((weight // max(1, count)).bit_length() // WEIGHT_CLASS_BITS)
        if estimate is not None:
            return estimate.expect(weight)
        return max(weight, min(self._latest_estimate.expect(weight), self.result_bytes * count))

    def _estimate_for(self, weight: int) -> Estimate:
        if self._cost is not None:
            return self._cost_estimate
        return self._estimate_of_class.setdefault(weight.bit_length() // WEIGHT_CLASS_BITS, Estimate())

    def assume(self, nbytes: int, weight: int) -> None:
        """Expect as many bytes of items that together weigh `weight`, before the first result is there."""
        if self.unknown and nbytes:
            self._latest_estimate = self._estimate_for(weight)
            self._latest_estimate.learn(nbytes, max(weight, 1))

    def learn(self, results: list[Any], weight: int, peak: int = 0) -> int:
        """Learn from results of items that together weigh `weight`. Return what the results weigh.

        If there were more bytes while the results were made (`peak`), later results are expected to need as many.
        """
        actual = total_size(results)
        if actual or (results and peak):
            weight = max(weight, 1)
            self.result_bytes = actual // len(results)
            self._latest_estimate = self._estimate_for(weight // len(results))
            self._latest_estimate.learn(max(actual, peak), weight)
            self._measures_all = self._measures_all or (self._packed and actual > PACKED_FACTOR * weight)
        return actual
