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
from asyncfeed.engine.constants import ALONE_SECONDS
from asyncfeed.engine.epochs import EpochsEnded
from asyncfeed.engine.limits.demand import Demand
from asyncfeed.engine.limits.worker_pool import WorkerPool
from asyncfeed.engine.operators.skip_budget import SkipBudget
from asyncfeed.engine.operators.step import Gate, RunContext, Step
from asyncfeed.engine.provenance import Provenance
from asyncfeed.stages.steps import Chunk, Work


class Operator(Step):
    """Runs one `Work`. `limit` is how many workers it begins with."""

    _buffer: Sized
    """What was taken in and not sent on."""

    def __init__(
        self,
        work: Work,
        name: str,
        context: RunContext,
        levels: int,
        inbox: Channel,
        provenance: Provenance,
        limit: int,
    ) -> None:
        super().__init__(name, context, levels)
        self._work = work
        self._inbox = inbox
        self._provenance = provenance
        self._skip_budget = SkipBudget(work, context)
        self._demand = Demand(context.shown, context.taken)
        self._pool = WorkerPool(limit, context.loop, self._call, context.hungry_for, self._demand)
        self._begun = 0
        """How many items were begun, at least."""
        self._alone: asyncio.TimerHandle | None = None
        """Ends the time that the first call has for itself."""
        self._progress = Gate()
        """Where the sending task waits for a result."""
        self._room = Gate()
        """Where the feeding task waits until something was sent."""
        self._fed = EpochsEnded(levels)
        self._passed = EpochsEnded(levels)
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
        return 0 if self._work.inline is not None else self._pool.limit

    def drop(self) -> None:
        """Forget what is held."""
        if self._alone is not None:
            self._alone.cancel()
        self._inbox.clear()

    def _let_first_go_alone(self) -> None:
        """Begin the time of the first call, unless it has begun."""
        self._alone = self._alone or self.context.loop.call_later(ALONE_SECONDS, self._go_on)

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
    def _ready(self) -> Chunk | None:
        """Take what can be sent on now; None where the next result is not there yet."""

    def _was_sent(self) -> None:
        """Note that what was ready is on its way."""

    async def _send(self) -> None:
        await self.out.start()
        while not self.out.finished:
            chunk = self._ready()
            if chunk is not None:
                await self.send(chunk)
                self._was_sent()
                self._pool.note_progress(self._begun)
                if chunk.failure is not None:
                    await self.halted(self._passed)
            elif self.budget.waiting:
                self.budget.wake_waiters()
            if self._room.waiting:
                self._room.open()
            if chunk is None:
                await self._progress.wait()
