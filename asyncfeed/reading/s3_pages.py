"""Pages of a bucket, asked for without obstore: for listings that obstore cannot make, or cannot see the end of.

obstore refuses a whole page if one key in it has an empty part, the part "." or "..", or a control character. It
goes from page to page by itself, also if a store repeats a token, or sends pages without objects for ever.

The requests are those of S3's ListObjectsV2. obstore signs them, so any credentials work.
"""

from __future__ import annotations

import asyncio
import io
import random
import re
import ssl
from collections.abc import AsyncGenerator, Container, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from http.client import HTTPException, HTTPResponse
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import quote, unquote_plus, urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass
from xml.etree import ElementTree as ET

from asyncfeed.attempts.retry import Retry
from asyncfeed.errors import StoreError, TimedOut, Unavailable
from asyncfeed.extras import installed
from asyncfeed.reading.obstore_client import CONNECT_SECONDS, LISTING_RETRIES, REQUEST_SECONDS, Sent, connect
from asyncfeed.reading.obstore_errors import denied, of_status
from asyncfeed.reading.requests import end_futures, loop_runs

if TYPE_CHECKING:
    import socket

    from asyncfeed.reading.objects import ObjectStore

MAX_EMPTY_PAGES = 1000
"""Number of pages without objects that may follow each other. S3 sends some where many objects were deleted. Fewer
would end such listings. With more, it takes longer to see that a listing never ends: 1000 take about a minute."""
MAX_PAGE_BYTES = 16 << 20
"""Largest answer that is read. A page of 1000 keys of 1024 characters has about 4 MB."""
SIGNED_SECONDS = 900
"""Time for which a request is valid. It is sent at once; a clock that is wrong by more is refused anyhow."""
RETRY = Retry(attempts=LISTING_RETRIES + 1)

TIMES = {"timeout", "connect_timeout", "read_timeout", "allow_http", "http1_only"}
"""The client options that these requests need not follow: they have deadlines of their own."""
ADDRESS = {"endpoint", "endpoint_url", "virtual_hosted_style_request"}
UNSIGNED = {"skip_signature"}
_ODD = re.compile(r"^/|//|(?:^|/)\.{1,2}(?:/|$)|[\x00-\x1f\x7f]")


def is_odd(key: str) -> bool:
    r"""Return whether obstore refuses a key. It can neither be listed nor be read then.

    >>> [is_odd(key) for key in ("a/b", "a//b", "a/../b", "a/.b", "a\tb")]
    [False, True, True, False, True]
    """
    return _ODD.search(key) is not None


def why_not(store: ObjectStore) -> str | None:
    """Return why these pages cannot be asked for; None if they can."""
    if store.scheme != "s3":
        return f"asyncfeed can list such keys on s3:// only, not on {store.scheme}://"
    others = sorted({*store.client_options} - TIMES)
    if others:
        return f"asyncfeed cannot list such keys with client_options[{others[0]!r}]"
    scheme, host = urlsplit(store.endpoint or "https://s3.amazonaws.com")[:2]
    if scheme in getproxies() and not proxy_bypass(host):
        return "asyncfeed cannot list such keys through a proxy"
    return None


class _Listed(NamedTuple):
    """What all pages of a listing have in common."""

    store: ObjectStore
    bucket: str
    """The address of the bucket."""
    where: str
    """What is listed, as an error shows it."""
    trusted: ssl.SSLContext | None


class Page(NamedTuple):
    """One page: objects as obstore tells of them, and the token of the next page. None if there is none."""

    objects: list[dict[str, Any]]
    token: str | None


async def pages(
    store: ObjectStore, client: Any, prefix: str, after: str | None
) -> AsyncGenerator[list[dict[str, Any]]]:
    """Yield the objects whose key begins with `prefix`, behind the key `after`.

    No page without objects is yielded.

    Raises `StoreError` if the listing would never end.
    """
    where = f"{store.url}/{prefix}"
    asked = {"list-type": "2", "encoding-type": "url", "prefix": prefix}
    bucket = await _bucket(store, client)
    trusted = ssl.create_default_context() if bucket.startswith("https:") else None
    listed = _Listed(store, bucket, where, trusted)
    seen: set[str] = set()
    empty = 0
    query = asked if after is None else {**asked, "start-after": after}
    while True:
        page = await _page(listed, query)
        empty = 0 if page.objects else empty + 1
        if page.objects:
            yield page.objects
        if page.token is None:
            return
        if empty == MAX_EMPTY_PAGES:
            raise never_ends(where, f"{empty:,} pages in a row had no objects, and more were to follow")
        if page.token in seen:
            raise never_ends(where, f"page {len(seen) + 1:,} had the continuation token of an earlier page")
        seen.add(page.token)
        query = {**asked, "continuation-token": page.token}


def never_ends(where: str, why: str) -> StoreError:
    """Return the error for a listing without an end."""
    return StoreError(
        f"{where}: the store's listing never ends: {why}. Tell those who run the store, and name the files in a "
        "manifest meanwhile"
    )


async def _bucket(store: ObjectStore, client: Any) -> str:
    """Return the address of the bucket, as obstore makes it of the options."""
    if _is_anonymous(store):  # any key signs as well as another: only the address is wanted
        keys = {"access_key_id": "none", "secret_access_key": "none"}
        client = connect(replace(store, anonymous=False, options={**_without(store, UNSIGNED), **keys}))
    return (await _signed(client)).partition("?")[0].removesuffix("/x")


