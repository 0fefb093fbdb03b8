"""A decoder turns the bytes of a file into samples. It opens nothing.

The methods that a decoder has say what it can do:

* `Decoder.decode`: the bytes of a whole file are one sample (`text`, `json`, `npz`).
* `Decoder.probe`: the first bytes tell which array follows. Files are then read straight into a batch (`npy`,
  `raw`).
* `Decoder.layout`: one file tells where the arrays are in all files like it. Files are then read straight into a
  batch, too (`npz`).
* `StreamDecoder.samples`: a file holds many samples, one after the other (`lines`), for `flat_map`.
* `RangeDecoder.samples`: the same, if the file must be read in parts that lie anywhere in it (`parquet`).
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, fields
from math import prod
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np

from asyncfeed.reading.compression import BY_MAGIC, Compressed, Magic, as_compression
from asyncfeed.reading.file import GIVEN, Bytes, File

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from asyncfeed.reading.ranges import ByteRanges
    from asyncfeed.reading.stream import ByteStream

T_co = TypeVar("T_co", covariant=True)
Data = bytes | bytearray | memoryview | Bytes
"""The contents of a file, as arguments of a decoder."""


class Header(NamedTuple):
    """The array that follows the first bytes of a file, as these bytes describe it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran_order: bool
    offset: int
    """Start of the array, in bytes from the start of the file."""
    nbytes: int
    """Size of the array in bytes."""


class Row(NamedTuple):
    """The array that every file becomes, if the options of a decoder tell it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Size of the array in bytes."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Layout:
    """The positions of the arrays in one file, and in all files that are laid out like it.

    Another file of the same size has arrays of the same shapes and dtypes at the same positions if two things
    hold: all its bytes outside of the arrays and of `loose` are the same, and its checksums are right.
    """

    headers: dict[str, Header]
    """The arrays by name, in the order of the sample."""
    loose: tuple[tuple[int, int], ...]
    """Ranges of bytes in which other files may differ: unused bytes, and the checksums."""
    sums: tuple[tuple[int, int], ...]
    """For each array the position of its CRC-32, and the CRC-32 of the bytes before the array that it includes.
    Empty if the format has no checksums."""


@dataclass(frozen=True)
class Decoder(Generic[T_co]):
    """Turns the bytes of a file into a sample.

    Subclasses are frozen dataclasses that can be pickled. Decoders with equal fields are equal.

    `decode` runs on many threads at once and keeps nothing between calls. It owns the buffer that it is given, so
    an array may be a view of the buffer. For any bytes it allocates no more memory than they justify, and runs no
    code found in them. If the bytes are not what the format asks for, it raises `Corrupt` and names the file.

    Three kinds of decoder have their samples made straight in their place in a batch, so that no sample exists on
    its own. One kind can tell from the first bytes which array follows: it overrides `probe`. Another can tell
    from one whole file where the arrays are in files like it: it overrides `layout`. The third makes arrays of one
    shape of all files: it overrides `row` and `decode_into`.
    """

    name: ClassVar[str]
    probes: ClassVar[bool] = False
    """Whether the decoder has `probe`."""
    lays_out: ClassVar[bool] = False
    """Whether the decoder has `layout`."""
    tuning: ClassVar[tuple[str, ...]] = ()
    """The fields that do not decide the samples, such as limits. A saved state fits whatever they are."""
    packs: ClassVar[bool] = False
    """Whether a sample may be far larger than its file. Then the decoder has `unpacked`."""

    def probe(self, head: Bytes, file: File) -> Header:
        """Return a description of the array that follows the first bytes of a file.

        Args:
            head: The first bytes: as many as a header may take, or fewer.
            file: The file, for errors.
        """
        raise NotImplementedError

    def layout(self, buffer: Bytes, file: File) -> Layout | None:
        """Return the layout of a file; None if its arrays cannot be read without decoding.

        Args:
            buffer: The whole contents of the file.
            file: The file, for errors.

        Raises:
            Corrupt: As for `decode`.
        """
        raise NotImplementedError

    @property
    def row(self) -> Row | None:
        """Shape and dtype of every sample. None if the files decide them, and if there is no `decode_into`."""
        return None

    def decode_into(self, buffer: Bytes, file: File, row: NDArray[Any]) -> None:
        """Write the sample in `buffer`, the whole contents of `file`, into its row of a batch.

        If it raises, the row may hold anything.

        Args:
            buffer: The whole contents of the file.
            file: The file, for errors.
            row: A contiguous array as `self.row` says, not filled.

        Raises:
            Corrupt: As for `decode`.
        """
        raise NotImplementedError

    def unpacked(self, opened: BinaryIO, file: File) -> int:
        """Return the size in bytes of the sample in a file, without unpacking it. This blocks.

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
        r"""Return the sample in the contents of a file that you have read yourself.

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
class ManyDecoder(Generic[T_co]):
    """Turns the bytes of a file into many samples. Only a few of them are in memory at a time.

    Use it as `files(...).flat_map(decoder)`. Subclasses are frozen dataclasses that can be pickled. Decoders with
    equal fields are equal.

    Called with a file or with bytes, a decoder returns an async generator of the samples. The file is closed after
    the last sample, and when the generator is closed or cancelled.
    """

    name: ClassVar[str]
    tuning: ClassVar[tuple[str, ...]] = ()
    """As of a `Decoder`."""

    async def __call__(self, source: File | str | os.PathLike[str] | Data, /) -> AsyncGenerator[T_co]:
        """Yield the samples in a file, or in the contents of a file that you have read yourself."""
        async with aclosing(self.in_groups(source)) as groups:
            async for group in groups:
                for sample in group:
                    yield sample

    def in_groups(self, source: File | str | os.PathLike[str] | Data, /) -> AsyncGenerator[list[T_co]]:
        """Yield lists of the samples in a file, or in the contents of a file."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return _show(self, self.name)


