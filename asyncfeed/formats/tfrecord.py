"""TFRecord files: records as bytes, each between checksums, for `flat_map`."""

from __future__ import annotations

import os
from array import array
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from struct import Struct
from typing import Any, Final, overload

import numpy as np

from asyncfeed.errors import Corrupt, PipelineError
from asyncfeed.extras import installed
from asyncfeed.formats.example import Example, Features, example
from asyncfeed.formats.lines import Source
from asyncfeed.formats.records import Found, RecordDecoder, Scan
from asyncfeed.reading.compression import HEAD, Compressed, Format, Magic
from asyncfeed.reading.copies import on_thread
from asyncfeed.reading.stream import ByteStream

INLINE: Final = 1 << 18
"""Bytes of records that are cut apart on the loop, in about 0.1 ms."""
_LENGTH: Final = Struct("<QI")
_SUM: Final = Struct("<I")
_FIRST: Final = _LENGTH.size
"""Bytes before a record: its length, and the checksum of the length."""
_AROUND: Final = _FIRST + _SUM.size
"""Bytes around a record."""


def _table() -> tuple[int, ...]:
    table = []
    for each in range(256):
        for _ in range(8):
            each = each >> 1 ^ (0x82F63B78 if each & 1 else 0)
        table.append(each)
    return tuple(table)


_TABLE: Final = _table()


def mask(checksum: int) -> int:
    """Return a CRC-32C as a TFRecord file has it."""
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


@lru_cache(4096)
def length_sum(length: int) -> int:
    """Return the checksum of a length, without a library: eight bytes take 0.6 us, and lengths often repeat."""
    checksum = 0xFFFFFFFF
    for byte in length.to_bytes(8, "little"):
        checksum = checksum >> 8 ^ _TABLE[(checksum ^ byte) & 0xFF]
    return mask(checksum ^ 0xFFFFFFFF)


def framed(record: bytes, checksum: Callable[[bytes], int]) -> bytes:
    """Return a record as it is in a file. `checksum` returns the CRC-32C of bytes."""
    length = len(record)
    return _LENGTH.pack(length, length_sum(length)) + record + _SUM.pack(mask(checksum(record)))


class _Magic(Magic):
    """Tells compressed files from records by the checksum of the first length. So it can tell zlib data, too."""

    def undecided(self, head: bytes) -> bool:
        return len(head) < max(_FIRST, HEAD)

    def format(self, head: bytes, path: str) -> Format | None:
        if len(head) >= _FIRST:
            length, found = _LENGTH.unpack_from(head)
            if found == length_sum(length):
                return None
        told = super().format(head, path)
        if told is None and len(head) > 2 and head[0] == 0x78 and not int.from_bytes(head[:2], "big") % 31:
            return "zlib"
        return told


