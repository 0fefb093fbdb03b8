"""The wire format of protocol buffers, as far as a `tf.train.Example` needs it."""

from __future__ import annotations

from struct import unpack_from
from typing import Final

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MAX_SHIFT: Final = 63
"""A varint has at most ten bytes of seven bits."""
WORD: Final = 1 << 64


class WireError(ValueError):
    """The bytes are not a message."""


def varint(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """Return an unsigned number of up to 64 bits, and where it ends."""
    number = shift = 0
    while at < stop:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number % WORD, at
        shift += 7
        if shift > MAX_SHIFT:
            raise WireError(f"a number has more than ten bytes at offset {at}")
    raise WireError(f"a number is cut short at offset {at}")


def fields(data: bytes, at: int, stop: int) -> list[tuple[int, int, int]]:
    """Return the tag of each field of a message, and where its value starts and stops.

    A tag is eight times the number of the field, plus the kind of its value.
    """
    found: list[tuple[int, int, int]] = []
    while at < stop:
        tag, at = varint(data, at, stop)
        kind, start = tag & 7, at
        if not 8 <= tag < 1 << 32:
            raise WireError(f"a field has no number at offset {at}")
        if kind == BYTES:
            size, start = varint(data, at, stop)
            at = start + size
        elif kind == VARINT:
            _, at = varint(data, at, stop)
        elif kind == FIXED32:
            at += 4
        elif kind == FIXED64:
            at += 8
        else:
            raise WireError(f"a field is of the unknown kind {kind} at offset {at}")
        if at > stop:
            raise WireError(f"a field is cut short at offset {start}")
        found.append((tag, start, at))
    return found


def varints(data: bytes, at: int, stop: int) -> list[int]:
    """Return the signed numbers in a packed list."""
    found = []
    while at < stop:
        byte = data[at]
        if byte < 0x80:
            at += 1
        else:
            byte, at = varint(data, at, stop)
        found.append(byte - WORD if byte >> 63 else byte)
    return found


def floats(data: bytes, at: int, stop: int) -> tuple[float, ...]:
    """Return the numbers in a packed list of 32-bit floats."""
    count, rest = divmod(stop - at, 4)
    if rest:
        raise WireError(f"a list of floats is cut short at offset {stop}")
    found: tuple[float, ...] = unpack_from(f"<{count}f", data, at)
    return found


# -- writing


def as_varint(number: int) -> bytes:
    """Return a number of up to 64 bits, signed or not."""
    number %= WORD
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


def as_varints(numbers: list[int]) -> bytes:
    """Return a packed list of numbers."""
    if all(0 <= each < 0x80 for each in numbers):
        return bytes(numbers)
    return b"".join(map(as_varint, numbers))


def message(number: int, body: bytes) -> bytes:
    """Return a field with this number, whose value is a message, bytes or a packed list."""
    return as_varint(number << 3 | BYTES) + as_varint(len(body)) + body
