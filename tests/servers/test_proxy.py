"""The fault proxy passes on what it is not told to spoil, and counts what it spoils."""

from __future__ import annotations

import http.client

import pytest

from tests.servers.faults import Faults
from tests.servers.objects import serving
from tests.servers.proxy import FaultProxy, before


def ask(proxy: FaultProxy, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=0.5)
    try:
        connection.request(
            method, path, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def test_answers_are_passed_on_as_they_are() -> None:
    with serving() as server, before(server.url) as proxy:
        server.put("bucket", "a", b"0123456789")
        assert ask(proxy, "/bucket/a") == (200, ask(proxy, "/bucket/a", "HEAD")[1], b"0123456789")
        status, headers, body = ask(proxy, "/bucket/a", Range="bytes=2-4")
        assert (status, headers["Content-Range"], body) == (206, "bytes 2-4/10", b"234")
        assert ask(proxy, "/bucket/none")[0] == 404
        assert b"<Key>a</Key>" in ask(proxy, "/bucket?list-type=2")[2]
        assert server.requests == {"GET": 3, "HEAD": 1, "LIST": 1}
        assert proxy.requests == {"GET": 4, "HEAD": 1}


@pytest.mark.parametrize(
    ("kind", "seen"),
    [
        ("503", 503), ("429", 429), ("reset", ConnectionError), ("cut", http.client.IncompleteRead),
        ("stall", TimeoutError), ("stall in the body", TimeoutError), ("wrong length", b"01234"),
        ("other etag", b"0123456789"), ("redirect", 307), ("delay", b"0123456789"), ("slow tail", b"0123456789"),
    ],
)  # fmt: skip
def test_each_fault_happens_once_and_is_counted(kind: str, seen: type[Exception] | int | bytes) -> None:
    faults = Faults(seed=1)
    with serving() as server, before(server.url, faults) as proxy:
        server.put("bucket", "a", b"0123456789")
        faults.add(kind, times=1, value={"429": 7, "delay": 0.01, "slow tail": 0.001}.get(kind))
        if isinstance(seen, type):
            with pytest.raises(seen):
                ask(proxy, "/bucket/a")
        else:
            status, headers, body = ask(proxy, "/bucket/a")
            assert seen in {status, body}
            assert headers.get("Retry-After") == ("7" if kind == "429" else None)
            assert (headers.get("ETag") != server.etag("bucket", "a")) == (
                kind in {"503", "429", "redirect", "other etag"}
            )
        assert ask(proxy, "/bucket/a")[2] == b"0123456789"
        assert proxy.faulty == {kind: 1}
