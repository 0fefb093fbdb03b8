"""A request with a deadline, and with others beside it if it is slow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from asyncfeed.attempts.watched import Watched
from asyncfeed.errors import TimedOut

Pending = asyncio.Future[Any]


class Owner(Protocol):
    """What makes requests, and is told what becomes of them."""

    def allows_beside(self) -> bool:
        """Return whether a slow request may be made once more."""
        ...

    def note_beside(self, beside: Pending) -> None:
        """Note that the request was made once more. It is the owner's to end it."""
        ...

    def note_end(self, request: Request) -> None:
        """Note that the request has ended, and that its client knows that."""
        ...


class Request(Watched):
    """One request for an item, until it has an outcome: what the store gave, or an exception.

    Invariants:

    * It ends once, with the outcome of the request that was answered first. When it has ended, none of its
      requests goes on: those that were not answered are cancelled.
    * A request beside it that fails changes nothing. If the first one fails, that is the outcome.
    """

    __slots__ = (
        "_futures",
        "_owner",
        "_start",
        "_waiter",
        "has_ended",
        "item",
        "nbytes",
        "outcome",
    )

    def __init__(self, item: Any, nbytes: int, start: Callable[[Any], Pending], owner: Owner) -> None:
        self.item = item
        self.nbytes = nbytes
        self.outcome: Any = None
        self.has_ended = False
        self._start = start
        self._owner = owner
        self._waiter: asyncio.Future[None] | None = None
        first = start(item)
        self._futures = [first]
        first.add_done_callback(self._answered)

    def futures(self) -> list[Pending]:
        """Return the futures of its requests."""
        return self._futures

    async def wait(self) -> None:
        """Wait until it has ended."""
        if not self.has_ended:
            self._waiter = self._futures[0].get_loop().create_future()
            await self._waiter

    async def result(self) -> Any:
        """Return what the store gave, or raise why it gave nothing."""
        await self.wait()
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome

    def cancel(self) -> None:
        """End it at its deadline. How many bytes came is not known: a client such as obstore does not tell."""
        asked = f" with all of up to {self.nbytes:,} bytes; load(timeout=...) allows more" if self.nbytes else ""
        self.end(TimedOut(f"no answer within {self.seconds:.3g} s{asked}", kind="timeout"))

    def begin_beside(self) -> None:
        """Make the request once more, unless the store gets too many."""
        if not self._owner.allows_beside():
            return
        try:
            beside = self._start(self.item)
        except Exception:  # noqa: BLE001 - the first request goes on
            return
        self._futures.append(beside)
        self._owner.note_beside(beside)
        beside.add_done_callback(self._answered_beside)

    def end(self, outcome: object) -> None:
        """End it with this outcome, unless it has ended."""
        if self.has_ended:
            return
        self.has_ended = True
        self.outcome = outcome
        self.unset()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        for each in self._futures:
            if not each.done():
                each.cancel()

    def _answered(self, first: Pending) -> None:
        error = asyncio.CancelledError() if first.cancelled() else first.exception()
        if error is not None:
            self.end(error.with_traceback(None))  # its frames would hold it
        elif not self.has_ended:
            self.returned()
            self.end(first.result())
        self._owner.note_end(self)

    def _answered_beside(self, beside: Pending) -> None:
        if not beside.cancelled() and beside.exception() is None and not self.has_ended:
            self.returned()
            self.end(beside.result())
