"""Samples that are kept in a folder of the local disk when they are first decoded."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from asyncfeed.reading.cache_folder import HEADER, CacheFolder, folder_at
from asyncfeed.reading.cached import DAMAGED, HITS, KEPT, NO_VERSION, NOT_KEPT, Namer, identity_of, namer, read_all
from asyncfeed.reading.file import File
from asyncfeed.reading.opener import FLAGS
from asyncfeed.reading.reader import Store
from asyncfeed.reading.samples import pack, unpack
from asyncfeed.stats import SlowPaths

_NOTHING = object()


@dataclass(slots=True)
class CachedSamples:
    """Returns the samples of files: from the folder, or from `load`. Any number of threads may call it.

    An entry is found by a hash of the store, the path, the size and the version of the file, and of the decoder.
    """

    load: Callable[[File], Any]
    decoder: str
    """The name of the decoder and of its version."""
    path: str
    limit: int
    counts: SlowPaths = field(default_factory=SlowPaths)
    _namers: dict[Store | None, Namer | None] = field(default_factory=dict)
    _folder: CacheFolder | None = None

    def __call__(self, file: File) -> Any:
        """Return the sample of a file."""
        folder = self._begun()
        namer = self._namer(file.store)
        if namer is None or file.size is None or file.version is None:
            self.counts.note(NO_VERSION)
            return self.load(file)
        name = namer(file)
        sample = self._kept(folder, folder.entry(name))
        if sample is _NOTHING:
            sample = self.load(file)
            kept = folder.keep(name, pack(sample), self.limit)
            self.counts.note(KEPT if kept else NOT_KEPT)
        return sample

    def _begun(self) -> CacheFolder:
        folder = self._folder
        if folder is None:
            folder = folder_at(self.path)
            folder.begin()
            self._folder = folder
        folder.check()
        folder.begin_reads()
        return folder

    def _namer(self, store: Store | None) -> Namer | None:
        if store not in self._namers:
            identity = identity_of(store)
            self._namers[store] = None if identity is None else namer(identity, f"sample {self.decoder}")
        return self._namers[store]

    def _kept(self, folder: CacheFolder, path: str) -> Any:
        """Return the sample in an entry, or `_NOTHING`."""
        try:
            fd = os.open(path, FLAGS)
        except OSError:
            return _NOTHING
        try:
            status = os.fstat(fd)
            header, data = bytearray(HEADER), np.empty(max(0, status.st_size - HEADER), np.uint8)
            whole = read_all(fd, [header, data.data], status.st_size)
            if whole and folder.is_sound(path, fd, status, header, (data.data,)):
                sample = unpack(data)
                self.counts.note(HITS)
                return sample
        except (OSError, ValueError):
            pass
        finally:
            os.close(fd)
        folder.remove(path)
        self.counts.note(DAMAGED)
        return _NOTHING
