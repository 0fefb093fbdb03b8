"""What `load` calls for its items: it reads the files in an item, and decodes their contents."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from asyncfeed.attempts.retry import Wanted
from asyncfeed.errors import Corrupt
from asyncfeed.formats.base import Decoder
from asyncfeed.functions.checks import refuse_awaitable
from asyncfeed.reading.file import Bytes, File
from asyncfeed.reading.leaves import files_in
from asyncfeed.reading.reader import AsyncReader, Buffers, Reader, Store, fill, value
from asyncfeed.reading.scope import current, read_whole, reader_of
from asyncfeed.trees import map_leaves

UNKNOWN_BYTES = 1 << 18
"""What a file of unknown size is taken for, until some were read and the engine knows better."""
BATCH_BYTES = 64 << 20
"""Size of a batch that is read at once and copied into its rows. A larger one would take too much memory twice, so
its files are read straight into their rows. With smaller files the threads that wait for this cost more."""


def listed_size(item: Any) -> int | None:
    """Return the total size of the files in an item; None if the size of one is not known.

    >>> listed_size((File("a.npy", 17), {"y": File("b.npy", 3)}, "label"))
    20
    """
    if isinstance(item, File):
        return item.size
    total = 0
    for file in files_in(item):
        if file.size is None:
            return None
        total += file.size
    return total


@dataclass(frozen=True, slots=True)
class RowSize:
    """Computes the size of the samples in an item if each has the same size."""

    nbytes: int

    def __call__(self, item: Any) -> int:
        """Return the number of bytes."""
        return self.nbytes if isinstance(item, File) else self.nbytes * len(files_in(item))


@dataclass(frozen=True, slots=True)
class Measure:
    """Looks up the total size of the files in an item: their size in the store, or their size when unpacked."""

    decoder: Decoder[Any] | None

    def __call__(self, item: Any) -> int:
        """Return the number of bytes. This blocks."""
        return sum(map(self._of, files_in(item)))

    def _of(self, file: File) -> int:
        try:
            if self.decoder is None and file.size is not None:
                return file.size
            if self.decoder is not None and type(file) is Contents:
                if isinstance(file.outcome, Exception):
                    return 0  # the step that decodes raises it
                return self.decoder.unpacked(io.BytesIO(file.data), file)
            with reader_of(file) as reader:
                if self.decoder is None:
                    return value(*reader.look((file,))).size or 0
                with reader.open(file) as opened:
                    return self.decoder.unpacked(opened, file)
        except (OSError, ValueError):
            return file.size or 0  # reading the file meets the same error, and reports it


@dataclass(frozen=True, slots=True)
class ForEachFile:
    """Calls a function for each file in an item, and puts the results in their places."""

    each: Callable[[File], Any]

    def __call__(self, item: Any) -> Any:
        """Return the item with what the function returned in place of the files."""
        each = self.each
        if isinstance(item, File):
            return each(item)
        if type(item) is tuple and all(isinstance(leaf, File) for leaf in item) and item:
            return tuple([each(leaf) for leaf in item])  # a `StopIteration` would end a `map` in silence
        found = False

        def put(leaf: Any) -> Any:
            nonlocal found
            if isinstance(leaf, File):
                found = True
                return each(leaf)
            return leaf

        loaded = map_leaves(put, item)
        if not found:
            raise _has_no_file(item)
        return loaded


@dataclass(frozen=True, slots=True)
class Decode:
    """Decodes a file with one of asyncfeed's decoders."""

    decoder: Decoder[Any]
    wanted: Wanted

    def __call__(self, file: File) -> Any:
        """Return the sample."""
        data = file.own() if type(file) is Contents else read_whole(file, self.wanted)
        sample = self.decoder.decode(data, file)
        refuse_awaitable("load", sample)
        return sample


@dataclass(frozen=True, slots=True)
class Call:
    """Calls a function of the user's with the bytes of a file."""

    fn: Callable[[bytes], Any]
    wanted: Wanted

    def __call__(self, file: File) -> Any:
        """Return the sample."""
        data = file.data if type(file) is Contents else read_whole(file, self.wanted).data
        sample = self.fn(data.tobytes())
        refuse_awaitable("load", sample)
        return sample


class Contents(File):
    """A file with its contents, between the step that reads it and the step that decodes it."""

    __slots__ = ("outcome",)

    def __init__(self, file: File, outcome: memoryview | Exception) -> None:
        self.path = file.path
        self.version = file.version
        self.store = file.store
        self.outcome: memoryview | Exception | None = outcome
        """The contents, or why they could not be read. None after that was raised."""
        self.size = file.size
        if self.size is None and isinstance(outcome, memoryview):
            self.size = outcome.nbytes

    @property
    def nbytes(self) -> int:
        """Size of the contents in bytes; 0 if they could not be read."""
        return self.outcome.nbytes if isinstance(self.outcome, memoryview) else 0

    @property
    def data(self) -> memoryview:
        """The contents. If they can be written to, no one else holds them.

        Raises why they could not be read, once: the frames of the error hold this object, and both would stay.
        """
        if isinstance(self.outcome, memoryview):
            return self.outcome
        outcome, self.outcome = self.outcome, None
        return value(outcome or Corrupt(f"{self.path} could not be read, as an earlier error says"))

    def own(self) -> Bytes:
        """Return the contents in memory that a sample may be a view of. They are copied if another holds them."""
        return np.frombuffer(bytearray(self.data) if self.data.readonly else self.data, np.uint8)


