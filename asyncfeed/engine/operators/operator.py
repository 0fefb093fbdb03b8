"""The operator: the step that runs a `map`, a `filter` or a `flat_map`.

An operator has three parts:

* The *order* decides which results can be sent, without IO (`engine/order`).
* The *executor* calls the function for the items that were taken in (`call_async.py`, `call_threads.py`,
  `expand.py`).
* The *limits* say how many workers work at a time (`WorkerPool`), and how much their results may weigh
  (`Admission`).

One task feeds the executor, up to K workers call the function, and one task sends the results. Invariants:

* An item is in exactly one place: it is untaken, or with one worker, or its result is in the order.
* A failure that the policy does not skip is sent in the place of its item. Nothing is sent after it, except the
  end of its epoch if the epoch is skipped.
* No task, future, lock or closure is made for an item whose function does not wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from asyncfeed.engine.channel import Channel
from asyncfeed.engine.checkpoint.record import WorkRecord
from asyncfeed.engine.checkpoint.skips import SkipRecord
from asyncfeed.engine.epochs import EpochsEnded
from asyncfeed.engine.limits.demand import Demand
from asyncfeed.engine.limits.worker_pool import WorkerPool
from asyncfeed.engine.operators.skip_budget import SkipBudget
from asyncfeed.engine.operators.step import Gate, Step, StepSpec
from asyncfeed.engine.order.expansions import ChildPiece
from asyncfeed.engine.order.piece import Piece
from asyncfeed.errors import Failure
from asyncfeed.stages.steps import Chunk, Work
from asyncfeed.trees import total_size


class Order(Protocol):
    """Holds what was taken in and not sent on, and decides what can be sent: see `engine/order`."""

    sent_total: int
    """Number of items that were sent on, including those that failed or were left out."""

    @property
    def needs_input(self) -> bool:
        """Whether nothing that is held can be sent before another item, or an end, is taken in."""
        ...

    def __len__(self) -> int: ...

    def ready(self) -> Piece | None:
        """Remove and return what can be sent now. Return None if there is nothing."""
        ...

    def clear(self) -> None:
        """Drop everything."""
        ...


class Executor:
    """Calls the function of a stage for the items that were taken in."""

    order: Order

    def __init__(self, operator: Operator) -> None:
        self.operator = operator

    @property
    def unknown(self) -> bool:
        """Whether the weight of a result cannot be predicted yet."""
        raise NotImplementedError

    @property
    def computed(self) -> float:
        """Seconds that the function has computed on threads, as far as that is measured."""
        return 0.0

    async def take_in(self, chunk: Chunk) -> None:
        """Add a chunk to the order, and wake workers for its items."""
        raise NotImplementedError

    def has_enough(self) -> bool:
        """Return whether no more chunks should be taken in for now."""
        raise NotImplementedError

    async def work(self) -> None:
        """Call the function for items until the run ends. Each of up to K workers runs this."""
        raise NotImplementedError

    def note_piece_taken(self) -> None:
        """Note that a piece was taken out of the order, to be sent."""

    def skip(self, ends_sent: EpochsEnded) -> None:
        """Note that a later stage skips an epoch. `ends_sent` says how many epochs were sent to their end."""

    def drop(self) -> None:
        """Drop all items and results."""
        self.order.clear()


class Operator(Step):
    """Runs one `Work` with the executor that `execute` makes."""

    def __init__(
        self,
        spec: StepSpec,
        work: Work,
        inbox: Channel,
        execute: Callable[[Operator], Executor],
        skip_budget: SkipBudget,
    ) -> None:
        super().__init__(spec)
        self.work = work
        self.unit = spec.unit
        self.inbox = inbox
        self.begun = 0
        """Number of items that workers have begun. It is counted entry by entry, so it may be too low."""
        self.send_gate = Gate()
        """Where the sending task waits for a result."""
        self.feed_gate = Gate()
        """Where the feeding task waits until something was sent, or workers have begun an entry's last items."""
        self._demand = Demand(self.context.shown, self.context.taken)
        self.pool = WorkerPool(1, self.context.loop, self._start_worker, self.context.hungry_for, self._demand)
        self.skip_budget = skip_budget
        self._ends_fed = EpochsEnded(self.levels)
        """The ends of epochs that were taken in."""
        self._ends_sent = EpochsEnded(self.levels)
        """The ends of epochs that were sent on."""
        self._pending_end: Piece | None = None
        """The end to send when the epoch of a failed item is skipped."""
        self.record: WorkRecord | None = None
        """Notes what is sent, if items have children, or if results are sent as they come."""
        self.skipped: SkipRecord | None = None
        """Notes what is sent, if items may be left out."""
        self.executor = execute(self)

    def start(self) -> None:
        """Start the feeding and the sending task. Workers start when there is work."""
        self.budget.need(self.depth, unknown=self.executor.unknown)
        self.task(self._feed(), "feed")
        self.task(self._send(), "send")

    def _start_worker(self) -> None:
        self.task(self.executor.work(), "worker")

    @property
    def busy(self) -> bool:
        """Whether an item has been taken in, and can be sent on without another one."""
        return self.sending or not self.executor.order.needs_input

    @property
    def calls(self) -> int:
        """Maximum number of calls of a user's function at a time. 0 for asyncfeed's own functions."""
        return 0 if self.work.inline is not None else self.pool.limit

    @property
    def computed(self) -> float:
        """Seconds that a user's function has computed on threads, as far as that is measured."""
        return 0.0 if self.work.inline is not None else self.executor.computed

    def skip(self, level: int, ended: int) -> None:
        """Skip the epoch of `level` that follows `ended` ended ones: see `Step.skip`."""
        super().skip(level, ended)
        self.executor.skip(self._ends_sent)

    def drop(self) -> None:
        """Drop all items and results."""
        self.inbox.clear()
        self.executor.drop()

    async def _feed(self) -> None:
        executor = self.executor
        last = False
        while not last:
            chunk = await self.inbox.get()
            last = chunk.ends_stream
            if chunk.items and self.skips(self._ends_fed):
                self.budget.charge(-chunk.nbytes)
                chunk = Chunk([], (), chunk.boundary, chunk.failure)
            if chunk.boundary is not None:
                self._ends_fed.note(chunk.boundary)
            await executor.take_in(chunk)
            if not chunk.items and self.send_gate.waiting:
                self.send_gate.open()
            del chunk
            while not last and executor.has_enough():
                await self.feed_gate.wait()

    async def _send(self) -> None:
        await self.out.start()
        while not self.out.finished:
            chunk = self._next_chunk()
            if chunk is not None:
                await self.send(chunk)
                self._demand.sent = self.executor.order.sent_total * max(1, self.work.members)
                self.pool.note_progress(self.begun)
                if chunk.failure is not None:
                    await self.wait_for_skip(self._ends_sent)
            elif self.budget.waiting:
                self.budget.wake_waiters()
            if self.feed_gate.waiting:
                self.feed_gate.open()
            if chunk is None:
                await self.send_gate.wait()

    def _next_chunk(self) -> Chunk | None:
        """Return what can be sent now, without items of skipped epochs. Return None if there is nothing."""
        pending, self._pending_end = self._pending_end, None
        piece = pending or self.executor.order.ready()
        if piece is None:
            return None
        self.executor.note_piece_taken()
        skips = self.skips(self._ends_sent)
        if isinstance(piece, ChildPiece) and self.record is not None and self.record.sends_again:
            # An item of which later stages held children. What fails behind these comes again behind `RESTORED`.
            piece.failures.clear()
        counted = self.skipped is not None and self.skipped.sends_again
        if pending is None:
            self._note(piece, skips=skips)
        results, positions, failure = piece.results, piece.positions, None
        if skips:
            results, positions = [], ()
        else:
            index, failure = self._first_failure(piece)
            if failure is not None:
                results, positions = results[:index], positions[:index]
        if not counted:
            self.skip_budget.add(len(results))
        nbytes = piece.nbytes if results is piece.results else total_size(results)
        self.budget.charge(piece.charge_change + nbytes - piece.nbytes)
        if failure is not None:
            self._pending_end = piece.end() if piece.ends else None
            return Chunk(results, positions, None, failure, nbytes)
        if piece.boundary is not None:
            self._ends_sent.note(piece.boundary)
            self.skip_budget.end(piece.boundary)
        return Chunk(results, positions, piece.boundary, piece.failure, nbytes)

    def _note(self, piece: Piece, *, skips: bool) -> None:
        """Note a piece for checkpoints. With `skips`, its results are not wanted."""
        if self.record is not None:
            self.record.note_left(piece)
        if self.skipped is not None:
            self.skipped.note(piece.end() if skips else piece)

    def _first_failure(self, piece: Piece) -> tuple[int, Failure | None]:
        """Return the first failure that the policy does not skip, and the number of results before it."""
        for index, failure in piece.failures:
            if not self.skip_budget.allows(failure, index):
                return index, failure
        return 0, None
