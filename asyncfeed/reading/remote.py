"""Decides which store reads a path: the local disk, an object store, or a filesystem of fsspec."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from asyncfeed.errors import PipelineError
from asyncfeed.extras import installed
from asyncfeed.reading.keys import ObjectList, Place
from asyncfeed.reading.objects import ObjectStore
from asyncfeed.reading.reader import Store
from asyncfeed.reading.urls import SCHEMES, WEB, parse, scheme_of

OPTIONS = [each.name for each in fields(ObjectStore) if each.name != "url"]
"""The options of `files` for object stores."""
_SECRET = re.compile(r"^[^/]*@|\?[^/]*=")


class Stores:
    """Collects URLs. Each bucket and each host gets a store, and all stores have the same options.

    Args:
        store: The only store that is allowed. None makes a store for each bucket and host.
        options: The options of the stores that are made.
    """

    def __init__(self, store: ObjectStore | None, options: Mapping[str, Any]) -> None:
        unknown = sorted(set(options) - set(OPTIONS))
        if unknown:
            raise PipelineError(f"files: no option {unknown[0]!r}; object stores have {', '.join(OPTIONS)}")
        if store is not None and options:
            raise PipelineError("files: give the options to the ObjectStore")
        self.found = ObjectList(())
        self._store = store
        self._options = options
        self._places: dict[str, tuple[int, bool]] = {}
        """The number of each store, and whether it is a web server."""

    def add(self, url: str, size: int | None = None, etag: str | None = None) -> None:
        """Add a URL. It may be a pattern."""
        base, key = parse(url)
        place = self._places.get(base)
        number, web = self._add(base) if place is None else place
        # The path of a file of a web server is the URL as it was given, because its encoding is not unique.
        self.found.append(url if web else key, size, etag, number)

    def store(self, base: str) -> ObjectStore:
        """Return the store of a bucket or a host."""
        if self._store is None:
            return ObjectStore(base, **self._options)
        if base != self._store.url:
            raise PipelineError(
                f"files: {base} is not {self._store.url}, which store= names; without store= the options apply to "
                "the stores of all URLs"
            )
        return self._store

    def _add(self, base: str) -> tuple[int, bool]:
        store = self.store(base)
        web = store.scheme in WEB
        number = self.found.add_place(Place("" if web else f"{base}/", store))
        self._places[base] = number, web
        return number, web


@dataclass(frozen=True)
class Wanted:
    """What URLs and patterns name, before it is listed: in an object store, or with fsspec."""

    names: ObjectList | tuple[str, ...]
    fsspec: Any = None
    """The `FsspecStore` that reads the names. None if object stores do."""

    def listed(self) -> ObjectList:
        """List it. This blocks."""
        if isinstance(self.names, ObjectList):
            # It knows the event loop, and a description does without it until it lists a store.
            from asyncfeed.reading import obstore_listing  # noqa: PLC0415

            return obstore_listing.expand(self.names)
        from asyncfeed.reading import fsspec_store  # noqa: PLC0415 - an extra

        return fsspec_store.expand(self.names, self.fsspec)


def wanted(patterns: Any, store: object, options: Mapping[str, Any]) -> Wanted | None:
    """Return the objects that URLs name, without a request. Return None if the paths are local ones."""
    given = [patterns] if isinstance(patterns, str | os.PathLike) else list(_iterated(patterns))
    schemes = {scheme_of(each) if isinstance(each, str) else None for each in given} - {"file"}
    if store is None and schemes <= {None}:
        if options:
            raise PipelineError(
                f"files: {', '.join(options)}: these options are for URLs, such as s3://bucket/*.npy"
            )
        return None
    urls = [each for each in given if isinstance(each, str)]
    if len(urls) < len(given) or not urls:
        raise PipelineError("files: the paths in a store are given as text")
    if store is None or isinstance(store, ObjectStore):
        return _objects(urls, schemes, store, options)
    return _fsspec(urls, store, options)


def _objects(
    urls: list[str], schemes: set[str | None], store: ObjectStore | None, options: Mapping[str, Any]
) -> Wanted:
    if None in schemes:
        raise PipelineError("files: URLs and paths do not go together in one list; concat joins both")
    for scheme in sorted(schemes - set(SCHEMES), key=str):
        raise PipelineError(
            f'files: {scheme}://... is read through fsspec only: pass store="fsspec" '
            f"(without it the schemes are {', '.join(SCHEMES)})"
        )
    stores = Stores(store, options)
    for url in urls:
        stores.add(url)
    return Wanted(stores.found)


def _fsspec(urls: list[str], store: object, options: Mapping[str, Any]) -> Wanted:
    from asyncfeed.reading import fsspec_store  # noqa: PLC0415 - an extra

    if isinstance(store, Store) and not isinstance(store, fsspec_store.FsspecStore):
        raise PipelineError(f"files: {store!r} cannot list; write items(...) with its files")
    for url in urls:
        if _SECRET.search(url.partition("://")[2]):
            raise PipelineError("files: a URL holds a user name or a query string; give fsspec's options instead")
    fsspec = installed("fsspec", "fsspec")
    if store == "fsspec":
        try:
            store = fsspec.core.url_to_fs(urls[0], **options)[0]
        except Exception as error:  # noqa: BLE001 - translated
            raise PipelineError(f"files: fsspec takes no such URL or options ({type(error).__name__})") from None
    elif options:
        raise PipelineError("files: give the options to the fsspec filesystem")
    if isinstance(store, fsspec.AbstractFileSystem):
        store = fsspec_store.FsspecStore(store)
    if not isinstance(store, fsspec_store.FsspecStore):
        raise PipelineError(
            f'files: store must be "fsspec", a filesystem of fsspec or an ObjectStore, not {store!r}'
        )
    return Wanted(tuple(urls), store)


def _iterated(patterns: object) -> Iterable[object]:
    if not isinstance(patterns, Iterable):
        raise PipelineError(f"files: takes a path, a pattern, or a list of them, not {patterns!r}")
    return patterns