@dataclass(frozen=True, slots=True)
class Read:
    """Reads a file on a thread, for a decoder that runs on the loop."""

    wanted: Wanted

    def __call__(self, item: Any) -> Any:
        """Return the item with files that have their contents, or the errors of their reads."""
        if isinstance(item, File):
            return self._read(item)
        return map_leaves(lambda leaf: self._read(leaf) if isinstance(leaf, File) else leaf, item)

    def _read(self, file: File) -> Contents:
        if type(file) is Contents:
            return file
        try:
            return Contents(file, read_whole(file, self.wanted).data)
        except Exception as error:  # noqa: BLE001 - the step that decodes raises it
            return Contents(file, error)


@dataclass(slots=True)
class ReadOnLoop:
    """Reads the files in an item on the loop, for a decoder that runs on threads.

    Files that only threads can read stay as they are: the next step reads them.

    The error of a read is raised by the `Contents`, in the next step. So one step counts all failures of a stage,
    in the order of the items, and says which file of a batch it is.
    """

    wanted: Wanted
    groups: bool = False
    """Whether items are the files of a batch. Batches of more than `BATCH_BYTES` stay as they are."""
    _store: Store | None = None
    _reader: AsyncReader | None = None
    _waiting: int = 0
    """Number of calls that wait until a reader is open. No later call may overtake them."""

    def cost(self, item: Any) -> int:
        """Return how many bytes are read for an item."""
        size = sum(UNKNOWN_BYTES if file.size is None else file.size for file in files_in(item))
        return 0 if self.groups and size > BATCH_BYTES else size

    async def __call__(self, item: Any) -> Any:
        """Return the item with files that have their contents."""
        if type(item) is File:
            return (await self._read([item]))[0]
        files = files_in(item)
        if not files or (self.groups and not self.cost(item)):
            return item
        read = iter(await self._read(files))
        return map_leaves(lambda leaf: next(read) if isinstance(leaf, File) else leaf, item)

    async def _read(self, files: list[File]) -> list[File]:
        read = list(files)
        # By identity, which most files share: comparing two stores field by field takes longer.
        for store in {id(file.store): file.store for file in files}.values():
            if store is None or not store.reads_on_loop:
                continue
            places = [at for at, file in enumerate(files) if file.store is store]
            for at, outcome in zip(places, await self._outcomes(store, [files[at] for at in places]), strict=True):
                read[at] = Contents(files[at], outcome)
        return read

    async def _outcomes(self, store: Store, files: list[File]) -> Sequence[memoryview | Exception]:
        try:
            return await (await self._reader_of(store)).contents(files)
        except Exception as error:  # noqa: BLE001 - each of the files raises it
            return [error] * len(files)

    async def _reader_of(self, store: Store) -> AsyncReader:
        """Return the run's reader. Most files share one, so the last one is kept."""
        if self._reader is not None and store is self._store and not self._waiting:
            return self._reader
        scope = current.get()
        assert scope is not None, "the engine calls this in a run"
        self._waiting += 1
        try:
            reader = await scope.async_reader(store, self.wanted)
        finally:
            self._waiting -= 1
        self._reader, self._store = reader, store
        return reader


@dataclass(frozen=True, slots=True)
class Await:
    """Awaits a decoder for each file in an item, one after the other."""

    fn: Callable[[bytes], Any]

    async def __call__(self, item: Any) -> Any:
        """Return the item with samples in place of the files."""
        if type(item) is Contents:
            return await self.fn(item.data.tobytes())
        read: list[Contents] = []
        map_leaves(lambda leaf: read.append(leaf) if type(leaf) is Contents else None, item)
        if not read:
            raise _has_no_file(item)
        decoded = iter([await self.fn(each.data.tobytes()) for each in read])
        return map_leaves(lambda leaf: next(decoded) if type(leaf) is Contents else leaf, item)


class ContentsReader(Reader):
    """Reads files whose contents are in memory."""

    def read(self, files: Sequence[File]) -> list[Bytes | Exception]:
        """Return whole files."""
        return [each.outcome if isinstance(each.outcome, Exception) else each.own() for each in _contents(files)]

    def read_into(self, files: Sequence[File], into: Sequence[Buffers]) -> list[Exception | None]:
        """Copy whole files into memory that is there."""
        return [_filled(each, buffers) for each, buffers in zip(_contents(files), into, strict=True)]


def _filled(file: Contents, into: Buffers) -> Exception | None:
    assert file.outcome is not None
    return fill(file, file.outcome, into)


def _contents(files: Sequence[File]) -> Sequence[Contents]:
    return cast("Sequence[Contents]", files)


def _has_no_file(item: Any) -> TypeError:
    return TypeError(
        f"load takes files, or tuples, lists and dicts of them, not {_shown(item)}: "
        "start with files(...), or put File(path) where a file is to be read"
    )


def _shown(item: Any) -> str:
    text = " ".join(repr(item).split())
    return f"{type(item).__name__} {text if len(text) <= 80 else text[:77] + '...'}"
