"""An object store as a value, and where its secrets are not to be seen."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
from typing import Any

import pytest

import asyncfeed as af
from asyncfeed.reading.objects import ObjectStore
from asyncfeed.reading.obstore_client import connect
from asyncfeed.reading.reader import value
from tests.reading.readers import open_reader
from tests.servers.objects import serving

pytest.importorskip("obstore")

SECRET = {"access_key_id": "CANARYid", "secret_access_key": "CANARYkey", "session_token": "CANARYtoken"}


def credentials() -> dict[str, Any]:
    return {"access_key_id": "CANARYid", "secret_access_key": "CANARYkey", "token": None, "expires_at": None}


def refuse() -> dict[str, Any]:
    raise RuntimeError("CANARY: no such profile")


def test_stores_are_values() -> None:
    one, same = (ObjectStore("s3://bucket/", anonymous=True, options={"region": "x"}) for _ in range(2))
    assert one == same
    assert hash(one) == hash(same)
    assert one != ObjectStore("s3://bucket", anonymous=True)
    assert pickle.loads(pickle.dumps(one)) == one
    assert (one.url, one.scheme) == ("s3://bucket", "s3")
    assert one.key(one.file("a b%20")) == "a b%20"
    with pytest.raises(af.PipelineError, match="is not s3://bucket"):
        one.key(af.File("s3://other/a"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"verify": "md5"}, "verify must be"), ({"max_requests": 0}, "max_requests"), ({"client": object()}, "memory://"),
        ({"anonymous": True, "credential_provider": credentials}, "anonymous"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_right_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(af.PipelineError, match=says):
        ObjectStore("s3://bucket", **options)
    with pytest.raises(af.PipelineError, match="without a folder"):
        ObjectStore("s3://bucket/folder")


def test_no_secret_is_shown(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Not in a repr, nor in the error of an option, a request or a listing, nor in a note or a log."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "CANARYenv")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "CANARYenv")
    shown = []
    caplog.set_level(0)
    with serving() as server:
        server.faults.add("403")
        server.put("bucket", "a", b"1")
        for options in (
            {"options": SECRET},
            {"client_options": {"default_headers": {"x": "CANARY"}}},
            {"credential_provider": credentials},
            {"credential_provider": refuse},
            {"options": {"nonsense": "CANARY"}},
            {"client_options": {"proxy_url": "CANARY://CANARY:CANARY"}},
            {},
        ):
            store = ObjectStore("s3://bucket", endpoint=server.url, **options)  # type: ignore[arg-type]
            shown.append(repr(store))
            given = {"endpoint": server.url, **options}
            for use in (
                lambda: af.files("s3://bucket/*", **given),  # noqa: B023
                lambda: af.files("s3://bucket/a", **given),  # noqa: B023
                lambda: list(af.items([store.file("a", 1)]).load(bytes)),  # noqa: B023
            ):
                with pytest.raises((OSError, af.PipelineError)) as caught:
                    use()
                error = caught.value
                shown += [str(error), repr(error), repr(error.args), *getattr(error, "__notes__", [])]
                assert error.__suppress_context__ or error.__context__ is None
                assert isinstance(error, (PermissionError, af.PipelineError))
    assert "CANARY" not in "\n".join([*shown, caplog.text])
    assert "options=<access_key_id, secret_access_key, session_token>" in shown[0]


def test_a_pickled_store_holds_what_it_was_given_and_nothing_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "CANARYenv")
    store = ObjectStore("s3://bucket", credential_provider=credentials)
    connect(store)
    assert b"CANARY" not in pickle.dumps([store.file("a"), af.items([store.file("a")]).load(af.npy)])
    explicit = ObjectStore("s3://bucket", options=SECRET)
    assert pickle.loads(pickle.dumps(explicit)) == explicit


def test_credentials_come_from_the_provider_from_options_or_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def signed(store: ObjectStore) -> str:
        async with open_reader(store) as reader:
            assert value(*await reader.read([store.file("a", 1)])).tobytes() == b"1"
        return server.log[-1][2].get("authorization", "")

    with serving() as server:
        server.put("bucket", "a", b"1")
        reach = {"endpoint": server.url}
        assert asyncio.run(signed(ObjectStore("s3://bucket", **reach, anonymous=True))) == ""  # type: ignore[arg-type]
        for options in ({"options": SECRET}, {"credential_provider": credentials}):
            assert "CANARYid" in asyncio.run(signed(ObjectStore("s3://bucket", **reach, **options)))  # type: ignore[arg-type]
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "CANARYenv")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "key")
        assert "CANARYenv" in asyncio.run(signed(ObjectStore("s3://bucket", **reach)))  # type: ignore[arg-type]


@pytest.mark.parametrize(("module", "extra"), [("obstore", "cloud"), ("fsspec", "fsspec")])
def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, module: str, extra: str) -> None:
    for name in [module, *(each for each in sys.modules if each.partition(".")[0] == module)]:
        monkeypatch.setitem(sys.modules, name, None)
    store = "fsspec" if module == "fsspec" else None
    with pytest.raises(af.PipelineError, match=rf"pip install 'asyncfeed\[{extra}\]'"):
        af.files("s3://bucket/*.npy", store=store)


def test_other_clouds_are_reached_through_an_endpoint() -> None:
    """Google's XML interface is that of S3 as far as a reader goes; Azure's client is made and not asked."""
    with serving() as server:
        server.put("bucket", "a", b"123")
        found = af.files("gs://bucket/a", endpoint=server.url, anonymous=True)
        assert list(found.load(af.text)) == ["123"]
    connect(ObjectStore("az://box", anonymous=True, options={"account_name": "name"}))
    connect(ObjectStore("abfss://box@name.dfs.core.windows.net", anonymous=True))


def test_a_process_that_was_forked_after_a_store_was_used_gets_an_error_and_does_not_hang() -> None:
    code = """
import os, sys, asyncfeed as af
from asyncfeed.reading.obstore_client import connect
from asyncfeed.reading import ObjectStore
store = ObjectStore("s3://bucket", anonymous=True)
if sys.argv[1] == "used":
    connect(store)
child = os.fork()
if child == 0:
    try:
        connect(store)
    except af.StoreError as error:
        os._exit(1 if "forkserver" in str(error) else 2)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    for how, expected in (("used", 1), ("unused", 0)):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code, how], capture_output=True, text=True, env=dict(os.environ)
        )
        assert (done.returncode, done.stderr) == (expected, "")
