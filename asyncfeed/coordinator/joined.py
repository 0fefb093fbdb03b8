"""The threads and tasks that a coordinator joins, behind one interface."""

from __future__ import annotations

import asyncio
import io
import itertools
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from asyncfeed.coordinator.callbacks import running_loop

_numbers = itertools.count()


class JoinedThread:
    """A thread. A thread that was not started counts as ended, as it does for TensorFlow."""

    def __init__(self, thread: threading.Thread) -> None:
        self.thread = thread
        self.name = f"thread {thread.name!r}"

    def alive(self) -> bool:
        """Return whether the thread runs."""
        return self.thread.is_alive()

    def current(self) -> bool:
        """Return whether the caller runs on this thread."""
        return self.thread is threading.current_thread()

    def wait(self, timeout: float | None) -> None:
        """Block the caller until the thread has ended, at most `timeout` seconds."""
        self.thread.join(timeout)

    def where(self) -> str:
        """Return the stack of the thread as text."""
        frame = sys._current_frames().get(self.thread.ident or 0)  # noqa: SLF001 - the documented way
        try:
            return "".join(traceback.format_stack(frame)) if frame is not None else "its end"
        finally:
            del frame  # it may be this frame, which would then refer to itself


class JoinedTask:
    """A task. Its event loop calls `ended`, which wakes the threads that wait for the task."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self.name = f"task {task.get_name()!r}"
        self._over = threading.Event()

    def ended(self, _: object = None) -> None:
        """Note that the task has ended, and that its failure has been reported."""
        self._over.set()

    def alive(self) -> bool:
        """Return whether the task has not ended."""
        return not self._over.is_set()

    def current(self) -> bool:
        """Return whether the caller runs in this task."""
        return self.on(running_loop()) and asyncio.current_task() is self.task

    def on(self, loop: asyncio.AbstractEventLoop | None) -> bool:
        """Return whether the task runs on this loop."""
        return self.task.get_loop() is loop

    def wait(self, timeout: float | None) -> None:
        """Block the caller until the task has ended, at most `timeout` seconds."""
        self._over.wait(timeout)

    def where(self) -> str:
        """Return the stack of the task as text."""
        text = io.StringIO()
        self.task.print_stack(file=text)
        return text.getvalue()


Joined = JoinedThread | JoinedTask


def watch(members: Sequence[Joined], callback: Callable[[], object]) -> None:
    """Call `callback` when all members have ended.

    A new thread waits for them: a thread's end can only be joined.
    """

    def wait() -> None:
        for member in members:
            member.wait(None)
        callback()

    threading.Thread(target=wait, name=f"asyncfeed-join-{next(_numbers)}", daemon=True).start()
