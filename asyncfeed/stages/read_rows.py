"""Reads one column of files into the rows of one array, or of several arrays if each file holds several.

The first file decides what the others should be. If a file differs, `LayoutMismatch` is raised, and the batch must
be loaded file by file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar, cast

import numpy as np

from asyncfeed.errors import Corrupt, Unavailable
from asyncfeed.formats.base import Decoder, Header
from asyncfeed.reading.file import Bytes, File, Numbers
from asyncfeed.reading.listing import FileSpan
from asyncfeed.reading.reader import Columns, Reader, Rows, value
from asyncfeed.stacking.collate import Where
from asyncfeed.stacking.pool import Pool
from asyncfeed.stages.loading import UNKNOWN_BYTES
from asyncfeed.stages.pad import Pad, fill_value
from asyncfeed.trees import Tree

if TYPE_CHECKING:
    from numpy.typing import NDArray

P = ParamSpec("P")
R = TypeVar("R")

PROBE = 256
"""Number of bytes that hold a header as `numpy.save` writes it: 128, or 192 for a long list of fields."""

REMEMBERED = 1024
"""Number of headers of a ragged column that are remembered by their bytes."""
SCRATCH = 1 << 20
"""Bytes outside of the arrays, such as headers, that are read at a time, and bytes of files that are decoded. If
it were larger, files with other large arrays would take memory that no limit counts. If it were smaller, fewer
files would be opened ahead."""
DIFFERS = "a file differs from the first in its header or size"


class LayoutMismatch(Exception):
    """A file differs from what the first file of the batch promised. The message says in what."""


def fitting(check: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function that raises `ValueError` for data that does not fit. Raise `LayoutMismatch` instead.

    The slow path meets the same error, and names the sample.
    """
    try:
        return check(*args, **kwargs)
    except ValueError:
        raise LayoutMismatch("the samples do not fit together") from None


