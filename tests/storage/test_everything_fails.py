"""One request in ten fails, in every way there is at once: what is delivered, and what is counted."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from tests.searching import SEARCH, sampled
from tests.servers.faults import Faults
from tests.servers.objects import ObjectServer, serving
from tests.storage.buckets import PASSING, PATIENT, add_every_fault, files, fill

pytest.importorskip("obstore")

EPOCHS = 3
AGAIN = "read again after: "
SECOND = "request beside a slow one"
HELD_BACK = "request held back: the store refuses some"


def delivered(pipeline: af.Pipeline[Any], bodies: list[bytes]) -> Counter[str]:
    """Run all epochs, check each object, and return the slow paths that were counted, but for waits for the pace."""
    epoch = place = 0
    with pipeline.repeat(EPOCHS).open() as feed:
        for each in feed:
            for row in np.atleast_2d(each):
                assert row.tobytes() == bodies[place], f"object {place} of epoch {epoch}"
                place += 1
                if place == len(bodies):
                    epoch, place = epoch + 1, 0
        assert (epoch, place) == (EPOCHS, 0), "each object once an epoch"
        return Counter({reason: times for reason, times in feed.stats().slow_paths if reason != HELD_BACK})


def failures(server: ObjectServer, *, verify: str) -> Counter[str]:
    """Return how many attempts failed because of the faults of a server, as statistics call them.

    An answer of another length is looked into: a HEAD request asks what the object is now. If that one fails, the
    attempt fails as it did.
    """
    made: Counter[str] = Counter()
    for (method, kind), count in server.faulty_requests.items():
        if method == "GET" and kind == "other etag":
            made["Corrupt"] += count if verify == "etag" else 0  # else the version is not seen
        elif method == "GET" and kind in PASSING:
            made[PASSING[kind]] += count
        elif method == "HEAD" and PASSING.get(kind, "Corrupt") != "Corrupt" and kind not in BODY_ONLY:
            made[PASSING[kind]] += count
            made["Corrupt"] -= count
    return made


BODY_ONLY = {"cut", "stall in the body"}
"""Faults of a body, which the answer to a HEAD request has not."""


def check(count: int, *, fused: bool, verify: Any, hedge: Any, stalls: float) -> None:
    faults = Faults(seed=1)
    with serving(faults) as server:
        bodies = fill(server, count)
        listed = files(server, verify=verify)  # before anything fails
        add_every_fault(faults, stalls=stalls)
        loaded = listed.load(af.raw("uint8"), retry=PATIENT, timeout=2.0, hedge=hedge)
        counted = delivered(loaded.batch(50) if fused else loaded, bodies)
    assert 0.09 < sum(server.faulty.values()) / sum(server.requests.values()) < 0.12
    assert set(server.faulty) >= {*PASSING, "delay", "slow tail", "redirect", "other etag"}
    expected = failures(server, verify=verify)
    seconds = counted.pop(SECOND, 0)
    if hedge is None:
        assert counted == Counter({f"{AGAIN}{kind}": times for kind, times in expected.items()})
        assert server.redirected == server.faulty["redirect"]
        layout = (
            server.requests["GET"] - EPOCHS * count - counted.total() - server.faulty_requests["GET", "redirect"]
        )
        assert 0 <= layout <= fused, "a batch may read the first file of a run once more, for its layout"
    else:  # each second request hides one failure at most: its own, or that of the first one
        assert 0 <= expected.total() - counted.total() <= seconds


@sampled(1)
@pytest.mark.parametrize(
    ("fused", "verify"), [(True, "size"), (False, "size"), (True, "etag")], ids=["batches", "samples", "etags"]
)
def test_each_object_comes_once_an_epoch_in_order_and_each_fault_is_counted(fused: bool, verify: str) -> None:  # noqa: FBT001
    """Second requests are off, so the counts are equal, kind by kind."""
    check(1000, fused=fused, verify=verify, hedge=None, stalls=0.001)


@pytest.mark.parametrize("fused", [True, False], ids=["batches", "samples"])
def test_second_requests_hide_faults_and_nothing_else(fused: bool) -> None:  # noqa: FBT001
    check(1000, fused=fused, verify="size", hedge="auto", stalls=0.001)


@sampled(1)
@pytest.mark.parametrize("fused", [True, False], ids=["batches", "samples"])
def test_thousands_of_objects_over_three_epochs(fused: bool) -> None:  # noqa: FBT001
    check(max(5_000, int(5_000 * SEARCH)), fused=fused, verify="size", hedge=None, stalls=0.0003)


def test_one_seed_meets_the_same_faults_whatever_the_timing() -> None:
    """Whether the objects are read one at a time or in any number."""
    met = []
    for concurrency in (1, 64):
        faults = Faults(seed=3)
        with serving(faults) as server:
            bodies = fill(server, 300)
            listed = files(server)
            add_every_fault(faults, stalls=0)
            loaded = listed.load(af.raw("uint8"), retry=PATIENT, hedge=None, concurrency=concurrency)
            counted = delivered(loaded, bodies)
        met.append((server.faulty_requests, counted))
    assert met[0] == met[1]


@pytest.mark.parametrize("fused", [True, False], ids=["batches", "samples"])
def test_an_object_that_was_written_to_ends_the_run_in_its_place(fused: bool) -> None:  # noqa: FBT001
    """It is no fault that passes. It is read once more, and then it is an error."""
    faults = Faults(seed=1)
    with serving(faults) as server:
        fill(server, 100)
        loaded = files(server, verify="etag").load(af.raw("uint8"), retry=PATIENT, hedge=None)
        faults.add("changed", where=lambda key: key == "00060.raw")
        seen = 0
        with (loaded.batch(20) if fused else loaded).open() as feed, pytest.raises(af.Corrupt) as caught:
            for each in feed:
                seen += len(np.atleast_2d(each))
    assert seen == 60
    assert "s3://bucket/00060.raw" in str(caught.value)
    reads = server.faulty_requests["GET", "changed"]
    assert reads == 2 or (fused and reads == 4), "a batch may then be read file by file"
