"""Waking a task although the event loop may lose a callback.

Ctrl-C can be raised inside the event loop itself: asyncio does so once the main task is done. The loop then
forgets the one callback that it was about to run. If that is the next step of a task, the task stays where it is
for ever: what it waited for is done, and to cancel it changes nothing. `asyncio.run` waits for it without end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any


class Waking(asyncio.Future[None]):
    """A future that has the loop called twice for the task that awaits it; the first call wakes the task."""

    _step: Callable[[Any], object] | None = None

    def wake(self, _: object = None) -> None:
        """Wake the task, if that has not been done."""
        if not self.done():
            self.set_result(None)

    def add_done_callback(self, fn: Callable[[Any], object], *, context: Context | None = None) -> None:
        """Keep what wakes the task; the task calls this when it awaits the future."""
        self._step = fn
        for _ in range(2):
            super().add_done_callback(Waking._wake_once, context=context)

    def _wake_once(self) -> None:
        step = self._step
        if step is not None:
            # Python handles signals after a call and at the start of one: no interrupt comes between these lines.
            self._step = None
            step(self)
