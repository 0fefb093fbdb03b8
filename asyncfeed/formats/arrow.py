"""Arrow IPC files (Feather) and streams: batches of rows as arrays. pyarrow decodes them, and opens no file."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from asyncfeed.errors import Corrupt
from asyncfeed.formats.arrow_layout import (
    BATCH,
    CONTINUES,
    MAGIC,
    PREFIX,
    TRAILER,
    Message,
    parse_footer,
    parse_message,
    unpacked_bytes,
)
from asyncfeed.formats.base import RangeDecoder
from asyncfeed.formats.columns import (
    Columns,
    ToArrays,
    UnreadableColumn,
    as_columns,
    as_nulls,
    check_found,
    check_options,
    pyarrow,
    read_with_pyarrow,
)
from asyncfeed.formats.lines import Source
from asyncfeed.formats.parts import Part, in_parts
from asyncfeed.formats.sparse import SparseFile
from asyncfeed.reading.file import Bytes, File
from asyncfeed.reading.reader import Range

if TYPE_CHECKING:
    from asyncfeed.reading.ranges import ByteRanges

EDGE = 1 << 16
"""Bytes that are read at the end of a file, for its footer, and behind each message of a stream, for the header of
the next one. With fewer, more of these take a request of their own."""


@dataclass(frozen=True, repr=False)
class Arrow(RangeDecoder[Columns]):
    """The rows of an Arrow IPC file or stream, in batches: dicts of arrays.

    Use it as `files("*.arrow").flat_map(arrow(columns=["x", "label"]))`. Feather files of version 2 are Arrow IPC
    files. A batch is a record batch of the file, or a part of one with `rows`. `rebatch(n)` then makes batches of
    n rows. `unbatch()` makes single rows, which is slower. It needs `asyncfeed[parquet]`.

    Raises:
        Corrupt: The file is no Arrow file, is damaged, or lacks a column. Arrow has no checksums: damaged numbers
            are other numbers.
        ValueError: A column has missing values that `nulls` does not name, or its type makes no array, or a record
            batch has more than `max_bytes`.

    Memory:
        For each open file one or two record batches as they are in the file, with all their columns.

    Example:
        >>> arrow(rows=1024)
        arrow(rows=1024)
    """

    name = "arrow"
    tuning = ("max_bytes",)
    columns: tuple[str, ...] | None = None
    rows: int | None = None
    nulls: tuple[tuple[str, Any], ...] = ()
    max_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        check_options(self.name, self.columns, rows=self.rows, max_bytes=self.max_bytes)

    @overload
    def __call__(self, file: Source, /) -> AsyncGenerator[Columns]: ...
    @overload
    def __call__(
        self,
        *,
        columns: Iterable[str] | None = ...,
        rows: int | None = ...,
        nulls: Mapping[str, Any] | None = ...,
        max_bytes: int = ...,
    ) -> Arrow: ...
    def __call__(
        self,
        *file: Source,
        columns: Iterable[str] | None = None,
        rows: int | None = None,
        nulls: Mapping[str, Any] | None = None,
        max_bytes: int = 1 << 30,
    ) -> AsyncGenerator[Columns] | Arrow:
        """Return a decoder with these options; with a file, an async generator of its batches.

        Args:
            *file: A file, its path, or its bytes, instead of options.
            columns: The names of the columns to decode, in the order that the dicts have. None is all columns.
            rows: Most rows of a batch. None keeps the record batches of the file.
            nulls: What replaces missing values, by column, as for `parquet`.
            max_bytes: Number of bytes that one record batch may take, in the file and decompressed. A larger one
                is an error.
        """
        if file:
            return super().__call__(*file)
        return Arrow(as_columns(self.name, columns), rows, as_nulls(self.name, nulls), max_bytes)

    async def groups(self, ranges: ByteRanges) -> AsyncGenerator[list[Columns]]:
        """Yield lists of the batches of a file."""
        size, path = ranges.size, ranges.file.path
        reader: _Blocks | _Stream
        if size < TRAILER:
            raise Corrupt(f"{path} has {size} bytes: it is empty or cut short, or no Arrow file")
        end = max(0, size - EDGE)
        head, tail = await ranges.read((0, min(size, EDGE)), (end, size))
        start = head[:8].tobytes()
        if start.startswith(MAGIC):
            reader = _Blocks(self, ranges.file, size)
            await reader.open(ranges, tail, end)
        elif start.startswith(CONTINUES):
            reader = _Stream(self, ranges.file, size)
        else:
            old = "a Feather file of version 1: write it again with pyarrow.feather"
            raise Corrupt(f"{path} is {old if start.startswith(b'FEA1') else 'no Arrow file'}")
        async with aclosing(in_parts(ranges, reader)) as groups:
            async for group in groups:
                yield group


arrow = Arrow()


class _Batches:
    """The record batches of one file, one after the other, as the samples of a `PartReader`."""

    def __init__(self, decoder: Arrow, file: File, size: int) -> None:
        self._decoder = decoder
        self._file = file
        self._size = size
        self._sparse = SparseFile(file, size)
        self._opened: Any = None
        """pyarrow's reader."""
        self._to_arrays = ToArrays(file.path, dict(decoder.nulls))
        self._slices: Iterator[Any] = iter(())
        self._last: Any = None
        """The slice that follows."""

    def next_sample(self) -> tuple[Columns | None, bool]:
        """Return the next slice of a record batch, and whether it was the last one."""
        return read_with_pyarrow(self._file.path, self._next)  # type: ignore[no-any-return]

    def _next(self) -> tuple[Columns | None, bool]:
        if self._last is None:
            batch = self._read()
            if batch is None:
                return None, True
            batch.validate(full=True)  # else offsets that point outside would be followed
            self._slices = _slices(batch, self._decoder.rows)
            self._last = next(self._slices, None)
            if self._last is None:
                return None, True
        now, self._last = self._last, next(self._slices, None)
        found, names = self._to_arrays(now), self._decoder.columns
        return found if names is None else {name: found[name] for name in names}, self._last is None

    def _read(self) -> Any:
        """Return the record batch of this part; None if it has none."""
        raise NotImplementedError

    def check_size(self, size: int) -> None:
        """Raise if a record batch takes more bytes than are allowed."""
        most = self._decoder.max_bytes
        if size > most:
            raise UnreadableColumn(
                f"{self._file.path} has a record batch of {size} bytes, more than the {most} allowed: write the "
                f"file with smaller ones, or write arrow(max_bytes={size})"
            )

    def _open(self, module: Any, open_it: Any) -> Any:
        """Return pyarrow's reader, which decodes only the wanted columns."""
        opened = open_it(self._sparse)
        columns = self._decoder.columns
        if columns is None:
            return opened
        names = opened.schema.names
        check_found(self._file, columns, names, ())
        wanted = sorted({place for place, name in enumerate(names) if name in columns})
        self._sparse.seek(0)
        return open_it(self._sparse, options=module.IpcReadOptions(included_fields=wanted))


