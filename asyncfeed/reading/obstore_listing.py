"""Lists the objects that URLs and patterns name, on a loop of its own: the thread must have none that runs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from asyncfeed.errors import PipelineError
from asyncfeed.reading.file import File
from asyncfeed.reading.glob import alternatives, fixed_part, has_magic
from asyncfeed.reading.keys import Found, ObjectList, matcher
from asyncfeed.reading.objects import ObjectStore
from asyncfeed.reading.obstore_client import LISTING_RETRIES, connect, installed
from asyncfeed.reading.obstore_errors import translate
from asyncfeed.reading.reader import AsyncReader, value
from asyncfeed.reading.scope import new_reader
from asyncfeed.reading.urls import WEB, parse
from asyncfeed.reading.versioned import quoted

CHUNK = 1000
"""Number of objects that one turn of the loop lists. A page of S3 has as many."""


def expand(urls: Sequence[str], store: ObjectStore) -> ObjectList:
    """List the objects that URLs and patterns name, all of one store.

    Order and patterns are those of local files, see `listing.expand`. The size of an object without a wildcard is
    looked up, unless the store is a web server.

    Raises `PipelineError` for a pattern without a match, `FileNotFoundError` and the other errors of a reader.
    This blocks, and must not be called on a thread whose event loop runs.
    """
    keys = []
    for url in urls:
        location = parse(url)
        if location.base != store.url:
            raise PipelineError(
                f"files: one call reads one store, not {store.url} and {location.base}: use concat"
            )
        keys.append(location.key)
    start = f"{store.url}/"
    if store.scheme in WEB:
        # The path of a file is the URL as it was given, because its encoding is not unique.
        return ObjectList("", store, ((url, None, None) for url in urls))
    installed("obstore", "cloud")
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise PipelineError(
            "files: to list a store takes requests, which would block this event loop; "
            "write: await asyncio.to_thread(asyncfeed.files, ...)"
        )
    return asyncio.run(_expand(keys, store, start))


async def _expand(keys: Sequence[str], store: ObjectStore, start: str) -> ObjectList:
    literal = [key for key in keys if not has_magic(key)]
    patterns = [key for key in keys if has_magic(key)]
    sizes = await _looked_up(literal, store) if literal else {}
    if not patterns:
        return ObjectList(start, store, (sizes[key] for key in keys))
    matches = await _matching(patterns, store, start)
    if not literal:
        return matches
    made = ObjectList(start, store)
    listed = False
    for key in keys:
        if key in sizes:
            made.append(*sizes[key])
        elif not listed:
            listed = True
            for each in matches.found():
                made.append(*each)
    return made


async def _looked_up(keys: Iterable[str], store: ObjectStore) -> dict[str, Found]:
    """Return what is known of objects, by their keys."""
    reader = new_reader(store)  # it looks again after a failure that may pass, as in a run
    assert isinstance(reader, AsyncReader)
    unique = list(dict.fromkeys(keys))
    try:
        await reader.open()
        looked = await reader.look([store.file(key) for key in unique])
    finally:
        await reader.close()
    found: dict[str, Found] = {}
    for key, outcome in zip(unique, looked, strict=True):
        file: File = value(outcome)
        found[key] = key, file.size, file.etag
    return found


async def _matching(patterns: Sequence[str], store: ObjectStore, start: str) -> ObjectList:
    """Return the objects that match patterns, sorted, each once."""
    client = connect(store, retries=LISTING_RETRIES)
    found = ObjectList(start, store)
    for pattern in patterns:
        before = len(found)
        choices = alternatives(pattern)
        match = re.compile("|".join(f"(?:{matcher(each).pattern})" for each in choices), re.DOTALL).fullmatch
        folders = _outermost([fixed_part(each) for each in choices])
        for folder in folders:
            try:
                await _list(client, folder, match, found)
            except (PipelineError, asyncio.CancelledError):
                raise
            except Exception as error:  # noqa: BLE001 - translated
                raise translate(error, start + folder) from None
        if len(found) == before:
            where = " and ".join(repr(start + each) for each in folders)
            raise PipelineError(f"files: {start + pattern!r} matches no object; it looked in {where}")
    return found.in_order()


async def _list(client: Any, folder: str, match: Any, found: ObjectList) -> None:
    """Add the objects below a folder that match."""
    stream = installed("obstore", "cloud").list(client, folder or None, chunk_size=CHUNK)
    empty: Found | None = None
    async for chunk in stream:
        for each in chunk:
            key, size = each["path"], each["size"]
            if empty is not None and not key.startswith(f"{empty[0]}/"):
                found.append(*empty)
            empty = None
            if match(key):
                etag = quoted(each["e_tag"])
                if size:
                    found.append(key, size, etag)
                else:  # an object that stands for a folder is followed by what is in it
                    empty = key, size, etag
    if empty is not None:
        found.append(*empty)


def _outermost(folders: Iterable[str]) -> list[str]:
    """Return the folders that lie in no other one of them. The store itself is the empty text."""
    outer: list[str] = []
    for folder in sorted({"" if each == "." else each for each in folders}):
        if not outer or not (outer[-1] == "" or folder.startswith(f"{outer[-1].rstrip('/')}/")):
            outer.append(folder)
    return outer
