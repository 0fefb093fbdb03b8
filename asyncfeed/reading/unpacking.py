"""The bytes of a compressed file as they come out: a piece at a time, within limits.

No code here waits or reads. `decompressed.py` feeds it from a stream.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, Protocol

from asyncfeed.errors import Corrupt
from asyncfeed.extras import installed
from asyncfeed.reading.compression import Compression, Format

PIECE: Final = 1 << 18
"""Bytes that come out at a time. More bytes take more memory for each open file, fewer bytes more calls."""
SLICE: Final = 1 << 14
"""Bytes that go in at a time. What follows the end of a member is copied, so a slice bounds that copy."""
FREE_BYTES: Final = 64 << 20
"""Bytes that may come out before the ratio counts. So much does no harm, and a small file may be all zeros."""
XZ_MEMORY: Final = 1 << 27
"""Bytes that the dictionary of an xz file may take. `xz -9` needs half of it."""
PADDED: Final = ("gzip", "xz")
"""Formats whose members may be followed by zeros."""


class Member(Protocol):
    """Decompresses one member of a file, as the decompressors of `bz2` and `lzma` do."""

    @property
    def eof(self) -> bool:
        """Whether the end of the member was reached."""
        ...

    @property
    def needs_input(self) -> bool:
        """Whether nothing more comes out without further input."""
        ...

    @property
    def unused_data(self) -> bytes:
        """The input after the end of the member."""
        ...

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Return at most `max_length` bytes of what comes out."""
        ...


class _Deflate:
    """Decompresses a member with zlib, or with the same functions of isal."""

    needs_input = True
    _fed = b""

    def __init__(self, library: Any, bits: int) -> None:
        self._inner = library.decompressobj(bits)

    @property
    def eof(self) -> bool:
        return bool(self._inner.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._inner.unused_data)

    def decompress(self, data: bytes, max_length: int) -> bytes:
        inner = self._inner
        out: bytes = inner.decompress(inner.unconsumed_tail + data if inner.unconsumed_tail else data, max_length)
        # If the room was used up, more may come out of what was taken in already.
        self.needs_input = not inner.unconsumed_tail and len(out) < max_length
        return out


Opened = tuple[Callable[[], Member], tuple[type[Exception], ...]]
"""A function that makes a `Member`, and the exceptions that it raises for damaged data."""


def _deflate(bits: int) -> Opened:
    try:
        library = import_module("isal.isal_zlib")
    except ImportError:
        return lambda: _Deflate(zlib, bits), (zlib.error,)
    return lambda: _Deflate(library, bits), (library.error, zlib.error)


def _zstd() -> Opened:
    try:
        library: Any = import_module("compression.zstd")
    except ImportError:
        library = installed("backports.zstd", "compression")
    return library.ZstdDecompressor, (library.ZstdError,)


def _lz4() -> Opened:
    library = installed("lz4.frame", "compression")
    return library.LZ4FrameDecompressor, (RuntimeError, ValueError)


FORMATS: Final[dict[Format, Callable[[], Opened]]] = {
    "gzip": lambda: _deflate(31),
    "zlib": lambda: _deflate(15),
    "zstd": _zstd,
    "lz4": _lz4,
    "xz": lambda: (lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, XZ_MEMORY), (lzma.LZMAError,)),
    "bz2": lambda: (bz2.BZ2Decompressor, (OSError, ValueError)),
}


class Unpacker:
    """Decompresses one file: blocks go in, pieces come out. It is used by one thread at a time.

    A file may have several members, one after the other. If the data is damaged, all bytes before the damage come
    out first, and the error is raised after them.
    """

    def __init__(self, name: Format, limits: Compression, path: str) -> None:
        self._name = name
        self._limits = limits
        self._path = path
        self._make, self._errors = FORMATS[name]()
        self._member: Member | None = self._make()
        self._fresh = True
        """Whether the member has got no bytes."""
        self._block = memoryview(b"")
        self._at = 0
        """How much of the block went in."""
        self._before = 0
        """Bytes of the blocks before this one."""
        self._out = 0
        self.error: Corrupt | None = None

    def give(self, block: bytes) -> None:
        """Add the next bytes of the file. Those before were used up: `hungry` is true."""
        self._before += len(self._block)
        self._block, self._at = memoryview(block), 0

    @property
    def hungry(self) -> bool:
        """Whether nothing comes out before more bytes go in."""
        if self.error is not None:
            return False
        return self._at >= len(self._block) and (self._member is None or self._member.needs_input)

    def piece(self) -> bytes:
        """Return the next bytes: `PIECE` of them, or fewer if more input is needed. Raise `Corrupt`."""
        if self.error is not None:
            raise self.error
        parts: list[bytes] = []
        room = PIECE
        try:
            while room > 0 and not self.hungry:
                if self._member is None and not self._next_member():
                    break
                part = self._step(room)
                room -= len(part)
                parts.append(part)
        except self._errors as error:
            self.error = Corrupt(f"{self._path} {self._says(error)}")
            self.error.__cause__ = error
        except Corrupt as error:
            self.error = error
        found = parts[0] if len(parts) == 1 else b"".join(parts)
        if self.error is not None and not found:
            raise self.error
        return found

    def end(self) -> None:
        """Raise `Corrupt` if the file ends inside of a member."""
        if self._member is not None:
            raise Corrupt(
                f"{self._path} is cut short: its {self._name} data goes on after its last byte, "
                f"{self._before + len(self._block)}"
            )

    def _next_member(self) -> bool:
        """Begin the next member. Return whether there is one."""
        if self._name in PADDED:
            while self._at < len(self._block) and self._block[self._at] == 0:
                self._at += 1
        if self._at >= len(self._block):
            return False
        self._member, self._fresh = self._make(), True
        return True

    def _step(self, room: int) -> bytes:
        member = self._member
        assert member is not None
        data = b""
        if member.needs_input:
            data = bytes(self._block[self._at : self._at + SLICE])
            self._at += len(data)
        out = member.decompress(data, room)
        self._fresh = False
        if member.eof:
            self._at -= len(member.unused_data or b"")
            self._member = None
        elif not (out or data or member.needs_input):
            raise Corrupt(f"{self._path}: nothing comes out of its {self._name} data")
        self._out += len(out)
        self._check_limits()
        return out

    def _check_limits(self) -> None:
        limits, taken = self._limits, self._before + self._at
        if limits.max_bytes is not None and self._out > limits.max_bytes:
            raise Corrupt(
                f"{self._path}: more than {limits.max_bytes} bytes come out of its {self._name} data; "
                "a larger limit is compression=Compression(max_bytes=...)"
            )
        if self._out > FREE_BYTES and self._out > limits.max_ratio * taken:
            raise Corrupt(
                f"{self._path}: {self._out} bytes came out of {taken} bytes of {self._name} data, more than "
                f"{limits.max_ratio} times as many; a larger limit is compression=Compression(max_ratio=...)"
            )

    def _says(self, error: Exception) -> str:
        where = f"before byte {self._before + self._at}"
        if self._fresh and not self._out:
            return f"is not {self._name}: {error}"
        if self._fresh:
            return f"has other bytes after its {self._name} data, {where}: {error}"
        return f"has damaged {self._name} data {where}: {error}"
