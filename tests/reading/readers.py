"""Every reader there is, each in two ways: as it is called on threads, and as it is called on the loop.

A new store adds itself to `KINDS`, and the contract in `test_readers.py` is then tested on it.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

import asyncfeed as af
from asyncfeed.attempts.retry import Wanted
from asyncfeed.reading.cached import CachedStore
from asyncfeed.reading.fsspec_store import FsspecStore
from asyncfeed.reading.memory import MemoryStore
from asyncfeed.reading.objects import ObjectStore
from asyncfeed.reading.obstore_client import connect
from asyncfeed.reading.reader import AsyncReader, Reader, Store
from asyncfeed.reading.scope import new_reader
from asyncfeed.reading.threaded import ThreadedReader
from tests.servers import moto
from tests.servers.objects import serving
from tests.servers.running import open_sockets, wait_for_sockets


class Folder:
    """Files that a test makes, changes and reads, in one kind of store."""

    store: Store | None = None
    needs_run = False
    """Whether only a run can read from it."""

    def write(self, name: str, data: bytes) -> None:
        raise NotImplementedError

    def remove(self, name: str) -> None:
        raise NotImplementedError

    def path(self, name: str) -> str:
        return name

    def file(self, name: str, size: int | None = None) -> af.File:
        return af.File(self.path(name), size, store=self.store)

    def close(self) -> None:
        """End what the folder needed."""


class LocalFolder(Folder):
    def __init__(self, where: Path) -> None:
        self._where = where

    def write(self, name: str, data: bytes) -> None:
        (self._where / name).write_bytes(data)

    def remove(self, name: str) -> None:
        (self._where / name).unlink()

    def path(self, name: str) -> str:
        return str(self._where / name)


class MemoryFolder(Folder):
    def __init__(self, _: Path) -> None:
        self._contents: dict[str, bytes] = {}
        self.store: MemoryStore = MemoryStore(self._contents)

    def write(self, name: str, data: bytes) -> None:
        self._contents[name] = data

    def remove(self, name: str) -> None:
        del self._contents[name]


class SlowStore(Store):
    """Files in memory that are read on the loop, each call a turn of the loop late; it notes what happens to it.

    It is compared by identity, as a store is that has a connection pool of its own.
    """

    def __init__(self, contents: dict[str, bytes], wait: Callable[[], Awaitable[None]] | None = None) -> None:
        self.contents = contents
        self.wait = wait or partial(asyncio.sleep, 0)
        self.made: list[SlowReader] = []
        self.fails: dict[str, Exception] = {}
        """What a method raises, by its name."""

    def files(self) -> list[af.File]:
        return [af.File(path, len(data), store=self) for path, data in self.contents.items()]

    def reader(self) -> SlowReader:
        self.made.append(made := SlowReader(self))
        return made

    @property
    def events(self) -> list[list[str]]:
        """What was opened and closed, for each reader that was made."""
        return [each.events for each in self.made]


class SlowReader(AsyncReader):
    def __init__(self, store: SlowStore) -> None:
        self._store = store
        self._memory = MemoryStore(store.contents).reader()
        self.events: list[str] = []
        self.made_at = "".join(traceback.format_stack())
        """Where it was made, for a test that finds one too many."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self.reading = 0

    async def _happens(self, what: str) -> None:
        self.events.append(what)
        await self._store.wait()
        if what in self._store.fails:
            raise self._store.fails[what]

    async def open(self) -> None:
        self.loop = asyncio.get_running_loop()
        await self._happens("open")

    async def close(self) -> None:
        assert self.reading == 0
        await self._happens("close")

    def abandon(self) -> None:
        self.events.append("abandon")

    async def look(self, files: Sequence[af.File]) -> list[af.File | Exception]:
        return await self._reads(self._memory.look, files)

    async def read_ranges(self, file: af.File, ranges: Sequence[tuple[int, int]]) -> list[Any]:
        return await self._reads(self._memory.read_ranges, file, ranges)

    async def _reads(self, fn: Callable[..., Any], *args: Any) -> Any:
        assert self.events == ["open"]
        assert self.loop is asyncio.get_running_loop()
        self.reading += 1
        try:
            await self._store.wait()
            return fn(*args)
        finally:
            self.reading -= 1


class SlowFolder(MemoryFolder):
    def __init__(self, _: Path) -> None:
        self._contents = {}
        self.store = SlowStore(self._contents)  # type: ignore[assignment]


