"""Any filesystem of fsspec as a store: for schemes that `ObjectStore` does not read.

It is called on threads. Filesystems that are async run on fsspec's own loop, never on the run's.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import numpy as np

from asyncfeed.attempts.retry import Policy, Wanted
from asyncfeed.errors import PipelineError, StoreError, TimedOut, Unavailable
from asyncfeed.reading.file import Bytes, File
from asyncfeed.reading.glob import alternatives, fixed_part, has_magic
from asyncfeed.reading.keys import ObjectList, Place, matcher
from asyncfeed.reading.reader import Buffers, Range, Reader, Store, changed, ends_before, fill, value
from asyncfeed.stats import SlowPaths

_ADDRESS = ("host", "port", "endpoint_url", "account_name")
"""Options of filesystems that tell which server is meant. None of them is a secret."""
TIMEOUT = Policy(timeout=30.0, bytes_per_second=1e5)
"""How long a read of an async filesystem may take if `load` says nothing else: 30 s, and 1 s more for each 100 kB.
fsspec and its clients limit the time for each piece. So a server that sends a byte now and then would hold a read
for ever. A higher rate would end reads on thin lines, over which many files come together."""
_SAME = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)


@dataclass(frozen=True, repr=False)
class FsspecStore(Store):
    """A filesystem of fsspec. It is pickled as fsspec pickles it, with the options that it was made with.

    >>> import fsspec
    >>> FsspecStore(fsspec.filesystem("memory"))
    FsspecStore('memory')
    """

    filesystem: Any

    def __post_init__(self) -> None:
        if getattr(self.filesystem, "asynchronous", False):
            raise PipelineError(
                "files: the fsspec filesystem is for async code; make it without asynchronous=True"
            )

    def reader(self) -> FsspecReader:
        """Return a reader of the filesystem."""
        return FsspecReader(self.filesystem)

    @property
    def identity(self) -> str:
        """The protocol of the filesystem, and the options that tell which server it reaches."""
        options = getattr(self.filesystem, "storage_options", {})
        return " ".join(["fsspec", self._protocol, *(f"{name}={options.get(name)}" for name in _ADDRESS)])

    def path(self, name: str) -> str:
        """Return the path of a file as its URL."""
        return str(self.filesystem.unstrip_protocol(name))

    def __hash__(self) -> int:
        return hash(self._protocol)

    def __repr__(self) -> str:
        return f"FsspecStore({self._protocol!r})"

    @property
    def _protocol(self) -> str:
        protocol = self.filesystem.protocol
        return str(protocol if isinstance(protocol, str) else protocol[0])


class FsspecReader(Reader):
    """Reads through a filesystem of fsspec."""

    def __init__(self, filesystem: Any) -> None:
        self._fs = filesystem
        self._policy = TIMEOUT

    def follow(self, wanted: Wanted, again: SlowPaths) -> None:
        """Note how long a read may take. A filesystem that is not async cannot be told."""
        self._policy = wanted.over(TIMEOUT)

    def look(self, files: Sequence[File]) -> list[File | Exception]:
        """Return the files with their sizes, and their etags if the filesystem has them."""
        return [self._look(file) for file in files]

    def read(self, files: Sequence[File]) -> list[Bytes | Exception]:
        """Return whole files. An async filesystem reads several at a time."""
        return [each if isinstance(each, Exception) else each.copy() for each in self._contents(files)]

    def read_into(self, files: Sequence[File], into: Sequence[Buffers]) -> list[Exception | None]:
        """Read whole files into memory that is there."""
        return list(map(fill, files, self._contents(files), into))

    def read_ranges(self, file: File, ranges: Sequence[Range]) -> list[Bytes | Exception]:
        """Return parts of a file."""
        found = self._look(file)
        if isinstance(found, Exception):
            return [found for _ in ranges]
        wrong = changed(file, found.size, found.version)
        if wrong is not None:
            return [wrong for _ in ranges]
        outcomes: list[Bytes | Exception] = []
        for start, stop in ranges:
            if stop > (found.size or 0):
                outcomes.append(ends_before(file, stop))
            elif start == stop:
                outcomes.append(np.empty(0, np.uint8))
            else:
                outcomes.append(self._part(file, start, stop))
        return outcomes

    def open(self, file: File) -> BinaryIO:
        """Return the file, opened as fsspec does. Its size and version are not checked."""
        try:
            return cast("BinaryIO", self._fs.open(file.path, "rb"))
        except Exception as error:  # noqa: BLE001 - translated
            raise translate(error, file.path) from None

    def _look(self, file: File) -> File | Exception:
        try:
            self._fs.invalidate_cache(file.path)
            info = self._call("info", 0, file.path)
        except Exception as error:  # noqa: BLE001 - any exception is an outcome
            return translate(error, file.path)
        if info.get("type") == "directory":
            return IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), file.path)
        return File(file.path, info.get("size"), etag=_etag(info), store=file.store)

    @property
    def _has_deadline(self) -> bool:
        return bool(getattr(self._fs, "async_impl", False)) and self._policy.timeout is not None

    def _size(self, file: File) -> int:
        """Return the size of a file, looked up if it is not known; 0 if it cannot be, as reading it will show."""
        found = self._look(file) if file.size is None else file
        return 0 if isinstance(found, Exception) else found.size or 0

    def _call(self, name: str, nbytes: int, path: str, *args: Any) -> Any:
        """Call a method of the filesystem that brings so many bytes."""
        if not self._has_deadline:
            return getattr(self._fs, name)(path, *args)
        return value(*self._in_time(name, [(nbytes, path, *args)]))

    def _in_time(self, name: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call an async method at the same time for each number of bytes, path and more. Cancel what is late."""
        # `cat_ranges` of fsspec would be no help: if it is cancelled, what it has begun goes on.
        loop = self._fs.loop
        begun = [asyncio.run_coroutine_threadsafe(self._timed(name, *each), loop) for each in calls]
        try:
            return [each.result() for each in begun]
        finally:
            for each in begun:
                each.cancel()

    async def _timed(self, name: str, nbytes: int, path: str, *args: Any) -> Any:
        """Return the outcome of a call, which may be an exception. This runs on the loop of fsspec."""
        seconds = self._policy.seconds(nbytes)
        try:
            async with asyncio.timeout(seconds) as limit:
                return await getattr(self._fs, f"_{name}")(path, *args)
        except Exception as error:  # noqa: BLE001 - any exception is an outcome
            if not limit.expired():
                return error
            all_of = f" with all of {nbytes:,} bytes" if nbytes else ""
            text = f"no answer within {seconds:.3g} s{all_of}; load(timeout=...) allows more"
            return TimedOut(text, kind="timeout")

    def _contents(self, files: Sequence[File]) -> list[Bytes | Exception]:
        """Return the contents of files, in memory that is not to be written to."""
        try:
            found = self._whole_files(files)
        except Exception as error:  # noqa: BLE001 - any exception is an outcome
            return [translate(error, file.path) for file in files]
        return list(map(_whole, files, found))

    def _whole_files(self, files: Sequence[File]) -> list[Any]:
        """Return bytes, or an exception, for each file. Each has its own deadline, if it can have one."""
        if not self._has_deadline:
            nothing = [None] * len(files)
            return list(self._fs.cat_ranges([each.path for each in files], nothing, nothing, on_error="return"))
        return self._in_time("cat_file", [(self._size(file), file.path) for file in files])

    def _part(self, file: File, start: int, stop: int) -> Bytes | Exception:
        try:
            data = self._call("cat_file", stop - start, file.path, start, stop)
        except Exception as error:  # noqa: BLE001 - any exception is an outcome
            return translate(error, file.path)
        if len(data) != stop - start:
            return ends_before(file, stop)
        return np.frombuffer(data, np.uint8).copy()


