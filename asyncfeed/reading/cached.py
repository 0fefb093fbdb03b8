"""A store whose files are kept in a folder of the local disk when they are first read.

An entry is found by its name: a hash of the store, the path, the size and the version of the file, and of the
range if only a part was read. So another version of a file is another entry, and no entry becomes wrong.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from hashlib import blake2b
from typing import BinaryIO, cast

import numpy as np

from asyncfeed.attempts.retry import Policy, Wanted
from asyncfeed.reading.cache_folder import HEADER, NO_LIMIT, folder_at
from asyncfeed.reading.file import Bytes, File
from asyncfeed.reading.local import unfilled
from asyncfeed.reading.opener import FLAGS, Opener
from asyncfeed.reading.reader import (
    Buffers,
    Range,
    Reader,
    Store,
    as_file,
    ends_before,
    value,
    wrong_size,
)
from asyncfeed.reading.scope import STORE_DECIDES, reader_of
from asyncfeed.stats import CACHE, SlowPaths

HITS = f"{CACHE}hits"
KEPT = f"{CACHE}misses, now kept"
NOT_KEPT = f"{CACHE}misses, not kept"
NO_VERSION = f"{CACHE}not kept, version unknown"
DAMAGED = f"{CACHE}damaged, read again"


class _Miss(Exception):
    """The cache does not have a file."""


MISS = _Miss()


@dataclass(frozen=True, repr=False)
class CachedStore(Store):
    """A store behind a cache. The files of both have the same paths, sizes and versions.

    Args:
        inner: The store that the files are read from at first; None is the local disk.
        folder: The absolute path of the folder.
        limit: Number of bytes that the folder may have.

    >>> CachedStore(None, "/fast/cache")
    CachedStore(None, '/fast/cache')
    """

    inner: Store | None
    folder: str
    limit: int = NO_LIMIT

    @property
    def policy(self) -> Policy:
        """How the files are read from the store."""
        return Policy() if self.inner is None else self.inner.policy

    @property
    def identity(self) -> str | None:
        """The name of the store behind the cache."""
        return identity_of(self.inner)

    def file(self, file: File) -> File:
        """Return a file of the store behind the cache as a file of this one."""
        return moved(file, self)

    def reader(self) -> CachedReader:
        """Return a reader. It opens nothing before it is used."""
        return CachedReader(self)

    def __hash__(self) -> int:
        return hash(self.folder)

    def __repr__(self) -> str:
        return f"CachedStore({self.inner!r}, {self.folder!r})"


def moved(file: File, store: Store | None) -> File:
    """Return the same file of another store."""
    made = File(file.path, file.size, store=store)
    made.version = file.version
    return made


def identity_of(store: Store | None) -> str | None:
    """Return the name of a store in all processes; None if it has none.

    >>> identity_of(None)
    'local'
    """
    return "local" if store is None else store.identity


def namer(identity: str, kind: str = "") -> Namer:
    """Return what names the entries of a store. `kind` tells what is made of the bytes; "" keeps the bytes."""
    return Namer(f"{identity}\0{kind}\0", os.path.abspath("") + "/" if identity == "local" else "")  # noqa: PTH100


class Namer:
    """Makes the names of entries."""

    def __init__(self, start: str, folder: str) -> None:
        self._hash = blake2b(_encode(start), digest_size=16)
        self._folder = folder

    def __call__(self, file: File, part: Range | None = None) -> str:
        """Return the name of a file, or of a part of it: 32 hexadecimal digits."""
        hashed = self._hash.copy()
        path = file.path
        if self._folder and path[:1] != "/":  # the name must be the same in every folder that a program starts in
            path = self._folder + path
        hashed.update(_encode(f"{path}\0{file.size}\0{file.version!r}\0{part or ''}"))
        return hashed.hexdigest()


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


class CachedReader(Reader):
    """Reads entries of the folder. Other files are read with the run's reader of the store behind the cache.

    Misses of one call are asked for in one call, so they are requested side by side. Invariants:

    * Bytes of an entry are returned only if `CacheFolder.is_sound` says that they are right.
    * An entry that is damaged or cannot be read is a miss: nothing that happens to the folder fails a read.
    * Only files whose size and version are known are kept. If they were not listed, they are looked up once a run.
    """

    def __init__(self, store: CachedStore) -> None:
        self._store = store
        self._folder = folder_at(store.folder)
        self._folder.begin()
        self._opener = Opener()
        self._wanted: Wanted = STORE_DECIDES
        self._counts = SlowPaths()
        identity = store.identity
        self._name = None if identity is None else namer(identity)
        """None if no file can be kept: the store has no name, or does not tell versions."""
        self._looked: dict[str, File] = {}
        """The files that were looked up, by their paths."""

    def follow(self, wanted: Wanted, again: SlowPaths) -> None:
        """Note how files are read from the store behind the cache, and where hits and misses are counted."""
        self._wanted = wanted
        self._counts = again

    def look(self, files: Sequence[File]) -> list[File | Exception]:
        """Return the files with the size and the version that they have in the store.

        A file that was not listed keeps those that it had when the run first looked.
        """
        outcomes: list[File | Exception | None] = [
            None if _is_listed(each) else self._looked.get(each.path) for each in files
        ]
        new = [at for at, outcome in enumerate(outcomes) if outcome is None]
        if new:
            with self._behind() as reader:
                found = reader.look(self._inner([files[at] for at in new]))
            for at, each in zip(new, found, strict=True):
                outcomes[at] = each if isinstance(each, Exception) else self._store.file(each)
                if not isinstance(each, Exception) and not _is_listed(files[at]) and _is_listed(each):
                    self._looked[each.path] = self._store.file(each)
        return cast("list[File | Exception]", outcomes)

    def read(self, files: Sequence[File]) -> list[Bytes | Exception]:
        """Return whole files."""
        known = self._known(files)
        room = [np.empty(each.size or 0, np.uint8) for each in known if each is not None]
        errors = self._fill([each for each in known if each is not None], [(each.data,) for each in room])
        kept = iter([error or made for error, made in zip(errors, room, strict=True)])
        others = [file for file, each in zip(files, known, strict=True) if each is None]
        found = iter(self._read_inner(others))
        return [next(found if each is None else kept) for each in known]

    def read_into(self, files: Sequence[File], into: Sequence[Buffers]) -> list[Exception | None]:
        """Read whole files into memory that is there."""
        known = self._known(files)
        if None not in known:
            return self._fill(cast("Sequence[File]", known), into)
        rooms = list(zip(files, known, into, strict=True))
        listed = [(each, room) for _, each, room in rooms if each is not None]
        kept = iter(self._fill([each for each, _ in listed], [room for _, room in listed]))
        others = [(file, room) for file, each, room in rooms if each is None]
        found = iter(self._fill_inner([file for file, _ in others], [room for _, room in others]))
        return [next(found if each is None else kept) for each in known]

    def read_ranges(self, file: File, ranges: Sequence[Range]) -> list[Bytes | Exception]:
        """Return parts of a file. They are taken from the whole file, or from an entry for each part."""
        (known,) = self._known((file,))
        name = self._name
        if known is None or name is None:
            return self._read_inner_ranges(file, ranges)
        whole = self._parts_of_whole(known, name(known), ranges)
        if whole is not None:
            self._counts.note(HITS)
            return whole
        outcomes: list[Bytes | Exception] = [
            ends_before(file, stop) if stop > (known.size or 0) else np.empty(stop - start, np.uint8)
            for start, stop in ranges
        ]
        inside = [at for at, each in enumerate(outcomes) if not isinstance(each, Exception)]
        names = [name(known, ranges[at]) for at in inside]
        room = [value(outcomes[at]) for at in inside]
        hits = self._read_entries(names, list(map(len, room)), [(each.data,) for each in room])
        missed = [at for at, hit in zip(inside, hits, strict=True) if hit is not None]
        if missed:
            parts = self._read_inner_ranges(known, [ranges[at] for at in missed])
            for at, part in zip(missed, parts, strict=True):
                outcomes[at] = part
                if not isinstance(part, Exception):
                    self._keep(name(known, ranges[at]), (part.data,))
        return outcomes

    def open(self, file: File) -> BinaryIO:
        """Return the file, opened. Blocks of it are kept as they are read."""
        (known,) = self._known((file,))
        return as_file(self, known or value(*self.look((file,))))

    # -- what can be kept

    def _known(self, files: Sequence[File]) -> Sequence[File | None]:
        """Return the files with their sizes and versions; None for those that cannot be kept."""
        self._folder.check()
        if self._name is None:
            self._counts.note(NO_VERSION, len(files))
            return [None] * len(files)
        for file in files:
            if file.size is None or file.version is None:
                return self._looked_up(files)
        return files

    def _looked_up(self, files: Sequence[File]) -> list[File | None]:
        for found in self.look([each for each in files if not _is_listed(each)]):
            # An error is no answer: reading the file meets it, too.
            if not isinstance(found, Exception) and not _is_listed(found):
                self._name = None  # the store does not tell versions: nothing more is looked up
        known = [each if _is_listed(each) else self._agreed(each) for each in files]
        if None in known:
            self._counts.note(NO_VERSION, known.count(None))
        return known

    def _agreed(self, file: File) -> File | None:
        """Return the file as it was looked up; None if that failed, or differs from what was listed."""
        found = self._looked.get(file.path)
        if found is None or file.size not in (None, found.size) or file.version not in (None, found.version):
            return None
        return found

    # -- hits

    def _fill(self, files: Sequence[File], into: Sequence[Buffers]) -> list[Exception | None]:
        """Read files whose sizes and versions are known."""
        if self._name is None:  # another thread has just found out that no version is known
            return self._fill_inner(files, into)
        names = list(map(self._name, files))
        sizes = [sum(map(len, room)) for room in into]
        outcomes = self._read_entries(names, sizes, into)
        missed = []
        for at, (file, size) in enumerate(zip(files, sizes, strict=True)):
            if file.size != size:
                outcomes[at] = wrong_size(file, file.size or 0, size)
            elif outcomes[at] is not None:
                missed.append(at)
        if missed:
            found = self._fill_inner([files[at] for at in missed], [into[at] for at in missed])
            for at, outcome in zip(missed, found, strict=True):
                outcomes[at] = outcome
                if outcome is None:
                    self._keep(names[at], into[at])
        return outcomes

    def _read_entries(
        self, names: Sequence[str], sizes: Sequence[int], into: Sequence[Buffers]
    ) -> list[Exception | None]:
        """Read entries of these sizes into memory. Return None for those that are there and right, else `MISS`."""
        folder = self._folder
        folder.begin_reads()
        header = bytearray(HEADER)
        paths = list(map(folder.entry, names))
        outcomes: list[Exception | None] = []
        with closing(self._opener.open(list(map(File, paths)))) as opened:
            for path, fd, size, parts in zip(paths, opened, sizes, into, strict=True):
                if isinstance(fd, OSError):
                    outcomes.append(MISS)
                    continue
                try:
                    status = os.fstat(fd)
                    good = status.st_size == HEADER + size
                    good = good and read_all(fd, [header, *parts], HEADER + size)
                    good = good and folder.is_sound(path, fd, status, header, parts)
                except OSError:
                    good = False
                outcomes.append(None if good else MISS)
                if not good:
                    self._remove(path)
        hits = outcomes.count(None)
        if hits:
            self._counts.note(HITS, hits)
        return outcomes

    def _parts_of_whole(self, file: File, name: str, ranges: Sequence[Range]) -> list[Bytes | Exception] | None:
        """Return parts of a file that is kept whole; None if it is not."""
        folder = self._folder
        folder.begin_reads()
        path = folder.entry(name)
        try:
            fd = os.open(path, FLAGS)
        except OSError:
            return None
        try:
            status = os.fstat(fd)
            header = os.pread(fd, HEADER, 0)
            if status.st_size == HEADER + (file.size or 0) and folder.is_sound(path, fd, status, header, ()):
                return [_part(fd, file, each) for each in ranges]
        except OSError:
            pass
        finally:
            os.close(fd)
        self._remove(path)
        return None

    def _remove(self, path: str) -> None:
        self._folder.remove(path)
        self._counts.note(DAMAGED)

    # -- misses

    def _keep(self, name: str, parts: Buffers) -> None:
        kept = self._folder.keep(name, parts, self._store.limit)
        self._counts.note(KEPT if kept else NOT_KEPT)

    def _behind(self) -> AbstractContextManager[Reader]:
        """Return a context manager that gives the reader of the store behind the cache."""
        return reader_of(File("", store=self._store.inner), self._wanted)

    def _inner(self, files: Sequence[File]) -> list[File]:
        """Return the files as those of the store behind the cache."""
        store = self._store.inner
        return [moved(each, store) for each in files]

    def _fill_inner(self, files: Sequence[File], into: Sequence[Buffers]) -> list[Exception | None]:
        if not files:
            return []
        with self._behind() as reader:
            return reader.read_into(self._inner(files), into)

    def _read_inner_ranges(self, file: File, ranges: Sequence[Range]) -> list[Bytes | Exception]:
        with self._behind() as reader:
            return reader.read_ranges(self._inner((file,))[0], ranges)

    def _read_inner(self, files: Sequence[File]) -> list[Bytes | Exception]:
        if not files:
            return []
        with self._behind() as reader:
            return reader.read(self._inner(files))


def _is_listed(file: File) -> bool:
    return file.size is not None and file.version is not None


def read_all(fd: int, buffers: Buffers, size: int) -> bool:
    """Fill buffers from the start of a file. Return False if it ends before."""
    got = os.readv(fd, buffers)
    while got < size:
        more = os.readv(fd, unfilled(buffers, got))
        if not more:
            return False
        got += more
    return True


def _part(fd: int, file: File, part: Range) -> Bytes | Exception:
    start, stop = part
    if stop > (file.size or 0):
        return ends_before(file, stop)
    buffer = np.empty(stop - start, np.uint8)
    got = 0
    while got < len(buffer):
        more = os.preadv(fd, (buffer.data[got:],), HEADER + start + got)
        if not more:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        got += more
    return buffer
