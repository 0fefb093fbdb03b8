"""One contract over servers of others: each speaks its protocol a little differently."""

from __future__ import annotations

import asyncio
import base64
import gc
import hashlib
import hmac
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.reading.objects import ObjectStore
from asyncfeed.reading.obstore_client import connect
from asyncfeed.reading.reader import value
from tests.reading.readers import open_reader
from tests.servers import moto, others
from tests.servers.faults import Faults
from tests.servers.objects import serving
from tests.servers.proxy import before
from tests.servers.running import open_sockets, wait_for_sockets
from tests.storage.buckets import PASSING, PATIENT

obstore = pytest.importorskip("obstore")

ODD = ["odd/a b.raw", "odd/a%20b.raw", "odd/a+b&c=d.raw", "odd/é~(x)'!,;@.raw"]
BODIES = {f"train/{number:02}.raw": bytes([number]) * 20 for number in range(12)}
OTHERS = {"train/notes.txt": b"x", "train/deep/0.raw": b"y", "empty.raw": b""}
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""It is the same everywhere, and public."""


class Bucket:
    """A bucket of a server, and how it is reached."""

    def __init__(self, url: str, **options: Any) -> None:
        self.url = url
        self.options = options

    def put(self, key: str, data: bytes) -> None:
        obstore.put(connect(ObjectStore(self.url, **self.options)), key, data)

    def files(self, key: Any, **options: Any) -> af.Pipeline[af.File]:
        keys = [f"{self.url}/{each}" for each in key] if isinstance(key, list) else f"{self.url}/{key}"
        return af.files(keys, **self.options, **options)


@contextmanager
def our_own(_: Path) -> Iterator[Bucket]:
    with serving() as server:
        bucket = Bucket("s3://bucket", endpoint=server.url, anonymous=True)
        bucket.put = lambda key, data: server.put("bucket", key, data)  # type: ignore[method-assign]
        yield bucket


@contextmanager
def motos_s3(_: Path) -> Iterator[Bucket]:
    yield Bucket(f"s3://{moto.new_bucket()}", endpoint=moto.endpoint(), options=moto.CREDENTIALS)


class FolderBucket(Bucket):
    """A bucket whose objects are the files of a folder."""

    folder: Path

    def put(self, key: str, data: bytes) -> None:
        path = self.folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


@contextmanager
def localbuckets_s3(where: Path, url: str = "s3://bucket", **options: Any) -> Iterator[Bucket]:
    with others.localbucket(where) as endpoint:
        made = FolderBucket(url, endpoint=endpoint, **(options or {"options": moto.CREDENTIALS}))
        made.folder = where / "bucket"
        yield made


def localbuckets_gcs(where: Path) -> AbstractContextManager[Bucket]:
    """Google's XML interface is that of S3 as far as a reader goes."""
    return localbuckets_s3(where, "gs://bucket", anonymous=True)


@contextmanager
def azurites_container(_: Path) -> Iterator[Bucket]:
    with others.azurite() as address:
        endpoint = f"{address}/devstoreaccount1"
        make_container(endpoint, "box")
        keys = {"account_name": "devstoreaccount1", "account_key": AZURITE_KEY}
        yield Bucket("az://box", endpoint=endpoint, options=keys)


def make_container(endpoint: str, name: str) -> None:
    """Make a container, which obstore cannot."""
    date = "Sun, 22 Nov 2026 10:00:00 GMT"
    headers = f"x-ms-date:{date}\nx-ms-version:2021-08-06\n"
    text = f"PUT{chr(10) * 12}{headers}/devstoreaccount1/devstoreaccount1/{name}\nrestype:container"
    signed = hmac.new(base64.b64decode(AZURITE_KEY), text.encode(), hashlib.sha256).digest()
    request = urllib.request.Request(f"{endpoint}/{name}?restype=container", method="PUT")
    request.add_header("x-ms-date", date)
    request.add_header("x-ms-version", "2021-08-06")
    request.add_header("Authorization", f"SharedKey devstoreaccount1:{base64.b64encode(signed).decode()}")
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 201


SERVERS: list[Callable[[Path], AbstractContextManager[Bucket]]] = [
    our_own,
    motos_s3,
    localbuckets_s3,
    localbuckets_gcs,
    azurites_container,
]


