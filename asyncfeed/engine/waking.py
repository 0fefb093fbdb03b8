"""Wakes a task even if the event loop loses a callback.

Ctrl-C can be raised inside the event loop itself: asyncio does so when the main task is done. The loop then loses
the one callback that it was about to run. If that callback was the next step of a task, the task never runs again.
The future that it waited for is done, so cancelling it has no effect. `asyncio.run` waits for this task for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any


class Waking(asyncio.Future[None]):
    """A future that schedules two callbacks for the task that awaits it. The first that runs wakes the task."""

    _step: Callable[[Any], object] | None = None

    def wake(self, _: object = None) -> None:
        """Wake the task, unless it was woken."""
        if not self.done():
            self.set_result(None)

    def add_done_callback(self, fn: Callable[[Any], object], *, context: Context | None = None) -> None:
        """Keep the function that wakes the task. asyncio calls this when the task awaits the future."""
        self._step = fn
        for _ in range(2):
            super().add_done_callback(Waking._wake_once, context=context)

    def _wake_once(self) -> None:
        step = self._step
        if step is not None:
            # Python handles signals only at the start of a call and after one, so not between these two lines.
            self._step = None
            step(self)
