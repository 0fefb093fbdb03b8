"""A request that also tells the version and the size of its object: obstore answers it in two steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from asyncfeed.errors import Corrupt
from asyncfeed.reading.reader import changed

if TYPE_CHECKING:
    import asyncio

    from asyncfeed.reading.file import File
    from asyncfeed.reading.obstore_reader import Part


class Contents(NamedTuple):
    """What came: bytes, and the size and the etag of the whole object."""

    body: Any
    size: int
    etag: str | None

    def fault(self, part: Part) -> Corrupt | None:
        """Return an error if the object is another one than was listed, or if bytes are missing."""
        file, wanted = part.file, part.stop - part.start
        wrong = changed(file, self.size, self.etag or file.version)
        if wrong is None and len(self.body) != wanted:
            text = f"{file.path}: {len(self.body)} bytes came where {wanted} were asked for"
            return Corrupt(text, transient=True)
        return wrong


def quoted(etag: str | None) -> str | None:
    """Return an etag as it stands in headers. Azure lists it without its quotes."""
    return etag if not etag or etag.startswith(('"', "W/")) else f'"{etag}"'


def condition(file: File) -> dict[str, str]:
    """Return the options that let the store compare the version of a file with the listed one.

    A weak etag is not sent: it never matches. What comes is compared in any case.
    """
    etag = file.etag
    return {} if etag is None or etag.startswith("W/") else {"if_match": etag}


class Versioned:
    """The two steps as one future. The second step begins when the first is done, whoever waits for what."""

    def __init__(self, first: asyncio.Future[Any], track: Callable[[asyncio.Future[Any]], None]) -> None:
        self.future: asyncio.Future[Contents] = first.get_loop().create_future()
        """Done with `Contents`. If it is cancelled, the step under way is cancelled, too."""
        self._track = track
        self._step = first
        self._meta: Any = None
        track(first)
        first.add_done_callback(self._begun)
        self.future.add_done_callback(self._left)

    def _begun(self, first: asyncio.Future[Any]) -> None:
        if self._failed(first):
            return
        result = first.result()
        self._meta = result.meta
        try:
            self._step = step = result.bytes_async()
        except Exception as error:  # noqa: BLE001 - any exception is an outcome
            self.future.set_exception(error)
            return
        self._track(step)
        step.add_done_callback(self._ended)

    def _ended(self, step: asyncio.Future[Any]) -> None:
        if not self._failed(step):
            self.future.set_result(Contents(step.result(), self._meta["size"], quoted(self._meta["e_tag"])))

    def _failed(self, step: asyncio.Future[Any]) -> bool:
        """Pass on a failure. Return whether there is nothing to go on with."""
        if step.cancelled():
            self.future.cancel()
            return True
        error = step.exception()
        if error is not None and not self.future.done():
            self.future.set_exception(error)
        return error is not None or self.future.done()

    def _left(self, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            self._step.cancel()
