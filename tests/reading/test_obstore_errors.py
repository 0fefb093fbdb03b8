"""What becomes of each thing that can go wrong between a client and an object store."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

import asyncfeed as af
from asyncfeed.reading.objects import ObjectStore
from asyncfeed.reading.obstore_errors import translate
from tests.reading.readers import open_reader
from tests.servers.certificates import self_signed
from tests.servers.objects import ObjectServer, serving

pytest.importorskip("obstore")

QUICK = {"read_timeout": timedelta(seconds=0.2), "connect_timeout": timedelta(seconds=0.2)}


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with serving() as made:
        made.put("bucket", "a", b"0123456789")
        yield made


def outcome(store: ObjectStore, key: str = "a", size: int | None = 10) -> Any:
    """Read one object."""

    async def main() -> Any:
        async with open_reader(store) as reader:
            return (await reader.read([store.file(key, size)]))[0]

    return asyncio.run(main())


@pytest.mark.parametrize("verify", ["size", "etag"])
@pytest.mark.parametrize(
    ("fault", "error", "kind"),
    [
        ("404", FileNotFoundError, None), ("403", PermissionError, None), ("401", PermissionError, None),
        ("429", af.Unavailable, "throttled"), ("503", af.Unavailable, "throttled"), ("500", af.Unavailable, "server"),
        ("502", af.Unavailable, "server"), ("408", af.Unavailable, "timeout"), ("reset", af.Unavailable, "connection"),
        ("stall", af.Unavailable, "timeout"), ("stall in the body", af.Unavailable, "timeout"),
        ("cut", af.Unavailable, "interrupted"), ("wrong range", af.Corrupt, None), ("wrong length", af.Corrupt, None),
        ("400", af.StoreError, None), ("301", af.StoreError, None),
    ],
)  # fmt: skip
def test_a_fault_is_an_error_that_says_whether_to_try_again(
    server: ObjectServer, fault: str, error: type[Exception], kind: str | None, verify: Any
) -> None:
    store = ObjectStore("s3://bucket", endpoint=server.url, anonymous=True, client_options=QUICK, verify=verify)
    server.faults.add(fault, times=1, value=1 if fault in {"429", "503"} else None)
    found = outcome(store)
    assert type(found) is error
    assert getattr(found, "kind", None) == kind
    assert "s3://bucket/a" in str(found)
    assert str(server.port) not in str(found)
    assert found.__cause__ is None
    copy = pickle.loads(pickle.dumps(found))
    assert (type(copy), str(copy), getattr(copy, "kind", None)) == (error, str(found), kind)
    assert outcome(store).tobytes() == b"0123456789"
    assert server.faulty[fault] == 1, "no request is repeated in secret"


def test_a_server_that_is_not_there_is_unavailable(server: ObjectServer) -> None:
    store = ObjectStore("s3://bucket", endpoint="http://127.0.0.1:1", anonymous=True, client_options=QUICK)
    found = outcome(store)
    assert (type(found), found.kind) == (af.Unavailable, "connection")


def test_no_credentials_are_a_permission_error_with_the_fix() -> None:
    options = {"metadata_endpoint": "http://127.0.0.1:1"}
    found = outcome(ObjectStore("s3://bucket", endpoint="http://127.0.0.1:1", options=options))
    assert isinstance(found, PermissionError)
    assert "anonymous=True" in str(found)


def test_a_certificate_that_is_not_trusted_is_a_permission_error(tmp_path: Any) -> None:
    with serving(tls=self_signed(tmp_path)) as server:
        server.put("bucket", "a", b"0123456789")
        found = outcome(ObjectStore("s3://bucket", endpoint=server.url, anonymous=True))
    assert isinstance(found, PermissionError)
    assert "certificate" in str(found)


def test_a_name_that_no_object_can_have_is_an_error_of_that_object(server: ObjectServer) -> None:
    store = ObjectStore("s3://bucket", endpoint=server.url, anonymous=True)

    async def main() -> Any:
        async with open_reader(store) as reader:
            files = [
                store.file("a", 10),
                store.file("x//y", 1),
                af.File("s3://other/a", store=store),
                store.file("a"),
            ]
            return await reader.read(files)

    good, bad, other, again = asyncio.run(main())
    assert (type(bad), type(other)) == (af.StoreError, af.PipelineError)
    assert good.tobytes() == again.tobytes() == b"0123456789"


def test_an_object_that_changed_is_corrupt_if_versions_are_compared(server: ObjectServer) -> None:
    """The size is the same, so only the etag tells."""
    for verify, error in (("size", None), ("etag", af.Corrupt)):
        store = ObjectStore("s3://bucket", endpoint=server.url, anonymous=True, verify=verify)  # type: ignore[arg-type]
        (listed,) = af.files("s3://bucket/a", store=store)
        server.put("bucket", "a", server.buckets["bucket"]["a"][::-1])

        async def main(file: af.File, store: ObjectStore) -> Any:
            async with open_reader(store) as reader:
                return (await reader.read([file]))[0]

        found = asyncio.run(main(listed, store))
        assert isinstance(found, error) if error else len(found) == 10
        if error:
            assert "changed since it was listed (it was written to)" in str(found)


class GenericError(Exception):
    """Stands for obstore's, which is raised for nearly everything."""


def answered(status: int, code: str) -> str:
    return f"Generic S3 error: Server returned non-2xx status code: {status} Some: <Code>{code}</Code> CANARY"


@pytest.mark.parametrize(
    ("text", "error", "kind"),
    [
        (answered(503, "ServiceUnavailable"), af.Unavailable, "throttled"),
        (answered(400, "SlowDown"), af.Unavailable, "throttled"),
        (answered(400, "RequestTimeout"), af.Unavailable, "timeout"),
        (answered(400, "ExpiredToken"), PermissionError, None),
        (answered(404, "non-2xx status code: 503"), FileNotFoundError, None),
        (answered(409, "Conflict"), af.StoreError, None),
        ("HTTP error: HttpError {\n   kind: Decode, CANARY", af.Unavailable, "other"),
        ("Received non-partial response when range requested CANARY", af.StoreError, None),
        ("GET http://169.254.169.254/latest/meta-data CANARY", PermissionError, None),
        ("CANARY", af.Unavailable, "other"),
    ],
)
def test_the_text_of_an_error_is_read_and_not_shown(text: str, error: type[Exception], kind: str | None) -> None:
    found = translate(GenericError(text), "s3://bucket/a")
    assert type(found) is error
    assert getattr(found, "kind", None) == kind
    assert "s3://bucket/a" in str(found)
    assert "CANARY" not in repr(found)


def test_an_error_of_an_unknown_type_is_none_to_try_again() -> None:
    class NotSupportedError(Exception):
        pass

    assert type(translate(NotSupportedError("CANARY"), "s3://bucket/a")) is af.StoreError
    corrupt = af.Corrupt("as it is")
    assert translate(corrupt, "s3://bucket/a") is corrupt