@dataclass(frozen=True, repr=False)
class StreamDecoder(ManyDecoder[T_co]):
    """Turns the bytes of a file into many samples, read from the start of the file to its end.

    Use it as `files(...).flat_map(decoder)`. Subclasses are frozen dataclasses that can be pickled. Decoders with
    equal fields are equal. Subclasses define `samples`, or `groups` if samples are small. If the bytes are not
    what the format asks for, these raise `Corrupt` and name the file.

    With `compression="auto"`, or the name of a format, the stream has the decompressed bytes.

    Called with a file or with bytes, a decoder returns an async generator of the samples. The file is closed after
    the last sample, and when the generator is closed or cancelled.
    """

    magic: ClassVar[Magic] = BY_MAGIC
    """What tells the format of a compressed file from its first bytes."""
    compression: Compressed = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        as_compression(self.compression)

    def samples(self, stream: ByteStream) -> AsyncGenerator[T_co]:
        """Yield the samples of a file. This is an async generator. It may be closed before its end."""
        raise NotImplementedError

    async def groups(self, stream: ByteStream) -> AsyncGenerator[list[T_co]]:
        """Yield lists of samples, for example those of one block. By default each list has one sample.

        A pipeline waits once for each list. So lists are faster if decoding a sample takes microseconds. The
        samples before an error must be yielded before it is raised.
        """
        async with aclosing(self.samples(stream)) as samples:
            async for sample in samples:
                yield [sample]

    async def in_groups(self, source: File | str | os.PathLike[str] | Data, /) -> AsyncGenerator[list[T_co]]:
        """Yield lists of the samples in a file, or in the contents of a file."""
        from asyncfeed.reading.stream import opened  # noqa: PLC0415 - descriptions must not import asyncio

        compression = as_compression(self.compression)
        async with opened(source, compression, self.magic) as stream, aclosing(self.groups(stream)) as groups:
            async for group in groups:
                yield group


@dataclass(frozen=True, repr=False)
class RangeDecoder(ManyDecoder[T_co]):
    """Turns the bytes of a file into many samples, read in parts that lie anywhere in the file.

    It is for formats with an index at the end, and for those of which only a part is wanted. Subclasses define
    `samples`, or `groups` if samples are small. Everything else is as for a `StreamDecoder`.
    """

    def samples(self, ranges: ByteRanges) -> AsyncGenerator[T_co]:
        """Yield the samples of a file. This is an async generator. It may be closed before its end."""
        raise NotImplementedError

    async def groups(self, ranges: ByteRanges) -> AsyncGenerator[list[T_co]]:
        """Yield lists of samples. By default each list has one sample."""
        async with aclosing(self.samples(ranges)) as samples:
            async for sample in samples:
                yield [sample]

    async def in_groups(self, source: File | str | os.PathLike[str] | Data, /) -> AsyncGenerator[list[T_co]]:
        """Yield lists of the samples in a file, or in the contents of a file."""
        from asyncfeed.reading.ranges import opened_ranges  # noqa: PLC0415 - descriptions must not import asyncio

        async with opened_ranges(source) as ranges, aclosing(self.groups(ranges)) as groups:
            async for group in groups:
                yield group


def in_groups(fn: object) -> Callable[..., AsyncGenerator[list[Any]]] | None:
    """Return the function of a decoder that yields lists of samples. None if `fn` is something else."""
    return fn.in_groups if isinstance(fn, ManyDecoder) else None


def _show(decoder: Any, name: str) -> str:
    words = [
        f"{each.name}={getattr(decoder, each.name)!r}"
        for each in fields(decoder)
        if getattr(decoder, each.name) != each.default
    ]
    return f"{name}({', '.join(words)})" if words else name


def own_copy(data: Data, decoder: Decoder[Any]) -> Bytes:
    """Return a copy of the data. The sample may be a view of it.

    Raises TypeError, with the line to write, if the data cannot be the contents of a file.
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
