"""Decides which store reads a path: the local disk, an object store, or a filesystem of fsspec."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from asyncfeed.errors import PipelineError
from asyncfeed.reading.keys import ObjectList
from asyncfeed.reading.objects import ObjectStore
from asyncfeed.reading.reader import Store
from asyncfeed.reading.urls import SCHEMES, parse, scheme_of

OPTIONS = [each.name for each in fields(ObjectStore) if each.name != "url"]
"""The options of `files` for object stores."""
_SECRET = re.compile(r"^[^/]*@|\?[^/]*=")


def expand(patterns: Any, store: object, options: Mapping[str, Any]) -> ObjectList | None:
    """List the objects that URLs name. Return None if the paths are local ones."""
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
) -> ObjectList:
    if None in schemes:
        raise PipelineError("files: URLs and paths do not go together in one list; concat joins both")
    for scheme in sorted(schemes - set(SCHEMES), key=str):
        raise PipelineError(
            f'files: {scheme}://... is read through fsspec only: pass store="fsspec" '
            f"(without it the schemes are {', '.join(SCHEMES)})"
        )
    if store is None:
        unknown = sorted(set(options) - set(OPTIONS))
        if unknown:
            raise PipelineError(f"files: no option {unknown[0]!r}; object stores have {', '.join(OPTIONS)}")
        store = ObjectStore(parse(urls[0]).base, **options)
    elif options:
        raise PipelineError("files: give the options to the ObjectStore")
    # It knows the event loop, and a description does without it until it lists a store.
    from asyncfeed.reading import obstore_listing  # noqa: PLC0415

    return obstore_listing.expand(urls, store)


def _fsspec(urls: list[str], store: object, options: Mapping[str, Any]) -> ObjectList:
    from asyncfeed.reading import fsspec_store  # noqa: PLC0415 - an extra
    from asyncfeed.reading.obstore_client import installed  # noqa: PLC0415

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
    return fsspec_store.expand(urls, store)


def _iterated(patterns: object) -> Iterable[object]:
    if not isinstance(patterns, Iterable):
        raise PipelineError(f"files: takes a path, a pattern, or a list of them, not {patterns!r}")
    return patterns