@dataclass(frozen=True, repr=False)
class TFRecord(RecordDecoder[Any]):
    r"""The records of a TFRecord file: as bytes, or what is in them.

    Use it as `files("*.tfrecord").flat_map(tfrecord)`. With `features`, each record is a `tf.train.Example`, and a
    sample is a dict of its features. TensorFlow is not needed. The file may be compressed, by gzip and zlib as
    TensorFlow does, or in another format.

    Raises:
        Corrupt: A checksum is wrong, a record has more than `max_bytes`, the file is cut short, or a record does
            not have what the features say. The message names the file, and the offset or the record.

    Memory:
        A file is read in blocks (up to 1 MB of a local one), so memory is bounded by these and by the
        longest record.

    Example:
        >>> import asyncfeed as af
        >>> record = b"\3" + bytes(7) + b"\xb0\x99I\x0e" + b"one" + b"\x01@U\x08"
        >>> list(af.items([record, record]).flat_map(af.tfrecord))
        [b'one', b'one']
        >>> af.tfrecord(features={"image": af.feature("float32", (28, 28)), "label": "int64"})
        tfrecord(features=example(['image', 'label']))
    """

    name = "tfrecord"
    tuning = ("verify", "max_bytes")
    magic = _Magic()
    features: Example | None = None
    verify: bool = True
    max_bytes: int = 1 << 30
    compression: Compressed = field(default="auto", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.max_bytes) is not int or self.max_bytes < 1:
            raise PipelineError(
                f"tfrecord: max_bytes must be a whole number of at least 1, not {self.max_bytes!r}"
            )

    @overload
    def __call__(
        self, file: Source, /, *, features: Features | None = ..., verify: bool = ..., max_bytes: int = ...,
        compression: Compressed = ..., indexed: bool | str | os.PathLike[str] = ...,
    ) -> AsyncGenerator[Any]: ...  # fmt: skip
    @overload
    def __call__(
        self, *, features: Features | None = ..., verify: bool = ..., max_bytes: int = ...,
        compression: Compressed = ..., indexed: bool | str | os.PathLike[str] = ...,
    ) -> TFRecord: ...  # fmt: skip
    def __call__(
        self, *file: Source, features: Features | None = None, verify: bool = True, max_bytes: int = 1 << 30,
        compression: Compressed = "auto", indexed: bool | str | os.PathLike[str] = False,
    ) -> AsyncGenerator[Any] | TFRecord:  # fmt: skip
        """Return a decoder with these options; with a file, an async generator of its records.

        Args:
            *file: A file, its path, or its bytes.
            features: What to take from each record, by name: a dtype for one value, or `feature(dtype, shape)`.
            verify: Whether the checksum of each record is compared, which needs google-crc32c
                (`asyncfeed[tfrecord]`). The checksum of its length is always compared.
            max_bytes: Number of bytes that a record may have. A longer one is `Corrupt`.
            compression: As for `lines`. "auto" also tells zlib.
            indexed: True reaches the records by number, see `flat_map`. The index is kept beside the file, or in
                the folder that is given here.
        """
        if file and (features, verify, max_bytes, compression, indexed) == (None, True, 1 << 30, "auto", False):
            return super().__call__(*file)
        wanted = None if features is None else example(features)
        decoder = TFRecord(wanted, verify, max_bytes, compression=compression, indexed=indexed)
        return super(TFRecord, decoder).__call__(*file) if file else decoder

    async def groups(self, stream: ByteStream) -> AsyncGenerator[list[Any]]:
        """Yield the records of one block after the other."""
        framing = _Framing(stream.file.path, self._checksum(), self.max_bytes)
        parse, number = self.features, 0

        def decode() -> tuple[list[Any], Corrupt | None]:
            records, error = framing.cut()
            if parse is None:
                return records, error
            samples, wrong = parse.rows(records, stream.file.path, number)
            return samples, wrong or error

        inline = INLINE if parse is None else INLINE >> 6
        while block := await stream.block():
            if not framing.add(block):
                continue
            samples, error = await on_thread(decode) if framing.size > inline else decode()
            number += len(samples)
            if samples:
                yield samples
            if error is not None:
                raise error
        framing.end()

    def scan(self, path: str, size: int) -> Scan:
        """Find where the records are, by their lengths."""
        framing = _Framing(path, None, self.max_bytes)
        edges = array("Q", [0])
        at = 0
        while at < size:
            data = yield at, _FIRST
            start = at
            while size - at >= _FIRST and at - start + _FIRST <= len(data):
                length = framing.length(data, at - start, at)
                at += length + _AROUND
                if at > size:
                    raise framing.cut_short(size - (at - length - _AROUND), at - length - _AROUND)
                edges.append(at)
            if at == start:
                raise framing.cut_short(size - at, at)
        return np.array(edges, np.uint64)

    def record(self, data: memoryview, path: str, number: int, offset: int) -> Any:
        """Return the sample in the bytes of a record, its length and its checksums."""
        return self.records([Found(data, path, number, offset)])[0]

    def records(self, found: Sequence[Found]) -> list[Any]:
        """Return the samples in the bytes of several records."""
        checksum = self._checksum()
        records: list[bytes] = []
        for data, path, number, offset in found:
            length = len(data) - _AROUND
            if length < 0:
                raise _misplaced(path, number)
            found_length, found_sum = _LENGTH.unpack_from(data)
            if found_length != length or found_sum != length_sum(length) or length > self.max_bytes:
                _Framing(path, None, self.max_bytes).length(data, 0, offset)  # raises if the record is wrong
                raise _misplaced(path, number)
            record = bytes(data[_FIRST:-4])
            if checksum is not None and mask(checksum(record)) != _SUM.unpack_from(data, _FIRST + length)[0]:
                raise _Framing(path, None, self.max_bytes).wrong_sum(offset)
            records.append(record)
        if self.features is None:
            return records
        samples, error = self.features.rows(records, found[0].path, found[0].number)
        if error is not None:
            raise error
        return samples

    def _checksum(self) -> Callable[[bytes], int] | None:
        return checksum_library().value if self.verify else None


