"""Text files line by line, for `flat_map`."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import Executor
from contextvars import ContextVar
from typing import BinaryIO

from asyncfeed.errors import Corrupt
from asyncfeed.storage.base import File

BLOCK = 1 << 16
"""How many bytes are read per hop to a thread."""

executor: ContextVar[Executor | None] = ContextVar("asyncfeed.formats.lines.executor", default=None)
"""Where files are read: the engine puts its own threads here; None is the loop's default."""


async def lines(file: File | str | os.PathLike[str], *, max_line: int = 1 << 24) -> AsyncGenerator[str]:
    r"""Yield the lines of a UTF-8 text file, without their ends (`\n` or `\r\n`).

    Use it as `files("*.txt").flat_map(lines)`. The file is read in blocks of 64 KB on a thread, so memory is
    bounded by the longest line; one of more than `max_line` bytes is `Corrupt`, and so is one that is not
    UTF-8. The file is closed when the last line was taken, and when the generator is closed or cancelled.

    >>> lines("notes.txt")  # doctest: +ELLIPSIS
    <async_generator object lines at ...>
    """
    path = os.fspath(file)
    loop, threads = asyncio.get_running_loop(), executor.get()
    handle = _Handle(path)
    try:
        await loop.run_in_executor(threads, handle.open)
        number = 1
        rest = bytearray()
        while block := await loop.run_in_executor(threads, handle.read):
            *whole, tail = block.split(b"\n")
            for line in whole:
                if rest:
                    rest += line
                    line, rest = bytes(rest), bytearray()
                yield _decode(line, path, number, max_line)
                number += 1
            rest += tail
            if len(rest) > max_line:
                raise _too_long(path, number, max_line)
        if rest:
            yield _decode(bytes(rest), path, number, max_line)
    finally:
        opened = handle.leave()
        if opened is not None:
            # A thread closes it, whether or not we are here to see it: a second cancellation must not stop that.
            await asyncio.shield(loop.run_in_executor(threads, opened.close))


class _Handle:
    """A file that is opened and read on threads, and that may be left while it is opened: a disk may hang."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._left = False
        self._lock = threading.Lock()

    def open(self) -> None:
        """Open the file, and close it at once if nobody wants it any more."""
        file = open(self._path, "rb", buffering=BLOCK)  # noqa: SIM115, PTH123
        with self._lock:
            if not self._left:
                self._file = file
                return
        file.close()

    def read(self) -> bytes:
        """Return the next bytes."""
        assert self._file is not None
        return self._file.read(BLOCK)

    def leave(self) -> BinaryIO | None:
        """Return the file for the caller to close; None if it is not open, now or later."""
        with self._lock:
            self._left = True
            return self._file


def _decode(line: bytes, path: str, number: int, max_line: int) -> str:
    if len(line) > max_line:
        raise _too_long(path, number, max_line)
    try:
        return line.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        where = f"byte 0x{line[error.start]:02x} at offset {error.start} of line {number}"
        raise Corrupt(f"{path} is not utf-8: {where} ({error.reason})") from error


def _too_long(path: str, number: int, max_line: int) -> Corrupt:
    return Corrupt(f"{path}: line {number} is longer than {max_line} bytes; is it a text file? (max_line=...)")
