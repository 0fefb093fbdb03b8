"""An object store in memory that speaks as much of S3 as a reader needs, and fails as often as a test asks.

The server answers GET and HEAD of `/bucket/key` with ranges and `If-Match`, and `list-type=2` in pages. It accepts
any credentials. It binds to 127.0.0.1 on a free port.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast
from urllib.parse import parse_qs, quote, unquote
from xml.sax.saxutils import escape

from tests.servers.faults import ROUND, Answer, Faults, Rule, instead, refused, spoiled
from tests.servers.running import on_a_thread

DATE = "Sun, 22 Nov 2026 10:00:00 GMT"
ISO_DATE = "2026-11-22T10:00:00.000Z"


class ObjectServer:
    """The buckets and the counts of a server. Tests on other threads may read and change them."""

    def __init__(
        self, faults: Faults | None = None, *, page: int = 1000, tls: ssl.SSLContext | None = None
    ) -> None:
        self.faults = faults or Faults()
        self.tls = tls
        self.page = page
        """Number of keys in a page of a listing."""
        self.buckets: dict[str, dict[str, bytes]] = {}
        self.etags: dict[tuple[str, str], str] = {}
        """Versions that are not made from the contents."""
        self.lists_quotes = True
        """Whether a listing has the quotes around an etag. Azure's has none."""
        self.answers_quotes = True
        """Whether the answer to a request for an object has them."""
        self.lists_sorted = True
        """Whether a listing is in the order of the keys, as S3 has it. Its directory buckets have no order."""
        self.endless = ""
        """How a listing never ends. "same page" repeats the first page and its token, "same token" an empty page and its
        token, "circle" the last three pages. "empty pages" have new tokens."""
        self.requests: Counter[str] = Counter()
        """Number of requests by kind: "GET", "HEAD", "LIST"."""
        self.faulty: Counter[str] = Counter()
        """Number of faults by kind."""
        self.faulty_requests: Counter[tuple[str, str]] = Counter()
        """The same by the kind of the request, such as "GET", and the kind of the fault."""
        self.redirected = 0
        """Number of requests that came because of a redirect to the same object."""
        self.log: list[tuple[str, str, dict[str, str]]] = []
        """Kind, key and headers of each request."""
        self.target = ""
        """Path and query of the last request, as they came."""
        self.sockets: set[asyncio.Transport] = set()
        """Connections that are open."""
        self.closed_at = 0.0
        """When the last connection was closed, as `time.monotonic` tells."""
        self.at_once = 0
        """The largest number of requests that were answered at the same time."""
        self.answering = 0
        self.port = 0
        self._changed = threading.Condition()

    @property
    def url(self) -> str:
        """The address, as `endpoint=` takes it."""
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self.port}"

    def put(self, bucket: str, key: str, data: bytes) -> None:
        """Put an object."""
        self.buckets.setdefault(bucket, {})[key] = data

    def etag(self, bucket: str, key: str) -> str:
        """Return the version of an object."""
        made = self.etags.get((bucket, key))
        return made or f'"{hashlib.md5(self.buckets[bucket][key]).hexdigest()}"'

    async def start(self) -> asyncio.Server:
        """Listen on the running loop."""
        loop = asyncio.get_running_loop()
        # If the queue of new connections is full, a client is heard of a second later.
        server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", 0, ssl=self.tls, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        return server

    def drop(self) -> None:
        """Abort all connections."""
        for each in list(self.sockets):
            each.abort()

    def note(self, kind: str, rule: Rule) -> None:
        """Count a fault of a request."""
        self.faulty[rule.kind] += 1
        self.faulty_requests[kind, rule.kind] += 1

    def notify(self) -> None:
        """Wake what waits in `wait_until`."""
        with self._changed:
            self._changed.notify_all()

    def wait_until(self, condition: Callable[[], bool], seconds: float = 20.0) -> bool:
        """Wait on another thread until something is so. Return whether it was so in time."""
        with self._changed:
            return self._changed.wait_for(condition, seconds)

    def wait_closed(self) -> bool:
        """Wait until no connection is open."""
        return self.wait_until(lambda: not self.sockets)


