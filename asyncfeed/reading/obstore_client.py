"""Makes an obstore client of an `ObjectStore`."""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, WeakValueDictionary, ref

from asyncfeed.errors import PipelineError, StoreError
from asyncfeed.extras import installed
from asyncfeed.reading.obstore_exit import note_unheard
from asyncfeed.reading.urls import WEB

if TYPE_CHECKING:
    from asyncio import Future

    from asyncfeed.reading.objects import ObjectStore

CONNECT_SECONDS = 5
"""Time for a connection. A longer time delays the report of a server that is gone."""
READ_SECONDS = 20
"""Time between two bytes, and before the first one. A store that is shorter of capacity takes seconds."""
REQUEST_SECONDS = 120
"""Time for a whole request, with its contents of at most 16 MB. A slower line needs a longer time."""
LISTING_RETRIES = 4
"""Number of times that obstore itself repeats a request of a listing."""
MAX_HOPS = 2000
"""Number of times that the end of a reader waits for obstore: 0.1 ms each, or 5 ms beside a thread that runs
Python. On a busy machine 100 were too few. More are no use if something else holds a future."""

used = False
"""Whether this process has made a client."""
stranded = False
"""Whether this process was forked from one that had. It lacks the threads of obstore, so requests would hang."""


def _forked() -> None:
    global stranded, _lock
    stranded = stranded or used
    _lock = threading.RLock()  # another thread may have had it


if hasattr(os, "register_at_fork"):  # or else there is no fork
    os.register_at_fork(after_in_child=_forked)


def connect(store: ObjectStore, *, retries: int = 0) -> Any:
    """Return an obstore client. It opens no connection before its first request.

    Reads take no retries of obstore's: they would wait inside of a request, unseen.

    Raises `PipelineError` for options that obstore does not know, and shows no values. Raises `StoreError`
    in a process that was forked after a store was used.
    """
    global used
    if stranded:
        raise StoreError(
            f"{store!r}: this process was forked from one that had used an object store, so requests would hang; "
            "start processes with the method 'spawn' or 'forkserver'"
        )
    used = True
    made = installed("obstore.store", "cloud")
    if store.client is not None:
        return store.client
    web = store.scheme in WEB
    http = store.allow_http or (store.endpoint or "").startswith("http:")
    client = {
        "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
        "read_timeout": timedelta(seconds=READ_SECONDS),
        "timeout": timedelta(seconds=REQUEST_SECONDS),
        **({"allow_http": True} if http else {}),
        **store.client_options,
    }
    retry = {"max_retries": retries, "retry_timeout": timedelta(seconds=60)}
    settings: dict[str, Any] = {} if web else dict(store.options)
    if store.anonymous and not web:
        settings["skip_signature"] = True
    if store.credential_provider is not None and not web:
        settings["credential_provider"] = store.credential_provider
    try:
        return _made(made, store, settings, client, retry)
    except Exception as error:
        name = type(error).__name__
        if name == "UnknownConfigurationKeyError":
            raise PipelineError(f"{store!r}: obstore does not know one of the options") from None
        if isinstance(error, OSError) and error.errno == errno.EMFILE:
            raise
        raise PipelineError(f"{store!r}: obstore takes no such options or credentials ({name})") from None


class Connected:
    """An obstore client that readers share. It goes with the last of them."""

    __slots__ = ("__weakref__", "client")

    def __init__(self, client: Any) -> None:
        self.client = client


_lock = threading.RLock()
"""Reentrant, because the garbage collector may make a reader on a thread that has it."""
_connected: WeakValueDictionary[ObjectStore, Connected] = WeakValueDictionary()


def connected(store: ObjectStore) -> Connected:
    """Return the client of a store for its readers. They have their connections and credentials together.

    Raises as `connect` does.
    """
    key = store.reached
    with _lock:
        found = None if stranded else _connected.get(key)
        if found is None:
            found = _connected[key] = Connected(connect(store))
        return found


class Sent:
    """Knows the last requests of a loop, to tell when obstore delivers nothing more to it.

    A request that is cancelled may have its answer on the way: a thread of obstore has seen that the request is
    wanted, and waits for the GIL. If the loop is closed meanwhile, the thread prints a traceback. The thread holds
    the future of the request until it has delivered.
    """

    def __init__(self, count: int) -> None:
        self._last: deque[ReferenceType[Future[Any]]] = deque(maxlen=count)

    def note(self, future: Future[Any]) -> Future[Any]:
        """Remember a request, and return it."""
        self._last.append(ref(future))
        return future

    def abandon(self) -> None:
        """Let Python not end before obstore has done with the requests. Their loop is closed, so they go on."""
        note_unheard(future for future in (made() for made in self._last) if future is not None)

    async def settle(self) -> None:
        """Return when no answer to a cancelled request is on the way, or after `MAX_HOPS` turns of obstore."""
        store = None
        for _ in range(MAX_HOPS):
            if not any(each.cancelled() for each in (made() for made in self._last) if each is not None):
                return
            store = store or installed("obstore.store", "cloud").MemoryStore()
            with suppress(FileNotFoundError):  # the loop sleeps, and threads of obstore have the GIL
                await installed("obstore", "cloud").head_async(store, "none")


def _made(
    made: Any, store: ObjectStore, settings: dict[str, Any], client: dict[str, Any], retry: dict[str, Any]
) -> Any:
    both = {"client_options": client, "retry_config": retry}
    name = store.url.partition("://")[2]
    if store.scheme in WEB:
        return made.HTTPStore(store.url, **both)
    if store.scheme == "s3":
        if store.endpoint is not None:
            settings = {"endpoint": store.endpoint, "virtual_hosted_style_request": False, **settings}
        return made.S3Store(name, **settings, **both)
    if store.scheme == "gs":
        if store.endpoint is not None:
            settings = {"base_url": store.endpoint, **settings}
        return made.GCSStore(name, **settings, **both)
    container, _, account = name.partition("@")
    if account:
        settings = {"account_name": account.partition(".")[0], **settings}
    if store.endpoint is not None:
        settings = {"endpoint": store.endpoint, **settings}
    return made.AzureStore(container, **settings, **both)