def _whole(file: File, found: Any) -> Bytes | Exception:
    if isinstance(found, Exception):
        return translate(found, file.path)
    return changed(file, len(found), file.version) or np.frombuffer(found, np.uint8)


def _etag(info: dict[str, Any]) -> str | None:
    etag = info.get("ETag") or info.get("etag")
    return str(etag) if etag else None


def translate(error: Exception, path: str) -> Exception:
    """Return the error to show for a file. The text of the given one may hold an address with a secret."""
    for kind in _SAME:
        if isinstance(error, kind):
            number = error.errno or (errno.ENOENT if kind is FileNotFoundError else errno.EACCES)
            return kind(number, os.strerror(number), path)
    if isinstance(error, TimedOut):
        return TimedOut(f"{path}: {error}", kind="timeout")
    name = type(error).__name__
    if "Credential" in name:
        return PermissionError(errno.EACCES, f"fsspec found no credentials ({name})", path)
    if isinstance(error, TimeoutError) or "Timeout" in name:
        return Unavailable(f"{path}: the store did not answer in time", kind="timeout")
    if isinstance(error, ConnectionError) or "Connect" in name:
        return Unavailable(f"{path}: there is no connection to the store", kind="connection")
    if isinstance(error, OSError):
        kind_of = "throttled" if error.errno == errno.EBUSY else "other"
        return Unavailable(f"{path}: the store did not answer as it should ({name})", kind=kind_of)
    return StoreError(f"{path}: fsspec raised {name}")


def expand(paths: Sequence[str], store: FsspecStore) -> ObjectList:
    """List the files that paths and patterns name. Patterns mean what they mean for local files. This blocks."""
    fs = store.filesystem
    literals: list[File] = []
    place = Place("", store)
    found = ObjectList((place,))
    listed = False
    for path in paths:
        pattern = path.partition("://")[2] or path
        if not has_magic(pattern):
            found_as = _info(path, store)
            name = store.path(path if found_as is None else found_as["name"])
            literals.append(value(*FsspecReader(fs).look((File(name, store=store),))))
            continue
        before, listed = len(found), True
        for each in alternatives(path):
            _match(each, store, found)
        if len(found) == before:
            raise PipelineError(f"files: {pattern!r} matches no file of {store!r}")
    matches = found.in_order()
    if not literals:
        return matches
    if listed:
        raise PipelineError("files: with fsspec, give either patterns or paths; concat joins both")
    return ObjectList((place,), ((file.path, file.size, file.etag, 0) for file in literals))


def _match(pattern: str, store: FsspecStore, found: ObjectList) -> None:
    folder = fixed_part(pattern)
    rest = pattern.removeprefix(folder)
    info = _info("" if folder == "." else folder, store)
    if info is None:
        return
    start = store.path(info["name"]).removesuffix("/")
    match = re.compile(f"{re.escape(start)}/(?:{matcher(rest).pattern})", re.DOTALL).fullmatch
    try:
        listed = store.filesystem.find(info["name"], detail=True)
    except Exception as error:  # noqa: BLE001 - translated
        raise translate(error, start) from None
    for name, each in listed.items():
        path = store.path(name)
        if match(path) and each.get("type") != "directory":
            found.append(path, each.get("size"), _etag(each))


def _info(path: str, store: FsspecStore) -> dict[str, Any] | None:
    """Return what the filesystem knows of a path, such as the name that it has there. None if it is not there."""
    try:
        info: dict[str, Any] = store.filesystem.info(path)
    except FileNotFoundError:
        return None
    except Exception as error:  # noqa: BLE001 - translated
        raise translate(error, path) from None
    return info
