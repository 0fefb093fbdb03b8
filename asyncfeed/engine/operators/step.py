"""The base class of all steps, and the context that a run gives to them."""

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
    """The things of a run that its steps share."""

    loop: asyncio.AbstractEventLoop
    threads: Threads
    processes: list[Processes]
    """A stage adds its worker processes here, so that the run can end them."""
    budget: Budget
    slow_paths: list[SlowPaths]
    """A stage adds the counters of its slow paths here."""

    def hungry_for(self) -> float:
        """Return the seconds for which the consumer of the run has waited so far."""
        ...

    def taken(self) -> int:
        """Return the number of items of the last stage, such as batches, that the consumer has taken so far."""
        ...

    def shown(self) -> Shown:
        """Return what the consumer of the run has done so far."""
        ...

    def start(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task of the run. The task does not run before this returns."""
        ...

    def cancel_task(self, task: asyncio.Task[None]) -> None:
        """Cancel a task that is not needed any more: once, and not while it closes what it has opened."""
        ...

    def in_peace(self) -> AbstractContextManager[None]:
        """Keep the run from cancelling the current task until the grace is over."""
        ...

    def skipped(self, failure: Failure) -> None:
        """Note that a failed item was left out, because of the policy of its stage."""
        ...


@dataclass(frozen=True, slots=True)
class StepSpec:
    """What every step is told when it is made."""

    name: str
    context: RunContext
    levels: int
    """Number of `repeat`s in the branch of the step, and after the merges that the branch leads to."""
    provenance: Provenance
    """The provenance of the source that the items come from."""
    unit: int = 1
    """Number of items of the source that an item of this step is made of."""


class Step:
    """The part of a run that runs a source, a stage or a merge.

    `depth` grows towards the consumer. `before` are the steps that send to this one. `after` is the step that this
    one sends to; it is None for the last step.
    """

    def __init__(self, spec: StepSpec) -> None:
        self.name = spec.name
        self.context = context = spec.context
        self.provenance = spec.provenance
        self.budget: Budget | Account = context.budget
        """The budget that the step charges. For a step of a merge's input, this is the account of that input."""
        self.depth = 0
        self.levels = spec.levels
        self.tasks: list[asyncio.Task[None]] = []
        self.before: list[Step] = []
        self.after: Step | None = None
        self.out: Emitter
        self._checked_types: set[type] = set()
        """The types of items that were checked for a known weight."""
        self.sending = False
        """Whether a chunk of this step is on its way into the next channel."""
        self._skips: dict[int, int] = {}
        """For each level: the number of the last skipped epoch, from 0. All earlier ones are skipped, too."""
        self._skip_gate = Gate()
        """Where the step waits after a failure until it is told to skip an epoch."""

    def start(self) -> None:
        """Start the tasks of this step."""
        raise NotImplementedError

    def task(self, coroutine: Coroutine[Any, Any, None], role: str) -> None:
        """Start one task of this step."""
        self.tasks.append(self.context.start(coroutine, f"asyncfeed {self.name}: {role}"))

    async def send(self, chunk: Chunk) -> None:
        """Send a chunk on. The path may be clear afterwards, so an item that waits for room may be next."""
        self.sending = True
        await self.out.send(chunk)
        self.sending = False
        if self.budget.waiting:
            self.budget.wake_waiters()

    @property
    def busy(self) -> bool:
        """Whether the step holds an item: it was taken in, and not sent on."""
        return self.sending

    @property
    def computed(self) -> float:
        """Seconds that a function has computed on threads. 0 if the step calls none there."""
        return 0.0

    @property
    def calls(self) -> int:
        """Maximum number of calls of a function at a time. 0 if the step makes none."""
        return 0

    def path_is_clear(self) -> bool:
        """Return whether no chunk is queued, and no later step holds an item, from here to the consumer."""
        step: Step | None = self
        while step is not None:
            if len(step.out.sink) or (step is not self and step.busy):
                return False
            step = step.after
        return True

    def skip(self, level: int, ended: int) -> None:
        """Stop sending items of the epoch of `level` that follows `ended` ended ones. Earlier steps do so, too."""
        self._note_skip(level, ended)
        for step in self.before:
            step.skip(level, ended)

    def _note_skip(self, level: int, ended: int) -> None:
        self._skips[level] = max(ended, self._skips.get(level, ended))
        if self._skip_gate.waiting:
            self._skip_gate.open()

    def skips(self, ended: EpochsEnded) -> bool:
        """Return whether the items that follow these ends of epochs are skipped."""
        return bool(self._skips) and self.skipped_level(ended) is not None

    def skipped_level(self, ended: EpochsEnded) -> int | None:
        """Return the highest level whose epoch after these ends is skipped. Return None if no level is skipped."""
        unwanted = (level for level, skipped in self._skips.items() if ended.count(level) <= skipped)
        return max(unwanted, default=None)

    async def wait_for_skip(self, ended: EpochsEnded) -> None:
        """Wait, after a failure was sent, until the epoch that follows these ends is skipped: see `Emitter`."""
        while not self.skips(ended):
            await self._skip_gate.wait()

    def abandon(self) -> None:
        """Stop this step and all steps before it, because nothing more of them is needed.

        This returns no bytes to the budget. The caller closes the account of these steps, which does.
        """
        for task in self.tasks:
            self.context.cancel_task(task)
        self.drop()
        self.budget.forget(self.depth)
        for step in self.before:
            step.abandon()

    def warn_if_unweighable(self, item: Any) -> None:
        """Log a warning, once for each type, if the weight of an item is not known. Called for some items only."""
        kind = type(item)
        if kind in self._checked_types or kind.__module__.startswith("asyncfeed."):
            return
        self._checked_types.add(kind)
        unknown = unweighable(item)
        if unknown is not None:
            log.warning(
                "%s: nothing tells how many bytes a %s.%s takes, so each counts as %d for the memory limit; say "
                "it with asyncfeed.register_size(%s, function)",
                self.name, unknown.__module__, unknown.__qualname__, OBJECT, unknown.__qualname__,
            )  # fmt: skip

    def drop(self) -> None:
        """Drop all items and results."""

    def release(self) -> None:
        """Drop all references, when no task of the run is left.

        Steps refer to each other and to the run, so only the garbage collector would free this cycle. The user's
        iterator is part of it, and may hold a file or a connection. That must not stay open until then.
        """
        self.drop()
        vars(self).clear()


class Gate:
    """One task waits here until another task opens the gate. A gate that is open already lets it pass."""

    __slots__ = ("_future", "_open", "waiting")

    def __init__(self) -> None:
        self._open = False
        self._future: asyncio.Future[None] | None = None
        self.waiting = False

    def open(self) -> None:
        """Let the waiting task pass, or else the next task that waits."""
        if self._future is not None and not self._future.done():
            self._future.set_result(None)
        else:
            self._open = True
        self.waiting = False

    async def wait(self) -> None:
        """Wait until the gate is open, and close it behind this task."""
        if not self._open:
            self.waiting = True
            self._future = asyncio.get_running_loop().create_future()
            try:
                await self._future
            finally:
                self._future = None
                self.waiting = False
        self._open = False