class ObjectFolder(Folder):
    """Objects in memory, read with obstore."""

    store: ObjectStore

    def __init__(self, _: Path) -> None:
        obstore = pytest.importorskip("obstore.store")
        self._client = obstore.MemoryStore()
        self.store = ObjectStore("memory://", client=self._client)

    def write(self, name: str, data: bytes) -> None:
        self._client.put(name, data)

    def remove(self, name: str) -> None:
        self._client.delete(name)

    def path(self, name: str) -> str:
        return f"{self.store.url}/{name}"


class ServerFolder(ObjectFolder):
    """Objects of a server that speaks S3, read with obstore."""

    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, _: Path) -> None:
        pytest.importorskip("obstore")
        self._serving = serving()
        self.server = self._serving.__enter__()
        self.server.buckets["bucket"] = {}
        self.store = ObjectStore("s3://bucket", endpoint=self.server.url, anonymous=True, **self.options)

    def write(self, name: str, data: bytes) -> None:
        self.server.put("bucket", name, data)

    def remove(self, name: str) -> None:
        del self.server.buckets["bucket"][name]

    def close(self) -> None:
        assert self.server.wait_closed()
        self._serving.__exit__(None, None, None)


class VersionFolder(ServerFolder):
    options: ClassVar[dict[str, Any]] = {"verify": "etag"}


class WebFolder(ServerFolder):
    """The same server as a plain web server."""

    def __init__(self, where: Path) -> None:
        super().__init__(where)
        self.store = ObjectStore(self.server.url, allow_http=True)

    def path(self, name: str) -> str:
        return f"{self.store.url}/bucket/{name}"


class MotoFolder(ObjectFolder):
    """Moto's S3."""

    def __init__(self, _: Path) -> None:
        pytest.importorskip("obstore")
        self._open = open_sockets()
        self._bucket = moto.new_bucket()
        self.store = ObjectStore(f"s3://{self._bucket}", endpoint=moto.endpoint(), options=moto.CREDENTIALS)
        self._client = connect(self.store)

    def close(self) -> None:
        del self._client
        wait_for_sockets(self._open)


class FsspecFolder(Folder):
    """Files in the memory of fsspec."""

    def __init__(self, _: Path) -> None:
        fsspec = pytest.importorskip("fsspec")
        self._fs = fsspec.filesystem("memory", skip_instance_cache=True)
        self._fs.store.clear()  # all of them share one
        self.store: FsspecStore = FsspecStore(self._fs)

    def write(self, name: str, data: bytes) -> None:
        self._fs.pipe_file(f"/{name}", data)

    def remove(self, name: str) -> None:
        self._fs.rm_file(f"/{name}")

    def path(self, name: str) -> str:
        return f"memory:///{name}"


class CachedFolder(Folder):
    """Files of another folder, read through a cache."""

    def __init__(self, kind: Callable[[Path], Folder], where: Path) -> None:
        (where / "files").mkdir()
        self._inner = kind(where / "files")
        self.needs_run = self._inner.store is not None and not isinstance(self._inner.store.reader(), Reader)
        self.store: CachedStore = CachedStore(self._inner.store, str(where / "cache"))
        self.write, self.remove = self._inner.write, self._inner.remove  # type: ignore[method-assign]
        self.path, self.close = self._inner.path, self._inner.close  # type: ignore[method-assign]


KINDS: dict[str, Callable[[Path], Folder]] = {
    "local": LocalFolder,
    "memory": MemoryFolder,
    "on the loop": SlowFolder,
    "obstore memory": ObjectFolder,
    "obstore S3": ServerFolder,
    "obstore S3 by etag": VersionFolder,
    "obstore web": WebFolder,
    "obstore moto": MotoFolder,
    "fsspec memory": FsspecFolder,
    "cached local": partial(CachedFolder, LocalFolder),
    "cached memory": partial(CachedFolder, MemoryFolder),
    "cached, on the loop": partial(CachedFolder, SlowFolder),
    "cached obstore S3": partial(CachedFolder, ServerFolder),
    "cached obstore web": partial(CachedFolder, WebFolder),
}


@asynccontextmanager
async def open_reader(store: Store | None) -> AsyncIterator[AsyncReader]:
    """Open a reader of a store on the loop. It reads nothing again, whatever its store says."""
    made = new_reader(store, Wanted(retry=None, timeout=None, hedge=None))
    if isinstance(made, Reader):
        made = ThreadedReader(made, partial(asyncio.get_running_loop().run_in_executor, None))
    await made.open()
    try:
        yield made
    finally:
        await made.close()


async def streamed(reader: AsyncReader, file: af.File) -> bytes:
    """Return all bytes of a file, read as a stream."""
    async with aclosing(reader.stream(file)) as blocks:
        return b"".join([block async for block in blocks])
