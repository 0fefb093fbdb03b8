"""A stage's function, called for many items at a time, in the order of the stream.

One task feeds spans into a window, up to K workers take the items in it one after the other, and one task sends
on what is ready from its front. Invariants:

* An item is in exactly one place: untaken, with one worker, or in its place among the results.
* The results are sent in the order of the entries; a piece of an entry goes as soon as all before it is done.
  Unordered, results go as they come, but never past the end of an epoch.
* At most K calls run at any time: a worker makes one call (or one thread hop) at a time.
* No task, future, lock or closure is made for an item whose function does not wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from asyncfeed.engine.channel import Channel
from asyncfeed.engine.crew import Crew
from asyncfeed.engine.hop import Hops, Raised
from asyncfeed.engine.origin import ItemPlace, Origin, from_outside, heed_cancel
from asyncfeed.engine.step import Gate, Marks, Means, Step
from asyncfeed.engine.window import SMALL, Entry, Weights, Window
from asyncfeed.stages.base import NO_MARK, Span, Work

WINDOW = 16384
"""How many items may be between the first not yet sent and the last taken in; bytes bound it before that."""
BACKLOG = 256
"""The same while the next step is behind: to read further ahead would help nobody."""
INLINE = 64 * 1024
"""What our own functions may be given on the loop, in bytes of results."""
ASYNC_CALLS, THREAD_CALLS = 32, 8
"""What concurrency="auto" amounts to, for async functions and for those called on threads."""


class WorkStep(Step):
    """Runs one `Work` of shape "map" or "filter"."""

    def __init__(
        self, work: Work, name: str, means: Means, levels: int, inbox: Channel, origin: Origin, unit: int
    ) -> None:
        super().__init__(name, means, levels)
        self._work = work
        self._inbox = inbox
        self._origin = origin
        auto = ASYNC_CALLS if work.kind == "async" else THREAD_CALLS
        self._limit = auto if work.concurrency == "auto" else work.concurrency
        self._most = max(WINDOW // unit, 2 * self._limit)
        self._backlog = max(BACKLOG // unit, self._limit)
        self._hops = Hops(means.threads, work, name, self._limit, unit) if work.kind == "thread" else None
        self._weights = Weights(work)
        self._window = Window(work, means, self)
        self._untaken: deque[Entry] = deque()
        self._current: Entry | None = None
        self._crew = Crew(self._limit, means.loop, self._call)
        self._probing = False
        self._progress = Gate()
        self._room = Gate()
        self._fed = Marks(levels)

    def start(self) -> None:
        """Start the feeding and the sending task; workers start when there is work."""
        self.means.budget.need(self.depth)
        self.task(self._feed(), "feed")
        self.task(self._send(), "send")

    @property
    def busy(self) -> bool:
        """Whether an item has been taken in and not sent on."""
        return self.sending or bool(self._window.entries)

    def drop(self) -> int:
        """Forget what is held."""
        self._untaken.clear()
        self._current = None
        return self._window.clear() + self._inbox.clear()

    # -- taking spans in

    async def _feed(self) -> None:
        window, budget = self._window, self.means.budget
        last = False
        while not last:
            span = await self._inbox.get()
            last = span.last
            if span.items and self.skips(self._fed):
                budget.charge(-span.nbytes)
                span = Span([], (), span.mark, span.failure)
            if span.mark != NO_MARK:
                self._fed.note(span.mark)
            entry = Entry(span, ordered=self._work.ordered)
            alone = not window.entries
            window.entries.append(entry)
            if count := len(span.items):
                window.held += count
                weight = self._weights.predict(span.items)
                if weight is None or weight > SMALL * count:
                    entry.big = True
                else:
                    if not budget.fits(weight, self.depth):
                        await budget.admit(weight, self.depth, lambda e=entry: self._is_next(e, 0))  # type: ignore[misc]
                    entry.charged += weight
                    entry.weight = weight
                self._untaken.append(entry)
                self._current = self._untaken[0]
                self._crew.hire()
            if self._progress.waiting:
                if count and alone:
                    entry.awaited = 0
                elif not count:
                    self._progress.open()
            while not last and self._has_enough():
                await self._room.wait()

    def _has_enough(self) -> bool:
        """Return whether to take nothing more in for now."""
        if len(self._untaken) > 1:
            return True  # the workers have enough at hand; the rest stays where it is
        # While the next step is behind, to read further ahead would help nobody.
        return self._window.held >= (self._backlog if self.sending else self._most)

    def _is_next(self, entry: Entry, place: int) -> bool:
        """Return whether the consumer waits for this item before all others."""
        return not self.sending and self._window.is_next(entry, place) and self.clear_ahead()

    # -- working

    def _call(self) -> None:
        self.task(self._labour() if self._hops is None else self._labour_on_threads(self._hops), "worker")

    def _advance(self) -> None:
        """Go to the next entry with untaken items."""
        self._untaken.popleft()
        self._current = self._untaken[0] if self._untaken else None
        if self._room.waiting:
            self._room.open()

    async def _labour(self) -> None:
        """Await the function for one item after the other."""
        fn: Callable[..., Awaitable[Any]] = self._work.fn
        plain = not self._work.placed and self._work.shape == "map"
        crew, progress = self._crew, self._progress
        task = asyncio.current_task()
        crew.arrived()
        while True:
            entry = self._current
            if entry is None or (entry.big and self._probing):
                item = out = None  # a resting worker must not keep the last items alive
                await crew.rest()
                continue
            if entry.big or entry.order is not None or not plain:
                if not await self._labour_with_care(entry):
                    continue
            else:
                # The hot path: nothing here that is not needed for every item.
                out = entry.out
                for i, item in entry.untaken:
                    if crew.short_handed and self._more(entry, i):
                        crew.hire()
                    try:
                        out[i] = await fn(item)
                    except BaseException as error:
                        if from_outside(error, task):
                            raise
                        self._failed(entry, i, item, error)
                    if entry.awaited == i:
                        progress.open()
            if self._current is entry:
                self._advance()
            entry = None
            heed_cancel()
            # Where nothing waits, a whole span has gone by: time for others on this loop.
            await asyncio.sleep(0)

    def _more(self, entry: Entry, i: int) -> bool:
        """Return whether items are left beyond this one."""
        return i + 1 < len(entry.out) or len(self._untaken) > 1

    async def _labour_with_care(self, entry: Entry) -> bool:
        """Do the same for items that need more: memory, their place, or an order of their own.

        Returns whether the entry has no items left.
        """
        work, window, origin = self._work, self._window, self._origin
        crew, out, order = self._crew, entry.out, entry.order
        task = asyncio.current_task()
        for i, item in entry.untaken:
            entry.taken = i + 1
            entry.items[i] = None
            if crew.short_handed and self._more(entry, i):
                crew.hire()
            if entry.big:
                weight, predicted = await self._admit(entry, i, [item])
            try:
                args = (item, ItemPlace(origin, entry.ordinals[i])) if work.placed else (item,)
                result = await work.fn(*args)
                out[i] = window.keep(entry, item, result) if work.shape == "filter" else result
            except BaseException as error:
                if from_outside(error, task):
                    raise
                self._failed(entry, i, item, error)
            if entry.big:
                item = result = None
                self._weighed(entry, [out[i]], weight, predicted)
            if order is not None:
                order.append(i)
                if self._progress.waiting:
                    self._progress.open()
            elif entry.awaited == i:
                self._progress.open()
            if entry.big and self._probing:
                return False
        return True

    async def _labour_on_threads(self, hops: Hops) -> None:
        """Take a group of items to a thread, again and again."""
        inline, placed, origin = self._work.inline, self._work.placed, self._origin
        crew = self._crew
        crew.arrived()
        while True:
            entry = self._current
            if entry is None or crew.working > hops.limit or (entry.big and self._probing):
                group = results = None
                await crew.rest()
                continue
            i, count = entry.taken, len(entry.out)
            on_loop = inline is not None and (entry.weight or INLINE) < INLINE
            if on_loop:
                size = count - i
            else:
                ratio = self._weights.ratio if entry.big else 0.0
                size = 1 if self._weights.unknown else hops.group(entry.items, i, ratio)
            group = entry.items[i : i + size]
            entry.items[i : i + size] = [None] * size
            entry.taken = i + size
            if entry.taken == count:
                self._advance()
            on_loop = on_loop or (inline is not None and all(map(inline, group)))
            if crew.short_handed and self._current is not None and not on_loop:
                crew.hire()
            if entry.big:
                weight, predicted = await self._admit(entry, i, group)
            places = [ItemPlace(origin, each) for each in entry.ordinals[i : i + size]] if placed else None
            if on_loop:
                results = hops.call(group, places)
            else:
                results = await hops.run(group, places, crew.working)
            entry.special |= self._work.shape == "filter"
            for place, result in enumerate(results, i):
                if type(result) is Raised:
                    self._failed(entry, place, group[place - i], result.error)
                else:
                    entry.out[place] = result
            if entry.big:
                self._weighed(entry, entry.out[i : i + size], weight, predicted)
            if entry.order is not None:
                entry.order.extend(range(i, i + size))
                if self._progress.waiting:
                    self._progress.open()
            elif i <= entry.awaited < i + size:
                self._progress.open()
            group = results = places = result = None  # sent on: not ours to keep alive
            if on_loop:
                await asyncio.sleep(0)

    def _failed(self, entry: Entry, i: int, item: Any, error: BaseException) -> None:
        entry.special = True
        entry.out[i] = self._origin.failure(error, self.name, entry.ordinals[i], item)

    # -- memory, where items are big

    async def _admit(self, entry: Entry, place: int, group: list[Any]) -> tuple[int, int]:
        """Wait until the budget has room for the results; the first item of all goes alone, to be weighed."""
        budget, weights = self.means.budget, self._weights
        self._probing = weights.unknown
        weight = weights.measure(group)
        predicted = int(weight * weights.ratio)
        if not budget.fits(predicted, self.depth):
            self._window.waiting += len(group)
            try:
                await budget.admit(predicted, self.depth, lambda: self._is_next(entry, place))
            finally:
                self._window.waiting -= len(group)
        entry.charged += predicted
        return weight, predicted

    def _weighed(self, entry: Entry, results: list[Any], weight: int, predicted: int) -> None:
        """Book what the results really weigh, and let go of what they were made from."""
        actual = self._weights.learn(results, weight)
        self.means.budget.need(self.depth, actual // max(1, len(results)))
        change = actual - predicted - entry.share * len(results)
        entry.charged += change
        self.means.budget.charge(change)
        if self._probing:
            self._probing = False
            self._crew.arrived()
            if self._current is not None:
                self._crew.hire()

    # -- sending on

    async def _send(self) -> None:
        await self.out.start()
        while not self.out.finished:
            span = self._window.ready(self.skips)
            if span is not None:
                await self.send(span)
            elif self.means.budget.waiting:
                self.means.budget.poke()
            if self._room.waiting:
                self._room.open()
            if span is None:
                await self._progress.wait()
