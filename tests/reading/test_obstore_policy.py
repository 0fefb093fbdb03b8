"""Reads of an object store that fails, hangs and is slow: what a user gets who configured nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.reading.objects import ObjectStore
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
