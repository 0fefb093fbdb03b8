"""What a few files of a call tell about the others: whether they are as listed, and how their disk is read.

Looking at a file takes as long as reading a small one. So of small files that are read together, the first one and
every 64th are looked at.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

from asyncfeed.machine import thread_waits
from asyncfeed.reading.file import File
from asyncfeed.reading.opener import FLAGS, HERE

SAMPLED = 64
"""One file in this number is looked at. With a smaller number each read takes longer. With a larger one, a file
that was written to since it was listed, with as many bytes as before, is found later or not at all."""


class Sampled:
    """Looks at some of the files that are read together. Any number of threads may call it."""

    def __init__(self) -> None:
        self._plain: dict[int, bool] = {}
        """Whether a disk is plain, by its number."""
        self.only_plain = False
        """Whether disks were seen, and all of them were plain."""

    def sound(self, files: Sequence[File], *, read: bool = False) -> bool:
        """Return whether the files looked at are as listed, and on plain disks.

        A disk is plain if a read that need not wait is served at once, and if the system counts the blocks that a
        thread has read from it. tmpfs, overlayfs and network disks are not plain.

        `read` says that the files have just been read, from plain disks. Then looking at them waits for no disk,
        and the GIL is kept. A thread that gives it up beside a trainer that runs Python gets it back after 5 ms.
        """
        look = _status_with_gil if read else _status
        return all(self._is_sound(file, look) for file in files[::SAMPLED])

    def _is_sound(self, file: File, look: Callable[[str], tuple[int, int]]) -> bool:
        try:
            written_ns, device = look(file.path)
        except (OSError, ValueError):
            return False
        if file.version not in (None, written_ns):
            return False
        plain = self._plain.get(device)
        if plain is None:
            plain = self._plain[device] = sys.platform == "linux" and _reads_at_once(file.path)
            self.only_plain = all(self._plain.copy().values())
        return plain


def _status(path: str) -> tuple[int, int]:
    """Return the time of the last write to a file, in nanoseconds since 1970, and the number of its device."""
    status = os.stat(path)  # noqa: PTH116 - a Path object per file costs more than the call
    return status.st_mtime_ns, status.st_dev


def _status_with_gil(path: str) -> tuple[int, int]:
    """Return the same, and keep the GIL. This is for Linux."""
    statx = _statx()
    name = os.fsencode(path)
    found = bytearray(_STATUS.size)
    into = (ctypes.c_char * len(found)).from_buffer(found)
    if statx is None or b"\0" in name or statx(HERE, name, 0, _MTIME, into):
        return _status(path)
    seconds, nanoseconds, major, minor = _STATUS.unpack(found)
    return seconds * 1_000_000_000 + nanoseconds, os.makedev(major, minor)


_MTIME: Final = 0x40
"""STATX_MTIME: what is wanted of a file."""
_STATUS: Final = struct.Struct("=112x qI 12x II 112x")
"""The parts of `struct statx` that are used: the time of the last write and the device."""


@cache
def _statx() -> Any:
    """Return the function of the C library, None if it has none."""
    try:
        return ctypes.PyDLL(None).statx
    except (OSError, AttributeError):
        return None


def blocks_read() -> int:
    """Return how many blocks of 512 bytes this thread has read from plain disks since it began.

    A page that was in the page cache is not counted. Reading the clock instead would not do: a thread that waits
    for the GIL looks like one that waits for the disk.
    """
    return thread_waits()[1]


def waited_for(before: int, nbytes: int) -> bool:
    """Return whether at least half of `nbytes` came from a disk since `blocks_read` returned `before`."""
    return 2 * 512 * (blocks_read() - before) >= nbytes > 0


def _reads_at_once(path: str) -> bool:
    """Return whether reads of a file on this disk that need not wait are served at once."""
    fd = -1
    try:
        fd = os.open(path, FLAGS)
        os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT)
    except BlockingIOError:  # it would have waited for the disk
        return True
    except (OSError, AttributeError):
        return False
    finally:
        if fd >= 0:
            os.close(fd)
    return True
