"""The reorder window of a stage: spans taken in, with their results as they come."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from asyncfeed.engine.crew import Policy
from asyncfeed.engine.epochs import Marks
from asyncfeed.engine.hop import DROPPED
from asyncfeed.errors import Failure
from asyncfeed.stages.steps import NO_MARK, Span, Work
from asyncfeed.trees import size_of, total_size

if TYPE_CHECKING:
    from asyncfeed.engine.step import Means, Step

PENDING: Any = type("Pending", (), {"__slots__": (), "__repr__": lambda _: "PENDING"})()
"""Stands where a result is not there yet."""


class Fault:
    """Stands where an item failed. A class of the engine's own: a `Failure` may be an item of the user's."""

    __slots__ = ("failure",)

    def __init__(self, failure: Failure) -> None:
        self.failure = failure


NOTHING = frozenset({Fault, type(PENDING)})
"""What stands among results and is none."""

UNMEASURED = -1
"""Stands for the weight of an item that only its file can tell."""
PACKED = 1.25
"""Files whose contents weigh so many times as much are unpacked when they are read: each is looked at before."""
SMALL = 4096
"""Items that need fewer bytes than this are admitted to the budget by the span, not one by one."""


class Entry:
    """A span in the window: its items, their results, and how far it has come."""

    __slots__ = (
        "awaited", "big", "charged", "costs", "failure", "items", "mark", "number", "order", "ordinals", "out",
        "sent", "share", "special", "taken", "untaken", "waiting", "weight",
    )  # fmt: skip

    def __init__(self, span: Span, number: int, *, ordered: bool) -> None:
        self.number = number
        """How many items the stage had taken in before."""
        self.items = span.items
        self.ordinals = span.ordinals
        self.mark = span.mark
        self.failure = span.failure
        self.out: list[Any] = [PENDING] * len(span.items)
        self.order: list[int] | None = None if ordered else []
        """Unordered: the places of the results, as they came."""
        self.charged = span.nbytes
        self.share = span.nbytes // max(1, len(span.items))
        self.big = False
        self.costs: list[int] = []
        """Where it is big: what each item weighs."""
        self.special = False
        """Whether a result may be a failure or a dropped item."""
        self.untaken: Iterator[tuple[int, Any]] = enumerate(span.items)
        """What workers take from, each item once; `taken` counts along where somebody needs to know."""
        self.taken = 0
        self.waiting = 0
        """How many taken items wait for memory, or to be taken again."""
        self.weight: int | None = None
        """What the results will weigh together; None where they are weighed one by one."""
        self.sent = 0
        self.awaited = -1
        """The place whose result the sending task sleeps for."""


def _from(items: list[Any], place: int) -> Iterator[tuple[int, Any]]:
    """Go through the items from a place on, as `enumerate` does; not beyond the end that the list has by then."""
    while place < len(items):
        yield place, items[place]
        place += 1


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
                entry.untaken = _from(entry.items, following[0])

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


class Window:
    """The entries of a stage, in the order of the stream."""

    def __init__(self, work: Work, means: Means, step: Step) -> None:
        self.entries: deque[Entry] = deque()
        self.held = 0
        """How many items were taken in and not sent on."""
        self.gone = 0
        """How many were sent on or left out."""
        self.ends = 0
        """How many entries have no items: they only end an epoch or the stream."""
        self._work = work
        self._means = means
        self._passed = Marks(step.levels)
        self._seen = 0
        self._policy = Policy(work, means)

    def clear(self) -> int:
        """Forget everything and return how many bytes it was charged with."""
        charged = sum(entry.charged for entry in self.entries)
        for entry in self.entries:
            entry.items.clear()  # a worker that is in it finds no more
        self.entries.clear()
        self.held = self.ends = 0
        return charged

    def is_next(self, entry: Entry, place: int) -> bool:
        """Return whether nothing in the window can be sent before this item is there: see `budget`."""
        if entry.order is None:
            return bool(self.entries) and self.entries[0] is entry and entry.sent == place
        for each in self.entries:
            if each.taken - each.waiting > each.sent:
                return False  # one is being worked on, or there to be sent
            if each is entry:
                return True
            if each.mark != NO_MARK or each.failure is not None:
                return False  # nothing overtakes the end of an epoch
        return False

    def keep(self, entry: Entry, item: Any, result: object) -> Any:
        """Return the item where a filter's result is true."""
        if result:
            return item
        entry.special = True
        return DROPPED

    def ready(self, skips: Callable[[Marks], bool]) -> Span | None:
        """Take what can be sent on now; None where the next result is not there yet."""
        return self._in_order(skips) if self._work.ordered else self._as_they_came(skips)

    def _in_order(self, skips: Callable[[Marks], bool]) -> Span | None:
        if not self.entries:
            return None
        entry = self.entries[0]
        out, start = entry.out, entry.sent
        stop, count = start, len(entry.out)
        while stop < count and out[stop] is not PENDING:
            stop += 1
        if start == stop < count:
            entry.awaited = start
            return None
        entry.sent = stop
        if start == 0 and stop == count:
            return self._span(entry, out, entry.ordinals, skips)
        piece, ordinals = out[start:stop], entry.ordinals[start:stop]
        out[start:stop] = [None] * (stop - start)  # sent: not ours to keep alive
        return self._span(entry, piece, ordinals, skips)

    def _as_they_came(self, skips: Callable[[Marks], bool]) -> Span | None:
        for entry in self.entries:
            order = entry.order or []
            places = order[entry.sent :]
            complete = len(order) == len(entry.out)
            if places or (complete and entry is self.entries[0]):
                entry.sent = len(order)
                piece = [entry.out[place] for place in places]
                for place in places:
                    entry.out[place] = None
                return self._span(entry, piece, [entry.ordinals[place] for place in places], skips)
            if entry.mark != NO_MARK or entry.failure is not None:
                return None  # nothing overtakes the end of an epoch
        return None

    def _span(self, entry: Entry, piece: list[Any], ordinals: Any, skips: Callable[[Marks], bool]) -> Span:
        self.held -= len(piece)
        self.gone += len(piece)
        failure = None
        if entry.special:
            piece, ordinals, failure = self._sift(piece, ordinals, ignore=skips(self._passed))
        elif skips(self._passed):
            piece, ordinals = [], ()
        self._seen += len(piece)
        nbytes = total_size(piece)
        moved = min(nbytes, entry.charged)
        entry.charged -= moved
        self._means.budget.charge(nbytes - moved)
        span = Span(piece, ordinals, NO_MARK, failure, nbytes)
        if failure is None and entry.sent == len(entry.out) and entry is self.entries[0]:
            self.entries.popleft()
            self.ends -= not entry.out
            self._means.budget.charge(-entry.charged)
            entry.charged = 0
            span.mark, span.failure = entry.mark, entry.failure
            if span.mark != NO_MARK:
                self._passed.note(span.mark)
        return span

    def _sift(self, piece: list[Any], ordinals: Any, *, ignore: bool) -> tuple[list[Any], Any, Failure | None]:
        """Leave out what was dropped; stop before an item that failed, unless the policy skips it."""
        kept: list[Any] = []
        places: list[Any] = []
        for item, ordinal in zip(piece, ordinals, strict=True):
            if type(item) is Fault:
                if ignore:
                    continue
                if not self._policy.forgives(item.failure, self._seen + len(kept)):
                    return kept, places, item.failure
            elif item is not DROPPED and not ignore:
                kept.append(item)
                places.append(ordinal)
        return kept, places, None
