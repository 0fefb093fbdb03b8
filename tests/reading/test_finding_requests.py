"""How many requests a store is asked at a time, found while a run goes on, in virtual time.

The store has a latency, and a limit: so many answers a second, or so many requests at a time. It refuses what is
beyond the limit ("503"), or lets it wait. The reader and its policy are those of object stores.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from itertools import count
from random import Random
from statistics import median
from typing import Any, ClassVar

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.attempts.retry import Policy
from asyncfeed.reading import AsyncReader, Bytes, File, Range, Store, retrying
from asyncfeed.reading.objects import POLICY
from asyncfeed.reading.requests import Requests
from asyncfeed.reading.traffic import Traffic
from asyncfeed.stats import SlowPaths
from asyncfeed.testing import run_virtual
from tests.searching import sampled

RUNS = 5
"""Number of runs, each with other delays of retries. The median counts. Threads make no two runs the same."""


@pytest.fixture(autouse=True)
def delays_from_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = count()
    monkeypatch.setattr(retrying, "Random", lambda: Random(next(seeds)))


Change = tuple[float, dict[str, float]]


class Simulated(Store):
    """A store of small objects. At some times it changes, as `changes` says. Compared by identity."""

    reads_on_loop: ClassVar[bool] = True

    def __init__(
        self,
        *,
        latency: float = 0.03,
        rate: float = math.inf,
        crowd: float = math.inf,
        refuses: float = math.inf,
        tail: float = 0.0,
        seed: int = 0,
        changes: Sequence[Change] = (),
    ) -> None:
        self.latency = latency
        self.rate = rate
        """Answers a second. What is beyond waits."""
        self.crowd = crowd
        """Requests at a time beyond which each takes longer."""
        self.refuses = refuses
        """Requests a second beyond which they are refused."""
        self.tail = tail
        """Share of requests that take a second more."""
        self.asked = self.refused = 0
        self.traffic = Traffic()
        self._random = Random(seed)
        self.changes = list(changes)
        self.at_once = 0
        self._free = 0.0
        self._tokens, self._since = 0.0, 0.0

    @property
    def policy(self) -> Policy:
        return POLICY

    def reader(self) -> AsyncReader:
        return SimulatedReader(self)

    def ask(self, file: File) -> asyncio.Future[bytes]:
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self.changes and now >= self.changes[0][0]:
            vars(self).update(self.changes.pop(0)[1])
        self.asked += 1
        self.at_once += 1
        future: asyncio.Future[bytes] = loop.create_future()
        future.add_done_callback(self._ended)
        if self.refuses < math.inf:
            # A tenth of a second may be asked for at once.
            self._tokens = min(self.refuses / 10, self._tokens + (now - self._since) * self.refuses)
            self._since = now
            if self._tokens < 1:
                self.refused += 1
                loop.call_later(self.latency, _end, future, Refused())
                return future
            self._tokens -= 1
        seconds = self.latency * max(1.0, self.at_once / self.crowd) ** 2
        if self.rate < math.inf:
            self._free = max(now, self._free) + 1 / self.rate
            seconds += self._free - now
        if self.tail:
            seconds = seconds * self._random.uniform(0.9, 1.5) + (self._random.random() < self.tail)
        loop.call_later(seconds, _end, future, b"12345678")
        return future

    def _ended(self, _: asyncio.Future[bytes]) -> None:
        self.at_once -= 1


class Refused(Exception):
    """The store says that it gets too many requests."""


def _end(future: asyncio.Future[bytes], outcome: Any) -> None:
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


class SimulatedReader(AsyncReader):
    def __init__(self, store: Simulated) -> None:
        self._store = store
        throttled = lambda error: isinstance(error, Refused)  # noqa: E731
        self._requests = Requests(256, lambda _: 8, throttled, traffic=store.traffic)

    def follow(self, policy: Policy, again: SlowPaths) -> None:
        self._requests.follow(policy, again)

    async def look(self, files: Sequence[File]) -> list[File | Exception]:
        return list(files)

    async def read_ranges(self, file: File, ranges: Sequence[Range]) -> list[Bytes | Exception]:
        raise NotImplementedError

    async def read(self, files: Sequence[File]) -> list[Bytes | Exception]:
        taken = Taken()
        await self._requests.run(files, self._store.ask, taken)
        return taken.outcomes

    async def close(self) -> None:
        await self._requests.close()


class Taken:
    def __init__(self) -> None:
        self.outcomes: list[Bytes | Exception] = []

    def take(self, file: File, outcome: Any) -> None:
        if isinstance(outcome, Refused):
            outcome = af.Unavailable(f"{file.path}: busy", kind="throttled")
        self.outcomes.append(
            outcome if isinstance(outcome, Exception) else np.frombuffer(bytearray(outcome), np.uint8)
        )

    def pause(self) -> None:
        pass


def items_a_second(
    concurrency: Any, since: float, until: float, *, size: int | None = 32, **store: Any
) -> list[int]:
    """Return how many objects come in each second of the time from `since` to `until`."""

    async def main() -> list[int]:
        simulated = Simulated(**store)
        files = [File(str(number), 8, store=simulated) for number in range(1024)]
        pipeline = af.items(files).repeat().load(af.raw("u1"), concurrency=concurrency)
        clock = asyncio.get_running_loop().time
        counts = [0] * int(until - since)
        async with (pipeline if size is None else pipeline.batch(size)).open() as feed:
            async for item in feed:
                now = clock()
                if now >= until:
                    break
                if now >= since:
                    counts[int(now - since)] += 1 if size is None else len(item)
        return counts

    return run_virtual(main)


def test_without_a_limit_nothing_configured_is_near_the_best_fixed_number() -> None:
    """The best number of a sweep is all that a reader has under way: eight batches of 32."""
    for latency in (0.03, 0.2):
        best = sum(items_a_second(8, 7, 10, latency=latency))
        assert sum(items_a_second("auto", 7, 10, latency=latency)) >= 0.9 * best


@sampled(1)
@pytest.mark.parametrize("kind", ["rate", "refuses"])
@pytest.mark.parametrize("limit", [300, 2000])
def test_a_limit_of_the_store_is_found(kind: str, limit: float) -> None:
    """After five seconds, nine tenths of what the store gives at all are used. The delays of retries are random."""
    runs = [sum(items_a_second("auto", 5, 15, **{kind: limit})) for _ in range(RUNS)]
    assert median(runs) >= 0.9 * 10 * limit


def test_a_store_that_is_easily_overrun_is_not_overrun() -> None:
    """The best numbers of a sweep are two and three batches of 32."""
    best = max(sum(items_a_second(each, 7, 10, crowd=60)) for each in (2, 3))
    assert sum(items_a_second("auto", 7, 10, crowd=60)) >= 0.9 * best


@sampled(1)
@pytest.mark.parametrize("kind", ["rate", "refuses"])
@pytest.mark.parametrize(("before", "after"), [(1500, 400), (400, 1500)])
def test_a_limit_that_changes_is_followed(kind: str, before: float, after: float) -> None:
    """Five seconds after the change the new limit is used, and the numbers stay there."""
    runs = [items_a_second("auto", 10, 20, **{kind: before}, changes=[(5.0, {kind: after})]) for _ in range(RUNS)]
    assert median(map(sum, runs)) >= 0.9 * 10 * after
    swings = [abs(sum(found[:5]) / sum(found[5:]) - 1) for found in runs]
    assert median(swings) < 0.25, runs


def test_a_store_that_is_farther_away_half_way_is_followed() -> None:
    best = sum(items_a_second(8, 10, 13, changes=[(5.0, {"latency": 0.15})]))
    assert sum(items_a_second("auto", 10, 13, changes=[(5.0, {"latency": 0.15})])) >= 0.9 * best


@sampled(1)
@pytest.mark.parametrize("store", [{"latency": 0.1}, {"refuses": 1000}], ids=["far away", "refuses"])
def test_single_objects_are_read_as_well_as_batches(store: dict[str, Any]) -> None:
    single, batches = (
        median(sum(items_a_second("auto", 7, 12, size=size, **store)) for _ in range(RUNS)) for size in (None, 32)
    )
    assert single >= 0.9 * batches


@sampled(1)
def test_many_feeds_share_the_limit_of_a_store_and_are_refused_no_more_than_one() -> None:
    """Each found its own number before: nine of ten requests were refused, and objects failed after 32 of these."""

    async def main(feeds: int) -> tuple[list[int], int]:
        store = Simulated(refuses=300)
        files = [File(str(number), 8, store=store) for number in range(1024)]
        counts = [0] * feeds
        clock = asyncio.get_running_loop().time

        async def draw(number: int) -> None:
            async with af.items(files).shuffle(seed=number).repeat().load(af.raw("u1")).batch(8).open() as feed:
                async for batch in feed:
                    if clock() > 45:
                        return
                    counts[number] += len(batch) if clock() > 15 else 0

        await asyncio.gather(*map(draw, range(feeds)))
        return counts, store.refused

    (alone,), refused = run_virtual(main(1))
    together, refused_together = run_virtual(main(10))
    assert sum(together) >= 0.9 * alone
    assert min(together) >= 0.8 * max(together)
    assert refused_together <= 1.2 * refused


def test_a_fixed_number_is_kept() -> None:
    assert sum(items_a_second(10, 1, 3, size=None)) == pytest.approx(2 * 10 / 0.03, rel=0.02)


@sampled(1)
@pytest.mark.parametrize("size", [None, 32], ids=["single objects", "batches"])
def test_a_slow_tail_costs_a_tenth_of_the_rate_and_few_more_requests(size: int | None) -> None:
    """Also at the start, when nobody knows what is slow, and where the requests beside slow ones are slow, too."""

    async def rate(tail: float, seed: int) -> float:
        store = Simulated(latency=0.02, tail=tail, seed=seed)
        pipeline = af.items([File(str(number), 8, store=store) for number in range(10_000)]).load(af.raw("u1"))
        began = asyncio.get_running_loop().time()
        async with (pipeline if size is None else pipeline.batch(size)).open() as feed:
            async for _ in feed:
                pass
        assert 10_000 <= store.asked <= 10_500
        return 10_000 / (asyncio.get_running_loop().time() - began)

    shares = [run_virtual(rate(0.02, seed)) / run_virtual(rate(1e-9, seed)) for seed in range(3)]
    assert median(shares) >= 0.9
