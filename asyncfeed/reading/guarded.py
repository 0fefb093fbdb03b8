"""A request with a deadline, and with a second request beside it if it is slow, as one future."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from asyncfeed.attempts.alarms import Alarms
from asyncfeed.attempts.hedging import Hedging
from asyncfeed.attempts.watched import Watched
from asyncfeed.errors import TimedOut

Pending = asyncio.Future[Any]


class Guarded(Watched):
    """One request. Its future has the outcome of the request that was answered first.

    Invariants:

    * When the future is done, no request of it goes on: those that were not answered are cancelled.
    * A second request that fails changes nothing. If the first one fails, that is the outcome.
    """

    __slots__ = ("_again", "_requests", "_seconds", "_start", "_track", "future")

    def __init__(
        self,
        alarms: Alarms,
        seconds: float,
        hedging: Hedging | None,
        first: Pending,
        start: Callable[[], Pending],
        track: Callable[[Pending], None],
        again: Callable[[], None],
    ) -> None:
        self._seconds = seconds
        self._start = start
        """Makes the request a second time."""
        self._track = track
        """Is told of every request, so that it can be ended."""
        self._again = again
        """Counts second requests."""
        self._requests = [first]
        self.future: Pending = first.get_loop().create_future()
        track(first)
        first.add_done_callback(self._first_done)
        self.future.add_done_callback(self._left)
        super().__init__(alarms, seconds, hedging)

    def cancel(self) -> None:
        """End it at its deadline."""
        if not self.future.done():
            self.future.set_exception(TimedOut(f"no answer within {self._seconds:.3g} s", kind="timeout"))

    def begin_second(self) -> None:
        """Make the request a second time."""
        try:
            second = self._start()
        except Exception:  # noqa: BLE001 - the first request goes on
            return
        self._again()
        self._requests.append(second)
        self._track(second)
        second.add_done_callback(self._second_done)

    def _first_done(self, first: Pending) -> None:
        if first.cancelled():
            self.future.cancel()
            return
        error = first.exception()
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            self.returned()
            self.future.set_result(first.result())

    def _second_done(self, second: Pending) -> None:
        if second.cancelled() or second.exception() is not None or self.future.done():
            return
        self.returned()
        self.future.set_result(second.result())

    def _left(self, _: Pending) -> None:
        self.unset()
        for request in self._requests:
            request.cancel()
