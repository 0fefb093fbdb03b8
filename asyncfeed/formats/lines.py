"""Text files line by line, for `flat_map`."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, NamedTuple, Self, TypeVar, overload

from asyncfeed.errors import Corrupt, PipelineError
from asyncfeed.formats.base import Data, StreamDecoder
from asyncfeed.reading.compression import Compressed
from asyncfeed.reading.copies import on_thread
from asyncfeed.reading.file import File
from asyncfeed.reading.stream import ByteStream

T_co = TypeVar("T_co", covariant=True)
MAX_LINE: Final = 1 << 24
Source = File | str | os.PathLike[str] | Data
"""What a stream decoder may be called with."""


class Found(NamedTuple):
    """What was found in a part of a file."""

    samples: list[Any]
    lines: int
    """Number of lines in this part."""
    error: Corrupt | None = None
    """What is wrong after these samples."""


@dataclass(frozen=True, repr=False)
class LineDecoder(StreamDecoder[T_co]):
    """Cuts a file into parts that end with a line, and turns each part into samples.

    Subclasses define `decode`. It runs on a thread if a part has more than `inline` bytes.
    """

    inline: ClassVar[int] = 1 << 12
    """Bytes that are decoded on the loop, in at most about 0.1 ms. A call on a thread takes about 0.05 ms."""
    together: ClassVar[int] = 1 << 18
    """Bytes that are decoded with one call. So the samples are in the cache of the core when they are sent on."""
    tuning = ("max_line",)
    max_line: int = MAX_LINE
    compression: Compressed = field(default="auto", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.max_line) is not int or self.max_line < 1:
            raise PipelineError(
                f"{self.name}: max_line must be a whole number of at least 1, not {self.max_line!r}"
            )

    def with_options(self, max_line: int | None, compression: Compressed) -> Self:
        """Return this decoder with the options that were given: all but the defaults None and "auto"."""
        decoder = self
        if max_line is not None:
            decoder = replace(decoder, max_line=max_line)
        if compression != "auto":
            decoder = replace(decoder, compression=compression)
        return decoder

    def decode(self, part: bytes, path: str, number: int) -> Found:
        """Return the samples of whole lines. `number` is the number of the first line."""
        raise NotImplementedError

    async def groups(self, stream: ByteStream) -> AsyncGenerator[list[T_co]]:
        """Yield the samples of one part after the other."""
        path, number, rest = stream.file.path, 1, bytearray()
        ended = False
        while not ended:
            block = await stream.block()
            ended = not block
            stop = block.rfind(b"\n") + 1
            if stop or (ended and rest):
                part = bytes(rest) + block[:stop] if rest else block[:stop]
                rest = bytearray(block[stop:])
                for piece in _pieces(part, self.together):
                    threaded = len(piece) > self.inline
                    found = (
                        await on_thread(self.decode, piece, path, number)
                        if threaded
                        else self.decode(piece, path, number)
                    )
                    number += found.lines
                    if found.samples:
                        yield found.samples
                    if found.error is not None:
                        raise found.error
            else:
                rest += block
            if len(rest) > self.max_line:
                raise too_long(path, number, self.max_line)


@dataclass(frozen=True, repr=False)
class Lines(LineDecoder[str]):
    r"""The lines of a UTF-8 text file, without their ends (`\n` or `\r\n`).

    Use it as `files("*.txt").flat_map(lines)`. The file may be compressed.

    Raises:
        Corrupt: A line has more than `max_line` bytes or is not UTF-8, or the compressed data is damaged.

    Memory:
        A file is read in blocks (up to 1 MB of a local one), and decompressed in pieces of 256 KB. So memory is
        bounded by these and by the longest line.

    Example:
        >>> lines("notes.txt")  # doctest: +ELLIPSIS
        <async_generator object ...>
        >>> lines(compression="gzip")
        lines(compression='gzip')
    """

    name = "lines"
    inline = 1 << 16

    @overload
    def __call__(
        self, file: Source, /, *, max_line: int | None = ..., compression: Compressed = ...
    ) -> AsyncGenerator[str]: ...
    @overload
    def __call__(self, *, max_line: int | None = ..., compression: Compressed = ...) -> Lines: ...
    def __call__(
        self, *file: Source, max_line: int | None = None, compression: Compressed = "auto"
    ) -> AsyncGenerator[str] | Lines:
        """Return a decoder with these options; with a file, an async generator of its lines.

        Args:
            *file: A file, its path, or its bytes, instead of options alone.
            max_line: Number of bytes that a line may have. A longer one is `Corrupt`.
            compression: "auto" tells gzip, zstd, lz4, xz and bz2 from the first bytes. None is a file that is not
                compressed. The name of a format expects it. A `Compression` also limits what may come out.
        """
        decoder = self.with_options(max_line, compression)
        return super(Lines, decoder).__call__(*file) if file else decoder

    def decode(self, part: bytes, path: str, number: int) -> Found:
        """Return lines without their ends."""
        texts, error = split(part, path, number, self.max_line)
        return Found(texts, len(texts), error)


lines = Lines()


def _pieces(part: bytes, nbytes: int) -> Iterator[bytes]:
    """Cut whole lines into pieces of whole lines, of at most so many bytes unless a line is longer."""
    start = 0
    while start < len(part):
        stop = len(part)
        if stop - start > nbytes:
            stop = part.rfind(b"\n", start, start + nbytes) + 1 or part.find(b"\n", start) + 1 or stop
        yield part[start:stop]
        start = stop


def split(part: bytes, path: str, number: int, max_line: int) -> tuple[list[str], Corrupt | None]:
    """Return the lines in whole lines of UTF-8, and the error that follows them."""
    if len(part) <= max_line:  # so that no line is longer
        try:
            text = part.decode("utf-8")
        except UnicodeDecodeError:
            pass  # found below
        else:
            found = text.split("\n")
            if not found[-1]:
                found.pop()
            return ([line.removesuffix("\r") for line in found] if "\r" in text else found), None
    found = []
    try:
        for line in part.removesuffix(b"\n").split(b"\n"):
            found.append(_decode(line, path, number + len(found), max_line))
    except Corrupt as error:
        return found, error
    return found, None


def _decode(line: bytes, path: str, number: int, max_line: int) -> str:
    if len(line) > max_line:
        raise too_long(path, number, max_line)
    try:
        return line.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        raise not_utf8(error, path, number) from error


def not_utf8(error: UnicodeDecodeError, path: str, number: int) -> Corrupt:
    """Return the error of a line that is not UTF-8."""
    where = f"byte 0x{error.object[error.start]:02x} at offset {error.start} of line {number}"
    return Corrupt(f"{path} is not utf-8: {where} ({error.reason})")


def too_long(path: str, number: int, max_line: int) -> Corrupt:
    """Return the error of a line that has too many bytes."""
    return Corrupt(f"{path}: line {number} is longer than {max_line} bytes; is it a text file? (max_line=...)")