async def _url(listed: _Listed, query: Mapping[str, str]) -> str:
    """Return the URL of a page, signed. obstore signs the address of an object, with a query that stands in it."""
    store = listed.store
    asked = f"{listed.bucket}?{urlencode(query, quote_via=quote, safe='')}"
    if _is_anonymous(store):
        return asked
    options = _without(store, ADDRESS)
    # The key of the object becomes the value of a parameter that is ignored. S3 allows any that begins with "x-".
    options |= {"endpoint": f"{asked}&x-asyncfeed=", "virtual_hosted_style_request": True}
    return await _signed(connect(replace(store, endpoint=None, allow_http=True, options=options)))


def _is_anonymous(store: ObjectStore) -> bool:
    return store.anonymous or any(value and _plain(name) in UNSIGNED for name, value in store.options.items())


def _without(store: ObjectStore, names: Container[str]) -> dict[str, Any]:
    return {name: value for name, value in store.options.items() if _plain(name) not in names}


def _plain(name: str) -> str:
    return name.lower().removeprefix("aws_")


async def _signed(client: Any) -> str:
    sent = Sent(1)
    sign = installed("obstore", "cloud").sign_async
    future = sent.note(sign(client, "GET", "x", timedelta(seconds=SIGNED_SECONDS)))
    try:
        return cast("str", await future)
    finally:
        await end_futures([future])
        del future
        if loop_runs():
            await sent.settle()
        else:
            sent.abandon()


async def _page(listed: _Listed, query: Mapping[str, str]) -> Page:
    """Ask for a page, and again as `RETRY` says."""
    began = asyncio.get_running_loop().time()
    attempt = 0
    while True:
        attempt += 1
        try:
            return _parsed(await _get(listed, await _url(listed, query)), listed.where)
        except Unavailable as error:
            elapsed = asyncio.get_running_loop().time() - began
            delay = RETRY.delay(error, attempt, elapsed, random.random())  # noqa: S311 - it spreads clients
            if delay is None:
                raise
        await asyncio.sleep(delay)


async def _get(listed: _Listed, url: str) -> bytes:
    """Return the body of an answer. Raise the error to show if there is none."""
    where, came = listed.where, bytearray()
    lost = ""
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            await _read(listed, url, came)
        status, body = _answer(came)
    except TimeoutError:
        text = f"no page within {REQUEST_SECONDS} s; {len(came):,} bytes of it came"
        raise TimedOut(text, kind="timeout") from None
    except ssl.SSLCertVerificationError:
        text = "Python does not trust the certificate of the server; SSL_CERT_FILE names those to trust"
        raise denied(where, text) from None
    except OSError:
        lost = "connection"
    except HTTPException:
        lost = "interrupted"
    # Behind the handlers, because asyncio's stream refers to the error, and the error through its frames to the
    # stream. What is raised must not refer to them, or the client would stay open until a garbage collection.
    if lost == "connection":
        raise Unavailable(f"{where}: there is no connection to the store", kind=lost)
    if lost:
        raise Unavailable(f"{where}: the connection to the store ended too early", kind=lost)
    if status != 200:
        raise of_status(status, body.decode(errors="replace"), where)
    return body


async def _read(listed: _Listed, url: str, came: bytearray) -> None:
    """Read the answer of a server, up to its end, behind what came."""
    split = urlsplit(url)
    port = split.port or (80 if listed.trusted is None else 443)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(split.hostname, port, ssl=listed.trusted)
    except TimeoutError:
        raise ConnectionError from None
    try:
        head = f"GET {split.path}?{split.query} HTTP/1.1\r\nHost: {split.netloc}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode())
        while part := await reader.read(1 << 16):
            came += part
            if len(came) > MAX_PAGE_BYTES:
                raise StoreError(
                    f"{listed.where}: a page of the store's listing has more than {MAX_PAGE_BYTES:,} bytes"
                )
    finally:
        with suppress(RuntimeError):  # the loop is closed, and the connection with it
            writer.transport.abort()


def _answer(came: bytearray) -> tuple[int, bytes]:
    answer = HTTPResponse(cast("socket.socket", _Came(came)))
    answer.begin()
    return answer.status, answer.read()


class _Came:
    """Stands for a socket that everything has come from."""

    def __init__(self, data: bytearray) -> None:
        self._data = data

    def makefile(self, *_: Any) -> io.BytesIO:
        return io.BytesIO(self._data)


def _parsed(body: bytes, where: str) -> Page:
    try:
        root = ET.fromstring(body)  # noqa: S314 - expat limits what entities make
        decoded = unquote_plus if root.findtext("{*}EncodingType") == "url" else str
        objects = [_object(each, decoded) for each in root.iterfind("{*}Contents")]
        more = root.findtext("{*}IsTruncated") == "true"
        token = root.findtext("{*}NextContinuationToken") if more else None
        if more and not token:
            raise ValueError
    except (ET.ParseError, ValueError):
        raise StoreError(f"{where}: the store's listing cannot be understood") from None
    return Page(objects, token)


def _object(found: ET.Element, decoded: Any) -> dict[str, Any]:
    raw = decoded(found.findtext("{*}Key") or "")
    return {
        "path": raw if is_odd(raw) else raw.removesuffix("/"),  # as obstore shows what stands for a folder
        "size": int(found.findtext("{*}Size") or ""),
        "e_tag": found.findtext("{*}ETag"),
        "last_modified": found.findtext("{*}LastModified"),
    }
