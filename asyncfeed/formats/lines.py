"""Text files line by line, for `flat_map`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from concurrent.futures import Executor
from contextvars import ContextVar
from typing import Any

import aiofiles

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
    handle = await _open(path)
    try:
        number = 1
        rest = bytearray()
        while block := await handle.read(BLOCK):
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
        # A thread closes it, whether or not we are here to see it: a second cancellation must not stop that.
        await asyncio.shield(handle.close())


async def _open(path: str) -> Any:
    """Open a file, or, where that is cancelled meanwhile, close what the thread opens all the same."""
    opened: list[Any] = []
    abandoned = False

    async def opening() -> None:
        opened.append(await aiofiles.open(path, "rb", buffering=BLOCK, executor=executor.get()))
        if abandoned:
            await opened[0].close()

    try:
        await asyncio.shield(opening())
    except asyncio.CancelledError:
        abandoned = True  # and not waited for: the disk may hang
        if opened:
            await asyncio.shield(opened[0].close())
        raise
    return opened[0]


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