class _Connection(asyncio.Protocol):
    def __init__(self, server: ObjectServer) -> None:
        self._server = server
        self._buffer = b""
        self._timers: list[asyncio.TimerHandle] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._server.sockets.add(self._transport)
        self._server.notify()

    def connection_lost(self, error: Exception | None) -> None:
        self._server.sockets.discard(self._transport)
        self._server.closed_at = time.monotonic()
        for timer in self._timers:
            timer.cancel()
        self._server.notify()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head, self._buffer = self._buffer[:end].decode("latin-1"), self._buffer[end + 4 :]
            self._request(*head.split("\r\n"))

    def _request(self, first: str, *lines: str) -> None:
        method, target, _ = first.split(" ")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        path, _, query = target.partition("?")
        bucket, _, key = unquote(path).lstrip("/").partition("/")
        kind = "LIST" if "list-type" in query else method
        server = self._server
        server.requests[kind] += 1
        server.log.append((kind, key, headers))
        server.target = target
        server.answering += 1
        server.at_once = max(server.at_once, server.answering)
        rule = server.faults.pick(key)
        delay = server.faults.late(key, rule)
        if rule is not None:
            server.note(kind, rule)
        server.redirected += ROUND in query
        server.notify()
        if rule is not None and rule.kind == "stall":
            return
        answer = lambda: self._answer(kind, target, headers, rule)  # noqa: E731
        if delay:
            self._timers = [each for each in self._timers if not each.cancelled()][-8:]
            self._timers.append(asyncio.get_running_loop().call_later(delay, answer))
        else:
            answer()

    def _answer(self, kind: str, target: str, headers: dict[str, str], rule: Rule | None) -> None:
        server = self._server
        server.answering -= 1
        if rule is not None and rule.kind == "reset":
            self._transport.abort()
            return
        path, _, query = target.partition("?")
        bucket, _, key = unquote(path).lstrip("/").partition("/")
        made = instead(rule, kind, target)
        if made is None and kind == "LIST":
            made = self._list(bucket, query)
        elif made is None:
            if rule is not None and rule.kind == "changed":
                server.etags[bucket, key] = f'"{server.faulty["changed"]}-new"'
            made = self._object(kind, bucket, key, headers)
        made, after = spoiled(rule, made, kind, headers)
        if rule is not None and rule.kind == "drip":
            self._drip(made.head(), made.body, cast("float", rule.value))
        elif not self._transport.is_closing():
            self._transport.write(made.head() + made.body if len(made.body) < 65536 else made.head())
            if len(made.body) >= 65536:
                self._transport.write(made.body)
            if after == "close" or headers.get("connection") == "close":
                self._transport.close()

    def _drip(self, sent: bytes, left: bytes, seconds: float) -> None:
        if not self._transport.is_closing():
            self._transport.write(sent)
            if left:
                again = asyncio.get_running_loop().call_later(seconds, self._drip, left[:1], left[1:], seconds)
                self._timers = [again]

    def _object(self, kind: str, bucket: str, key: str, headers: dict[str, str]) -> Answer:
        data = self._server.buckets.get(bucket, {}).get(key)
        if data is None:
            return refused(404, kind)
        etag = self._server.etag(bucket, key)
        if "if-match" in headers and (headers["if-match"] != etag or etag.startswith("W/")):
            return refused(412, kind)
        etag = etag if self._server.answers_quotes else etag.strip('"')
        out = {"ETag": etag, "Last-Modified": DATE, "Accept-Ranges": "bytes"}
        status, body = 200, data
        if "range" in headers:
            start, stop = _range(headers["range"], len(data))
            if start >= len(data):
                return refused(416, kind)
            status, body = 206, data[start:stop]
            out["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        return Answer(status, out, b"", len(body)) if kind == "HEAD" else Answer(status, out, body)

    def _list(self, bucket: str, query: str) -> Answer:
        options = {name: values[0] for name, values in parse_qs(query, keep_blank_values=True).items()}
        keys = self._server.buckets.get(bucket)
        if keys is None:
            return refused(404, "LIST")
        prefix = options.get("prefix", "")
        after = (
            unquote(options["continuation-token"])
            if "continuation-token" in options
            else options.get("start-after", "")
        )
        endless = self._server.endless
        if endless == "same page" or (endless == "circle" and after >= max(keys)):
            after = "" if endless == "same page" else sorted(keys)[-3 * self._server.page]
        found = sorted(key for key in keys if key.startswith(prefix) and key > after)
        if endless in {"same token", "empty pages"}:
            found = []
        page = found[: self._server.page]
        if not self._server.lists_sorted:
            page.reverse()
        more = len(found) > len(page)
        shown = quote if options.get("encoding-type") == "url" else escape
        contents = "".join(
            f"<Contents><Key>{shown(key)}</Key><LastModified>{ISO_DATE}</LastModified>"
            f"<ETag>{escape(self._listed_etag(bucket, key))}</ETag><Size>{len(keys[key])}</Size></Contents>"
            for key in page
        )
        next_one = page[-1] if more else ""
        if endless:
            more, next_one = True, "again" if "same" in endless else str(self._server.requests["LIST"])
        if endless == "circle":
            next_one = page[-1]
        token = f"<NextContinuationToken>{quote(next_one)}</NextContinuationToken>" if more else ""
        text = (
            f'<?xml version="1.0"?><ListBucketResult><Name>{bucket}</Name><Prefix>{shown(prefix)}</Prefix>'
            f"{'<EncodingType>url</EncodingType>' if shown is quote else ''}<KeyCount>{len(page)}</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>"
            f"{token}{contents}</ListBucketResult>"
        )
        return Answer(200, {"Content-Type": "application/xml"}, text.encode())

    def _listed_etag(self, bucket: str, key: str) -> str:
        etag = self._server.etag(bucket, key)
        return etag if self._server.lists_quotes else etag.strip('"')


def _range(text: str, size: int) -> tuple[int, int]:
    first, _, last = text.removeprefix("bytes=").partition("-")
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(size, int(last) + 1 if last else size)


@contextmanager
def serving(
    faults: Faults | None = None, *, page: int = 1000, tls: ssl.SSLContext | None = None
) -> Iterator[ObjectServer]:
    """Run a server on a thread of its own. At the end, wait until its clients have closed their sockets."""
    made = ObjectServer(faults, page=page, tls=tls)
    with on_a_thread("object server", made.start, made.drop):
        yield made
