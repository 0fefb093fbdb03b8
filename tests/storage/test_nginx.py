"""A web server with TLS: whom it is that is trusted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import asyncfeed as af
from tests.servers import others
from tests.servers.certificates import self_signed
from tests.servers.objects import serving
from tests.servers.running import open_sockets, wait_for_sockets

pytest.importorskip("obstore")


@pytest.fixture(autouse=True)
def sockets_are_closed() -> Iterator[None]:
    known = open_sockets()
    yield
    wait_for_sockets(known)


def trusted(where: Path) -> dict[str, bytes]:
    """Return the options that trust the certificate of a server, and no other thing."""
    text = (where / "server.pem").read_bytes()
    return {"root_certificate": text[text.index(b"-----BEGIN CERTIFICATE-----") :]}


def test_a_certificate_is_trusted_if_it_is_given(tmp_path: Path) -> None:
    with serving(tls=self_signed(tmp_path)) as server:
        server.put("bucket", "a.raw", b"abc")
        options = {"endpoint": server.url, "anonymous": True}
        listed = af.files("s3://bucket/*.raw", **options, client_options=trusted(tmp_path))
        assert list(listed.load(bytes)) == [b"abc"]
        with pytest.raises(PermissionError, match="certificate"):
            af.files("s3://bucket/*.raw", **options)


def test_nginx_gives_files_and_ranges_over_tls(tmp_path: Path) -> None:
    self_signed(tmp_path)
    root = tmp_path / "root"
    root.mkdir()
    root.joinpath("a b.raw").write_bytes(b"abc")
    root.joinpath("lines.txt").write_bytes((b"-" * 99 + b"\n") * 25_000)
    root.joinpath("empty.raw").write_bytes(b"")
    with others.nginx(tmp_path, tmp_path / "server.pem") as address:
        urls = [f"{address}/{name}" for name in ("a%20b.raw", "lines.txt", "empty.raw")]
        options = {"endpoint": address, "client_options": trusted(tmp_path)}
        assert [len(each) for each in af.files(urls, **options).load(bytes)] == [3, 2_500_000, 0]
        assert sum(1 for _ in af.files(urls[1], **options).flat_map(af.lines)) == 25_000
        with pytest.raises(PermissionError, match="certificate"):
            list(af.files(urls[0], endpoint=address).load(bytes))
        with pytest.raises(FileNotFoundError):
            list(af.files(f"{address}/none", **options).load(bytes))
