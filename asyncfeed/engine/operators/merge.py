"""Several streams into one: the steps of `zip`, `concat` and `mix` where they cannot be reached by number."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from asyncfeed.engine.channel import Channel
from asyncfeed.engine.epochs import EpochCounter, EpochsEnded
from asyncfeed.engine.limits.budget import Account
from asyncfeed.engine.operators.step import Step, StepSpec
from asyncfeed.epoch_end import END_OF_STREAM, EpochEnd
from asyncfeed.errors import Failure, PipelineError
from asyncfeed.stages.steps import Choice, Chunk


class Branch:
    """One of the streams: its channel, the step that fills it, how many `repeat`s are its own, and its account.

    Ends of epochs of levels below `own` are the branch's affair. The others, counted from there, are the merge's.
    """

    def __init__(self, step: Step, channel: Channel, own: int, account: Account) -> None:
        self.step = step
        self._account = account
        self.channel = channel
        self.own = own
        self.items: deque[Any] = deque()
        self.nbytes = 0
        self.boundary: EpochEnd | None = None
        self.failure: Failure | None = None

    @property
    def epoch_over(self) -> bool:
        """Whether this epoch has no items beyond those at hand."""
        return self.boundary is not None or self.failure is not None

    @property
    def over(self) -> bool:
        """Whether the branch has no more epochs."""
        return self.boundary is not None and self.boundary.is_end_of_stream

    def has_ended(self, level: int) -> bool:
        """Return whether an epoch of this level, as the merge counts, ends after the items at hand."""
        return self.boundary is not None and self.boundary.ends(level)

    async def pull(self) -> Chunk:
        """Take the next chunk, with the ends of epochs as the merge counts them."""
        chunk = await self.channel.get()
        self._account.hand_over(chunk.nbytes)
        if chunk.ends_stream:
            self.abandon()  # a `take` may have cut it: what is above that reads on, and holds what it has opened
        elif chunk.boundary is not None:
            chunk.boundary = chunk.boundary.counted_from(self.own)
        return chunk

    def abandon(self) -> None:
        """Stop the stream, which has ended or is not wanted; the budget gets back all that it holds."""
        self.step.abandon()
        self.channel.clear()
        self._account.close()


class MergeStep(Step):
    """What both kinds share: branches that run at the same time, and a numbering of its own."""

    def __init__(self, spec: StepSpec, epochs: EpochCounter, branches: Sequence[Branch]) -> None:
        super().__init__(spec)
        self.branches = branches
        self.before = [branch.step for branch in branches]
        self._ended = EpochsEnded(spec.levels)
        self._epochs = epochs
        self._sent = 0
        """How many items of this epoch have been sent on."""

    def start(self) -> None:
        """Start the task that merges."""
        self.task(self._merge(), "merge")

    @property
    def busy(self) -> bool:
        """Whether an item can be sent on."""
        return self.sending or all(branch.items for branch in self.branches)

    def skip(self, level: int, ended: int) -> None:
        """Pass it on to the branches, in their own count of levels."""
        self._note_skip(level, ended)
        for branch in self.branches:
            branch.step.skip(branch.own + level, ended)

    def drop(self) -> None:
        """Forget what is held."""
        for branch in self.branches:
            branch.channel.clear()
            branch.items.clear()

    async def _merge(self) -> None:
        raise NotImplementedError

    async def _pull(self, branch: Branch) -> None:
        if self.budget.waiting:
            self.budget.wake_waiters()  # this one waits for a branch, which may wait for memory
        chunk = await branch.pull()
        branch.items.extend(chunk.items)
        branch.nbytes += chunk.nbytes
        branch.boundary, branch.failure = chunk.boundary, chunk.failure
        if not branch.items:
            self._forget(branch)  # of what a stage before has left out

    def _forget(self, branch: Branch) -> None:
        self.budget.charge(-branch.nbytes)
        branch.nbytes = 0
        branch.items.clear()

    def _take(self, branch: Branch, most: int) -> tuple[list[Any], int]:
        """Take up to `most` items of those at hand, with what they are charged with."""
        held = len(branch.items)
        if most >= held:
            items, nbytes = list(branch.items), branch.nbytes
            branch.items.clear()
        else:
            items, nbytes = [branch.items.popleft() for _ in range(most)], branch.nbytes * most // held
        branch.nbytes -= nbytes
        return items, nbytes

    async def _leave_rest(self, branch: Branch, level: int = 0) -> None:
        """Go to the end of this epoch of a branch, whose items are not wanted; nor is a failure of theirs."""
        if not branch.has_ended(level):
            branch.step.skip(branch.own + level, self._ended.count(level))
        while not branch.has_ended(level):
            self._forget(branch)
            await self._pull(branch)
        self._forget(branch)
        branch.failure = None

    async def _end_stream(self) -> None:
        """End it here, whatever the branches would still bring: they may have no end, or be long in coming."""
        for branch in self.branches:
            if not branch.over:
                branch.abandon()
            self._forget(branch)
        await self._emit([], 0, END_OF_STREAM)

    async def _emit_end(self) -> None:
        """End the epoch that all branches have ended.

        A stage further on may have cut the epochs around this one short. A branch that heard of it later than the
        others has epochs on the way which they have not: those are not wanted.
        """
        boundary = max(branch.boundary for branch in self.branches if branch.boundary is not None)
        for branch in self.branches if not boundary.is_end_of_stream else ():
            await self._leave_rest(branch, boundary.depth)
            branch.boundary = None
        await self._emit([], 0, boundary)

    async def _fail(self, failure: Failure) -> None:
        """Send a failure; if it is not wanted, go on to the end of this epoch."""
        await self._emit([], 0, None, failure)
        if not self.out.finished:
            await self.halted(self._ended)

    async def _emit(
        self, items: list[Any], nbytes: int, boundary: EpochEnd | None, failure: Failure | None = None
    ) -> None:
        start = self.provenance.start(self._epochs.number) + self._sent
        self._sent += len(items)
        if boundary is not None:
            self._ended.note(boundary)
            self._sent = 0
            if not boundary.is_end_of_stream:
                self._epochs.go_on(boundary.depth)
        await self.send(Chunk(items, range(start, start + len(items)), boundary, failure, nbytes))


class PickStep(MergeStep):
    """Items of the branches as a `Choice` says; all of them read ahead meanwhile."""

    def __init__(
        self, spec: StepSpec, epochs: EpochCounter, branches: Sequence[Branch], *, choice: Choice
    ) -> None:
        super().__init__(spec, epochs, branches)
        self._choice = choice

    @property
    def busy(self) -> bool:
        """Whether an item is on its way, or there to be sent."""
        picked = self._choice.next()
        return self.sending or (picked is not None and bool(self.branches[picked[0]].items))

    async def _merge(self) -> None:
        await self.out.start()
        choice = self._choice
        while not self.out.finished:
            choice.begin(self._epochs.number)
            while (picked := choice.next()) is not None:
                which, most = picked
                branch = self.branches[which]
                if branch.items:
                    items, nbytes = self._take(branch, most)
                    choice.took(len(items))
                    await self._emit(items, nbytes, None)
                    del items
                elif branch.failure is not None:
                    await self._fail(branch.failure)
                    break
                elif branch.epoch_over:
                    choice.ended()
                else:
                    await self._pull(branch)
                if self.out.finished:
                    return
            if not self.out.finished:
                await self._end_epoch()

    async def _end_epoch(self) -> None:
        """End the epoch for all branches: what those have left that were not picked to their end is not wanted."""
        left = [branch for branch in self.branches if branch.items or branch.boundary is None]
        ended = [branch for branch in self.branches if branch not in left]
        if left and any(branch.over for branch in ended):
            await self._end_stream()
            return
        for branch in left:
            await self._leave_rest(branch)
        await self._emit_end()


class ZipStep(MergeStep):
    """One item of each branch at a time, as long as all have one; `strict` says that none may have more.

    The branches are asked in their order, as Python's `zip` does: the first that has ended or failed decides.
    """

    def __init__(self, spec: StepSpec, epochs: EpochCounter, branches: Sequence[Branch], *, strict: bool) -> None:
        super().__init__(spec, epochs, branches)
        self._strict = strict

    async def _merge(self) -> None:
        await self.out.start()
        while not self.out.finished:
            for branch in self.branches:
                while not branch.items and not branch.epoch_over:
                    await self._pull(branch)
                if not branch.items:
                    break  # Python's own asks no further either: the others may be long in coming
            count = min(len(branch.items) for branch in self.branches)
            if count:
                columns, weights = zip(*[self._take(branch, count) for branch in self.branches], strict=True)
                await self._emit(list(zip(*columns, strict=True)), sum(weights), None)
                del columns
            else:
                await self._end_epoch()

    async def _end_epoch(self) -> None:
        """Bring all branches to the end of the epoch that one of them has reached."""
        shortest = next(branch for branch in self.branches if branch.epoch_over and not branch.items)
        failure = shortest.failure
        if self._strict and failure is None:
            failure = await self._uneven(shortest)
        if failure is not None:
            await self._fail(failure)
            if self.out.finished:
                return
        elif shortest.over and not self._strict:
            await self._end_stream()
            return
        for branch in self.branches:
            await self._leave_rest(branch)
        await self._emit_end()

    async def _uneven(self, shortest: Branch) -> Failure | None:
        """Return the failure if another branch has more items, or its own failure in their place."""
        for branch in self.branches:
            while not branch.items and not branch.epoch_over:
                await self._pull(branch)
            if self.skips(self._ended):
                return None
            if branch.items:
                return self._more(shortest, branch)
            if branch.failure is not None:
                return branch.failure
        return None

    def _more(self, shortest: Branch, longer: Branch) -> Failure:
        places = {id(branch): place for place, branch in enumerate(self.branches)}
        message = (
            f"zip: input {places[id(shortest)]} ended after {self._sent} items, but input {places[id(longer)]} "
            "has more; write zip(..., strict=False) to stop at the shortest"
        )
        position = self.provenance.start(self._epochs.number) + self._sent
        return self.provenance.failure(PipelineError(message), self.name, position)
