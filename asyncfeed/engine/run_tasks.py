"""The tasks of one run: a single flat group, and the one way they end.

The group is no `asyncio.TaskGroup`, which waits for ever for a task that never ends: one whose function refuses
to, or one whose next step was lost (see `waking.py`). Each task is cancelled when the run stops, and again when
the grace is over. Then nobody waits for it any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any

from asyncfeed.tasks import forget_cancellation, start_task


class RunTasks:
    """Starts tasks and cancels them; `ended` is called with each that has ended, and whether it was told to."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: Context,
        ended: Callable[[asyncio.Task[None], bool], None],
    ) -> None:
        self.left: set[asyncio.Task[None]] = set()
        """Those that have not ended."""
        self.stopping = False
        """Whether all are to end, also those that start from now on."""
        self.none_left: asyncio.Future[None] = loop.create_future()
        """Done when no task is left that is worth waiting for."""
        self._loop = loop
        self._context = context
        self._ended = ended
        self._asked: set[asyncio.Task[None]] = set()
        """Those that were asked to end: each once, so that what they close is closed in peace."""
        self._closing: set[asyncio.Task[None]] = set()
        self._postponed: set[asyncio.Task[None]] = set()
        """Those that were asked while they close something, and hear of it afterwards."""

    def start(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task; nothing of it runs before this returns."""
        task = self._add(coroutine, name)
        if self.stopping:
            self.cancel_task(task)  # the others have been
        return task

    def start_last(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task that belongs to the end of the run, which only its caller cancels."""
        task = self._add(coroutine, name)
        self._asked.add(task)
        return task

    def _add(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        # A task copies the context it is made in. That may be a worker's, which its function may have changed.
        task = self._context.run(start_task, self._loop, coroutine, loop=self._loop, name=name)
        # It is ended by the run alone, in order. A loop that shuts down cancels all that it knows of, also what is
        # just closing a file or a connection.
        asyncio._unregister_task(task)  # noqa: SLF001 - documented, for those who extend asyncio
        self.left.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self.left.discard(task)
        forget_cancellation(task)
        self._ended(task, task in self._asked)
        self._asked.discard(task)
        if self.stopping and not self.left:
            self.wait_no_longer()

    def cancel_task(self, task: asyncio.Task[None]) -> None:
        """Cancel a task that is not needed any more; once, and not while it closes what it has opened."""
        if task in self._asked or task.done():
            return
        self._asked.add(task)
        if task in self._closing:
            self._postponed.add(task)
        else:
            task.cancel()

    @contextmanager
    def in_peace(self) -> Iterator[None]:
        """Keep the run from cancelling the current task, for as long as the grace allows."""
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
        """Cancel all tasks, and those that start later."""
        self.stopping = True
        for task in list(self.left):
            self.cancel_task(task)

    def cancel_again(self) -> bool:
        """Cancel those that have not ended, whatever they close; return whether there are any."""
        self.left = {task for task in self.left if not task.done()}  # an interrupt may have kept it from us
        for task in self.left:
            task.cancel()
        return bool(self.left)

    def wait_no_longer(self) -> None:
        """Let the run go on, whatever tasks are left."""
        if not self.none_left.done():
            self.none_left.set_result(None)

    def take_left(self) -> set[asyncio.Task[None]]:
        """Return those that have not ended, and forget them."""
        left, self.left = self.left, set()
        return left

    def release(self) -> None:
        """Let go of the run, and of the context variables of whoever opened it."""
        self._context = Context()
        if not self.left:
            self._ended = _nobody_asks


def _nobody_asks(task: asyncio.Task[None], asked: bool) -> None:
    """Stand for the run, which has ended."""
