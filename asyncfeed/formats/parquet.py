"""Parquet files: batches of rows as arrays. pyarrow decodes them, and never reads a file itself."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from asyncfeed.errors import Corrupt
from asyncfeed.formats.base import RangeDecoder
from asyncfeed.formats.columns import (
    Columns,
    ToArrays,
    UnreadableColumn,
    as_columns,
    as_nulls,
    check_found,
    check_options,
    in_order,
    pyarrow,
    read_with_pyarrow,
)
from asyncfeed.formats.lines import Source
from asyncfeed.formats.parquet_footer import Group, row_groups
from asyncfeed.formats.parts import Part, in_parts
from asyncfeed.formats.sparse import SparseFile
from asyncfeed.reading.file import Bytes, File
from asyncfeed.reading.reader import Range, value

if TYPE_CHECKING:
    from asyncfeed.reading.ranges import ByteRanges

TAIL = 1 << 16
"""Bytes that are read first, from the end of the file. They hold most footers. If fewer were read, more footers
would take a second request."""
BATCH_BYTES = 8 << 20
"""Bytes of a batch if `rows` is not given, by what the footer says of the size of a row. Larger batches take more
memory for each open file; smaller ones take more calls on threads."""
MAX_ROWS = 1 << 16
"""Most rows of such a batch."""
FEW_BYTES = 4
"""A column of text with fewer bytes a value holds numbers of texts, and each text once. A text by itself has four
bytes for its length alone."""
PLANNED = 2
"""Row groups whose descriptions are parsed ahead: one is read while the one before it is decoded."""
_MAGIC = b"PAR1"
_END = 8


class RowGroup(NamedTuple):
    """The part of a file that is read at once."""

    number: int
    rows: int
    ranges: list[Range]
    """The column chunks that are wanted."""
    widths: list[float]
    """Bytes of a value in each, before compression."""
    batch_rows: int
    """Number of rows of a batch."""


@dataclass(frozen=True, repr=False)
class Parquet(RangeDecoder[Columns]):
    """The rows of a Parquet file, in batches: dicts of arrays.

    Use it as `files("*.parquet").flat_map(parquet(columns=["x", "label"]))`. `rebatch(n)` then makes batches of n
    rows. `unbatch()` makes single rows, which is slower. It needs `asyncfeed[parquet]`.

    The footer is read first, and then, for one row group after the other, the wanted columns and no others. The
    next row group is read while one is decoded.

    Raises:
        Corrupt: The file is no Parquet file, is damaged, or lacks a column. Damage within the data is found if the
            writer has added checksums to the pages.
        ValueError: A column has missing values that `nulls` does not name, or its type makes no array, or a row
            group has more than `max_bytes`.

    Memory:
        For each open file one or two row groups as they are in the file, compressed, and one batch. If a row group
        is larger than 64 MB, the next one is not read ahead. `max_bytes` limits it.

    Example:
        >>> parquet(columns=["x", "label"])
        parquet(columns=('x', 'label'))
    """

    name = "parquet"
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
    ) -> Parquet: ...
    def __call__(
        self,
        *file: Source,
        columns: Iterable[str] | None = None,
        rows: int | None = None,
        nulls: Mapping[str, Any] | None = None,
        max_bytes: int = 1 << 30,
    ) -> AsyncGenerator[Columns] | Parquet:
        """Return a decoder with these options; with a file, an async generator of its batches.

        Args:
            *file: A file, its path, or its bytes, instead of options.
            columns: The names of the columns to read, in the order that the dicts have. `"a.b"` is the field b of
                the structs in column a. None reads all columns.
            rows: Number of rows of a batch. The last batch of a row group may have fewer. None takes as many as
                make about 8 MB, at most 65,536.
            nulls: What replaces missing values, by column: `{"age": -1, "name": ""}`. None keeps None in columns
                of text, bytes and lists. Without it a missing value is an error.
            max_bytes: Number of bytes that the wanted columns of one row group may take in the file. A larger
                row group is an error.
        """
        if file:
            return super().__call__(*file)
        return Parquet(as_columns(self.name, columns), rows, as_nulls(self.name, nulls), max_bytes)

    async def groups(self, ranges: ByteRanges) -> AsyncGenerator[list[Columns]]:
        """Yield lists of the batches of a file."""
        reader = _RowGroups(self, ranges.file, ranges.size)
        await reader.open(ranges)
        async with aclosing(in_parts(ranges, reader)) as groups:
            async for group in groups:
                yield group


parquet = Parquet()


class _RowGroups:
    """The row groups of one file, as a `PartReader`."""

    def __init__(self, decoder: Parquet, file: File, size: int) -> None:
        self._decoder = decoder
        self._file = file
        self._sparse = SparseFile(file, size)
        self._size = size
        self._footer = 0
        """Start of the footer."""
        self._opened: Any = None
        """The `pyarrow.parquet.ParquetFile`."""
        self._to_arrays = ToArrays(file.path, dict(decoder.nulls))
        self._names: list[str] | None = None
        """The wanted columns in the order of the dicts. None: all of them, as they come."""
        self._batches: Iterator[Any] = iter(())
        """The batches of the row group that is decoded."""
        self._rows = 0
        """Number of rows that are left of it."""
        self._group: RowGroup | None = None
        self._left: Iterator[RowGroup] = iter(())
        """The row groups whose description was not parsed."""
        self._planned: deque[RowGroup | Exception] = deque()
        """The row groups that follow, and why no more can be read."""

    async def open(self, ranges: ByteRanges) -> None:
        """Read the footer."""
        size = self._size
        start = max(0, size - TAIL)
        (tail,) = await ranges.read((start, size))
        self._footer = size - _END - _footer_bytes(tail, self._file)
        self._sparse.add(start, tail)
        if self._footer < start:
            (whole,) = await ranges.read((self._footer, size))
            self._sparse.drop(start)
            self._sparse.add(self._footer, whole)
        await ranges.start(read_with_pyarrow, self._file.path, self._parse)

    def _parse(self) -> None:
        self._open(None)
        columns, path = self._decoder.columns, self._file.path
        schema, names = self._opened.metadata.schema, self._opened.schema_arrow.names
        paths = [schema.column(place).path for place in range(len(schema.names))]
        wanted = [True] * len(paths)
        if columns is not None:
            check_found(self._file, columns, names, paths)
            begins = tuple(f"{name}." for name in columns)
            wanted = [f"{each}.".startswith(begins) for each in paths]
            self._names = in_order(columns, names)
        groups = row_groups(self._sparse.part(self._footer, self._size - _END), self._footer, wanted, path)
        self._left = (self._plan(number, group) for number, group in enumerate(groups) if group.rows)
        self._plan_ahead()
        if self._planned and isinstance(self._planned[0], RowGroup):
            places = [place for place, each in enumerate(wanted) if each]
            small = [
                place for place, each in zip(places, self._planned[0].widths, strict=True) if each < FEW_BYTES
            ]
            texts = [paths[place] for place in small if schema.column(place).physical_type == "BYTE_ARRAY"]
            if texts:
                self._open(texts)

    def _open(self, texts: list[str] | None) -> None:
        """Open the file for pyarrow. The columns `texts` come as dictionaries: each text is made once."""
        self._opened = pyarrow("pyarrow.parquet").ParquetFile(
            self._sparse,
            metadata=None if self._opened is None else self._opened.metadata,
            pre_buffer=False,
            page_checksum_verification=True,
            read_dictionary=texts,
        )

    def _plan_ahead(self) -> None:
        """Parse the descriptions of the next row groups, which takes milliseconds if they have many columns."""
        while len(self._planned) < PLANNED:
            try:
                self._planned.append(next(self._left))
            except StopIteration:
                return
            except Exception as error:  # noqa: BLE001 - it is raised after the row groups before it
                self._planned.append(error)

    def _plan(self, number: int, group: Group) -> RowGroup:
        path, most, chunks = self._file.path, self._decoder.max_bytes, group.chunks
        size = sum(stop - start for (start, stop), _ in chunks)
        if size > most:
            raise UnreadableColumn(
                f"{path} has a row group of {size} bytes in the wanted columns, more than the {most} allowed: "
                "read fewer columns with columns=[...], write the file with smaller row groups, or write "
                f"parquet(max_bytes={size})"
            )
        fitting = BATCH_BYTES * group.rows // max(1, sum(chunk.unpacked for chunk in chunks))
        rows = self._decoder.rows or max(1, min(MAX_ROWS, fitting))
        widths = [chunk.unpacked / group.rows for chunk in chunks]
        return RowGroup(number, group.rows, [chunk.where for chunk in chunks], widths, rows)

    def next_part(self) -> list[Range] | None:
        """Return the column chunks of the next row group."""
        return value(self._planned[0]).ranges if self._planned else None

    def begin(self, part: Part, data: list[Bytes]) -> None:
        """Continue with a row group whose column chunks were read."""
        self._drop()
        self._group = value(self._planned.popleft())
        for (start, _), chunk in zip(part, data, strict=True):
            self._sparse.add(start, chunk)
        self._rows = self._group.rows
        self._batches = self._decode(self._group)

    def _drop(self) -> None:
        """Let go of the row group that was decoded."""
        self._batches = iter(())
        for start, _ in self._group.ranges if self._group is not None else ():
            self._sparse.drop(start)
        self._group = None

    def _decode(self, group: RowGroup) -> Iterator[Any]:
        self._plan_ahead()
        options = {"row_groups": [group.number], "columns": self._decoder.columns}
        yield from self._opened.iter_batches(group.batch_rows, **options)

    def next_sample(self) -> tuple[Columns, bool]:
        """Return the next batch, and whether it was the last one of its row group."""
        return read_with_pyarrow(self._file.path, self._next_batch)  # type: ignore[no-any-return]

    def _next_batch(self) -> tuple[Columns, bool]:
        batch = next(self._batches, None)
        if batch is None or not batch.num_rows:
            raise Corrupt(f"{self._file.path} has a row group with fewer rows than its footer says")
        found = self._to_arrays(batch)
        self._rows -= batch.num_rows
        if self._rows <= 0:
            self._drop()
        return found if self._names is None else {name: found[name] for name in self._names}, self._rows <= 0


def _footer_bytes(tail: Bytes, file: File) -> int:
    """Return the size of the footer, by the last bytes of the file."""
    size, end = file.size or 0, tail[-_END:].tobytes()
    if size < _END + 4 or end[4:] not in (_MAGIC, b"PARE"):
        raise Corrupt(f"{file.path} is not a Parquet file, or is cut short: its last bytes are not {_MAGIC!r}")
    if end[4:] == b"PARE":
        raise Corrupt(f"{file.path} is an encrypted Parquet file, which cannot be read")
    length = int.from_bytes(end[:4], "little")
    if length > size - _END - 4:
        raise Corrupt(f"{file.path} has a footer of {length} bytes, and the file has {size}: it is cut short")
    return length
