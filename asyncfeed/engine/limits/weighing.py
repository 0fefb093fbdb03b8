"""What the results of a stage weigh: predicted from the items, learned on the way."""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

from asyncfeed.engine.constants import PACKED_FACTOR, SMALL_ITEM_BYTES
from asyncfeed.engine.order.reorder import Entry, untaken_from
from asyncfeed.stages.steps import Work
from asyncfeed.trees import size_of, total_size

UNMEASURED = -1
"""Stands for the weight of an item that only its file can tell."""
ALIKE_BITS = 4
"""Items whose weights have the same number of bits, divided by this, share an estimate: they differ by less than
16 times. With more, a light item with a heavy result makes heavier ones seem huge. With fewer, more items have to
be seen before anybody can tell what a result weighs."""


class Estimate:
    """How many bytes a result has for each unit of what it is made from, learned from those before.

    It is unknown before the first, which is not the same as nothing. It follows results that get heavier at once,
    and those that get lighter slowly.
    """

    __slots__ = ("ratio", "unknown")

    def __init__(self, *, unknown: bool = True) -> None:
        self.unknown = unknown
        self.ratio = 1.0

    def expect(self, weight: int, count: int = 1) -> int:
        """Return what the results of so many units will weigh, as far as that is known."""
        return int(weight * self.ratio)

    def learn(self, nbytes: int, units: int) -> None:
        """Take note of what the results of so many units weigh."""
        if nbytes:
            seen = nbytes / units
            self.ratio = seen if self.unknown else max(seen, 0.9 * self.ratio + 0.1 * seen)
            self.unknown = False


class Weights:
    """What a result weighs against the item it is made from, learned on the way.

    If `cost` says it, results are as many times as heavy as it says. If only the items' own weights are known, a
    result may be in proportion to its item, or have nothing to do with it: an item may be a path or an array. So
    items of about the same weight have an estimate for themselves. The result of an item unlike all before is
    expected to be in proportion, too, but no heavier than the result before it or than the item itself.
    """

    def __init__(self, work: Work) -> None:
        self._cost = work.cost
        self._measure = work.measure
        self._filters = work.shape == "filter"
        self._packed = work.packed
        self._looks = work.packed
        """Whether to measure items though their cost is known."""
        self.each = 0
        """How many bytes a result had lately; 0 while they are small."""
        self._of_cost = Estimate(unknown=work.cost is None and not self._filters)
        self._latest = self._of_cost
        """The estimate that has learned last."""
        self._alike: dict[int, Estimate] = {}
        """The estimates of items of about the same weight, where `cost` says nothing."""

    @property
    def unknown(self) -> bool:
        """Whether nobody can tell yet what a result weighs."""
        return self._latest.unknown

    @property
    def ratio(self) -> float:
        """How many times their items results have weighed lately."""
        return self._latest.ratio

    def costs(self, items: list[Any]) -> list[int]:
        """Return what each item weighs; `UNMEASURED` where `measure` has to find out."""
        if self._cost is None:
            return [size_of(item) or 1 for item in items]
        if self._looks:
            return [UNMEASURED] * len(items)
        known = list(map(self._cost, items))
        return [UNMEASURED if cost is None else cost for cost in known]

    def measure(self, items: list[Any]) -> list[int]:
        """Return what each item weighs, by looking at it; blocks."""
        assert self._cost is not None
        assert self._measure is not None
        costs = list(map(self._measure, items))
        if self._packed:
            self._looks = sum(costs) > PACKED_FACTOR * sum(cost or 0 for cost in map(self._cost, items))
        return costs

    def predict(self, entry: Entry) -> int | None:
        """Return what the results of an entry will weigh, or None where they are admitted one by one."""
        if self._filters:
            return 0  # they are the items, which are charged already
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
        entry.big = True
        entry.costs = costs or self.costs(items)
        return None

    def break_up(self, entry: Entry) -> None:
        """Have the items of an entry that are not taken yet admitted one by one after all."""
        if not entry.big:
            entry.big = True
            entry.costs = [0] * entry.taken + self.costs(entry.items[entry.taken :])
            following = next(entry.untaken, None)
            if following is not None:
                deque(entry.untaken, maxlen=0)  # workers that are in it find it at its end, and look again
                entry.untaken = untaken_from(entry.items, following[0])

    def expect(self, weight: int, count: int = 1) -> int:
        """Return what the results of `count` items of `weight` will weigh together, as far as that is known."""
        if self._cost is not None:
            return self._of_cost.expect(weight)
        weight = max(weight, count)
        estimate = self._alike.get((weight // max(1, count)).bit_length() // ALIKE_BITS)
        if estimate is not None:
            return estimate.expect(weight)
        return max(weight, min(self._latest.expect(weight), self.each * count))

    def _estimate(self, weight: int) -> Estimate:
        if self._cost is not None:
            return self._of_cost
        return self._alike.setdefault(weight.bit_length() // ALIKE_BITS, Estimate())

    def learn(self, results: list[Any], weight: int) -> int:
        """Take note of results made from items of `weight`; return what they weigh."""
        actual = total_size(results)
        if actual:
            weight = max(weight, 1)
            self.each = actual // len(results)
            self._latest = self._estimate(weight // len(results))
            self._latest.learn(actual, weight)
            self._looks = self._looks or (self._packed and actual > PACKED_FACTOR * weight)
        return actual
