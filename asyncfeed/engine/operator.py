"""A stage that calls a function, as it runs: it takes chunks in, workers call, and what is ready is sent on.

One task feeds, up to K workers call, one task sends. Which results are ready, and in which order, is decided
without IO by a buffer (`reorder.py`, `expansions.py`). How a worker calls is the affair of `work_async.py`,
`work_threads.py` and `flat.py`.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sized

from asyncfeed.engine.channel import Channel
from asyncfeed.engine.crew import Crew, Policy
from asyncfeed.engine.demand import Demand
from asyncfeed.engine.epochs import Marks
from asyncfeed.engine.origin import Origin
from asyncfeed.engine.step import Gate, Means, Step
from asyncfeed.stages.steps import Span, Work

ALONE = 0.01
"""Seconds that the first call of a stage has for itself, so that its result tells what the others will weigh. A
function that takes longer is called for other items meanwhile; `budget` says what is charged for these calls."""


class Operator(Step):
    """Runs one `Work`. `limit` is how many workers it begins with."""

    _buffer: Sized
    """What was taken in and not sent on."""

    def __init__(
        self, work: Work, name: str, means: Means, levels: int, inbox: Channel, origin: Origin, limit: int
    ) -> None:
        super().__init__(name, means, levels)
        self._work = work
        self._inbox = inbox
        self._origin = origin
        self._policy = Policy(work, means)
        self._demand = Demand(means.shown, means.taken)
        self._crew = Crew(limit, means.loop, self._call, means.hungry_for, self._demand)
        self._begun = 0
        """How many items were begun, at least."""
        self._alone: asyncio.TimerHandle | None = None
        """Ends the time that the first call has for itself."""
        self._progress = Gate()
        """Where the sending task waits for a result."""
        self._room = Gate()
        """Where the feeding task waits until something was sent."""
        self._fed = Marks(levels)
        self._passed = Marks(levels)
        self._seen = 0
        """How many results were sent on."""

    def start(self) -> None:
        """Start the feeding and the sending task; workers start when there is work."""
        self.budget.need(self.depth, unknown=self._unknown)
        self.task(self._feed(), "feed")
        self.task(self._send(), "send")

    def _call(self) -> None:
        self.task(self._labour(), "worker")

    @property
    def _unknown(self) -> bool:
        """Whether nobody can tell beforehand what a result weighs."""
        return True

    @property
    def busy(self) -> bool:
        """Whether an item has been taken in and not sent on."""
        return self.sending or bool(self._buffer)

    @property
    def calls(self) -> int:
        """How many calls of the user's function it may make at a time; our own are nobody's concern."""
        return 0 if self._work.inline is not None else self._crew.limit

    def drop(self) -> None:
        """Forget what is held."""
        if self._alone is not None:
            self._alone.cancel()
        self._inbox.clear()

    def _let_first_go_alone(self) -> None:
        """Begin the time of the first call, unless it has begun."""
        self._alone = self._alone or self.means.loop.call_later(ALONE, self._go_on)

    @abstractmethod
    def _go_on(self) -> None:
        """Let others begin beside the first call, which takes long."""

    @abstractmethod
    async def _feed(self) -> None:
        """Take chunks in, as far as there is room."""

    @abstractmethod
    async def _labour(self) -> None:
        """Work as long as there is something to do: one of up to K workers."""

    @abstractmethod
    def _ready(self) -> Span | None:
        """Take what can be sent on now; None where the next result is not there yet."""

    def _was_sent(self) -> None:
        """Note that what was ready is on its way."""

    async def _send(self) -> None:
        await self.out.start()
        while not self.out.finished:
            span = self._ready()
            if span is not None:
                await self.send(span)
                self._was_sent()
                self._crew.watch(self._begun)
                if span.failure is not None:
                    await self.halted(self._passed)
            elif self.budget.waiting:
                self.budget.poke()
            if self._room.waiting:
                self._room.open()
            if span is None:
                await self._progress.wait()
