"""The threads of the process, which make the calls of all its runs.

Invariants:

* As many workers wait for a task, or will soon, as there are entries in `_idle` and tasks in `_tasks`. So whoever
  takes an entry may queue a task, and a worker will do it.
* There are no locks here: a signal handler or the garbage collector may stop a run at any line. The methods of a
  deque and of a dictionary that are used here each do all of their work before another thread may do any.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from queue import SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from asyncfeed.engine.constants import IDLE_SECONDS
from asyncfeed.reading.uring_reader import one_ring

if TYPE_CHECKING:
    import asyncio
    from contextvars import Context

    from asyncfeed.engine.fair import Place
    from asyncfeed.engine.threads import CapacityLimiter

_numbers = count()


class Task(Protocol):
    """What a worker does."""

    def work(self, worker: Worker) -> Task | None:
        """Do it, and return what the worker does next. If that is None, the worker was retired."""


class Owner(Protocol):
    """The run of a job."""

    loop: asyncio.AbstractEventLoop
    computed: float
    """Seconds of processor time for which runs take turns."""
    turns_waited: float
    """Seconds that its jobs waited for their turns."""

    @property
    def computes(self) -> bool:
        """Whether a job has not returned, other than those that wait for the loop."""

    def none_left(self) -> None:
        """Hear, on any thread, that no worker is left, or that another run has begun."""

    def work(self, job: Job, worker: Worker) -> Job | None:
        """Do a job and report it, and return what the worker does next."""


class Job:
    """A call that a worker makes for a run."""

    __slots__ = ("args", "context", "fn", "future", "limiter", "owner", "place", "queued", "what")

    def __init__(
        self,
        owner: Owner,
        what: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        future: asyncio.Future[Any],
        limiter: CapacityLimiter | None,
        context: Context,
    ) -> None:
        self.owner, self.what, self.fn, self.args, self.future = owner, what, fn, args, future
        self.limiter, self.context = limiter, context
        self.queued = 0.0
        """When it began to wait for its turn."""
        self.place: Place | None = None
        """Its place among the jobs that compute. None if it needs none, or waits for one."""

    def work(self, worker: Worker) -> Job | None:
        """Do this job and report it, and return what the worker does next."""
        return self.owner.work(self, worker)


class Worker(threading.Thread):
    """A daemon thread that does one job after the other.

    The standard pool joins its threads when the interpreter exits, so one read that hangs would keep the process
    alive for ever. These threads do not.
    """

    def __init__(self, workers: Workers) -> None:
        super().__init__(name=f"asyncfeed-worker-{next(_numbers)}", daemon=True)
        self._workers = workers
        self.place: Place | None = None
        """The place of its job among those that compute."""
        self.end: End | None = None
        """Set when there is no more need of it."""

    def run(self) -> None:
        """Do one task after the other. An idle worker keeps nothing of its last task alive."""
        with one_ring():
            while self.end is None:
                task: Task | None = self._workers.next_task()
                while task is not None:
                    task = task.work(self)
        self._workers.left(self.end)


class End:
    """Tells a worker to end."""

    def work(self, worker: Worker) -> None:
        """Have this worker end."""
        worker.end = self


class Workers:
    """The workers of the process. They are started when needed, and reused by all runs."""

    def __init__(self) -> None:
        self._forget()
        if hasattr(os, "register_at_fork"):  # a system without this function cannot fork
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Begin without any worker. A process that is a fork has none of those of its parent."""
        # The loops of the runs are kept: closing them would close what they share with those of the parent.
        self._before_fork = vars(self).copy()
        self._tasks: SimpleQueue[Task] = SimpleQueue()
        self._idle: deque[None] = deque()
        """One entry for each worker that waits for a task, or will soon, and that nobody has counted on."""
        self._least_idle = 0
        """The smallest number of these since `_looked`."""
        self._looked = 0.0
        self._visits: dict[Task, None] = {}
        """What workers do that is no job: they come for one, look whether one hangs, or end."""
        self.runs: dict[Owner, None] = {}
        """The runs that have had jobs, and have not ended."""
        self.closing: dict[Owner, None] = {}
        """The runs that wait until no worker is left, or another run has begun."""

    def begin(self, run: Owner) -> None:
        """Note that a run has jobs."""
        self.runs[run] = None
        if self.closing:
            self._let_go()

    def end(self, run: Owner) -> None:
        """Note that a run has no more jobs. `run.none_left` is called when no worker is left, or one is needed."""
        self.closing[run] = None
        self._leave(run)
        self._let_go()

    def leave(self, run: Owner) -> None:
        """Note that a run has no more jobs, and waits for nothing."""
        if self.closing.pop(run, self) is None:
            # It has waited in vain. Ctrl-C interrupted a thread that had noted a visit, and no worker has come.
            self._visits.clear()
        self._leave(run)

    def _leave(self, run: Owner) -> None:
        self.runs.pop(run, None)
        if not self.runs:
            self._trim()

    def _let_go(self) -> None:
        while self.closing and (self.runs or not self._visits):
            with suppress(KeyError):  # another thread has taken the last
                self.closing.popitem()[0].none_left()

    def give(self, task: Task) -> None:
        """Have a worker do something. Raises `RuntimeError` if the system has no more threads."""
        try:
            self._idle.pop()
        except IndexError:
            Worker(self).start()
        self._least_idle = min(self._least_idle, len(self._idle))
        self._tasks.put(task)

    def visit(self, task: Task) -> None:
        """Have a worker do something that is no job. It calls `left` afterwards. Raises as `give` does."""
        self._visits[task] = None
        try:
            self.give(task)
        except RuntimeError:
            self.left(task)
            raise

    def left(self, task: Task) -> None:
        """Note that something is over that was no job."""
        self._visits.pop(task, None)
        if self.closing:
            self._let_go()

    def next_task(self) -> Task:
        """Wait for a task, and return it."""
        return self._tasks.get()

    def retire(self) -> None:
        """Note that the worker that calls this has nothing to do."""
        self._idle.append(None)
        now = perf_counter()
        if not self.runs:
            self._trim()
        elif now - self._looked > IDLE_SECONDS:
            self._trim(self._least_idle)
            self._looked, self._least_idle = now, len(self._idle)

    def _trim(self, most: int = sys.maxsize) -> None:
        """Tell idle workers to end."""
        with suppress(IndexError):  # no worker is idle
            for _ in range(most):
                self._idle.pop()
                end = End()
                self._visits[end] = None
                self._tasks.put(end)


workers = Workers()
