"""A server that is there and gives nothing: every wait has an end, and the error says what was waited for."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import pytest

import asyncfeed as af
from asyncfeed.reading.objects import ObjectStore
from tests.servers.objects import serving
from tests.servers.running import open_sockets, wait_for_sockets

pytest.importorskip("obstore")

KEY = "s3://bucket/train/a.raw"
RETRY = af.Retry(attempts=3, first_delay=0.01)


@contextmanager
def never_answers() -> Iterator[str]:
    """Connections are accepted by the system, and nothing reads from them."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@contextmanager
def never_finishes_tls() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"https://127.0.0.1:{listening.getsockname()[1]}"


@contextmanager
def accepts_no_connection() -> Iterator[str]:
    """The queue of new connections is full, so the system answers none."""
    with ExitStack() as held, socket.create_server(("127.0.0.1", 0), backlog=0) as listening:
        for _ in range(4):
            filling = held.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex(listening.getsockname())
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@contextmanager
def stalls_in_the_body() -> Iterator[str]:
    with serving() as server:
        server.put("bucket", "train/a.raw", bytes(1000))
        server.faults.add("stall in the body")
        yield server.url


@contextmanager
def drips() -> Iterator[str]:
    """Each byte comes in time, and all of them would take a minute."""
    with serving() as server:
        server.put("bucket", "train/a.raw", bytes(1000))
        server.faults.add("drip", value=0.06)
        yield server.url


SERVERS: list[Callable[[], AbstractContextManager[str]]] = [
    never_answers,
    never_finishes_tls,
    accepts_no_connection,
    stalls_in_the_body,
    drips,
]
OPTIONS: dict[str, Any] = {"retry": RETRY, "timeout": 0.1, "hedge": None}
USES: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "samples": lambda items, options: items.load(af.raw("uint8"), **options),
    "batches": lambda items, options: items.load(af.raw("uint8"), **options).batch(2),
}


@contextmanager
def nothing_stays() -> Iterator[None]:
    before = open_sockets()
    yield
    wait_for_sockets(before)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("server", SERVERS)
def test_a_read_that_is_not_answered_ends_in_an_error_with_key_attempts_and_time(
    server: Callable[[], AbstractContextManager[str]], use: str
) -> None:
    with server() as endpoint, nothing_stays():
        store = ObjectStore("s3://bucket", endpoint=endpoint, anonymous=True)
        with pytest.raises(af.TimedOut) as caught:
            list(USES[use](af.items([store.file("train/a.raw", 1000)]), OPTIONS))
        error = caught.value
        assert isinstance(error, (af.Unavailable, TimeoutError))
        more = "with all of up to 1,001 bytes; load(timeout=...) allows more"
        assert str(error) == f"{KEY}: no answer within 0.101 s {more}"
        assert [each.number for each in error.attempts] == [1, 2]
        assert all("no answer within 0.101 s" in each.error for each in error.attempts)
        assert "attempt 3, " in "".join(error.__notes__)
        del error, caught


@pytest.mark.parametrize("server", SERVERS)
def test_a_second_request_does_not_make_it_wait_longer(server: Callable[[], AbstractContextManager[str]]) -> None:
    with server() as endpoint, nothing_stays():
        store = ObjectStore("s3://bucket", endpoint=endpoint, anonymous=True)
        files = [store.file(f"train/{name}.raw", 1000) for name in "a" * 40]
        with pytest.raises(af.TimedOut, match="no answer within 0.101 s"):
            list(af.items(files).load(af.raw("uint8"), **{**OPTIONS, "hedge": 0.03}))


QUICK = {name: timedelta(seconds=0.1) for name in ("connect_timeout", "read_timeout", "timeout")}


@pytest.mark.parametrize("server", [never_finishes_tls, accepts_no_connection, stalls_in_the_body])
def test_a_stream_a_listing_and_a_look_end_too(server: Callable[[], AbstractContextManager[str]]) -> None:
    """They take the deadlines of the store's client."""
    with server() as endpoint, nothing_stays():
        options: dict[str, Any] = {"endpoint": endpoint, "anonymous": True, "client_options": QUICK}
        store = ObjectStore("s3://bucket", **options)
        lines = af.items([store.file("train/a.raw", 1000)]).flat_map(af.lines)
        with pytest.raises(af.Unavailable, match=KEY) as caught:
            list(lines)
        assert caught.value.kind in {"timeout", "connection"}
        assert len(caught.value.attempts) == 5
        if server is never_finishes_tls:
            for url in ("s3://bucket/train/*.raw", KEY):
                with pytest.raises(af.Unavailable, match="s3://bucket/train") as caught:
                    af.files(url, **options)
                if url != KEY:
                    assert "listing for 's3://bucket/train/*.raw' failed" in caught.value.__notes__[-1]
                    assert "up to 5 attempts" in caught.value.__notes__[-1]
