"""What the results of a stage weigh: predicted from the items, learned on the way."""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

from asyncfeed.engine.reorder import NOTHING, Entry, untaken_from
from asyncfeed.stages.steps import Work
from asyncfeed.trees import size_of, total_size

UNMEASURED = -1
"""Stands for the weight of an item that only its file can tell."""
PACKED = 1.25
"""Files whose contents weigh so many times as much are unpacked when they are read: each is looked at before."""
SMALL = 4096
"""Items that need fewer bytes than this are admitted to the budget by the span, not one by one."""


class Part:
    """What items that were admitted one by one have of the budget; a guess is corrected meanwhile."""

    __slots__ = ("admitted", "entry", "nbytes", "weight")

    def __init__(self, entry: Entry, weight: int, nbytes: int) -> None:
        self.entry = entry
        self.weight = weight
        """What the items weigh."""
        self.nbytes = nbytes
        """What is charged for their results."""
        self.admitted = False
        """Whether it is charged: or else the items wait for room, and it will be."""

    def admit(self) -> None:
        """Note that it is charged."""
        self.admitted = True
        self.entry.charged += self.nbytes

    def correct(self, nbytes: int) -> int:
        """Replace a guess; return by how much what is charged changes."""
        change, self.nbytes = nbytes - self.nbytes, nbytes
        if not self.admitted:
            return 0
        self.entry.charged += change
        return change


class Weights:
    """What a result weighs against the item it is made from, learned on the way."""

    def __init__(self, work: Work) -> None:
        self._cost = work.cost
        self._measure = work.measure
        self._filters = work.shape == "filter"
        self._packed = work.packed
        self._looks = work.packed
        """Whether to measure items though their cost is known."""
        self.ratio = 1.0
        self.each = 0
        """How many bytes a result had lately; 0 while they are small."""
        self.unknown = work.cost is None and not self._filters

    def costs(self, items: list[Any]) -> list[int]:
        """Return what each item weighs; `UNMEASURED` where `measure` has to find out."""
        if self._cost is None:
            return list(map(size_of, items))
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
            self._looks = sum(costs) > PACKED * sum(cost or 0 for cost in map(self._cost, items))
        return costs

    def predict(self, entry: Entry) -> int | None:
        """Return what the results of an entry will weigh, or None where they are admitted one by one."""
        if self._filters:
            return 0  # they are the items, which are charged already
        items = entry.items
        costs = None
        if not self.unknown:
            if self._cost is None:
                weight = int(total_size(items) * self.ratio)
            else:
                costs = self.costs(items)
                weight = int(sum(costs) * self.ratio) if UNMEASURED not in costs else sys.maxsize
            if weight <= SMALL * len(items):
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

    def expect(self, weight: int) -> int:
        """Return what the results of items of `weight` will weigh, as far as that is known."""
        return int(weight * self.ratio)

    def learn(self, results: list[Any], weight: int) -> int:
        """Take note of results made from items of `weight`; return what they weigh."""
        if not NOTHING.isdisjoint(map(type, results)):
            results = [each for each in results if type(each) not in NOTHING]
        actual = total_size(results)
        if actual:
            seen = actual / max(1, weight)
            self.each = actual // len(results)
            self.ratio = seen if self.unknown else max(seen, 0.9 * self.ratio + 0.1 * seen)
            self.unknown = False
            self._looks = self._looks or (self._packed and seen > PACKED)
        return actual
