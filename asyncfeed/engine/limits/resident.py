"""Gives memory that was freed back to the system.

glibc's malloc has an arena for each of several threads, and keeps most of what was freed in an arena. The items of
an epoch may come from another thread than those of the epoch before. Then each arena would keep an epoch's worth.
So the threads of runs look at the memory of the process now and then. If it has grown, they have malloc give back
what is free. Other malloc libraries give it back by themselves.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from time import monotonic

from asyncfeed.engine.constants import GROWN_BYTES, GROWN_SHARE, LOOK_SECONDS


class Resident:
    """The memory of this process that is not on disk. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next_look = 0.0
        self._least: int | None = None
        """The smallest number of bytes since memory was given back. None before the first look."""

    def look(self) -> None:
        """Give freed memory back if the process has grown. Call this on a thread, as often as you like."""
        now = monotonic()
        if now < self._next_look or not self._lock.acquire(blocking=False):
            return
        try:
            self._next_look = now + LOOK_SECONDS
            found = _resident_bytes()
            if self._least is None or found < self._least:
                self._least = found
            elif found - self._least > max(GROWN_BYTES, GROWN_SHARE * self._least):
                _give_back()
                self._least = _resident_bytes()
        finally:
            self._lock.release()


def _resident_bytes() -> int:
    with suppress(OSError):  # another system than Linux
        statm = os.open("/proc/self/statm", os.O_RDONLY)
        try:
            return int(os.read(statm, 200).split()[1]) * os.sysconf("SC_PAGE_SIZE")
        finally:
            os.close(statm)
    return 0


def _give_back() -> None:
    import ctypes  # noqa: PLC0415 - most runs never need it

    with suppress(AttributeError):  # another library than glibc
        ctypes.CDLL(None).malloc_trim(0)  # without the GIL


resident = Resident()
