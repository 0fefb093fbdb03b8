"""Reads a directory with Linux' system call getdents64, without Python for each entry.

`os.scandir` makes an object for each entry. Here the kernel fills a buffer with records, and numpy finds the names
in them. The call releases the GIL.
"""

from __future__ import annotations

import errno
import os
import platform
import sys
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from asyncfeed.reading.file import Bytes, Numbers
from asyncfeed.reading.packed_names import ENCODING
from asyncfeed.reading.ring import call

BUFFER_BYTES: Final = 1 << 20
"""Bytes of records that are read with one call. Fewer mean more calls. More would leave the cache."""

UNKNOWN: Final = 0
DIRECTORY: Final = 4
REGULAR: Final = 8
LINK: Final = 10
"""What an entry is, as the kernel writes it. Some file systems do not tell, and write `UNKNOWN`."""

_NUMBERS: Final = {"x86_64": 217, "aarch64": 61}
"""The number of the system call, by machine."""
_ALIGNED_BYTES: Final = 8
"""Records begin at multiples of 8 bytes. The layout is `struct linux_dirent64` of the kernel."""
_LENGTH_AT: Final = 16
_KIND_AT: Final = 18
_NAME_AT: Final = 19
_LEAST_BYTES: Final = 24
"""Bytes of the shortest record."""
_DOUBLINGS: Final = 4
"""Python follows one record in 16 by hand, and numpy finds the others. Each doubling halves the steps of Python,
and costs a copy of an array."""
_LOW: Final = np.uint64(0x0101010101010101)
_HIGH: Final = np.uint64(0x8080808080808080)
_FRACTION_BITS: Final = 52
_EXPONENT_OF_ONE: Final = 1023


class Entries(NamedTuple):
    """Some entries of a directory. They are valid until the next ones are read.

    The arrays have one number for each entry.
    """

    memory: Bytes
    """The names are in it, each with a zero byte at its end."""
    starts: Numbers
    """Where each name begins."""
    lengths: Numbers
    """Number of bytes of each name."""
    kinds: Bytes
    """What each entry is."""


class SmallDirectory(Exception):
    """A directory has few entries."""


class DirectoryReader:
    """Reads directories one after the other. One thread may use it."""

    def __init__(self) -> None:
        self._number = _NUMBERS[platform.machine()]
        self._buffer = np.empty(BUFFER_BYTES, np.uint8)

    def read(self, path: str, least: int = 0) -> Iterator[Entries]:
        """Yield the entries of a directory, without "." and "..", in the order of the file system.

        Raises:
            SmallDirectory: Its records have less than `least` bytes.
            OSError: The directory cannot be read, or the kernel does not know the call.
        """
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            while size := call(self._number, fd, self._buffer.ctypes, len(self._buffer)):
                if size < least:
                    raise SmallDirectory
                least = 0  # the last records may be few
                yield _parsed(self._buffer[:size])
        finally:
            os.close(fd)


def supported() -> bool:
    """Return whether this system may have the call, and names are UTF-8."""
    return (
        sys.platform == "linux"
        and sys.byteorder == "little"
        and sys.maxsize > 1 << 32
        and platform.machine() in _NUMBERS
        and ENCODING == "utf-8"
    )


def _parsed(records: Bytes) -> Entries:
    begins, ends = _edges(records)
    starts = begins + _NAME_AT
    # A name ends with the first zero byte of the last eight bytes. What follows it is left from earlier calls.
    last = records.view(np.uint64)[ends // _ALIGNED_BYTES - 1]
    # The last eight bytes of the shortest record begin with three that are before the name.
    last[ends - begins == _LEAST_BYTES] |= np.uint64(0xFFFFFF)
    zeros = (last - _LOW) & ~last & _HIGH
    if not zeros.all():
        raise OSError(errno.EIO, "a name in a directory has no end")
    first_zero = zeros & (~zeros + np.uint64(1))
    # The exponent of a float tells which bit is set.
    place = (first_zero.astype(np.float64).view(np.int64) >> _FRACTION_BITS) - _EXPONENT_OF_ONE >> 3
    lengths = ends - _ALIGNED_BYTES + place - starts
    kinds = records[begins + _KIND_AT]
    short = np.flatnonzero(lengths <= 2)
    dots = [at for at in short if records[starts[at] : ends[at]].tobytes().startswith((b".\0", b"..\0"))]
    if dots:
        starts, lengths, kinds = np.delete(starts, dots), np.delete(lengths, dots), np.delete(kinds, dots)
    return Entries(records, starts, lengths, kinds)


def _edges(records: Bytes) -> tuple[Numbers, Numbers]:
    """Return where each record begins and ends."""
    slots = len(records) // _ALIGNED_BYTES
    sizes = records.view(np.uint16)[_LENGTH_AT // 2 :: _ALIGNED_BYTES // 2]
    size = int(sizes[0]) if len(sizes) else 0
    step = size // _ALIGNED_BYTES
    whole = size >= _LEAST_BYTES and not size % _ALIGNED_BYTES and not len(records) % size
    if whole and (sizes[::step] == size).all():
        begins = np.arange(0, len(records), size)  # all records have the same size
        return begins, begins + size
    begins = _chain(sizes // _ALIGNED_BYTES, slots) * _ALIGNED_BYTES
    ends = np.append(begins[1:], len(records))
    if (sizes[begins // _ALIGNED_BYTES] != ends - begins).any() or (ends - begins < _LEAST_BYTES).any():
        raise OSError(errno.EIO, "the records of a directory are not as Linux lays them out")
    return begins, ends


def _chain(steps: np.ndarray[Any, np.dtype[np.uint16]], slots: int) -> Numbers:
    """Return the slots in which records begin. The record in the first slot begins there, and tells the next one.

    Each slot is taken for the start of a record, also if it is none: the chain from the first one meets only real
    starts.
    """
    after = np.arange(slots + 1)
    after[: len(steps)] += steps
    np.minimum(after, slots, out=after)
    doubled = []
    for _ in range(_DOUBLINGS):
        doubled.append(after)
        after = after[after]
    some, at, follow = [], 0, after.data
    while at < slots:
        some.append(at)
        at = follow[at]
        if some[-1] == at:
            raise OSError(errno.EIO, "a record of a directory has no size")
    begins: np.ndarray[Any, np.dtype[np.int64]] = np.array(some)
    for each in reversed(doubled):
        begins = np.stack([begins, each[begins]], -1).reshape(-1)
    return begins[begins < slots]
