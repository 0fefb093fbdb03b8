"""What a coordinator waits for: threads and tasks, in one form."""

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
    """A thread; one that was not started counts as ended, as it does for TensorFlow."""

    def __init__(self, thread: threading.Thread) -> None:
        self.thread = thread
        self.name = f"thread {thread.name!r}"

    def alive(self) -> bool:
        """Return whether it runs."""
        return self.thread.is_alive()

    def current(self) -> bool:
        """Return whether it is what runs this."""
        return self.thread is threading.current_thread()

    def wait(self, timeout: float | None) -> None:
        """Wait on this thread until it has ended, at most `timeout` seconds."""
        self.thread.join(timeout)

    def where(self) -> str:
        """Return its stack."""
        frame = sys._current_frames().get(self.thread.ident or 0)  # noqa: SLF001 - the documented way
        try:
            return "".join(traceback.format_stack(frame)) if frame is not None else "its end"
        finally:
            del frame  # it may be this one, which would refer to itself


class JoinedTask:
    """A task, as `JoinedThread` is a thread; other threads are told of its end by `ended`."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self.name = f"task {task.get_name()!r}"
        self._over = threading.Event()

    def ended(self, _: object = None) -> None:
        """Note that it has ended, and that whoever was to hear how has heard it."""
        self._over.set()

    def alive(self) -> bool:
        """Return whether it has not ended."""
        return not self._over.is_set()

    def current(self) -> bool:
        """Return whether it is what runs this."""
        return self.on(running_loop()) and asyncio.current_task() is self.task

    def on(self, loop: asyncio.AbstractEventLoop | None) -> bool:
        """Return whether it runs on this loop."""
        return self.task.get_loop() is loop

    def wait(self, timeout: float | None) -> None:
        """Wait on this thread until it is done, at most `timeout` seconds."""
        self._over.wait(timeout)

    def where(self) -> str:
        """Return its stack."""
        text = io.StringIO()
        self.task.print_stack(file=text)
        return text.getvalue()


Joined = JoinedThread | JoinedTask


def watch(members: Sequence[Joined], callback: Callable[[], object]) -> None:
    """Call `callback` on a thread of its own once all have ended: a thread's end has no other herald."""

    def wait() -> None:
        for member in members:
            member.wait(None)
        callback()

    threading.Thread(target=wait, name=f"asyncfeed-join-{next(_numbers)}", daemon=True).start()
