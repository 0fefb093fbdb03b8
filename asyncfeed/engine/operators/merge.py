"""Merges: the steps of `zip`, `concat` and `mix`, if their items cannot be computed by number."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from asyncfeed.engine.channel import Channel
from asyncfeed.engine.checkpoint.merges import ENDED, InputRecord, MergeRecord
from asyncfeed.engine.epochs import EpochCounter, EpochsEnded
from asyncfeed.engine.limits.budget import Account
from asyncfeed.engine.operators.step import Step, StepSpec
from asyncfeed.epoch_end import END_OF_STREAM, RESTORED, EpochEnd
from asyncfeed.errors import Failure, PipelineError
from asyncfeed.position import Position, canonical, first_number
from asyncfeed.stages.steps import Choice, Chunk


class Branch:
    """One input of a merge: its last step, the channel that this step fills, and its account.

    `own_levels` is the number of `repeat`s in the branch. Ends of epochs below that level do not concern the
    merge. The merge counts the other levels from there.
    """

    def __init__(self, step: Step, channel: Channel, own_levels: int, account: Account) -> None:
        self.step = step
        self._account = account
        self.channel = channel
        self.own_levels = own_levels
        self.items: deque[Any] = deque()
        """The items at hand, which are not sent yet."""
        self.nbytes = 0
        """Bytes that these items are charged with."""
        self.boundary: EpochEnd | None = None
        """The end after the items at hand."""
        self.failure: Failure | None = None
        """The failure after the items at hand."""
        self.record: InputRecord | None = None
        """Notes what comes, so that a checkpoint can be taken."""

    @property
    def epoch_over(self) -> bool:
        """Whether this epoch has no items except those at hand."""
        return self.boundary is not None or self.failure is not None

    @property
    def over(self) -> bool:
        """Whether the stream ends after the items at hand."""
        return self.boundary is not None and self.boundary.is_end_of_stream

    def has_ended(self, level: int) -> bool:
        """Return whether an epoch of this level ends after the items at hand. The merge counts the levels."""
        return self.boundary is not None and self.boundary.ends(level)

    async def pull(self) -> Chunk:
        """Wait for the next chunk, and return it. Its end counts levels as the merge does."""
        chunk = await self.channel.get()
        self._account.hand_over(chunk.nbytes)
        if chunk.boundary is RESTORED:
            return chunk
        if self.record is not None:
            self.record.note(chunk.positions, chunk.boundary)
        if chunk.ends_stream:
            self.abandon()  # if a `take` has ended it, the steps before still read ahead and hold open files
        elif chunk.boundary is not None:
            chunk.boundary = chunk.boundary.counted_from(self.own_levels)
        return chunk

    def abandon(self) -> None:
        """Stop the steps of the stream, and return all their bytes to the budget."""
        self.step.abandon()
        self.channel.clear()
        self._account.close()


class MergeStep(Step):
    """The base class of merges. All branches run at the same time. Items get positions of the merge."""

    def __init__(self, spec: StepSpec, epochs: EpochCounter, branches: Sequence[Branch]) -> None:
        super().__init__(spec)
        self.branches = branches
        self.record: MergeRecord | None = None
        """Notes what is sent, so that a checkpoint can be taken."""
        self.before = [branch.step for branch in branches]
        self._ended = EpochsEnded(spec.levels)
        """The ends of epochs that were sent on."""
        self._epochs = epochs
        self._sent = 0
        """Number of items of this epoch that were sent on."""

    def start(self) -> None:
        """Start the task that merges."""
        self.task(self._merge(), "merge")

    @property
    def busy(self) -> bool:
        """Whether an item is being sent, or can be sent."""
        return self.sending or all(branch.items for branch in self.branches)

    def skip(self, level: int, ended: int) -> None:
        """Skip an epoch, as `Step.skip` does. The branches count levels from the start of their own `repeat`s."""
        self._note_skip(level, ended)
        for branch in self.branches:
            branch.step.skip(branch.own_levels + level, ended)

    def drop(self) -> None:
        """Drop all items."""
        for branch in self.branches:
            branch.channel.clear()
            branch.items.clear()

    async def _merge(self) -> None:
        raise NotImplementedError

    def _note(self, which: int, count: int) -> None:
        if self.record is not None:
            self.record.events.append((which, count))

    async def _restore(self) -> dict[str, Any] | None:
        """Send again what later stages held. Return the state from which the merge goes on, if there is one."""
        record = self.record
        if record is None or record.passes is None:
            return None
        self._epochs.resume(record.passes)
        if record.state is None:
            return None
        self._sent = record.state["sent"]
        came = [await self._came_again(branch) for branch in self.branches]
        for branch in self.branches:
            if branch.failure is not None:  # before all that is wanted has come
                await self._fail(branch.failure)
                return None

        def item(position: Position) -> Any:
            which, *row = record.labels[first_number(position)]
            if which >= 0:
                return came[which][canonical(row[0])]
            return tuple(each[canonical(at)] for each, at in zip(came, row, strict=True))

        nbytes = sum(branch.nbytes for branch in self.branches)
        for branch in self.branches:
            branch.nbytes = 0
        await self.send(Chunk(list(map(item, record.wanted)), list(record.wanted), RESTORED, nbytes=nbytes))
        return record.state

    async def _came_again(self, branch: Branch) -> dict[Position, Any]:
        """Return the items of an input that were sent again."""
        came: dict[Position, Any] = {}
        record, branch.record = branch.record, None  # these items were received, or later stages have them
        while True:
            chunk = await self._next_of(branch)
            branch.nbytes += chunk.nbytes
            came.update(zip(map(canonical, chunk.positions), chunk.items, strict=True))
            if chunk.failure is not None or chunk.boundary is RESTORED:
                branch.failure, branch.record = chunk.failure, record
                return came

    async def _next_of(self, branch: Branch) -> Chunk:
        """Wait for the next chunk of a branch. One of its items may be next, so one that waits may come in."""
        if self.budget.waiting:
            self.budget.wake_waiters()
        return await branch.pull()

    async def _pull(self, branch: Branch) -> None:
        chunk = await self._next_of(branch)
        if chunk.boundary is RESTORED:
            chunk.boundary = None  # nothing of this input is wanted again
        branch.items.extend(chunk.items)
        branch.nbytes += chunk.nbytes
        branch.boundary, branch.failure = chunk.boundary, chunk.failure
        if not branch.items:
            self._discard_items(branch)  # bytes of items that an earlier stage has left out

    def _discard_items(self, branch: Branch) -> None:
        self.budget.charge(-branch.nbytes)
        branch.nbytes = 0
        branch.items.clear()

    def _take(self, branch: Branch, most: int) -> tuple[list[Any], int]:
        """Remove up to `most` of the items at hand. Return them, and the bytes that they are charged with."""
        held = len(branch.items)
        if most >= held:
            items, nbytes = list(branch.items), branch.nbytes
            branch.items.clear()
        else:
            items, nbytes = [branch.items.popleft() for _ in range(most)], branch.nbytes * most // held
        branch.nbytes -= nbytes
        return items, nbytes

    async def _skip_rest(self, branch: Branch, level: int = 0) -> None:
        """Skip a branch to the end of this epoch. Items and a failure before that end are dropped."""
        if not branch.has_ended(level):
            branch.step.skip(branch.own_levels + level, self._ended.count(level))
        while not branch.has_ended(level):
            self._discard_items(branch)
            await self._pull(branch)
        self._discard_items(branch)
        branch.failure = None

    async def _end_stream(self) -> None:
        """End the stream at once. Branches that have not ended are abandoned: they may be endless, or slow."""
        for branch in self.branches:
            if not branch.over:
                branch.abandon()
            self._discard_items(branch)
        await self._emit([], 0, END_OF_STREAM)

    async def _emit_end(self) -> None:
        """End the epoch that all branches have ended.

        If a later stage skips an epoch of a higher level, some branches may learn of that later than others. Such
        a branch has sent epochs that the other branches have skipped. These epochs are dropped here.
        """
        boundary = max(branch.boundary for branch in self.branches if branch.boundary is not None)
        for branch in self.branches if not boundary.is_end_of_stream else ():
            await self._skip_rest(branch, boundary.depth)
            branch.boundary = None
        await self._emit([], 0, boundary)

    async def _fail(self, failure: Failure) -> None:
        """Send a failure, and wait until this epoch is skipped."""
        await self._emit([], 0, None, failure)
        if not self.out.finished:
            await self.wait_for_skip(self._ended)

    async def _emit(
        self, items: list[Any], nbytes: int, boundary: EpochEnd | None, failure: Failure | None = None
    ) -> None:
        start = self.provenance.start(self._epochs.number) + self._sent
        self._sent += len(items)
        if boundary is not None:
            if self.record is not None and not boundary.is_end_of_stream:
                self.record.events.append(boundary)
            self._ended.note(boundary)
            self._sent = 0
            if not boundary.is_end_of_stream:
                self._epochs.go_on(boundary.depth)
        await self.send(Chunk(items, range(start, start + len(items)), boundary, failure, nbytes))


class PickStep(MergeStep):
    """Sends items of the branch that a `Choice` says. The other branches read ahead."""

    def __init__(
        self, spec: StepSpec, epochs: EpochCounter, branches: Sequence[Branch], *, choice: Choice
    ) -> None:
        super().__init__(spec, epochs, branches)
        self._choice = choice

    @property
    def busy(self) -> bool:
        """Whether an item is being sent, or can be sent."""
        picked = self._choice.next()
        return self.sending or (picked is not None and bool(self.branches[picked[0]].items))

    async def _merge(self) -> None:
        await self.out.start()
        choice = self._choice
        state = await self._restore()
        while not self.out.finished:
            choice.begin(self._epochs.number)
            if state is not None:
                choice.restore(state["choice"])
                state = None
            while (picked := choice.next()) is not None:
                which, most = picked
                branch = self.branches[which]
                if branch.items:
                    items, nbytes = self._take(branch, most)
                    choice.took(len(items))
                    self._note(which, len(items))
                    await self._emit(items, nbytes, None)
                    del items
                elif branch.failure is not None:
                    await self._fail(branch.failure)
                    break
                elif branch.epoch_over:
                    choice.ended()
                    self._note(*ENDED)
                else:
                    await self._pull(branch)
                if self.out.finished:
                    return
            if not self.out.finished:
                await self._end_epoch()

    async def _end_epoch(self) -> None:
        """End the epoch for all branches. Items that were not picked are dropped."""
        unfinished = [branch for branch in self.branches if branch.items or branch.boundary is None]
        ended = [branch for branch in self.branches if branch not in unfinished]
        if unfinished and any(branch.over for branch in ended):
            await self._end_stream()
            return
        for branch in unfinished:
            await self._skip_rest(branch)
        await self._emit_end()


class ZipStep(MergeStep):
    """Sends tuples of one item of each branch, as long as all branches have one.

    With `strict`, it fails if a branch has more items than another. Branches are asked in their order, as Python's
    `zip` does. So the first one that has ended or failed decides.
    """

    def __init__(self, spec: StepSpec, epochs: EpochCounter, branches: Sequence[Branch], *, strict: bool) -> None:
        super().__init__(spec, epochs, branches)
        self._strict = strict

    async def _merge(self) -> None:
        await self.out.start()
        await self._restore()
        while not self.out.finished:
            for branch in self.branches:
                while not branch.items and not branch.epoch_over:
                    await self._pull(branch)
                if not branch.items:
                    break  # as in Python's `zip`, later branches are not asked: they may be slow
            count = min(len(branch.items) for branch in self.branches)
            if count:
                self._note(-1, count)
                columns, weights = zip(*[self._take(branch, count) for branch in self.branches], strict=True)
                await self._emit(list(zip(*columns, strict=True)), sum(weights), None)
                del columns
            else:
                await self._end_epoch()

    async def _end_epoch(self) -> None:
        """Bring all branches to the end of the epoch. One of them has reached it."""
        shortest = next(branch for branch in self.branches if branch.epoch_over and not branch.items)
        failure = shortest.failure
        if self._strict and failure is None:
            failure = await self._strict_failure(shortest)
        if failure is not None:
            await self._fail(failure)
            if self.out.finished:
                return
        elif shortest.over and not self._strict:
            await self._end_stream()
            return
        for branch in self.branches:
            await self._skip_rest(branch)
        await self._emit_end()

    async def _strict_failure(self, shortest: Branch) -> Failure | None:
        """Return the failure of a strict `zip`: a branch has more items than the shortest one, or fails there."""
        for branch in self.branches:
            while not branch.items and not branch.epoch_over:
                await self._pull(branch)
            if self.skips(self._ended):
                return None
            if branch.items:
                return self._length_failure(shortest, branch)
            if branch.failure is not None:
                return branch.failure
        return None

    def _length_failure(self, shortest: Branch, longer: Branch) -> Failure:
        numbers = {id(branch): number for number, branch in enumerate(self.branches)}
        message = (
            f"zip: input {numbers[id(shortest)]} ended after {self._sent} items, but input {numbers[id(longer)]} "
            "has more; write zip(..., strict=False) to stop at the shortest"
        )
        position = self.provenance.start(self._epochs.number) + self._sent
        return self.provenance.failure(PipelineError(message), self.name, position)
