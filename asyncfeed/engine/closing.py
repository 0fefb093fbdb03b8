"""Closing what the user's code opened, so that an error of closing neither hides another nor vanishes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

log = logging.getLogger("asyncfeed")


def complain(loop: asyncio.AbstractEventLoop, what: str, error: BaseException) -> None:
    """Report an error that no consumer waits for any more to the loop's exception handler; from any thread.

    If the loop is closed, it is logged.
    """
    context = {"message": f"asyncfeed: closing {what} failed", "exception": error}
    try:
        loop.call_soon_threadsafe(loop.call_exception_handler, context)
    except RuntimeError:
        log.warning("asyncfeed: closing %s failed, after its event loop", what, exc_info=error)


class Iterating:
    """Iterates, and closes the iterator when the block is left.

    What closing raises is raised. After another error, or a cancellation, it is only reported: the first counts.
    """

    def __init__(self, iterable: Iterable[Any], what: str, loop: asyncio.AbstractEventLoop) -> None:
        self._iterator = iter(iterable)
        self._what = what
        self._loop = loop

    def __enter__(self) -> Iterator[Any]:
        return self._iterator

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        close = getattr(self._iterator, "close", None)
        if close is None:
            return
        try:
            close()
        except BaseException as raised:
            if error is None:
                raise
            complain(self._loop, self._what, raised)


class IteratingAsync:
    """The same with an async iterable, on the loop: what closing awaits is not cancelled.

    `in_peace` keeps others from cancelling the task for that long.
    """

    def __init__(
        self, iterable: AsyncIterable[Any], what: str, in_peace: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._iterator = aiter(iterable)
        self._what = what
        self._in_peace = in_peace
        self._loop = asyncio.get_running_loop()

    async def __aenter__(self) -> AsyncIterator[Any]:
        return self._iterator

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        close = getattr(self._iterator, "aclose", None)
        if close is None:
            return
        try:
            with self._in_peace():
                await close()
        except BaseException as raised:
            if error is None or isinstance(raised, GeneratorExit):
                raise
            if not isinstance(raised, asyncio.CancelledError):  # which comes when the run is stopped meanwhile
                complain(self._loop, self._what, raised)
