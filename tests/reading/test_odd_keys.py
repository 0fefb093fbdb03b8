"""Keys that obstore refuses, and listings that never end: neither keeps the other objects from their reader."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

import asyncfeed as af
from asyncfeed.reading.objects import ObjectStore
from asyncfeed.reading.s3_pages import is_odd, pages
from tests.servers.certificates import self_signed
from tests.servers.objects import ObjectServer, serving

pytest.importorskip("obstore")

PAGE = 4
KEYS = [
    f"t/{name}.raw"
    for name in ("!", "-", "a1", "a2", "b", "deep-1/x", "deep.x", "deep/x", "m", "z1", "z2", "é+ %20")
]
BELOW = ["t//x.raw", "t/./x.raw", "t/../x.raw", "t/deep//x.raw", "t/deep/.", "t/..", "t/x//"]
"""Keys that no pattern matches here, as no name of a local file is like them."""
CONTROL = ["t/a\t1.raw", "t/a\n1.raw", "t/a\x01.raw", "t/a\x7f.raw", "t/deep/\x1f.raw", "t/zz\r.raw"]
LISTINGS = ["eager", "streamed"]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    monkeypatch.setattr("asyncfeed.reading.obstore_pages.PAGE", PAGE)
    with serving(page=PAGE) as made:
        for key in KEYS:
            made.put("bucket", key, b"1")
        yield made


def files(server: ObjectServer, listing: str, pattern: str = "t/**/*.raw", **options: Any) -> af.Pipeline[af.File]:
    given: dict[str, Any] = {"endpoint": server.url, "anonymous": True, "listing": listing, **options}
    return af.files(f"s3://bucket/{pattern}", **given)


def keys(items: Any) -> list[str]:
    return [file.path.removeprefix("s3://bucket/") for file in items]


# Keys that obstore refuses


@pytest.mark.parametrize("listing", LISTINGS)
@pytest.mark.parametrize("odd", [[key] for key in BELOW] + [BELOW])
def test_a_key_that_no_pattern_matches_keeps_no_other_from_being_listed(
    server: ObjectServer, listing: str, odd: list[str]
) -> None:
    for key in odd:
        server.put("bucket", key, b"22")
    assert keys(files(server, listing)) == KEYS
    assert server.wait_closed()


@pytest.mark.parametrize(
    "options",
    [
        {"anonymous": False, "options": {"aws_skip_signature": True}},
        {
            "anonymous": False,
            "credential_provider": lambda: {
                "access_key_id": "I",
                "secret_access_key": "K",
                "token": "T",
                "expires_at": None,
            },
        },
        {"endpoint": None, "allow_http": True, "options": {"aws_endpoint": "HERE", "region": "eu-west-1"}},
    ],
)
def test_options_of_obstore_hold_for_its_pages_and_ours(server: ObjectServer, options: dict[str, Any]) -> None:
    server.put("bucket", "t//x", b"22")
    inner = options.get("options", {})
    options = {
        **options,
        "options": {name: server.url if value == "HERE" else value for name, value in inner.items()},
    }
    assert keys(files(server, "eager", **options)) == KEYS
    assert server.log[-1][2]["connection"] == "close"


@pytest.mark.parametrize("page", [1, 2, 3, 1000])
@pytest.mark.parametrize("listing", LISTINGS)
def test_odd_keys_may_stand_anywhere_in_a_page(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch, listing: str, page: int
) -> None:
    monkeypatch.setattr("asyncfeed.reading.obstore_pages.PAGE", page)
    server.page = page
    for key in BELOW + CONTROL:
        server.put("bucket", key, b"22")
    for key in ("t/deep/", "t/c/", "t/c-1/x.raw", "t/zz/"):  # folders, as consoles make them
        server.put("bucket", key, b"1" if key.endswith("raw") else b"")
    assert keys(files(server, listing)) == sorted([*KEYS, *CONTROL, "t/c-1/x.raw"])


@pytest.mark.parametrize("page", [1, 2, 3, 4])
def test_a_folder_before_an_odd_key_comes_once(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    """obstore shows it without its slash, and so behind which key to go on is not known exactly."""
    monkeypatch.setattr("asyncfeed.reading.obstore_pages.PAGE", page)
    server.page = page
    for key in ("c-1", "c.x", "c/", "d/", "d0"):
        server.put("bucket", f"o/{key}", b"" if key.endswith("/") else b"1")
    server.put("bucket", "o/d\x7f", b"22")
    assert keys(files(server, "streamed", "o/*")) == ["o/c-1", "o/c.x", "o/c", "o/d", "o/d0", "o/d\x7f"]


@pytest.mark.parametrize("listing", LISTINGS)
def test_a_key_with_a_control_character_is_listed_and_refused_by_name_when_it_is_read(
    server: ObjectServer, listing: str
) -> None:
    for key in CONTROL:
        server.put("bucket", key, b"22")
    found = files(server, listing)
    with pytest.raises(
        af.StoreError, match=r"'s3://bucket/t/a\\x01.raw' cannot be read: .* control character.* Rename"
    ):
        list(found.load(bytes))
    others = found.filter(lambda file: file.path.isprintable())
    assert [bytes(each) for each in others.load(bytes)] == [b"1"] * len(KEYS)
    with found.load(bytes, on_error=af.Skip(max_count=len(CONTROL))).open() as feed:
        assert len(list(feed)) == len(KEYS)
        refused = [str(failure.error) for failure in feed.skipped]
    assert [text.partition(" cannot")[0] for text in refused] == [
        repr(f"s3://bucket/{key}") for key in sorted(CONTROL)
    ]


def test_local_files_have_the_same_names(tmp_path: Path) -> None:
    """The order is another one: local folders are sorted part by part, as their walk is."""
    for key in KEYS + CONTROL:
        path = tmp_path / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"1")
    found = [file.path.removeprefix(f"{tmp_path}/") for file in af.files(f"{tmp_path}/t/**/*.raw")]
    assert sorted(found) == sorted(KEYS + CONTROL)


def test_a_folder_of_the_pattern_may_have_a_control_character(server: ObjectServer) -> None:
    server.put("bucket", "o\x02/a.raw", b"1")
    assert keys(files(server, "eager", "o\x02/*")) == ["o\x02/a.raw"]


def test_epochs_that_are_left_at_an_odd_key_go_on_behind_it(server: ObjectServer) -> None:
    for key in CONTROL:
        server.put("bucket", key, b"22")
    everything = sorted(KEYS + CONTROL)
    for taken in range(len(everything)):
        seen = []
        for epoch in files(server, "streamed").epochs(2):
            for _, file in zip(range(taken if epoch.number == 0 else 99), epoch, strict=False):
                if epoch.number:
                    seen.append(file)
        assert keys(seen) == everything


@pytest.mark.parametrize("fault", ["503", "reset", "cut"])
def test_a_page_around_an_odd_key_is_asked_for_again(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr("asyncfeed.reading.s3_pages.RETRY", af.Retry(attempts=3, first_delay=0.001))
    server.put("bucket", "t//x", b"22")
    server.faults.add(fault, times=2, where=lambda key: not key and server.requests["LIST"] > 1)
    assert keys(files(server, "eager")) == KEYS
    server.faults.add(fault, where=lambda key: not key and server.log[-1][2].get("connection") == "close")
    with pytest.raises(af.Unavailable, match="s3://bucket/t/: "):
        files(server, "eager")
    assert server.wait_closed()


def test_pages_around_an_odd_key_are_signed(server: ObjectServer) -> None:
    """The signature is the one that botocore makes of the same request."""
    auth = pytest.importorskip("botocore.auth")
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    server.put("bucket", "t/ +é/a\x01//x", b"22")
    server.put("bucket", "t/ +é/b.raw", b"22")
    secret = {"access_key_id": "ID", "secret_access_key": "KEY", "session_token": "TOKEN", "region": "eu-west-1"}
    assert keys(files(server, "eager", "t/ +é/*", anonymous=False, options=secret)) == ["t/ +é/b.raw"]
    url, _, signature = server.target.partition("&X-Amz-Signature=")
    request = AWSRequest("GET", server.url + url.replace("=/x&", "=%2Fx&"))  # as a server reads it
    request.context["timestamp"] = url.partition("X-Amz-Date=")[2][:16]
    signer = auth.S3SigV4QueryAuth(Credentials("ID", "KEY", "TOKEN"), "s3", "eu-west-1", expires=900)
    canonical = signer.canonical_request(request)
    assert signature == signer.signature(signer.string_to_sign(request, canonical), request)
    assert "prefix=t%2F%20%2B%C3%A9%2F" in url


def test_a_server_must_have_a_certificate_that_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = self_signed(tmp_path)

    async def listed(url: str) -> list[str]:
        store = ObjectStore("s3://bucket", endpoint=url, anonymous=True)
        async with aclosing(pages(store, None, "t/", None)) as found:
            return [each["path"] async for page in found for each in page]

    with serving(tls=context) as server:
        server.put("bucket", "t/a", b"1")
        with pytest.raises(PermissionError, match="does not trust the certificate"):
            asyncio.run(listed(server.url))
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "server.pem"))
        assert asyncio.run(listed(server.url)) == ["t/a"]


@pytest.mark.parametrize("listing", LISTINGS)
def test_the_name_of_a_host_is_looked_up_beside_the_loop(server: ObjectServer, listing: str) -> None:
    server.put("bucket", "t//x", b"22")
    endpoint = server.url.replace("127.0.0.1", "localhost")
    assert keys(files(server, listing, endpoint=endpoint)) == KEYS


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("gs://bucket/t/*", {}, "on s3:// only, not on gs://"),
        ("s3://bucket/t/*", {"client_options": {"user_agent": "me"}}, "client_options"),
    ],
)
def test_a_listing_that_cannot_be_made_around_an_odd_key_says_what_to_do(
    server: ObjectServer, url: str, options: dict[str, Any], says: str
) -> None:
    server.put("bucket", "t//x\x01", b"22")
    with pytest.raises(
        af.StoreError, match=rf"bucket/t/: cannot be listed for the key 't//x.*{says}.* a manifest"
    ):
        af.files(url, endpoint=server.url, anonymous=True, **options)


@pytest.mark.parametrize(
    "key", ["a//b", "/a", "a//", "./a", "a/..", "a\x00", "a\x1f", "a\x7fb", "a", "a/.b", "a..", "é\x85"]
)
def test_it_is_known_which_keys_obstore_refuses(key: str) -> None:
    from obstore.store import MemoryStore

    try:
        MemoryStore().put(key, b"1")
    except ValueError:
        refused = True
    else:
        refused = key.startswith("/")  # it leaves out the slash
    assert is_odd(key) == refused


# Listings that never end


ENDLESS = {
    "same page": "'t/.*' was listed twice",
    "same token": "page 2 had the continuation token of an earlier page",
    "empty pages": "20 pages in a row had no objects",
}


@pytest.mark.parametrize("listing", LISTINGS)
@pytest.mark.parametrize("how", ENDLESS)
def test_a_listing_that_never_ends_is_an_error_that_names_the_folder(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch, listing: str, how: str
) -> None:
    if how != "same page":  # such pages come, and on a busy machine they are quiet for as long
        monkeypatch.setattr("asyncfeed.reading.obstore_pages.QUIET_SECONDS", 0.05)
    monkeypatch.setattr("asyncfeed.reading.s3_pages.MAX_EMPTY_PAGES", 20)
    server.endless = how
    with pytest.raises(af.StoreError, match=f"s3://bucket/t/: the store's listing never ends: {ENDLESS[how]}"):
        list(files(server, listing))
    assert server.wait_closed()


@pytest.mark.parametrize("listing", LISTINGS)
def test_a_token_that_comes_again_is_noticed_beside_an_odd_key(server: ObjectServer, listing: str) -> None:
    server.put("bucket", "t//x", b"22")
    server.endless = "same page"
    with pytest.raises(af.StoreError, match="the store's listing never ends"):
        list(files(server, listing))
    assert server.requests["LIST"] <= 4


def test_a_circle_of_pages_is_noticed(server: ObjectServer) -> None:
    server.endless = "circle"
    with pytest.raises(af.StoreError, match="was listed twice"):
        files(server, "eager")
    assert server.requests["LIST"] <= 16


def test_a_listing_that_is_only_slow_is_made_to_its_end(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncfeed.reading.obstore_pages.QUIET_SECONDS", 0.01)
    server.faults.add("delay", value=0.05)
    assert keys(files(server, "eager")) == KEYS


def test_what_a_store_without_an_order_has_listed_is_listed_again_around_an_odd_key(server: ObjectServer) -> None:
    server.put("bucket", "t/zz//", b"22")
    server.lists_sorted = False
    assert keys(files(server, "eager")) == KEYS


def test_another_store_that_lists_nothing_for_long_fails(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncfeed.reading.obstore_pages.LONGEST_SECONDS", 0.05)
    server.endless = "empty pages"
    with pytest.raises(af.TimedOut, match=r"gs://bucket/t/: no object was listed within 0.05 s"):
        af.files("gs://bucket/t/*", endpoint=server.url, anonymous=True)


@pytest.mark.parametrize("how", ["same token", "empty pages"])
@pytest.mark.parametrize("quiet", [0.02, 100])
def test_a_run_that_waits_for_a_listing_without_an_end_can_be_stopped(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch, how: str, quiet: float
) -> None:
    monkeypatch.setattr("asyncfeed.reading.obstore_pages.QUIET_SECONDS", quiet)
    monkeypatch.setattr("asyncfeed.reading.s3_pages.MAX_EMPTY_PAGES", 10**9)
    server.endless = how if quiet == 100 else "empty pages"
    feed = files(server, "streamed").open()
    reading = threading.Thread(target=lambda: pytest.raises(af.ClosedError, list, feed), daemon=True)
    reading.start()
    assert server.wait_until(lambda: server.requests["LIST"] > 20)
    feed.close()
    reading.join(10)
    assert not reading.is_alive()
    assert server.wait_closed()


@pytest.mark.parametrize("quiet", [0.02, 100])
@pytest.mark.parametrize("listing", LISTINGS)
def test_ctrl_c_ends_a_listing_without_an_end(server: ObjectServer, listing: str, quiet: float) -> None:
    code = f"""
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell runs in the background ignores it
import asyncfeed as af
from asyncfeed.reading import obstore_pages, s3_pages
obstore_pages.QUIET_SECONDS = {quiet}
s3_pages.MAX_EMPTY_PAGES = 10**9
try:
    list(af.files("s3://bucket/t/*", endpoint="{server.url}", anonymous=True, listing="{listing}"))
except KeyboardInterrupt:
    print("interrupted")
"""
    server.endless = "empty pages"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    ) as process:
        try:
            assert server.wait_until(lambda: server.requests["LIST"] > 40)
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=20) == ("interrupted\n", "")
        finally:
            process.kill()
    assert server.wait_closed()


def test_a_listing_on_another_thread_ends_with_its_error(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncfeed.reading.obstore_pages.QUIET_SECONDS", 0.05)
    server.endless = "same token"

    async def main() -> None:
        with pytest.raises(af.StoreError, match="never ends"):
            await asyncio.to_thread(files, server, "eager")

    asyncio.run(main())