def _slices(batch: Any, rows: int | None) -> Iterator[Any]:
    count = batch.num_rows
    step = count if rows is None else rows
    return (batch.slice(start, step) for start in range(0, count, max(1, step)))


class _Blocks(_Batches):
    """A file with a footer, which says where the record batches are."""

    async def open(self, ranges: ByteRanges, tail: Bytes, start: int) -> None:
        """Read the footer, and the dictionaries."""
        path, size = self._file.path, self._size
        end = tail[-TRAILER:].tobytes()
        footer = size - TRAILER - int.from_bytes(end[:4], "little", signed=True)
        if end[4:] != MAGIC or not len(MAGIC) <= footer <= size - TRAILER:
            raise Corrupt(f"{path} is cut short: its last bytes are not those of an Arrow file")
        if footer < start:
            (tail,) = await ranges.read((footer, size))
            start = footer
        self._sparse.add(start, tail)
        blocks = parse_footer(tail[footer - start : -TRAILER].tobytes(), footer, path)
        self.check_size(sum(stop - first for first, stop in blocks.dictionaries))
        for (first, _), data in zip(blocks.dictionaries, await ranges.read(*blocks.dictionaries), strict=True):
            self.check_size(unpacked_bytes(data.data, path))
            self._sparse.add(first, data)
        self._left = blocks.batches
        self._number = -1
        self._begun: Range | None = None

    def next_part(self) -> Part | None:
        """Return the next record batch."""
        place = self._number + 1
        if place == len(self._left):
            return None
        start, stop = self._left[place]
        self.check_size(stop - start)
        return [(start, stop)]

    def begin(self, part: Part, data: list[Bytes]) -> None:
        """Continue with a record batch that was read."""
        if self._begun is not None:
            self._sparse.drop(self._begun[0])
        self._begun = part[0]
        self.check_size(unpacked_bytes(data[0].data, self._file.path))
        self._sparse.add(part[0][0], data[0])
        self._number += 1

    def _read(self) -> Any:
        if self._opened is None:
            ipc = pyarrow("pyarrow.ipc")
            self._opened = self._open(ipc, ipc.open_file)
        return self._opened.get_batch(self._number)


class _Stream(_Batches):
    """Messages one after the other. A part is one message, or as much as is needed to know its size."""

    def __init__(self, decoder: Arrow, file: File, size: int) -> None:
        super().__init__(decoder, file, size)
        self._at = 0
        """Start of the message."""
        self._header: Message | int | None = PREFIX
        """Its header; or how many bytes are needed to find it; or None at the end."""
        self._has_batch = False
        """Whether a record batch was read and not decoded."""
        self._begun: list[int] = []
        """Starts of the messages that are in memory."""

    def next_part(self) -> Part | None:
        """Return the next message, with the start of the one that follows."""
        if self._header is None or self._at == self._size:
            return None
        known = isinstance(self._header, Message)
        stop = self._at + (self._header.size if isinstance(self._header, Message) else self._header)
        self.check_size(stop - self._at)
        if stop > self._size:
            raise Corrupt(f"{self._file.path} is cut short: it ends within the message at byte {self._at}")
        return [(self._at, min(self._size, stop + EDGE if known else max(stop, self._at + EDGE)))]

    def begin(self, part: Part, data: list[Bytes]) -> None:
        """Take a message, or the first bytes of one."""
        (found,), path = data, self._file.path
        if not isinstance(self._header, Message):
            self._header = parse_message(found.data, path)
        header = self._header
        if isinstance(header, Message) and header.size <= len(found):
            self.check_size(unpacked_bytes(found.data, path))
            self._sparse.add(self._at, found[: header.size])
            self._begun.append(self._at)
            self._has_batch = header.kind == BATCH
            self._at += header.size
            # A fault in what follows is met again when that is the part that is read.
            self._header = PREFIX
            with suppress(Corrupt):
                self._header = parse_message(found.data[header.size :], path)

    def _read(self) -> Any:
        if not self._has_batch:
            return None
        self._has_batch = False
        if self._opened is None:
            ipc = pyarrow("pyarrow.ipc")
            self._opened = self._open(ipc, ipc.open_stream)
        batch = self._opened.read_next_batch()
        for start in self._begun:
            self._sparse.drop(start)
        self._begun = []
        return batch
