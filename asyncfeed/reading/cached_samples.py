"""Samples that are kept when they are first made, in memory or in a folder of the local disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from asyncfeed.reading.cached import HITS, KEPT, NO_VERSION, NOT_KEPT, Namer, identity_of, namer
from asyncfeed.reading.file import File
from asyncfeed.reading.reader import Store
from asyncfeed.reading.sample_storage import NOTHING, FolderSamples, MemorySamples
from asyncfeed.reading.samples import Unkept, described, pack
from asyncfeed.stats import SlowPaths


@dataclass(slots=True)
class CachedSamples:
    """Returns the samples of items: those that are kept, or from `make`. Any number of threads may call it.

    An entry is found by a hash of what makes the sample, and of the item. Of a file this is the store, the path,
    the size and the version.
    """

    make: Callable[[Any], Any]
    what: str
    """The name of what makes the samples, and of its version."""
    storage: FolderSamples | MemorySamples
    counts: SlowPaths = field(default_factory=SlowPaths)
    _namers: dict[Store | None, Namer | None] = field(default_factory=dict)

    def __call__(self, item: Any) -> Any:
        """Return the sample of an item."""
        storage = self.storage
        storage.begin()
        name = self._name_of_file(item) if isinstance(item, File) else self._name(item)
        if name is None:
            self.counts.note(NO_VERSION)
            return self.make(item)
        sample = storage.find(name, self.counts)
        if sample is not NOTHING:
            self.counts.note(HITS)
            return sample
        sample = self.make(item)
        kept = storage.keep(name, pack(sample))
        self.counts.note(KEPT if kept else NOT_KEPT)
        return sample

    def _name_of_file(self, file: File) -> str | None:
        """Return the name of the entry of a file; None if the file has no version."""
        if file.store not in self._namers:
            identity = identity_of(file.store)
            self._namers[file.store] = None if identity is None else namer(identity, f"sample {self.what}")
        found = self._namers[file.store]
        return None if found is None or file.size is None or file.version is None else found(file)

    def _name(self, item: Any) -> str | None:
        """Return the name of the entry of an item; None if a file in it has no version."""
        try:
            text, parts = described(item, self._described_file)
        except Unkept:
            return None
        except TypeError as error:
            raise TypeError(
                f"cache finds a sample by the item that it is made of. {error}: the items may be files, numbers, "
                "texts, bytes and arrays, and tuples, lists and dicts of them"
            ) from None
        hashed = blake2b(f"item {self.what}\0{text}".encode("utf-8", "surrogateescape"), digest_size=16)
        for part in parts:
            hashed.update(part)
        return hashed.hexdigest()

    def _described_file(self, thing: Any) -> list[Any] | None:
        if not isinstance(thing, File):
            return None
        name = self._name_of_file(thing)
        if name is None:
            raise Unkept
        return ["file", name]
