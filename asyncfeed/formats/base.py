"""What a decoder is: bytes in, samples out. It opens nothing.

A decoder says what it is:

* `Decoder.decode`: the bytes of a whole file are one sample (`text`, `json`, `npz`).
* `Decoder.probe`: the first bytes say what array follows: files are read straight into a batch (`npy`, `raw`).
* `Decoder.layout`: one file says where in all files like it the arrays are, for the same (`npz`).
* `StreamDecoder.samples`: a file holds many samples, one after the other (`lines`), for `flat_map`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np

from asyncfeed.reading.file import GIVEN, Bytes, File

if TYPE_CHECKING:
    from asyncfeed.reading.stream import ByteStream

T_co = TypeVar("T_co", covariant=True)
Data = bytes | bytearray | memoryview | Bytes
"""The contents of a file, as a decoder is called with them."""


class Header(NamedTuple):
    """What the first bytes of a file say about the array that follows."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran_order: bool
    offset: int
    """Where the array starts, in bytes from the start of the file."""
    nbytes: int
    """How many bytes the array takes."""


@dataclass(frozen=True)
class Layout:
    """Where the arrays are in one file, and in all that are laid out like it.

    Another file of the same size decodes to arrays of the same shapes and dtypes, at the same places, if all
    its bytes are the same but for those of the arrays and of `loose`, and the checksums are right.
    """

    headers: dict[str, Header]
    """The arrays by name, in the order of the sample."""
    loose: tuple[tuple[int, int], ...]
    """From where to where other files may differ: what nobody reads, and the checksums."""
    sums: tuple[tuple[int, int], ...]
    """For each array where its CRC-32 stands in the file, and that of the bytes before it that it counts in."""


@dataclass(frozen=True)
class Decoder(Generic[T_co]):
    """Turns the bytes of a file into a sample.

    Subclasses are frozen dataclasses, equal when they are configured equally, and can be pickled. `decode`
    runs on many threads at once and keeps nothing between calls. It owns the buffer it is given, so an array
    may be a view of it. Whatever the bytes are, it allocates no more than they justify, runs no code found
    in them, and raises `Corrupt` naming the file where they are not what the format asks for.

    Two kinds of decoder have their files read straight into their place in a batch, so that the sample never
    exists on its own: one that can say from the first bytes what array follows overrides `probe`, and one that
    can say from a whole file where in others like it the arrays are overrides `layout`.
    """

    name: ClassVar[str]
    probes: ClassVar[bool] = False
    """Whether `probe` is there."""
    lays_out: ClassVar[bool] = False
    """Whether `layout` is there."""
    packs: ClassVar[bool] = False
    """Whether a file may hold far more than its size says; then `unpacked` is there."""

    def probe(self, head: Bytes, file: File) -> Header:
        """Return what follows the first bytes of a file.

        Args:
            head: As many bytes as a header may take, or fewer.
            file: The file they are of, for errors.
        """
        raise NotImplementedError

    def layout(self, buffer: Bytes, file: File) -> Layout | None:
        """Return how a file is laid out; None if its arrays cannot be read without decoding.

        Args:
            buffer: The whole contents of the file.
            file: The file, for errors.

        Raises:
            Corrupt: As for `decode`.
        """
        raise NotImplementedError

    def unpacked(self, opened: BinaryIO, file: File) -> int:
        """Return how many bytes the sample in a file will take, without unpacking it. Blocks.

        Args:
            opened: The opened file.
            file: The file, for errors.

        Raises:
            OSError: The file cannot be read; ValueError for the same reason.
        """
        raise NotImplementedError

    def decode(self, buffer: Bytes, file: File) -> T_co:
        """Return the sample in `buffer`, the whole contents of `file`."""
        raise NotImplementedError

    def __call__(self, data: Data, /) -> T_co:
        r"""Return the sample in these bytes of a file that was read elsewhere.

        Args:
            data: The contents of a file.

        Memory:
            The bytes are copied once.

        Example:
            >>> import asyncfeed as af
            >>> af.json(b'{"a": 1}'), af.raw("<i2")(b"\1\0\2\0").tolist()
            ({'a': 1}, [1, 2])
        """
        return self.decode(own_copy(data, self), File(GIVEN))

    def __repr__(self) -> str:
        return _show(self, self.name)


@dataclass(frozen=True)
class StreamDecoder(Generic[T_co]):
    """Turns the bytes of a file into many samples, of which only a few are in memory at a time.

    Use it as `files(...).flat_map(decoder)`. Subclasses are frozen dataclasses, equal when they are configured
    equally, and can be pickled. They write `samples`, which raises `Corrupt` naming the file if the bytes are not
    what the format asks for.

    Called with a file or with bytes, it returns an async generator of the samples. The file is closed when the
    last sample was taken, and when the generator is closed or cancelled.
    """

    name: ClassVar[str]

    def samples(self, stream: ByteStream) -> AsyncGenerator[T_co]:
        """Yield the samples of a file. It is an async generator, and may be left before its end."""
        raise NotImplementedError

    async def __call__(self, source: File | str | os.PathLike[str] | Data, /) -> AsyncGenerator[T_co]:
        """Yield the samples in a file, or in the contents of one that was read elsewhere."""
        from asyncfeed.reading.stream import opened  # noqa: PLC0415 - it knows asyncio, and descriptions do not

        async with opened(source) as stream, aclosing(self.samples(stream)) as samples:
            async for sample in samples:
                yield sample

    def __repr__(self) -> str:
        return _show(self, self.name)


def _show(decoder: Any, name: str) -> str:
    words = [
        f"{each.name}={getattr(decoder, each.name)!r}"
        for each in fields(decoder)
        if getattr(decoder, each.name) != each.default
    ]
    return f"{name}({', '.join(words)})" if words else name


def own_copy(data: Data, decoder: Decoder[Any]) -> Bytes:
    """Return a copy of the data, which the sample may be a view of.

    Raises TypeError, with the line to write, for what is no contents of a file.
    """
    if isinstance(data, File):
        raise TypeError(f"{decoder!r} takes the bytes of a file, not a File: write files(...).load({decoder!r})")
    if isinstance(data, (bytes, bytearray, memoryview, np.ndarray)):
        plain = data if isinstance(data, (bytes, bytearray)) else data.tobytes()  # also if it has gaps
        return np.frombuffer(plain, np.uint8).copy()
    raise TypeError(
        f"{decoder!r} takes the bytes of a file (bytes, bytearray or memoryview), not {type(data).__name__}; "
        f"to read files write files(...).load({decoder!r})"
    )
