"""What every step has: its tasks, its place on the way to the consumer, and the means of the run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from asyncfeed.engine.emitter import Emitter
from asyncfeed.engine.epochs import EpochsEnded
from asyncfeed.engine.limits.budget import Account, Budget
from asyncfeed.engine.limits.demand import Shown
from asyncfeed.engine.processes.stage import Processes
from asyncfeed.engine.provenance import Provenance
from asyncfeed.engine.threads import Threads
from asyncfeed.errors import Failure
from asyncfeed.stages.steps import Chunk
from asyncfeed.stats import SlowPaths
from asyncfeed.trees import unweighable
from asyncfeed.weights import OBJECT

log = logging.getLogger("asyncfeed")


class RunContext(Protocol):
    """What a run lends to its steps."""

    loop: asyncio.AbstractEventLoop
    threads: Threads
    processes: list[Processes]
    """Where a stage adds its worker processes, so that the run can end them."""
    budget: Budget
    slow_paths: list[SlowPaths]
    """Where a stage adds what counts its slower ways."""

    def hungry_for(self) -> float:
        """Return for how many seconds the consumer of the run has waited so far."""
        ...

    def taken(self) -> int:
        """Return how many batches, or other items of the last stage, the consumer of the run has taken so far."""
        ...

    def shown(self) -> Shown:
        """Return what the consumer of the run has done so far."""
        ...

    def start(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task in the group of the run; nothing of it runs before this returns."""
        ...

    def cancel_task(self, task: asyncio.Task[None]) -> None:
        """Cancel a task that is not needed any more; once, and not while it closes what it has opened."""
        ...

    def in_peace(self) -> AbstractContextManager[None]:
        """Keep the run from cancelling the current task, for as long as the grace allows."""
        ...

    def skipped(self, failure: Failure) -> None:
        """Note that a failed item was left out, as its stage's policy says."""
        ...


@dataclass(frozen=True, slots=True)
class StepSpec:
    """What every step is told: what it is called, where it stands, and what runs it."""

    name: str
    context: RunContext
    levels: int
    """How many `repeat`s follow, in its branch and around it."""
    provenance: Provenance
    """The numbers of the source that its items come from."""
    unit: int = 1
    """How many items of the source one of its items is made of."""


class Step:
    """A source, a stage's work or a merge, as it runs.

    `depth` grows towards the consumer. `after` is the step that takes what this one sends, None for the last.
    """

    def __init__(self, spec: StepSpec) -> None:
        self.name = spec.name
        self.context = context = spec.context
        self.provenance = spec.provenance
        self.budget: Budget | Account = context.budget
        """What it charges to: where it belongs to an input of a merge, the account of that."""
        self.depth = 0
        self.levels = spec.levels
        self.tasks: list[asyncio.Task[None]] = []
        self.before: list[Step] = []
        self.after: Step | None = None
        self.out: Emitter
        self._looked_at: set[type] = set()
        self.sending = False
        self._skips: dict[int, int] = {}
        """What is not wanted, as `skip` was told: for each level, the last such epoch and all before it."""
        self._halt = Gate()
        """Where it waits after a failure, until it is told to skip an epoch."""

    def start(self) -> None:
        """Start the tasks of this step."""
        raise NotImplementedError

    def task(self, coroutine: Coroutine[Any, Any, None], role: str) -> None:
        """Start one task of this step."""
        self.tasks.append(self.context.start(coroutine, f"asyncfeed {self.name}: {role}"))

    async def send(self, chunk: Chunk) -> None:
        """Send a chunk on; then nothing may be on the way any more, which lets others in (see `Budget`)."""
        self.sending = True
        await self.out.send(chunk)
        self.sending = False
        if self.budget.waiting:
            self.budget.wake_waiters()

    @property
    def busy(self) -> bool:
        """Whether an item has been taken in and not sent on."""
        return self.sending

    @property
    def calls(self) -> int:
        """How many calls of a function it may make at a time; 0 where it makes none."""
        return 0

    def clear_ahead(self) -> bool:
        """Return whether nothing is on the way from here to the consumer."""
        step: Step | None = self
        while step is not None:
            if len(step.out.sink) or (step is not self and step.busy):
                return False
            step = step.after
        return True

    def skip(self, level: int, ended: int) -> None:
        """Produce nothing more for the epoch of `level` after which `ended` epochs had ended."""
        self._note_skip(level, ended)
        for step in self.before:
            step.skip(level, ended)

    def _note_skip(self, level: int, ended: int) -> None:
        self._skips[level] = max(ended, self._skips.get(level, ended))
        if self._halt.waiting:
            self._halt.open()

    def skips(self, ended: EpochsEnded) -> bool:
        """Return whether what comes after so many ends of epochs is not wanted."""
        return bool(self._skips) and self.skipped_level(ended) is not None

    def skipped_level(self, ended: EpochsEnded) -> int | None:
        """Return the highest level whose epoch is not wanted after so many ends; None if all are."""
        unwanted = (level for level, skipped in self._skips.items() if ended.count(level) <= skipped)
        return max(unwanted, default=None)

    async def halted(self, ended: EpochsEnded) -> None:
        """Wait, after a failure was sent, until the epoch after so many ends is not wanted: see `Emitter`."""
        while not self.skips(ended):
            await self._halt.wait()

    def abandon(self) -> None:
        """Stop this step and those before it: what they could still bring is not wanted.

        What they hold is given back by whoever closes their account.
        """
        for task in self.tasks:
            self.context.cancel_task(task)
        self.drop()
        self.budget.forget(self.depth)
        for step in self.before:
            step.abandon()

    def look_at(self, item: Any) -> None:
        """Warn, once for each type, of an item that nobody can weigh; called with one of many."""
        kind = type(item)
        if kind in self._looked_at or kind.__module__.startswith("asyncfeed."):
            return
        self._looked_at.add(kind)
        unknown = unweighable(item)
        if unknown is not None:
            log.warning(
                "%s: nothing tells how many bytes a %s.%s takes, so each counts as %d for the memory limit; say "
                "it with asyncfeed.register_size(%s, function)",
                self.name, unknown.__module__, unknown.__qualname__, OBJECT, unknown.__qualname__,
            )  # fmt: skip

    def drop(self) -> None:
        """Forget what is held."""

    def release(self) -> None:
        """Let go of everything, once no task of the run is left.

        Steps refer to each other and to the run. Only a garbage collection would free what is in such a ring, and
        the user's iterator is: a file or a connection that it holds must not stay open until then.
        """
        self.drop()
        vars(self).clear()


class Gate:
    """One task waits here until another opens it; opening it before it waits counts."""

    __slots__ = ("_future", "_open", "waiting")

    def __init__(self) -> None:
        self._open = False
        self._future: asyncio.Future[None] | None = None
        self.waiting = False

    def open(self) -> None:
        """Let the waiting task go on, or the next that waits."""
        if self._future is not None and not self._future.done():
            self._future.set_result(None)
        else:
            self._open = True
        self.waiting = False

    async def wait(self) -> None:
        """Wait until the gate is opened, and close it again."""
        if not self._open:
            self.waiting = True
            self._future = asyncio.get_running_loop().create_future()
            try:
                await self._future
            finally:
                self._future = None
                self.waiting = False
        self._open = False