@pytest.fixture(scope="module", params=SERVERS)
def bucket(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    request.getfixturevalue("moto_server")
    with request.param(tmp_path_factory.mktemp("server")) as made:
        for key, data in {**BODIES, **OTHERS, **dict.fromkeys(ODD, b"odd")}.items():
            made.put(key, data)
        yield made


@pytest.fixture(autouse=True)
def sockets_are_closed(bucket: Bucket) -> Iterator[None]:  # its server has been started by then
    assert bucket.url
    known = open_sockets()
    yield
    gc.collect()  # an error of a listing holds its client
    wait_for_sockets(known)


def test_a_pattern_lists_sorted_with_sizes_and_versions(bucket: Bucket) -> None:
    listed = list(bucket.files("train/*.raw"))
    assert [(file.path, file.size) for file in listed] == [(f"{bucket.url}/{key}", 20) for key in BODIES]
    assert all(file.etag for file in listed)
    assert [file.size for file in bucket.files(["train/notes.txt", "train/**/*.raw"])] == [1, *[20] * 12, 1]


def test_a_future_that_obstore_keeps_keeps_no_connection(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of obstore that has no GIL lets go of a future only when obstore is used again."""
    kept: list[Any] = []
    known = open_sockets()

    class Keeping:
        def __init__(self, *args: Any, **options: Any) -> None:
            self.stream = listing(*args, **options)

        def __anext__(self) -> Any:
            kept.append(anext(self.stream))
            return kept[-1]

    listing = obstore.list
    monkeypatch.setattr(obstore, "list", Keeping)
    assert len(list(bucket.files("train/*.raw"))) == 12
    with pytest.raises(af.PipelineError, match="matches no object"):
        bucket.files("none/*.raw")
    assert len(list(bucket.files("train/*.raw", listing="streamed"))) == 12
    assert kept
    gc.collect()
    wait_for_sockets(known)


@pytest.mark.parametrize("verify", ["size", "etag"])
def test_objects_are_read_one_by_one_and_in_batches(bucket: Bucket, verify: str) -> None:
    loaded = bucket.files("train/*.raw", verify=verify).load(af.raw("uint8"))
    assert [each.tobytes() for each in loaded] == list(BODIES.values())
    with loaded.batch(5).open() as feed:
        assert [row.tobytes() for batch in feed for row in batch] == list(BODIES.values())


def test_parts_of_an_object_and_its_lines_are_read(bucket: Bucket) -> None:
    lines = [f"{number:099}" for number in range(30_000)]
    bucket.put("lines.txt", "\n".join([*lines, ""]).encode())  # several requests
    (file,) = bucket.files("lines.txt")

    async def main() -> list[bytes]:
        async with open_reader(file.store) as reader:  # type: ignore[arg-type]
            ranges = [(194, 199), (2_500_093, 2_500_099), (97, 99)]
            return [value(each).tobytes() for each in await reader.read_ranges(file, ranges)]

    assert asyncio.run(main()) == [b"00001", b"025000", b"00"]
    assert list(bucket.files("lines.txt").flat_map(af.lines)) == lines


def test_an_empty_object_and_odd_names_are_read(bucket: Bucket) -> None:
    assert list(bucket.files("empty.raw").load(bytes)) == [b""]
    listed = bucket.files("odd/*.raw")
    assert [file.path for file in listed] == [f"{bucket.url}/{key}" for key in sorted(ODD)]
    assert list(listed.load(bytes)) == [b"odd"] * len(ODD)


def test_a_missing_object_is_named(bucket: Bucket) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        bucket.files("none.raw")
    assert caught.value.filename == f"{bucket.url}/none.raw"
    store = ObjectStore(bucket.url, **bucket.options)
    with pytest.raises(FileNotFoundError, match="none.raw"):
        list(af.items([store.file("none.raw", 3)]).load(bytes))


def test_an_object_that_changed_since_it_was_listed_is_corrupt(bucket: Bucket) -> None:
    for verify, after in (("etag", b"AB"), ("size", b"ABC"), ("size", b"A")):
        bucket.put("changing.raw", b"ab")
        listed = bucket.files("changing.raw", verify=verify)
        bucket.put("changing.raw", after)
        with pytest.raises(af.Corrupt, match="changing.raw"):
            list(listed.load(bytes))


@pytest.mark.parametrize("fused", [True, False], ids=["batches", "samples"])
def test_a_proxy_that_makes_requests_fail_changes_nothing(bucket: Bucket, fused: bool) -> None:  # noqa: FBT001
    """Every fault there is, between a real server and the reader."""
    endpoint = str(bucket.options["endpoint"])
    address, slash, path = endpoint.partition("/devstoreaccount1")
    faults = Faults(seed=5)
    with before(address, faults) as proxy:
        options = {**bucket.options, "endpoint": proxy.url + slash + path}
        listed = af.files(f"{bucket.url}/train/*.raw", **options)
        for kind in [*PASSING, "delay", "slow tail", "redirect"]:
            if not (kind == "redirect" and "options" in options):  # a signature is of one address
                faults.add(kind, rate=0.03, value=0.01 if kind in {"delay", "slow tail"} else None)
        loaded = listed.load(af.raw("uint8"), retry=PATIENT, timeout=0.5, hedge=None)
        found = [
            row.tobytes()
            for each in (loaded.batch(4) if fused else loaded).repeat(8)
            for row in np.atleast_2d(each)
        ]
    assert found == list(BODIES.values()) * 8
    assert proxy.faulty.total() >= 10
    assert proxy.requests["GET"] > 8 * len(BODIES)
