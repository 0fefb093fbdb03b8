"""A store in memory that tells versions and counts what is read from it, and what tests ask of a cache."""

from __future__ import annotations

import hashlib
import io
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import asyncfeed as af
from asyncfeed.reading.memory import MemoryReader
from asyncfeed.reading.reader import Buffers, Reader, Store


def npy(array: Any) -> bytes:
    made = io.BytesIO()
    np.save(made, array)
    return made.getvalue()


class VersionStore(Store):
    """Files whose version is a hash of their contents. It is compared by identity."""

    def __init__(self, contents: dict[str, bytes], identity: str | None = "versions") -> None:
        self.contents = contents
        self.reads: Counter[str] = Counter()
        """How often each file was read from here."""
        self.looks = 0
        self._identity = identity

    @property
    def identity(self) -> str | None:
        return self._identity

    def file(self, path: str) -> af.File:
        data = self.contents[path]
        return af.File(path, len(data), etag=hashlib.md5(data).hexdigest(), store=self)

    def files(self) -> list[af.File]:
        return [self.file(path) for path in self.contents]

    def reader(self) -> Reader:
        return _VersionReader(self)


class _VersionReader(MemoryReader):
    def __init__(self, store: VersionStore) -> None:
        super().__init__(store.contents)
        self._store = store

    def look(self, files: Sequence[af.File]) -> list[af.File | Exception]:
        self._store.looks += len(files)
        found = super().look(files)
        return [each if isinstance(each, Exception) else self._store.file(each.path) for each in found]

    def read(self, files: Sequence[af.File]) -> list[Any]:
        return [self.read_ranges(file, [(0, file.size or 0)])[0] for file in files]

    def read_into(self, files: Sequence[af.File], into: Sequence[Buffers]) -> list[Exception | None]:
        return super().read_into(files, into)

    def read_ranges(self, file: af.File, ranges: Sequence[tuple[int, int]]) -> list[Any]:
        self._store.reads[file.path] += 1
        size = None if file.path not in self._store.contents else len(self._store.contents[file.path])
        return super().read_ranges(af.File(file.path, size, store=file.store), ranges)


def numbered(count: int, size: int = 10) -> dict[str, bytes]:
    """Return that many files of that many numbers each."""
    return {f"{number:03}.npy": npy(np.full(size, number)) for number in range(count)}


def entries(folder: Path) -> list[Path]:
    """Return the entries of a cache."""
    return sorted(path for path in folder.glob("??/*") if path.is_file())


def left(folder: Path) -> list[str]:
    """Return the files that were not completely written."""
    return os.listdir(folder / "new") if (folder / "new").exists() else []


def counts(feed: af.Feed[Any]) -> dict[str, int]:
    """Return what a cache did in a run, without the common start of the names."""
    named = dict(feed.stats().slow_paths)
    return {name.removeprefix("cache: "): count for name, count in named.items() if name.startswith("cache: ")}


def run(pipeline: af.Pipeline[Any]) -> tuple[list[Any], dict[str, int]]:
    """Return the items of one epoch, and what the cache did."""
    with pipeline.open() as feed:
        items = list(feed)
        return items, counts(feed)
