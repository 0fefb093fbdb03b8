"""Where the messages of an Arrow IPC file lie, by its flatbuffers.

pyarrow reads these itself, but does not say where. Format: "Serialization and Interprocess Communication (IPC)" of
the Arrow columnar format, with `Message.fbs` and `File.fbs`.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from asyncfeed.errors import Corrupt
from asyncfeed.reading.reader import Range

MAGIC = b"ARROW1"
CONTINUES = b"\xff\xff\xff\xff"
"""The first bytes of each message."""
PREFIX = 8
"""Bytes before the metadata of a message: `CONTINUES`, and the size of the metadata."""
TRAILER = 10
"""Bytes at the end of a file: the size of the footer, and `MAGIC`."""
DICTIONARY, BATCH = 2, 3
"""Types of messages."""
_BLOCK = struct.Struct("<qi4xq")
_BUFFER = struct.Struct("<qq")
_BROKEN = (struct.error, ValueError, IndexError)


class Message(NamedTuple):
    """The header of a message."""

    kind: int
    size: int
    """Bytes of the whole message, with its body."""


class Blocks(NamedTuple):
    """The messages of a file, as ranges of bytes."""

    dictionaries: list[Range]
    batches: list[Range]


def parse_message(data: memoryview, path: str) -> Message | int | None:
    """Return the header of a message; None at the end mark; or how many bytes are needed, if there are fewer."""
    if len(data) < PREFIX:
        return PREFIX
    length = int.from_bytes(data[4:8], "little", signed=True)
    if data[:4] != CONTINUES or length < 0:
        raise Corrupt(f"{path} has no message of Arrow where one is expected: it is damaged, or no Arrow file")
    if not length:
        return None
    if len(data) < PREFIX + length:
        return PREFIX + length
    metadata = bytes(data[PREFIX : PREFIX + length])
    try:
        table = _root(metadata)
        kind, body = _field(metadata, table, 1), _field(metadata, table, 3)
        nbytes: int = struct.unpack_from("<q", metadata, body)[0] if body else 0
        found = Message(metadata[kind] if kind else 0, PREFIX + length + nbytes)
    except _BROKEN as error:
        raise Corrupt(f"{path} has a damaged message of Arrow") from error
    if nbytes < 0:
        raise Corrupt(f"{path} has a message of Arrow with {nbytes} bytes")
    return found


def unpacked_bytes(data: memoryview, path: str) -> int:
    """Return how many bytes the compressed buffers of a message claim to have; 0 if they are not compressed.

    pyarrow asks for this memory before it decompresses.
    """
    found = parse_message(data, path)
    if not isinstance(found, Message) or found.kind not in (DICTIONARY, BATCH):
        return 0
    start = PREFIX + int.from_bytes(data[4:8], "little")
    metadata, body = bytes(data[PREFIX:start]), data[start:]
    try:
        table = _table(metadata, _root(metadata), 2)
        if found.kind == DICTIONARY:
            table = _table(metadata, table, 1)
        if not _field(metadata, table, 3):
            return 0
        total = 0
        for offset, length in _vector(metadata, _field(metadata, table, 2), _BUFFER):
            if length and offset >= 0:
                total += max(0, int(struct.unpack_from("<q", body, offset)[0]))
    except _BROKEN as error:
        raise Corrupt(f"{path} has a damaged message of Arrow") from error
    return total


def parse_footer(footer: bytes, start: int, path: str) -> Blocks:
    """Return the messages that a footer names. It starts at byte `start` of the file."""
    try:
        table = _root(footer)
        found = Blocks(_blocks(footer, _field(footer, table, 2)), _blocks(footer, _field(footer, table, 3)))
    except _BROKEN as error:
        raise Corrupt(f"{path} has a damaged footer") from error
    for first, stop in [*found.dictionaries, *found.batches]:
        if not PREFIX <= first <= stop <= start:
            raise Corrupt(f"{path} has a footer that names bytes {first} to {stop}, outside of its data")
    return found


def _root(data: bytes) -> int:
    return int(struct.unpack_from("<I", data, 0)[0])


def _field(data: bytes, table: int, number: int) -> int:
    """Return where a field of a table is; 0 if the table does not have it."""
    vtable = table - int(struct.unpack_from("<i", data, table)[0])
    slot = 4 + 2 * number
    if vtable < 0:
        raise ValueError(vtable)  # `unpack_from` would count from the end
    if slot + 2 > struct.unpack_from("<H", data, vtable)[0]:
        return 0
    offset: int = struct.unpack_from("<H", data, vtable + slot)[0]
    return table + offset if offset else 0


def _table(data: bytes, table: int, number: int) -> int:
    """Return where the table is that a field refers to."""
    field = _field(data, table, number)
    if not field:
        raise ValueError(number)
    return field + int(struct.unpack_from("<I", data, field)[0])


def _vector(data: bytes, field: int, element: struct.Struct) -> list[tuple[int, ...]]:
    if not field:
        return []
    vector = field + int(struct.unpack_from("<I", data, field)[0])
    count: int = struct.unpack_from("<I", data, vector)[0]
    if count * element.size > len(data):
        raise ValueError(count)
    return [element.unpack_from(data, vector + 4 + number * element.size) for number in range(count)]


def _blocks(data: bytes, field: int) -> list[Range]:
    found = []
    for offset, metadata, body in _vector(data, field, _BLOCK):
        if metadata < 0 or body < 0:
            raise ValueError(metadata, body)
        found.append((offset, offset + metadata + body))
    return found