tfrecord = TFRecord()


@lru_cache(1)
def checksum_library() -> Any:
    """Return google_crc32c. Raise if it is not installed."""
    try:
        return installed("google_crc32c", "tfrecord")
    except PipelineError as error:
        raise PipelineError(f"{error}, or write tfrecord(verify=False)") from None


def _misplaced(path: str, number: int) -> Corrupt:
    return Corrupt(f"{path}: record {number} is not where its index says: remove the index")


class _Framing:
    """Cuts the blocks of a file into records."""

    def __init__(self, path: str, checksum: Callable[[bytes], int] | None, max_bytes: int) -> None:
        self._path = path
        self._checksum = checksum
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self.size = 0
        """Bytes that were not cut yet."""
        self._needed = _FIRST
        """Bytes without which there is no further record."""
        self.offset = 0
        """Position of the next record in the file."""

    def add(self, block: bytes) -> bool:
        """Add the next bytes. Return whether `cut` has something to do."""
        self._parts.append(block)
        self.size += len(block)
        return self.size >= self._needed

    def cut(self) -> tuple[list[bytes], Corrupt | None]:
        """Return the records that are whole, and the error that follows them."""
        *before, data = self._parts
        records: list[bytes] = []
        error = None
        at: int | None = 0
        try:
            if before:
                at = self._begun(b"".join(before), data, records)
            if at is not None:
                self._whole(data, at, records)
        except Corrupt as wrong:
            error = wrong
        return records, error

    def _begun(self, rest: bytes, data: bytes, records: list[bytes]) -> int | None:
        """Take the record that began before `data`. Return where it ends in `data`; None if it does not.

        Only the bytes of this record are joined.
        """
        head = rest + data[: max(0, _FIRST - len(rest))]
        needed = self.length(head, 0, self.offset) + _AROUND
        if self.size < needed:
            self._needed = needed
            return None
        stop = needed - len(rest)
        self._take(rest + data[:stop], 0, needed - 4, records, self.offset)
        self.offset += needed
        return stop

    def _whole(self, data: bytes, at: int, records: list[bytes]) -> None:
        """Take the records that are whole from `at` on, and keep the rest of the data."""
        size, first = len(data), self.offset - at
        self._needed = _FIRST
        while size - at >= _FIRST:
            stop = at + _FIRST + self.length(data, at, first + at)
            if stop + 4 > size:
                self._needed = stop + 4 - at
                break
            self._take(data, at, stop, records, first + at)
            at = stop + 4
        self._parts = [data[at:]] if at < size else []
        self.size = size - at
        self.offset = first + at

    def _take(self, data: bytes, at: int, stop: int, records: list[bytes], offset: int) -> None:
        """Take the record whose length is at `at`, and whose checksum is at `stop`."""
        record = data[at + _FIRST : stop]
        if self._checksum is not None and mask(self._checksum(record)) != _SUM.unpack_from(data, stop)[0]:
            raise self.wrong_sum(offset)
        records.append(record)

    def length(self, data: bytes | memoryview, at: int, offset: int) -> int:
        """Return the length of the record at a place of the data, which is at this offset of the file."""
        length: int
        length, found = _LENGTH.unpack_from(data, at)
        if found != length_sum(length):
            raise self._wrong(offset, "the checksum of the record's length is wrong")
        if length > self._max_bytes:
            raise self._wrong(offset, f"a record of {length} bytes is longer than max_bytes={self._max_bytes}")
        return length

    def end(self) -> None:
        """Raise `Corrupt` if the file ends inside of a record."""
        if self.size:
            raise self.cut_short(self.size, self.offset)

    def cut_short(self, size: int, offset: int) -> Corrupt:
        """Return the error of a file that has only so many bytes of the record at this offset."""
        return Corrupt(f"{self._path} is cut short: {size} bytes of a record are there at offset {offset}")

    def wrong_sum(self, offset: int) -> Corrupt:
        """Return the error of a record whose checksum is wrong."""
        return self._wrong(offset, "the checksum of the record is wrong")

    def _wrong(self, offset: int, what: str) -> Corrupt:
        return Corrupt(f"{self._path}: {what}, at offset {offset}; is it a TFRecord file?")
