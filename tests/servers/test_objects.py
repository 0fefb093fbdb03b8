"""The server that object stores are tested with answers as S3 does, and fails as it is told."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from tests.servers.objects import Faults, ObjectServer, serving
from tests.servers.proxy import FaultProxy, before


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with serving(Faults(seed=1)) as made:
        made.put("bucket", "a", b"0123456789")
        yield made


def ask(server: ObjectServer, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    try:
        connection.request(
            method, path, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("asked", "status", "body", "range_"),
    [
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=8-99", 206, b"89", "bytes 8-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
    ],
)
def test_a_range_is_answered_with_206(
    server: ObjectServer, asked: str, status: int, body: bytes, range_: str
) -> None:
    got, headers, data = ask(server, "/bucket/a", Range=asked)
    assert (got, data, headers["Content-Range"]) == (status, body, range_)


def test_whole_objects_heads_and_missing_ones(server: ObjectServer) -> None:
    status, headers, data = ask(server, "/bucket/a")
    assert (status, data) == (200, b"0123456789")
    assert ask(server, "/bucket/a", "HEAD")[:2] == (200, headers)
    assert ask(server, "/bucket/none")[0] == 404
    assert ask(server, "/bucket/a", Range="bytes=10-12")[0] == 416
    assert ask(server, "/bucket/a", If_Match='"other"')[0] == 412
    assert ask(server, "/bucket/a", If_Match=headers["ETag"])[0] == 200
    assert dict(server.requests) == {"GET": 5, "HEAD": 1}


def test_a_listing_comes_in_pages() -> None:
    with serving(page=2) as server:
        for key in "bca":
            server.put("bucket", f"x/{key}", b"1")
        server.put("bucket", "y", b"1")
        first = ask(server, "/bucket?list-type=2&prefix=x/")[2].decode()
        second = ask(server, "/bucket?list-type=2&prefix=x/&continuation-token=x/b")[2].decode()
    assert first.count("<Key>") == 2
    assert "<IsTruncated>true" in first
    assert second.count("<Key>") == 1
    assert "<IsTruncated>false" in second


@pytest.mark.parametrize(
    ("kind", "seen"),
    [
        ("503", 503), ("429", 429), ("reset", ConnectionError), ("cut", http.client.IncompleteRead), ("stall", TimeoutError),
        ("wrong length", 206), ("wrong range", 206), ("changed", 206), ("redirect", 307),
    ],
)  # fmt: skip
def test_a_fault_happens_as_often_as_it_was_asked_for(server: ObjectServer, kind: str, seen: Any) -> None:
    server.faults.add(kind, times=1, value=7 if kind == "429" else None)
    before = ask(server, "/bucket/a", "HEAD")[1]["ETag"] if kind == "changed" else ""
    server.faults.rules[0].times = 1
    if isinstance(seen, type):
        with pytest.raises(seen):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=0.2)
            connection.request("GET", "/bucket/a")
            connection.getresponse().read()
        connection.close()
    else:
        status, headers, data = ask(server, "/bucket/a", Range="bytes=0-9")
        assert status == seen
        assert {
            "429": headers.get("Retry-After") == "7",
            "wrong length": data == b"01234",
            "wrong range": headers.get("Content-Range") == "bytes 5-14/10",
            "changed": headers.get("ETag") != before,
        }.get(kind, True)
    assert ask(server, "/bucket/a")[0] == 200
    assert server.faulty[kind] >= 1
    assert server.wait_closed()


def test_the_answers_of_a_slow_tail_take_longer_the_rarer_they_are() -> None:
    faults = Faults(seed=1)
    faults.add("slow tail", value=1.0)
    late = []
    for number in range(1000):
        rule = faults.pick(f"{number}")
        late.append(faults.late(f"{number}", rule))
    assert set(late) == {1.0, 2.0, 4.0, 8.0, 16.0, 32.0}
    assert [round(late.count(2.0**power) / 1000, 1) for power in range(3)] == [0.5, 0.2, 0.1]


def test_an_answer_of_another_version_comes_once_for_a_key(server: ObjectServer) -> None:
    server.faults.add("other etag", per_key=1)
    right = server.etag("bucket", "a")
    assert ask(server, "/bucket/a", If_Match=right)[0] == 412
    assert ask(server, "/bucket/a", If_Match=right)[1]["ETag"] == right
    server.put("bucket", "b", b"1")
    assert ask(server, "/bucket/b")[1]["ETag"] != server.etag("bucket", "b")
    assert server.faulty_requests == {("GET", "other etag"): 2}


def test_a_redirect_to_the_same_object_is_seen_when_it_is_followed(server: ObjectServer) -> None:
    server.faults.add("redirect", times=1)
    status, headers, _ = ask(server, "/bucket/a")
    assert status == 307
    assert ask(server, headers["Location"])[2] == b"0123456789"
    assert server.redirected == server.faulty["redirect"] == 1


def test_the_same_seed_meets_the_same_faults() -> None:
    def drawn(seed: int) -> list[bool]:
        faults = Faults(seed)
        faults.add("503", rate=0.5)
        return [faults.pick("a") is None for _ in range(20)]

    assert drawn(1) == drawn(1) != drawn(2)


def through_a_proxy() -> AbstractContextManager[FaultProxy]:
    return before("http://127.0.0.1:9")


@pytest.mark.parametrize("kind", [serving, through_a_proxy])
def test_connections_that_were_just_made_are_closed_at_the_end(
    kind: Callable[[], AbstractContextManager[ObjectServer | FaultProxy]],
) -> None:
    """asyncio has accepted them then, but the server has not heard of them yet."""
    for _ in range(10):
        with kind() as server:
            clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(30)]
            for each in clients:
                each.close()
