"""The footer of a Parquet file: where the column chunks of its row groups lie.

pyarrow knows this, too, but when it is asked about a damaged footer, it may end the process. Format:
`parquet.thrift`, in Thrift's compact protocol. Row groups are parsed one by one, because there may be thousands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from asyncfeed.errors import Corrupt
from asyncfeed.reading.reader import Range

# Types of the compact protocol.
_TRUE, _FALSE, _BYTE, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 6, 7, 8, 9, 10, 11, 12
_LONGEST = 70
"""Bits after which a number cannot go on."""
_SIZES = {_TRUE: 0, _FALSE: 0, _BYTE: 1, _DOUBLE: 8}


class Chunk(NamedTuple):
    """A column of a row group."""

    where: Range
    unpacked: int
    """Bytes that its pages have without compression."""


class Group(NamedTuple):
    """A row group."""

    rows: int
    chunks: list[Chunk]
    """The wanted ones, in the order of the schema."""


def row_groups(footer: bytes, start: int, columns: Sequence[bool], path: str) -> Iterator[Group]:
    """Yield the row groups of a footer, which starts at byte `start` of the file.

    `columns` says which columns are wanted. Raises `Corrupt` if the footer is damaged, or a wanted column chunk
    lies outside of the data.
    """
    try:
        number = at = 0
        while True:
            number, kind, at = _field(footer, at, number)
            if not kind:
                return
            if number == 4 and kind == _LIST:
                break
            at = _skip(footer, at, kind)
        count, each, at = _list(footer, at)
        for _ in range(count if each == _STRUCT else 0):
            group, at = _group(footer, at, columns, path)
            for (first, stop), _ in group.chunks if group.rows else ():
                if not 0 < first <= stop <= start:
                    raise Corrupt(f"{path} has a column chunk at bytes {first} to {stop}, outside of its data")
            yield group
    except (IndexError, RecursionError, ValueError) as error:
        raise Corrupt(f"{path} has a damaged footer") from error


def _group(data: bytes, at: int, columns: Sequence[bool], path: str) -> tuple[Group, int]:
    rows, chunks = 0, []
    number = 0
    while True:
        number, kind, at = _field(data, at, number)
        if not kind:
            break
        if number == 1 and kind == _LIST:
            count, each, at = _list(data, at)
            if each != _STRUCT or count != len(columns):
                raise Corrupt(f"{path} has a row group of {count} columns, and its schema has {len(columns)}")
            for wanted in columns:
                if wanted:
                    chunk, at = _chunk(data, at, path)
                    chunks.append(chunk)
                else:
                    at = _skip(data, at, _STRUCT)
        elif number == 3 and kind == _I64:
            rows, at = _signed(data, at)
        else:
            at = _skip(data, at, kind)
    if rows < 0 or (rows and len(chunks) != sum(columns)):
        raise Corrupt(f"{path} has a row group of {rows} rows and {len(chunks)} columns")
    return Group(rows, chunks), at


def _chunk(data: bytes, at: int, path: str) -> tuple[Chunk, int]:
    found = {6: 0, 7: 0, 9: 0, 11: 0}  # sizes without and with compression; first page, first dictionary page
    number = 0
    while True:
        number, kind, at = _field(data, at, number)
        if not kind:
            break
        if number == 1:
            raise Corrupt(f"{path} has its columns in other files, which cannot be read")
        if number != 3 or kind != _STRUCT:
            at = _skip(data, at, kind)
            continue
        field = 0
        while True:
            field, inner, at = _field(data, at, field)
            if not inner:
                break
            if inner == _I64 and field in found:
                found[field], at = _signed(data, at)
            else:
                at = _skip(data, at, inner)
    first = min(found[9], found[11]) if found[11] > 0 else found[9]
    return Chunk((first, first + found[7]), max(0, found[6])), at


# The functions below take a position and return the one behind what they have read. That is three times as fast as
# an object with a position. They raise IndexError or ValueError if the data is damaged.


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    """Return a number in 7 bits a byte."""
    found = data[at]
    at += 1
    if found < 128:
        return found, at
    found &= 127
    shift = 7
    while shift < _LONGEST:
        each = data[at]
        at += 1
        found |= (each & 127) << shift
        if each < 128:
            return found, at
        shift += 7
    raise ValueError(shift)


def _signed(data: bytes, at: int) -> tuple[int, int]:
    found, at = _unsigned(data, at)
    return (found >> 1) ^ -(found & 1), at


def _field(data: bytes, at: int, number: int) -> tuple[int, int, int]:
    """Return number and type of the next field of a struct. The type is 0 at the end of the struct."""
    head = data[at]
    at += 1
    if head > 15:
        return number + (head >> 4), head & 15, at
    if not head:
        return 0, 0, at
    number, at = _signed(data, at)
    return number, head, at


def _list(data: bytes, at: int) -> tuple[int, int, int]:
    """Return the number of elements of a list, and their type."""
    head = data[at]
    at += 1
    count = head >> 4
    if count == 15:
        count, at = _unsigned(data, at)
    return count, head & 15, at


def _skip(data: bytes, at: int, kind: int) -> int:
    """Skip the value of a field."""
    if kind == _STRUCT:
        while head := data[at]:
            at += 1
            if head < 16:
                _, at = _signed(data, at)
            kind = head & 15
            if _BYTE < kind <= _I64:
                while data[at] > 127:
                    at += 1
                at += 1
            elif kind > _FALSE:
                at = _skip(data, at, kind)
        return at + 1
    if kind == _BINARY:
        size, at = _unsigned(data, at)
        return at + size
    if _BYTE < kind <= _I64:
        return _unsigned(data, at)[1]
    if kind in (_LIST, _SET):
        count, kind, at = _list(data, at)
        return _skip_elements(data, at, count, (kind,))
    if kind == _MAP:
        count, at = _unsigned(data, at)
        if not count:
            return at
        return _skip_elements(data, at + 1, count, (data[at] >> 4, data[at] & 15))
    if kind not in _SIZES:
        raise ValueError(kind)
    return at + _SIZES[kind]


def _skip_elements(data: bytes, at: int, count: int, kinds: tuple[int, ...]) -> int:
    for _ in range(count):
        for kind in kinds:
            at = at + 1 if kind in (_TRUE, _FALSE) else _skip(data, at, kind)  # here a boolean takes a byte
    if at > len(data):
        raise IndexError(at)
    return at
