"""For how long a run that ends waits for what hangs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

log = logging.getLogger("asyncfeed")


class Grace:
    """The time that functions and what closes have after a stop; and the one report of what took longer."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self.deadline = 0.0
        """When it is over, by the clock of the loop."""
        self._loop = loop
        self.seconds = seconds
        self._timer: asyncio.TimerHandle | None = None
        self._reported = False

    def begin(self, over: Callable[[], None]) -> None:
        """Call `over` when the grace is; it begins with the first call."""
        if self._timer is None:
            self.deadline = self._loop.time() + self.seconds
            self._timer = self._loop.call_at(self.deadline, over)

    def then(self, seconds: float, over: Callable[[], None]) -> None:
        """Call another function so much later."""
        self._timer = self._loop.call_later(seconds, over)

    def cancel(self) -> None:
        """Call nothing any more."""
        if self._timer is not None:
            self._timer.cancel()

    def report(self, name: str, found: Sequence[str]) -> None:
        """Say what hangs, if anything does; once."""
        if found and not self._reported:
            self._reported = True
            text = "\n".join(found)
            log.warning("%s was stopped %g s ago and waits no longer for:\n%s", name, self.seconds, text)
