"""A proxy that stands before another server and makes requests fail, as `faults.py` says.

Each request is sent on alone, over a connection of its own, and its answer is kept whole before it is passed on. So
the proxy is for small objects. It binds to 127.0.0.1 on a free port.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import unquote, urlsplit

from tests.servers.faults import Answer, Faults, instead, spoiled
from tests.servers.running import on_a_thread

HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}
"""Headers that are about one connection, or that the proxy writes itself."""


class FaultProxy:
    """What the proxy does and has done. Tests on other threads may read and change it."""

    def __init__(self, upstream: str, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.requests: Counter[str] = Counter()
        """Number of requests by method."""
        self.faulty: Counter[str] = Counter()
        """Number of faults by kind."""
        self.port = 0
        split = urlsplit(upstream)
        assert split.hostname is not None
        self._upstream = split.hostname, split.port or 80
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """The address, as `endpoint=` takes it."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> asyncio.Server:
        """Listen on the running loop."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    def drop(self) -> None:
        """End all connections."""
        for each in self._tasks:
            each.cancel()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._answered(reader, writer):
                    pass
        finally:
            writer.transport.abort()

    async def _answered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request. Return whether another one may follow."""
        first, headers = _parsed(await reader.readuntil(b"\r\n\r\n"))
        method, target, _ = first.split(" ")
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        key = unquote(target.partition("?")[0])
        rule = self.faults.pick(key)
        kind = "" if rule is None else rule.kind
        self.requests[method] += 1
        if rule is not None:
            self.faulty[kind] += 1
        if late := self.faults.late(key, rule):
            await asyncio.sleep(late)
        if kind == "stall":
            await reader.read()  # until the client has enough
        if kind in {"stall", "reset"}:
            return False
        answer = instead(rule, method, target) or await self._passed_on(method, target, headers, body)
        answer, after = spoiled(rule, answer, method, headers)
        writer.write(answer.head() + answer.body)
        await writer.drain()
        if after == "stall":
            await reader.read()
        elif after == "close":
            writer.close()
            await writer.wait_closed()
        return not after

    async def _passed_on(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        reader, writer = await asyncio.open_connection(*self._upstream)
        try:
            lines = [f"{method} {target} HTTP/1.1", "connection: close", f"content-length: {len(body)}"]
            lines += [f"{name}: {value}" for name, value in headers.items() if name not in HOP]
            writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
            first, answered = _parsed(await reader.readuntil(b"\r\n\r\n"), lower=False)
            status = int(first.split(" ")[1])
            lowered = {name.lower(): value for name, value in answered.items()}
            kept = {name: value for name, value in answered.items() if name.lower() not in HOP}
            length = lowered.get("content-length")
            if method == "HEAD" or status in {204, 304}:
                return Answer(status, kept, b"", int(length or 0))
            if lowered.get("transfer-encoding") == "chunked":
                return Answer(status, kept, await _chunks(reader))
            return Answer(
                status, kept, await (reader.read() if length is None else reader.readexactly(int(length)))
            )
        finally:
            writer.close()


def _parsed(head: bytes, *, lower: bool = True) -> tuple[str, dict[str, str]]:
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    pairs = (line.partition(":")[::2] for line in lines)
    return first, {name.lower() if lower else name: value.strip() for name, value in pairs}


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    made = b""
    while size := int((await reader.readline()).split(b";")[0], 16):
        made += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return made


@contextmanager
def before(upstream: str, faults: Faults | None = None) -> Iterator[FaultProxy]:
    """Run a proxy before a server, on a thread of its own. At the end, wait until clients have closed their sockets."""
    made = FaultProxy(upstream, faults)
    with on_a_thread("fault proxy", made.start, made.drop):
        yield made