def _groups(files: int, aside: int) -> list[range]:
    """Return the places of the files that are read together. `aside` bytes of each are outside of its arrays."""
    step = max(1, SCRATCH // max(1, aside))
    return [range(start, min(start + step, files)) for start in range(0, files, step)]


class Unread(Exception):
    """The store did not give a file, however often it was asked."""

    def __init__(self, member: int, error: Unavailable) -> None:
        super().__init__(member, error)
        self.member = member
        """The place of the file in the batch."""
        self.error = error


def check_read(failed: Mapping[int, Exception], places: range) -> None:
    """Raise the error of the first file that could not be read into its row."""
    if not failed:
        return
    first = min(failed)
    error = failed[first]
    if isinstance(error, Corrupt):
        raise LayoutMismatch(DIFFERS)
    if isinstance(error, Unavailable):
        raise Unread(places[first], error)
    raise error


def _joined(groups: Sequence[Sequence[File]]) -> Sequence[File]:
    """Return all files of some groups. If one is a span, all are spans of the same list."""
    if isinstance(groups[0], FileSpan):
        return FileSpan.joined(cast("Sequence[FileSpan]", groups))
    return groups[0] if len(groups) == 1 else [file for group in groups for file in group]


@lru_cache(maxsize=64)
def _equal_rows(count: int, size: int) -> tuple[Numbers, Numbers]:
    """Return where rows of `size` bytes begin, and their sizes. Most batches of a run have as many rows."""
    return np.arange(count) * size, np.full(count, size)


def calls_of(
    groups: Sequence[Sequence[File]], arrays: Columns, aside: int
) -> Iterator[tuple[Sequence[File], Columns, range]]:
    """Yield files that are read with one call, with the rows of their arrays, and their places among all files.

    That is all of them, unless `aside` bytes outside of the arrays of each file are too many.
    """
    joined = _joined(groups)
    if len(joined) * aside <= SCRATCH:
        yield joined, arrays, range(len(joined))
        return
    before = 0
    for number, group in enumerate(groups):
        for some in _groups(len(group), aside):
            part = slice(some.start, some.stop)
            of_group = [rows[number] for rows in arrays]
            cut = [[Rows(each.memory, each.starts[part], each.sizes[part])] for each in of_group]
            yield group[part], cut, range(before + some.start, before + some.stop)
        before += len(group)


def rows_of(array: NDArray[Any], count: int, size: int) -> Rows:
    """Return the rows of an array, of `size` bytes each."""
    return Rows(bytes_of(array), *_equal_rows(count, size))


def _read_headed(reader: Reader, files: Sequence[File], head: bytes, arrays: Columns, places: range) -> None:
    """Read files that begin with `head` into rows."""
    heads = np.empty((len(files), len(head)), np.uint8)
    check_read(reader.read_rows(files, [[rows_of(heads, len(files), len(head))], *arrays]), places)
    if heads.tobytes() != head * len(files):  # as bytes: numpy would give up the GIL for it
        raise LayoutMismatch(DIFFERS)


def _are_sized(files: Sequence[File]) -> bool:
    """Return whether the size of each file is known."""
    return files.files.sized if isinstance(files, FileSpan) else all(file.size is not None for file in files)


def _sizes(files: Sequence[File]) -> Numbers:
    """Return the sizes of files."""
    return np.array(files.sizes() if isinstance(files, FileSpan) else [file.size for file in files], np.int64)


class _Ragged(NamedTuple):
    """What the arrays of a ragged column have in common."""

    tail: tuple[int, ...]
    """The shape without its first axis."""
    dtype: np.dtype[Any]
    offset: int
    """Number of bytes before the array."""


class Lengths:
    """Headers of a ragged column that were parsed: they differ only in the length of the first axis."""

    def __init__(self) -> None:
        self.lengths: dict[bytes, int] = {}
        """The length that each header tells."""
        self.heads: dict[int, bytes] = {}
        """The last header of each length. Most files of one length have the same header."""

    def add(self, head: bytes, length: int) -> None:
        """Remember a header."""
        if len(self.lengths) < REMEMBERED:
            self.lengths[head] = length
            self.heads[length] = head


class HeadedRows:
    """Reads files that hold a header, or none, and one array. Any number of threads may call it."""

    def __init__(self, decoder: Decoder[Any], pool: Pool) -> None:
        self._decoder = decoder
        self._pool = pool
        self._known: tuple[Header, bytes, Lengths] | None = None
        """The header of the last batch, and its bytes, because most files of a column have the same header. Also
        other headers, which differ only in the length."""

    def read(self, reader: Reader, files: Sequence[File]) -> NDArray[Any]:
        """Read files of one shape into the rows of one array."""
        return self.read_many(reader, [files])[0]

    def read_many(self, reader: Reader, groups: Sequence[Sequence[File]]) -> list[NDArray[Any]]:
        """Read groups of files, all of one shape, each group into the rows of one array."""
        header, head, _ = self._first(reader, groups[0][0])
        made = [self._pool.empty((len(files), *header.shape), header.dtype) for files in groups]
        rows = [rows_of(out, len(out), header.nbytes) for out in made]
        try:
            for files, some, places in calls_of(groups, [rows], len(head)):
                _read_headed(reader, files, head, some, places)
        except LayoutMismatch:
            self._known = None
            raise
        return made

    def read_ragged(
        self, reader: Reader, groups: Sequence[Sequence[File]], pad: Pad, value: object, where: Where
    ) -> list[tuple[NDArray[Any], NDArray[np.int64]]]:
        """Read groups of files that differ in axis 0, each group into the rows of one padded array.

        Return each array with the lengths of its rows.
        """
        header, _, known = self._first(reader, groups[0][0])
        if not header.shape:
            raise LayoutMismatch("a sample without axes cannot be padded")
        tail, dtype, offset = header.shape[1:], header.dtype, header.offset
        unit = prod(tail) * dtype.itemsize
        if not unit or not all(map(_are_sized, groups)):
            raise LayoutMismatch("files without data, or of unknown size")
        fill = fitting(fill_value, value, dtype, where)
        lengths = [(_sizes(files) - offset) // unit for files in groups]
        made = []
        rows = []
        for each in lengths:
            if each.min() < 0:
                raise LayoutMismatch("a file is shorter than a header")
            shape = fitting(pad.shape_for, [(int(each.max()), *tail)], where)
            if shape[1:] != tail:
                raise LayoutMismatch("pad changes more than the first axis")
            out = self._pool.empty((len(each), *shape), dtype)
            made.append(out)
            rows.append(Rows(bytes_of(out), _equal_rows(len(each), shape[0] * unit)[0], each * unit))
        joined = np.concatenate(lengths).tolist()
        expected = _Ragged(tail, dtype, offset)
        for files, some, places in calls_of(groups, [rows], offset):
            heads = np.empty((len(files), offset), np.uint8)
            check_read(reader.read_rows(files, [[rows_of(heads, len(files), offset)], *some]), places)
            self._check_heads(known, heads, files, joined[places.start : places.stop], expected)
        for out, each in zip(made, lengths, strict=True):
            for place in np.flatnonzero(each < out.shape[1]).tolist():
                out[place, each[place] :] = fill
        return list(zip(made, lengths, strict=True))

    def _check_heads(
        self, known: Lengths, heads: Bytes, files: Sequence[File], lengths: list[int], expected: _Ragged
    ) -> None:
        """Raise unless each header says that its file holds as many rows as `lengths` says, as expected."""
        found = heads.tobytes()
        if found == b"".join([known.heads.get(length, b"") for length in lengths]):
            return
        offset = expected.offset
        for place, length in enumerate(lengths):
            text = found[place * offset : (place + 1) * offset]
            if known.lengths.get(text) != length:
                said = self._decoder.probe(np.frombuffer(text, np.uint8), files[place])
                if said[:4] != ((length, *expected.tail), expected.dtype, False, offset):
                    raise LayoutMismatch(DIFFERS)
                known.add(text, length)

    def _first(self, reader: Reader, file: File) -> tuple[Header, bytes, Lengths]:
        """Return the header that the files should have, its bytes, and other known headers."""
        known = self._known
        if known is not None:
            return known
        buffer = value(*reader.read((file,)))
        header = self._decoder.probe(buffer[:PROBE], file)
        if header.offset + header.nbytes != len(buffer):
            # No memory may be taken for a batch of bytes that are not there.
            raise LayoutMismatch("a file is not as long as its header says")
        if header.fortran_order and len(header.shape) > 1:
            raise LayoutMismatch("an array is in Fortran order")
        self._known = known = header, buffer[: header.offset].tobytes(), Lengths()
        return known

    @property
    def file_bytes(self) -> int | None:
        """The size of the files of the last batch, if they had one shape. None before the first one."""
        known = self._known
        return None if known is None else known[0].offset + known[0].nbytes


class DecodedRows:
    """Decodes files into rows of one shape. Any number of threads may call it."""

    def __init__(self, decoder: Decoder[Any], pool: Pool) -> None:
        self._decoder = decoder
        self._pool = pool

    def read(self, reader: Reader, files: Sequence[File]) -> NDArray[Any]:
        """Decode files into the rows of one array."""
        row = self._decoder.row
        assert row is not None
        out = self._pool.empty((len(files), *row.shape), row.dtype)
        for some in _groups(len(files), max(UNKNOWN_BYTES if file.size is None else file.size for file in files)):
            read = reader.read(files[some.start : some.stop])
            for place in some:
                outcome = read.pop(0)
                if isinstance(outcome, Unavailable):
                    raise Unread(place, outcome)
                data = value(outcome)
                try:
                    self._decoder.decode_into(data, files[place], out[place, ...])
                except Exception as error:
                    raise LayoutMismatch(f"{type(error).__name__} while a file was decoded") from error
        return out

    def read_ragged(
        self, reader: Reader, groups: Sequence[Sequence[File]], pad: Pad, value: object, where: Where
    ) -> list[tuple[Tree, Any]]:
        """Raise `LayoutMismatch`: samples of one shape are stacked before they are padded."""
        raise LayoutMismatch("samples of one shape are padded after they are loaded")


def bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the bytes of an array, without a copy."""
    return array.reshape(-1).view(np.uint8) if array.size else np.empty(0, np.uint8)
