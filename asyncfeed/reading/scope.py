"""Decides which reader the code of a run gets for a file.

The readers of a run are in its `Scope`. The context variable `current` holds the scope of the run that the calling
code belongs to. Each task and each thread of a run has it. So if a function of the user's calls `lines`, it reads
with the run's readers, on the run's threads. Outside a run `current` is None, and a reader is made for one use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from asyncfeed.attempts.retry import Wanted
from asyncfeed.errors import StoreError
from asyncfeed.reading.file import Bytes, File
from asyncfeed.reading.reader import AsyncReader, Reader, Store, value
from asyncfeed.reading.uring_reader import UringReader
from asyncfeed.stats import SlowPaths

STORE_DECIDES = Wanted()
"""Wants of a read what its store says."""
NOT_IN_PROCESS = (
    'files of an object store are read on the event loop: leave out on="process", and decode in processes with '
    'load(bytes).map(decode, on="process")'
)
"""What is said of a store that a worker process cannot read."""
HELD_BYTES = 1 << 20
"""A thread tells the loop of memory that it holds for a while if it is more than this. Each wakes the loop."""

if TYPE_CHECKING:
    import asyncio


class Scope(Protocol):
    """The readers of a run. There is one for each store, made when it is first needed."""

    def reader(self, store: Store | None, wanted: Wanted = STORE_DECIDES) -> Reader:
        """Return the reader of a store (None is the local disk). Its methods are called on a thread."""
        ...

    async def async_reader(self, store: Store | None, wanted: Wanted = STORE_DECIDES) -> AsyncReader:
        """Return the reader of a store, opened. Its methods are called on the run's loop."""
        ...

    def submit(self, fn: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Start a call on one of the run's threads, and return its future. Call this on the run's loop."""
        ...

    def charge(self, nbytes: int) -> None:
        """Count bytes for the memory limit, or release them if `nbytes` is negative. Call this on the loop."""
        ...

    def charge_later(self, nbytes: int) -> None:
        """Do so on the loop, as soon as it can. Any thread may call this."""
        ...


current: ContextVar[Scope | None] = ContextVar("asyncfeed.reading.scope.current", default=None)
"""The scope of the run that the calling code belongs to."""


@contextmanager
def held(nbytes: int) -> Iterator[None]:
    """Count memory that a call on a thread needs for a while, for the memory limit of its run."""
    scope = current.get()
    if scope is None or nbytes < HELD_BYTES:
        yield
        return
    scope.charge_later(nbytes)
    try:
        yield
    finally:
        scope.charge_later(-nbytes)


def read_whole(file: File, wanted: Wanted = STORE_DECIDES) -> Bytes:
    """Return the contents of a file in new memory, or raise its error. This blocks: call it on a thread."""
    scope = current.get()
    if scope is not None:
        return value(*scope.reader(file.store, wanted).read((file,)))
    with _own_reader(file.store, wanted) as reader:
        return value(*reader.read((file,)))


def reader_of(file: File, wanted: Wanted = STORE_DECIDES) -> AbstractContextManager[Reader]:
    """Return a context manager that gives the reader for a file. Use it on a thread."""
    scope = current.get()
    return _own_reader(file.store, wanted) if scope is None else nullcontext(scope.reader(file.store, wanted))


def new_reader(
    store: Store | None, wanted: Wanted = STORE_DECIDES, again: SlowPaths | None = None
) -> Reader | AsyncReader:
    """Return a new reader of a store (None is the local disk). `again` counts what it reads again.

    A `Reader` follows no policy: a call on a thread cannot be cancelled.
    """
    if store is None:
        return UringReader()  # it finds out on the thread that reads whether there is a ring
    made = store.reader()
    again = again or SlowPaths()
    if isinstance(made, Reader):
        made.follow(wanted, again)
        return made
    from asyncfeed.reading.retrying import RetryingReader  # noqa: PLC0415 - it knows the event loop

    policy = wanted.over(store.policy)
    made.follow(policy, again)
    return made if policy.retry is None else RetryingReader(made, policy.retry, again, throttled=policy.throttled)


class KeptReaders:
    """The readers that a worker process keeps for the next file, one for each store."""

    def __init__(self) -> None:
        self.on = False
        """Whether readers are kept."""
        self._readers: dict[tuple[Store | None, Wanted], Reader] = {}

    def of(self, store: Store | None, wanted: Wanted) -> Reader:
        """Return the reader of a store. Raise if only a loop can read it."""
        found = self._readers.get((store, wanted))
        if found is None:
            made = UringReader(on_main_thread=True) if store is None else new_reader(store, wanted)
            if isinstance(made, AsyncReader):
                raise StoreError(NOT_IN_PROCESS)
            found = self._readers[store, wanted] = made
        return found

    def close(self) -> None:
        """Close the readers."""
        while self._readers:
            self._readers.popitem()[1].close()


kept = KeptReaders()
"""The readers of this process. Only a worker process keeps any."""


@contextmanager
def _own_reader(store: Store | None, wanted: Wanted) -> Iterator[Reader]:
    if kept.on:
        yield kept.of(store, wanted)
        return
    reader = new_reader(store)
    if isinstance(reader, AsyncReader):
        raise StoreError(f"files of {store!r} can only be read by a pipeline that runs, or on an event loop")
    try:
        yield reader
    finally:
        reader.close()
