"""The tasks of one run: a single flat group, and the one way they end.

The group is no `asyncio.TaskGroup`, because that waits for ever for a task that never ends. A task never ends if
its function swallows cancellations, or if the loop lost the task's next step (see `waking.py`). Each task is
cancelled when the run stops, and again when the grace is over. After that the run does not wait for the task any
more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any

from asyncfeed.tasks import forget_cancellation, start_task


class RunTasks:
    """Starts and cancels the tasks of a run.

    `ended(task, asked)` is called when a task has ended. `asked` says whether the task was told to end.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: Context,
        ended: Callable[[asyncio.Task[None], bool], None],
    ) -> None:
        self.left: set[asyncio.Task[None]] = set()
        """The tasks that have not ended."""
        self.stopping = False
        """Whether all tasks must end, including those that start from now on."""
        self.held: set[asyncio.Task[None]] = set()
        """The tasks that end after all others, because they hold something open for them."""
        self.none_left: asyncio.Future[None] = loop.create_future()
        """Done when all tasks but the held ones have ended, or when the run stops waiting for the others."""
        self._loop = loop
        self._context = context
        self._ended = ended
        self._asked: set[asyncio.Task[None]] = set()
        """The tasks that were told to end. Each is told once, because a second cancellation would interrupt what
        the task closes after the first."""
        self._closing: set[asyncio.Task[None]] = set()
        self._postponed: set[asyncio.Task[None]] = set()
        """The tasks that were told to end while they were closing something. They are cancelled after that."""

    def start(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task. It takes its first step after this returns."""
        task = self._add(coroutine, name)
        if self.stopping:
            self.cancel_task(task)  # `stop` has cancelled the tasks that existed then
        return task

    def start_held(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        """Start a task that holds something open for all others. It says itself when it may be cancelled."""
        self.held.add(self._add(coroutine, name))

    @property
    def working(self) -> set[asyncio.Task[None]]:
        """The tasks that have not ended, except those that hold something open for them."""
        return self.left - self.held

    def start_last(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task that belongs to the end of the run. `stop` does not cancel it; its caller may."""
        task = self._add(coroutine, name)
        self._asked.add(task)
        return task

    def _add(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        # A task copies the context it is created in. Here that may be the context of a worker, whose function may
        # have changed variables. So the task is created in the context of the run.
        task = self._context.run(start_task, self._loop, coroutine, loop=self._loop, name=name)
        # Only the run ends this task. A loop that shuts down cancels all registered tasks, even a task that is
        # closing a file or a connection.
        asyncio._unregister_task(task)  # noqa: SLF001 - documented, for those who extend asyncio
        self.left.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self.left.discard(task)
        forget_cancellation(task)
        self._ended(task, task in self._asked)
        self._asked.discard(task)
        if self.stopping and not self.working:
            self.wait_no_longer()

    def cancel_task(self, task: asyncio.Task[None]) -> None:
        """Cancel a task that is not needed any more: once, and not while it closes what it has opened."""
        if task in self._asked or task.done():
            return
        self._asked.add(task)
        if task in self._closing:
            self._postponed.add(task)
        else:
            task.cancel()

    @contextmanager
    def in_peace(self) -> Iterator[None]:
        """Keep `cancel_task` from interrupting the current task. `cancel_again` interrupts it after the grace."""
        task = None if self._loop.is_closed() else asyncio.current_task()
        if task is None:
            yield
            return
        self._closing.add(task)
        try:
            yield
        finally:
            self._closing.discard(task)
            if task in self._postponed:
                self._postponed.discard(task)
                task.cancel()

    def stop(self) -> None:
        """Cancel all tasks, including those that start later."""
        self.stopping = True
        for task in list(self.left):
            self.cancel_task(task)

    def cancel_again(self) -> bool:
        """Cancel the tasks that have not ended, even while they close something. Return whether there are any."""
        # An interrupt may have dropped the callback that removes a task that is done.
        self.left = {task for task in self.left if not task.done()}
        for task in self.left:
            task.cancel()
        return bool(self.left)

    def wait_no_longer(self) -> None:
        """Let the run end, even if tasks are left."""
        if not self.none_left.done():
            self.none_left.set_result(None)

    def take_left(self) -> set[asyncio.Task[None]]:
        """Return the tasks that have not ended, and forget them."""
        left, self.left = self.left, set()
        return left

    def release(self) -> None:
        """Drop the references to the run, and to the context variables of the code that opened it."""
        self._context = Context()
        self.held = set()
        if not self.left:
            self._ended = _nobody_asks


def _nobody_asks(task: asyncio.Task[None], asked: bool) -> None:
    """Replace the callback of a run that has ended."""
