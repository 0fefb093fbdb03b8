"""TFRecord files and messages, written by hand from their public description."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import google_crc32c


def masked(data: bytes) -> int:
    checksum = google_crc32c.value(data)
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(record: bytes) -> bytes:
    """Return a record as it is in a file."""
    length = struct.pack("<Q", len(record))
    return length + struct.pack("<I", masked(length)) + record + struct.pack("<I", masked(record))


def file_of(records: Iterable[bytes]) -> bytes:
    return b"".join(map(frame, records))


def varint(number: int) -> bytes:
    number %= 1 << 64
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def message(number: int, body: bytes) -> bytes:
    """Return a field whose value is bytes."""
    return varint(number << 3 | 2) + varint(len(body)) + body


def listed(values: list[Any], *, packed: bool = True) -> bytes:
    """Return a `Feature` with these values. Without values it has no kind."""
    if not values:
        return b""
    kind = type(values[0])
    if kind is bytes:
        return message(1, b"".join(message(1, each) for each in values))
    if kind is float:
        parts = [struct.pack("<f", each) for each in values]
        return message(2, message(1, b"".join(parts)) if packed else b"".join(b"\x0d" + part for part in parts))
    parts = [varint(each) for each in values]
    return message(3, message(1, b"".join(parts)) if packed else b"".join(b"\x08" + part for part in parts))


def example_of(features: dict[str, list[Any]], *, packed: bool = True) -> bytes:
    """Return a serialized `tf.train.Example`."""
    entries = [
        message(1, message(1, name.encode()) + message(2, listed(values, packed=packed)))
        for name, values in features.items()
    ]
    return message(1, b"".join(entries))
