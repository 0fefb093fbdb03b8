"""Closes iterators of the user. An error of closing neither hides another error nor gets lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

log = logging.getLogger("asyncfeed")


def complain(loop: asyncio.AbstractEventLoop, what: str, error: BaseException) -> None:
    """Report an error that no consumer would see to the loop's exception handler. Any thread may call this.

    If the loop is closed, the error is logged.
    """
    context = {"message": f"asyncfeed: closing {what} failed", "exception": error}
    try:
        loop.call_soon_threadsafe(loop.call_exception_handler, context)
    except RuntimeError:
        log.warning("asyncfeed: closing %s failed, after its event loop was closed", what, exc_info=error)


class Iterating:
    """A `with` block around an iterator, which is closed at the end of the block.

    An error of closing is raised. But if another error or a cancellation has left the block, the error of closing
    is only reported.
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
    """The same for an async iterable, on the loop. While the iterator is closed, the task is not cancelled.

    `in_peace` returns a context manager that postpones cancellations of the task.
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
            if not isinstance(raised, asyncio.CancelledError):  # the run was stopped meanwhile: no error
                complain(self._loop, self._what, raised)
