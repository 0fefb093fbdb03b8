"""The grace: the time that a stopped run waits for tasks, threads and generators that have not ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

log = logging.getLogger("asyncfeed")


class Grace:
    """The timer of the grace, and the one report of the tasks and threads that took longer."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self.deadline = 0.0
        """When the grace is over, by the clock of the loop."""
        self._loop = loop
        self.seconds = seconds
        self._timer: asyncio.TimerHandle | None = None
        self._reported = False

    def begin(self, over: Callable[[], None]) -> None:
        """Start the grace and call `over` when it is over. Later calls do nothing."""
        if self._timer is None:
            self.deadline = self._loop.time() + self.seconds
            self._timer = self._loop.call_at(self.deadline, over)

    def then(self, seconds: float, over: Callable[[], None]) -> None:
        """Call `over` after this many more seconds."""
        self._timer = self._loop.call_later(seconds, over)

    def cancel(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def report(self, name: str, found: Sequence[str]) -> None:
        """Log the stacks `found` of the tasks and threads that have not ended: once, and only if there are any."""
        if found and not self._reported:
            self._reported = True
            text = "\n".join(found)
            log.warning("%s was stopped %g s ago (`grace`) and waits no longer for:\n%s", name, self.seconds, text)
