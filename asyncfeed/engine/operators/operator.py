"""A stage that calls a function, as it runs: one operator for maps, filters and flat maps.

An operator is put together from three parts:

* the *order*, which decides without IO what can be sent (`engine/order`);
* the *executor*, which calls the function for the items that were taken in (`call_async.py`, `call_threads.py`,
  `expand.py`);
* the *limits*: how many workers work at a time (`WorkerPool`), and what their results may weigh (`Admission`).

One task feeds, up to K workers call, and one task sends. Invariants:

* An item is in exactly one place: untaken, with one worker, or in its place in the order.
* A failure that the policy does not skip is sent in its place. Nothing is sent after it, unless its epoch is
  skipped: then the end of the epoch is.
* No task, future, lock or closure is made for an item whose function does not wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from asyncfeed.engine.channel import Channel
from asyncfeed.engine.epochs import EpochsEnded
from asyncfeed.engine.limits.demand import Demand
from asyncfeed.engine.limits.worker_pool import WorkerPool
from asyncfeed.engine.operators.skip_budget import SkipBudget
from asyncfeed.engine.operators.step import Gate, Step, StepSpec
from asyncfeed.engine.order.piece import Piece
from asyncfeed.errors import Failure
from asyncfeed.stages.steps import Chunk, Work
from asyncfeed.trees import total_size


class Order(Protocol):
    """What was taken in and not sent on, and which of it can be sent: see `engine/order`."""

    gone: int
    """How many entries, or items, were sent on or left out."""

    def __len__(self) -> int: ...

    def ready(self) -> Piece | None:
        """Take what can be sent now; None if the next result is not there yet."""
        ...

    def clear(self) -> None:
        """Forget everything."""
        ...


class Executor:
    """How the function of a stage is called for the items that were taken in."""

    order: Order

    def __init__(self, operator: Operator) -> None:
        self.operator = operator

    @property
    def unknown(self) -> bool:
        """Whether nobody can tell beforehand what a result weighs."""
        raise NotImplementedError

    async def take_in(self, chunk: Chunk) -> None:
        """Put a chunk into the order, and wake workers for its items."""
        raise NotImplementedError

    def has_enough(self) -> bool:
        """Return whether nothing more should be taken in for now."""
        raise NotImplementedError

    async def work(self) -> None:
        """Call the function as long as the run lasts: one of up to K workers."""
        raise NotImplementedError

    def note_taken(self) -> None:
        """Note that something was taken out of the order, to be sent."""

    def skip(self, passed: EpochsEnded) -> None:
        """Note that a later stage wants no more of some epoch; `passed` says how many were sent as a whole."""

    def drop(self) -> None:
        """Forget what is held."""
        self.order.clear()


class Operator(Step):
    """Runs one `Work`. `execute` makes its executor."""

    def __init__(
        self, spec: StepSpec, work: Work, inbox: Channel, execute: Callable[[Operator], Executor]
    ) -> None:
        super().__init__(spec)
        self.work = work
        self.unit = spec.unit
        self.inbox = inbox
        self.begun = 0
        """How many items were begun, at least."""
        self.progress = Gate()
        """Where the sending task waits for a result."""
        self.room = Gate()
        """Where the feeding task waits until something was sent, or begun."""
        self._demand = Demand(self.context.shown, self.context.taken)
        self.pool = WorkerPool(1, self.context.loop, self._start_worker, self.context.hungry_for, self._demand)
        self._skip_budget = SkipBudget(work, self.context)
        self._fed = EpochsEnded(self.levels)
        self._passed = EpochsEnded(self.levels)
        self._seen = 0
        """How many results were sent on."""
        self._end: Piece | None = None
        """What is left to send once the epoch of a failed item is skipped."""
        self.executor = execute(self)

    def start(self) -> None:
        """Start the feeding and the sending task; workers start when there is work."""
        self.budget.need(self.depth, unknown=self.executor.unknown)
        self.task(self._feed(), "feed")
        self.task(self._send(), "send")

    def _start_worker(self) -> None:
        self.task(self.executor.work(), "worker")

    @property
    def busy(self) -> bool:
        """Whether an item has been taken in and not sent on."""
        return self.sending or bool(len(self.executor.order))

    @property
    def calls(self) -> int:
        """How many calls of the user's function it may make at a time; our own are nobody's concern."""
        return 0 if self.work.inline is not None else self.pool.limit

    def skip(self, level: int, ended: int) -> None:
        """Produce nothing more for the epoch of `level` after which `ended` epochs had ended."""
        super().skip(level, ended)
        self.executor.skip(self._passed)

    def drop(self) -> None:
        """Forget what is held."""
        self.inbox.clear()
        self.executor.drop()

    async def _feed(self) -> None:
        executor = self.executor
        last = False
        while not last:
            chunk = await self.inbox.get()
            last = chunk.ends_stream
            if chunk.items and self.skips(self._fed):
                self.budget.charge(-chunk.nbytes)
                chunk = Chunk([], (), chunk.boundary, chunk.failure)
            if chunk.boundary is not None:
                self._fed.note(chunk.boundary)
            await executor.take_in(chunk)
            if not chunk.items and self.progress.waiting:
                self.progress.open()
            del chunk
            while not last and executor.has_enough():
                await self.room.wait()

    async def _send(self) -> None:
        await self.out.start()
        while not self.out.finished:
            chunk = self._ready()
            if chunk is not None:
                await self.send(chunk)
                self._demand.sent = self.executor.order.gone
                self.pool.note_progress(self.begun)
                if chunk.failure is not None:
                    await self.halted(self._passed)
            elif self.budget.waiting:
                self.budget.wake_waiters()
            if self.room.waiting:
                self.room.open()
            if chunk is None:
                await self.progress.wait()

    def _ready(self) -> Chunk | None:
        """Take what can be sent now, without what is not wanted; None if the next result is not there yet."""
        piece = self._end or self.executor.order.ready()
        self._end = None
        if piece is None:
            return None
        self.executor.note_taken()
        results, positions, failure = piece.results, piece.positions, None
        if self.skips(self._passed):
            results, positions = [], ()
        else:
            place, failure = self._first_failure(piece)
            if failure is not None:
                results, positions = results[:place], positions[:place]
        self._seen += len(results)
        nbytes = piece.nbytes if results is piece.results else total_size(results)
        self.budget.charge(piece.change + nbytes - piece.nbytes)
        if failure is not None:
            self._end = piece.end() if piece.ends else None
            return Chunk(results, positions, None, failure, nbytes)
        if piece.boundary is not None:
            self._passed.note(piece.boundary)
        return Chunk(results, positions, piece.boundary, piece.failure, nbytes)

    def _first_failure(self, piece: Piece) -> tuple[int, Failure | None]:
        """Return the first failure that the policy does not skip, and how many results come before it."""
        for place, failure in piece.failures:
            if not self._skip_budget.allows(failure, self._seen + place):
                return place, failure
        return 0, None
