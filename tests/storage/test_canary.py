"""No secret is shown: not by a pipeline, a run, a log, or any error there is."""

from __future__ import annotations

import asyncio
import pickle
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import asyncfeed as af
from tests.servers.objects import ObjectServer, serving
from tests.storage.buckets import files, fill

pytest.importorskip("obstore")

CANARY = "CANARY"
NAMES = ("access_key_id", "secret_access_key", "session_token")
GIVEN = {name: f"{CANARY}-{name}" for name in NAMES}


def provided() -> dict[str, Any]:
    return {
        "access_key_id": f"{CANARY}-id",
        "secret_access_key": f"{CANARY}-secret",
        "token": f"{CANARY}-token",
        "expires_at": None,
    }


async def provided_async() -> dict[str, Any]:
    return provided()


WAYS: dict[str, dict[str, Any]] = {
    "options": {"options": GIVEN},
    "environment": {},
    "provider": {"credential_provider": provided},
    "async provider": {"credential_provider": provided_async},
    "headers": {"options": GIVEN, "client_options": {"default_headers": {"x-secret": CANARY}}},
}
FAULTS = [
    "400", "401", "403", "404", "408", "429", "500", "503", "301", "reset", "cut", "stall", "stall in the body",
    "wrong length", "wrong range", "changed", "other etag", "redirect", "none",
]  # fmt: skip


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    for name in NAMES:
        monkeypatch.setenv(f"AWS_{name.upper()}", f"{CANARY}-environment")
    with serving() as made:
        fill(made, 4)
        yield made


def shown(error: BaseException) -> str:
    """Return all that an error may show, with what it came from."""
    parts = [repr(error), str(error), repr(error.__dict__), *traceback.format_exception(error)]
    parts += [repr(pickle.loads(pickle.dumps(error)).__dict__), repr(pickle.dumps(error))]
    return "\n".join(parts)


@pytest.mark.parametrize("way", WAYS)
def test_no_secret_is_shown_whatever_fails(
    server: ObjectServer, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], way: str
) -> None:
    caplog.set_level(0)
    told: list[str] = []
    listed = files(server, anonymous=False, verify="etag", **WAYS[way])
    assert CANARY in repr(server.log), "requests are signed with the secrets"
    retry = af.Retry(attempts=2, first_delay=1e-3)
    loaded = listed.load(af.raw("uint8"), retry=retry, timeout=0.1, hedge=0.05)
    told += [repr(listed), str(loaded), repr(list(listed))]
    if way not in {"options", "headers"}:  # these hold it as they were given
        told.append(repr(pickle.dumps([loaded, *listed])))
    uses: list[Callable[[], Any]] = [
        lambda: run(loaded, told),
        lambda: run(loaded.batch(2), told),
        lambda: run(listed.flat_map(af.lines).take(1), told) if fault in QUICK else None,
        lambda: run(loaded.batch(2).map(lambda _: 1 / 0), told),
        lambda: run(listed.load(af.raw("uint8"), retry=retry, timeout=0.1, on_error="skip", skip_limit=9), told),
    ]
    failed = 0
    for fault in FAULTS:
        server.faults.rules.clear()
        server.faults.add(fault, value=f"{server.url}/bucket/none" if fault == "redirect" else None)
        for use in uses:
            try:
                use()
            except Exception as error:
                told.append(shown(error))
                failed += 1
    assert failed > 2 * len(FAULTS)
    captured = capfd.readouterr()
    assert CANARY not in "\n".join([*told, caplog.text, captured.out, captured.err])


QUICK = {"401", "403", "404", "changed"}
"""Faults of which a stream is not tried again."""


def run(pipeline: af.Pipeline[Any], told: list[str]) -> None:
    """Run a pipeline, and note what the feed shows of itself."""
    feed = pipeline.open()
    try:
        with feed:
            list(feed)
    finally:
        told += [
            feed.explain(),
            pipeline.explain(),
            repr(feed),
            str(feed.stats()),
            repr(feed.stats()),
            repr(feed.skipped),
            repr(feed.failure),
        ]


def test_no_secret_is_shown_by_what_is_refused(server: ObjectServer) -> None:
    """Endpoints, URLs and options that are not taken, and a provider that fails."""

    def refuses() -> dict[str, Any]:
        raise RuntimeError(CANARY)

    async def refuses_async() -> dict[str, Any]:
        raise RuntimeError(CANARY)

    for options in (
        {"endpoint": f"http://user:{CANARY}@127.0.0.1:{server.port}"},
        {"endpoint": f"{server.url}?key={CANARY}"},
        {"options": {CANARY: CANARY}},
        {"options": {**GIVEN, "region": {"a": CANARY}}},
        {"client_options": {"proxy_url": f"{CANARY}://{CANARY}:{CANARY}"}},
        {"credential_provider": refuses},
        {"credential_provider": refuses_async},
        {"credential_provider": lambda: {"access_key_id": CANARY}},
    ):
        for key in ("*.raw", "00001.raw"):
            with pytest.raises((OSError, af.PipelineError)) as caught:
                given: dict[str, Any] = {"endpoint": server.url, "anonymous": False, **options}
                list(af.files(f"s3://bucket/{key}", **given))
            error = caught.value
            lines = [line for line in shown(error).splitlines() if "given" not in line and "caught" not in line]
            text = "\n".join(lines)
            if CANARY in options.get("options", {}):  # the name of an option is no secret
                text = text.replace(f"options=<{CANARY}>", "")
            assert CANARY not in text


def test_a_feed_in_a_loop_shows_no_secret_either(server: ObjectServer) -> None:
    async def main() -> str:
        async with listed.load(af.raw("uint8"), retry=None).open() as feed:
            server.faults.add("503")
            with pytest.raises(af.Unavailable) as caught:
                async for _ in feed:
                    pass
            return shown(caught.value) + repr(feed) + repr(asyncio.all_tasks()) + str(feed.stats())

    listed = files(server, anonymous=False, options=GIVEN)
    assert CANARY not in asyncio.run(main())
