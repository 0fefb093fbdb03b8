"""Reads of an object store that fails, hangs and is slow: what a user gets who configured nothing."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.attempts.retry import Wanted
from asyncfeed.reading.objects import POLICY, ObjectStore
from asyncfeed.reading.reader import AsyncReader, value
from asyncfeed.reading.scope import new_reader
from tests.servers.objects import Faults, ObjectServer, serving

pytest.importorskip("obstore")

QUICK = af.Retry(attempts=12, first_delay=0.005, max_delay=0.05)


def fill(server: ObjectServer, count: int, size: int = 100) -> list[bytes]:
    bodies = [np.random.default_rng(number).bytes(size) for number in range(count)]
    for number, body in enumerate(bodies):
        server.put("bucket", f"{number:05}.raw", body)
    return bodies


def files(server: ObjectServer, **options: Any) -> af.Pipeline[af.File]:
    return af.files("s3://bucket/*.raw", endpoint=server.url, anonymous=True, **options)


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with serving() as made:
        yield made


FAULTS = ["503", "429", "500", "reset", "cut", "wrong length"]


@pytest.mark.parametrize("fused", [False, True])
def test_each_object_is_delivered_once_an_epoch_whatever_fails(fused: bool) -> None:  # noqa: FBT001
    """One request in ten fails, in every way in turn: all objects come, bit by bit and in order."""
    faults = Faults(seed=1)
    with serving(faults=faults) as server:
        bodies = fill(server, 300)
        pipeline = files(server)  # listed before anything fails
        for fault in FAULTS:
            faults.add(fault, rate=0.1 / len(FAULTS))
        loaded = pipeline.load(af.raw("uint8"), retry=QUICK, hedge=None)  # a second request hides a failure
        loaded = (loaded.batch(20) if fused else loaded).repeat(3)
        with loaded.open() as feed:
            seen = [row.tobytes() for each in feed for row in np.atleast_2d(each)]
            again = sum(count for reason, count in feed.stats().slow_paths if reason.startswith("read again"))
    assert seen == bodies * 3
    assert sum(server.faulty.values()) > 20
    faults_seen = sum(server.faulty.values())
    assert 0.9 * faults_seen <= again <= faults_seen, (
        "what failed was counted; a look after a failure may fail, too"
    )


def test_a_server_that_never_answers_ends_in_an_error_with_key_attempts_and_time(server: ObjectServer) -> None:
    fill(server, 1)
    pipeline = files(server)
    server.faults.add("stall")
    retry = af.Retry(attempts=3, first_delay=0.01)
    with pytest.raises(af.TimedOut, match=r"s3://bucket/00000.raw: no answer within 0.2 s") as raised:
        list(pipeline.load(af.raw("uint8"), retry=retry, timeout=0.2, hedge=None))
    assert [each.number for each in raised.value.attempts] == [1, 2]
    assert "attempt 3, " in str(raised.value.__notes__)
    assert server.wait_closed()


def test_a_body_that_stalls_is_cut_off_too(server: ObjectServer) -> None:
    (body,) = fill(server, 1)
    pipeline = files(server)
    server.faults.add("stall in the body", times=2)
    (sample,) = pipeline.load(af.raw("uint8"), retry=QUICK, timeout=0.2, hedge=None)
    assert sample.tobytes() == body


def test_a_slow_tail_is_cut_off(server: ObjectServer) -> None:
    """2 % of the requests hang for a second, and a few requests more are made."""
    bodies = fill(server, 600)
    pipeline = files(server)
    server.faults.add("delay", rate=0.02, value=1.0)
    count = 0

    async def main() -> None:
        nonlocal count
        async with pipeline.load(af.raw("uint8"), hedge=0.1, timeout=None, concurrency=16).open() as feed:
            async for sample in feed:
                assert sample.tobytes() == bodies[count]
                count += 1
            reasons = dict(feed.stats().slow_paths)
            assert 0 < reasons["request beside a slow one"] <= 0.05 * len(bodies) + 8

    asyncio.run(main())
    assert count == len(bodies)
    assert server.wait_closed(), "no request that lost goes on"


@pytest.mark.parametrize("fault", ["404", "403", "401"])
def test_what_stays_as_it_is_is_asked_for_once(server: ObjectServer, fault: str) -> None:
    fill(server, 1)
    pipeline = files(server)
    server.faults.add(fault)
    with pytest.raises((FileNotFoundError, PermissionError)):
        list(pipeline.load(af.raw("uint8")))
    assert server.requests["GET"] <= 2  # a list, and one read


def test_a_stream_of_records_goes_on_where_it_was_cut(server: ObjectServer) -> None:
    text = "".join(f"line {number}\n" for number in range(300_000))
    server.put("bucket", "a.txt", text.encode())
    pipeline = af.files("s3://bucket/a.txt", endpoint=server.url, anonymous=True)
    server.faults.add("cut", times=2)
    server.faults.add("reset", times=1)
    assert "\n".join(pipeline.flat_map(af.lines)) + "\n" == text


def test_a_store_says_what_it_does(server: ObjectServer) -> None:
    policy = ObjectStore("s3://bucket").policy
    assert policy.retry == af.Retry()
    assert policy.timeout == 10.0
    assert policy.hedge == "auto"


async def ranges(file: af.File) -> Any:
    reader = new_reader(file.store)
    assert isinstance(reader, AsyncReader)
    await reader.open()
    try:
        return value(*await reader.read_ranges(file, [(0, 100)]))
    finally:
        await reader.close()


DRIPS: dict[str, Callable[[af.File], Any]] = {
    "load": lambda file: list(af.items([file]).load(af.raw("uint8"))),
    "batch": lambda file: list(af.items([file]).load(af.raw("uint8")).batch(1)),
    "stream": lambda file: list(af.items([file]).flat_map(af.lines)),
    "ranges": lambda file: asyncio.run(ranges(file)),
    "a size that is not known": lambda file: list(
        af.items([cast("ObjectStore", file.store).file("00000.raw")]).load(bytes)
    ),
    "a manifest": lambda file: af.files(manifest=file.path, store=file.store),
}


@pytest.mark.parametrize("use", DRIPS)
def test_a_body_that_drips_ends_at_the_deadline_of_the_whole_read(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch, use: str
) -> None:
    """Nothing is configured: each byte comes in time, and the last one would come after six seconds."""
    fill(server, 1, 200)
    retry = af.Retry(attempts=2, first_delay=0.001)
    policy = replace(POLICY, retry=retry, timeout=0.4, bytes_per_second=1e9, hedge=None)  # a deadline of 0.4 s
    monkeypatch.setattr("asyncfeed.reading.objects.POLICY", policy)
    store = ObjectStore("s3://bucket", endpoint=server.url, anonymous=True)
    server.faults.add("drip", value=0.03)
    text = r"s3://bucket/00000.raw: no answer within 0.4\d* s with all of up to [\d,]+ bytes; load\(timeout"
    with pytest.raises(af.TimedOut, match=text) as caught:
        DRIPS[use](store.file("00000.raw", 200))
    assert [each.number for each in caught.value.attempts] == [1]
    assert server.requests["GET"] == 2
    del caught
    assert server.wait_closed()


def test_a_drip_that_is_slower_than_the_deadline_asks_for_is_read_if_the_deadline_is_lifted(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (body,) = fill(server, 1, 20)
    monkeypatch.setattr("asyncfeed.reading.objects.POLICY", replace(POLICY, timeout=0.01))
    pipeline = files(server)
    server.faults.add("drip", value=0.005)
    (sample,) = pipeline.load(af.raw("uint8"), timeout=None, hedge=None)
    assert sample.tobytes() == body


@pytest.mark.parametrize(
    ("nbytes", "seconds"), [(0, 10), (100_000, 10.1), (1_000_000, 11), (8_000_000, 18), (16_000_000, 26)]
)
def test_the_deadline_of_a_request_grows_with_its_bytes(nbytes: int, seconds: float) -> None:
    assert ObjectStore("s3://bucket").policy.seconds(nbytes) == pytest.approx(seconds)
    assert Wanted(timeout=None).over(POLICY).seconds(nbytes) == math.inf


def test_a_listing_that_drips_ends_at_its_deadline(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(server, 3)
    monkeypatch.setattr("asyncfeed.reading.obstore_pages.QUIET_SECONDS", 0.02)
    monkeypatch.setattr("asyncfeed.reading.s3_pages.REQUEST_SECONDS", 0.1)
    monkeypatch.setattr("asyncfeed.reading.s3_pages.RETRY", af.Retry(attempts=2, first_delay=0.001))
    server.faults.add("drip", value=0.03)
    with pytest.raises(af.TimedOut, match=r"s3://bucket/: no page within 0.1 s; [\d,]+ bytes of it came"):
        files(server)
    assert server.wait_closed()
