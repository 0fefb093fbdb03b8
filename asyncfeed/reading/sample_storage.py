"""Where samples are kept: in a folder of the local disk, or in the memory of this process."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from asyncfeed.reading.cache_folder import HEADER, CacheFolder, folder_at
from asyncfeed.reading.cached import DAMAGED, read_all
from asyncfeed.reading.opener import FLAGS
from asyncfeed.reading.samples import unpack
from asyncfeed.stats import SlowPaths

NOTHING: Final = object()
"""Stands for a sample that is not kept."""
ENTRY_BYTES: Final = 200
"""Memory of an entry beside its bytes: its name, and its place in a dict."""


class FolderSamples:
    """Samples in a folder that any number of processes may share."""

    def __init__(self, path: str, limit: int) -> None:
        self._path = path
        self._limit = limit
        self._folder: CacheFolder | None = None

    def begin(self) -> None:
        """Prepare the folder, if this is the first call of a run. It is called before each sample."""
        folder = self._folder
        if folder is None:
            folder = folder_at(self._path)
            folder.begin()
            self._folder = folder
        folder.check()
        folder.begin_reads()

    def find(self, name: str, counts: SlowPaths) -> Any:
        """Return the sample of this name, or `NOTHING`."""
        folder = self._folder
        assert folder is not None
        path = folder.entry(name)
        try:
            fd = os.open(path, FLAGS)
        except OSError:
            return NOTHING
        try:
            status = os.fstat(fd)
            header, data = bytearray(HEADER), np.empty(max(0, status.st_size - HEADER), np.uint8)
            whole = read_all(fd, [header, data.data], status.st_size)
            if whole and folder.is_sound(path, fd, status, header, (data.data,)):
                return unpack(data)
        except (OSError, ValueError):
            pass
        finally:
            os.close(fd)
        folder.remove(path)
        counts.note(DAMAGED)
        return NOTHING

    def keep(self, name: str, parts: Sequence[memoryview]) -> bool:
        """Keep a sample. Return whether there was room for it."""
        assert self._folder is not None
        return self._folder.keep(name, parts, self._limit)


class MemorySamples:
    """Samples in memory, as bytes. They live as long as the pipelines that have this object.

    A copy in another process begins without samples.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self.nbytes = 0
        """Memory that the samples take."""

    def __reduce__(self) -> tuple[type[MemorySamples], tuple[int]]:
        return MemorySamples, (self._limit,)

    def begin(self) -> None:
        """Do nothing: memory is there."""

    def find(self, name: str, counts: SlowPaths) -> Any:
        """Return the sample of this name, or `NOTHING`. Its arrays belong to the caller."""
        data = self._kept.get(name)
        return NOTHING if data is None else unpack(np.frombuffer(bytearray(data), np.uint8))

    def keep(self, name: str, parts: Sequence[memoryview]) -> bool:
        """Keep a sample. Return whether there was room for it."""
        size = sum(part.nbytes for part in parts) + ENTRY_BYTES
        with self._lock:
            if name in self._kept:
                return True
            if self.nbytes + size > self._limit:
                return False
            self.nbytes += size  # taken before the copy, so that threads do not exceed the limit together
        data = b"".join(parts)
        with self._lock:
            if self._kept.setdefault(name, data) is not data:
                self.nbytes -= size
        return True
