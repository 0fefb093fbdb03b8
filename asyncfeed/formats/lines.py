"""Text files line by line, for `flat_map`."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace

from asyncfeed.errors import Corrupt
from asyncfeed.formats.base import Data, StreamDecoder
from asyncfeed.reading.file import File
from asyncfeed.reading.stream import ByteStream, opened


@dataclass(frozen=True, repr=False)
class Lines(StreamDecoder[str]):
    r"""The lines of a UTF-8 text file, without their ends (`\n` or `\r\n`).

    Use it as `files("*.txt").flat_map(lines)`. Called with a file, or with the bytes of one, `lines` returns an
    async generator.

    Raises:
        Corrupt: A line has more than `max_line` bytes, or is not UTF-8.

    Memory:
        A file is read in blocks (64 KB of a local one), so memory is bounded by the longest line.

    Example:
        >>> lines("notes.txt")  # doctest: +ELLIPSIS
        <async_generator object ...>
    """

    name = "lines"
    max_line: int = 1 << 24

    async def __call__(
        self, file: File | str | os.PathLike[str] | Data, *, max_line: int | None = None
    ) -> AsyncGenerator[str]:
        """Yield the lines of a file, or of the contents of a file that you have read yourself.

        Args:
            file: A file, its path, or its bytes.
            max_line: Number of bytes that a line may have. A longer one is `Corrupt`.
        """
        decoder = self if max_line is None else replace(self, max_line=max_line)
        async with opened(file) as stream, aclosing(decoder.samples(stream)) as found:
            async for line in found:
                yield line

    async def samples(self, stream: ByteStream) -> AsyncGenerator[str]:
        """Yield the lines of a file."""
        path, max_line = stream.file.path, self.max_line
        number = 1
        rest = bytearray()
        while block := await stream.block():
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


lines = Lines()


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
