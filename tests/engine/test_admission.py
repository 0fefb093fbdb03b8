"""Who may always be admitted to the memory budget: a search for a schedule under which nobody is.

Any composition of stages, with weights, durations and limits drawn at random, on any schedule, comes to its end.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.testing import run_virtual
from tests.engine.inside import (
    CHUNK,
    LATE,
    chunks_of,
    group_clocks,
    groups_that_end_after,
    limit_threads,
    memory_guessed,
    memory_used,
)
from tests.searching import searched

WEIGHTS = (0, 1, 100, 1000, 5000, 10_000, 30_000)


class Heavy:
    """A number that says how much it weighs."""

    __slots__ = ("nbytes", "value")

    def __init__(self, value: int, nbytes: int) -> None:
        self.value = value
        self.nbytes = nbytes


@dataclass(frozen=True)
class Made:
    """The functions of one stage: what they return depends on the item alone."""

    salt: int
    weights: tuple[int, ...]
    slow: float
    """How long a call takes at most, in virtual seconds."""
    bad: int
    """One item in so many fails; 0 where none does."""

    def heavy(self, x: Heavy) -> Heavy:
        chance = random.Random(x.value * 7919 + self.salt)
        if self.bad and chance.randrange(self.bad) == 0:
            raise ValueError(x.value)
        return Heavy(x.value, chance.choice(self.weights))

    async def heavy_async(self, x: Heavy) -> Heavy:
        await self.wait(x)
        return self.heavy(x)

    async def wait(self, x: Heavy) -> None:
        chance = random.Random(x.value * 31 + self.salt)
        if chance.random() < 0.7:
            await asyncio.sleep(chance.random() * self.slow)

    def keep(self, x: Heavy) -> bool:
        self.heavy(x)
        return (x.value + self.salt) % 3 != 0

    async def keep_async(self, x: Heavy) -> bool:
        await self.wait(x)
        return self.keep(x)

    def copies(self, x: Heavy) -> list[Heavy]:
        self.heavy(x)
        return [self.child(x, place) for place in range((x.value + self.salt) % 4)]

    def lazily(self, x: Heavy) -> Iterator[Heavy]:
        for place in range((x.value + self.salt) % 4):
            yield self.child(x, place)
            self.heavy(x)

    async def one_by_one(self, x: Heavy) -> Any:
        for place in range((x.value + self.salt) % 4):
            await self.wait(x)
            yield self.child(x, place)
            self.heavy(x)

    def child(self, x: Heavy, place: int) -> Heavy:
        return Heavy(x.value, random.Random(x.value * 13 + place + self.salt).choice(self.weights))

    def row(self, x: Heavy) -> np.ndarray[Any, Any]:
        return np.full(max(self.weights) // 8 + 1, x.value)

    def unrow(self, row: np.ndarray[Any, Any]) -> Heavy:
        return self.heavy(Heavy(int(row[0]), row.nbytes))


def heavier(total: Heavy, x: Heavy) -> tuple[Heavy, Heavy]:
    return Heavy(x.value, (total.nbytes + x.nbytes) % 10_000), x


def of_both(pair: tuple[Heavy, Heavy]) -> Heavy:
    return Heavy(pair[0].value, pair[0].nbytes + pair[1].nbytes)


@st.composite
def pipelines(draw: st.DrawFn, depth: int = 4) -> af.Pipeline[Any]:
    """Draw a pipeline of heavy numbers."""
    count = draw(st.sampled_from([1, 3, 10, 40]))
    weights = draw(st.lists(st.sampled_from(WEIGHTS), min_size=1, max_size=4).map(tuple))
    things = [Heavy(x, random.Random(x).choice(weights)) for x in range(count)]

    async def stream() -> Any:
        for each in things:
            await asyncio.sleep(each.value % 3 / 1000)
            yield each

    p: af.Pipeline[Any] = af.items(draw(st.sampled_from([things, lambda: iter(things), stream])))
    for _ in range(draw(st.integers(1, depth))):
        made = Made(
            draw(st.integers(0, 1000)),
            draw(st.lists(st.sampled_from(WEIGHTS), min_size=1, max_size=4).map(tuple)),
            draw(st.sampled_from([0.0, 0.01, 10.0])),
            draw(st.sampled_from([0, 0, 2, 5])),
        )
        how: dict[str, Any] = {
            "concurrency": draw(st.sampled_from(["auto", 1, 2, 3, 8])),
            "ordered": draw(st.booleans()),
        }
        if made.bad:
            how |= {"on_error": "skip", "skip_limit": 10_000}
        match draw(
            st.sampled_from(
                ["map", "map", "async map", "async map", "filter", "async filter", "flat list", "flat lazy", "flat lazy",
                 "flat async", "flat async", "turns list", "turns lazy", "turns async", "repeat", "repeat", "take",
                 "skip", "batch", "prefetch", "buffer shuffle", "scan", "zip", "concat", "mix"]
            )
        ):  # fmt: skip
            case "map":
                p = p.map(made.heavy, **how)
            case "async map":
                p = p.map(made.heavy_async, **how)
            case "filter":
                p = p.filter(made.keep, **how)
            case "async filter":
                p = p.filter(made.keep_async, **how)
            case "flat list":
                p = p.flat_map(made.copies, **how)
            case "flat lazy":
                p = p.flat_map(made.lazily, **how)
            case "flat async":
                p = p.flat_map(made.one_by_one, **how)
            case "turns list" | "turns lazy" | "turns async" as kind:
                fn = {"list": made.copies, "lazy": made.lazily, "async": made.one_by_one}[kind.split()[1]]
                del how["concurrency"], how["ordered"]
                p = p.interleave(fn, cycle=draw(st.integers(1, 4)), block=draw(st.integers(1, 3)), **how)
            case "buffer shuffle":
                p = p.shuffle(buffer=draw(st.integers(1, 10)))
            case "scan":
                p = p.scan(heavier, Heavy(0, 0))
            case "repeat":
                p = p.repeat(draw(st.integers(2, 3)))
            case "take":
                p = p.take(draw(st.integers(1, 20)))
            case "skip":
                p = p.skip(draw(st.integers(1, 5)))
            case "batch":
                p = p.map(made.row).batch(draw(st.integers(1, 5))).unbatch().map(made.unrow, **how)
            case "prefetch":
                p = p.prefetch(draw(st.integers(1, 4)))
            case "zip":
                p = af.zip(p, draw(pipelines(depth=2)), strict=False).map(of_both)
            case "concat":
                p = af.concat(p, draw(pipelines(depth=2)))
            case "mix":
                p = af.mix(p, draw(pipelines(depth=2)), weights=[2, 1])
    return p


class Clock:
    """A clock that jumps: so groups end early and give items back, and threads seem worth having or not."""

    def __init__(self, seed: int, steps: tuple[float, ...]) -> None:
        self._random = random.Random(seed)
        self._steps = steps
        self.now = 0.0

    def __call__(self) -> float:
        self.now += self._random.choice(self._steps)
        return self.now


async def drain(pipeline: af.Pipeline[Any], limit: int, seed: int) -> tuple[int, int]:
    loop: Any = asyncio.get_running_loop()
    loop.patience = 2.0
    chance = random.Random(seed)
    count = 0
    async with pipeline.open(memory_limit=limit) as feed:
        async for item in feed:
            del item
            count += 1
            if chance.random() < 0.3:
                await asyncio.sleep(chance.choice([0, 0.001, 1]))
        return count, memory_used(feed) or memory_guessed(feed)


@searched(30)
@given(
    pipeline=pipelines(),
    seed=st.integers(0, 2**32),
    limit=st.sampled_from([1, 5000, 20_000, 40_000, 100_000]),
    length=st.sampled_from([1, 3, CHUNK]),
    late=st.sampled_from([LATE, 0.01, -1]),
    steps=st.sampled_from([(1e-6,), (0.0, 1e-6, 1e-4), (1e-6, 1e-6, 1e-2), (1e-3,)]),
)
def test_every_pipeline_comes_to_its_end_however_little_memory_there_is(
    pipeline: af.Pipeline[Any], seed: int, limit: int, length: int, late: float, steps: tuple[float, ...]
) -> None:
    """Nobody waits for memory that only he would free: on any schedule, where groups give items back, too."""
    clocks = group_clocks(Clock(seed, steps), Clock(seed, (0.0, 1e-6)))
    with chunks_of(length), groups_that_end_after(late), clocks:
        _, used = run_virtual(drain(pipeline, limit, seed), seed=seed)
    if "take" not in repr(pipeline) and "zip" not in repr(pipeline):  # these end before what is above them
        assert used == 0


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("length", [1, 3, CHUNK])
@pytest.mark.parametrize("limit", [1, 5000, 30_000, 40_000, 100_000])
def test_one_call_at_a_time_goes_on_while_a_large_item_waits_for_room(
    limit: int, length: int, ordered: bool, seed: int
) -> None:
    """A group behind it was given back and taken again without end, and passed for a call that runs."""

    async def later(array: Any) -> int:
        await asyncio.sleep(0.01)
        return int(array[0])

    arrays = [np.full(30_000 if number % 5 == 4 else 70, number, np.uint8) for number in range(40)]
    pipeline = af.items(arrays).map(np.copy, concurrency=1, ordered=ordered).map(later)

    async def main() -> list[int]:
        came: list[int] = []
        async with pipeline.open(memory_limit=limit) as feed:
            for _ in range(20):
                came.append(await anext(feed))
                await asyncio.sleep(1)
            state = feed.state_dict()
        async with pipeline.open(memory_limit=limit, state=state) as feed:
            async for number in feed:
                came.append(number)
                await asyncio.sleep(1)
        return came

    with chunks_of(length):
        came = run_virtual(main(), seed=seed)
    assert (came if ordered else sorted(came)) == list(range(40))


@pytest.mark.parametrize("limit", [50, 100, 200])
@pytest.mark.parametrize("ending", ["repeat", "skip"])
def test_unordered_elements_of_what_comes_later_do_not_lock_out_those_that_are_next(
    ending: str, limit: int, seed: int
) -> None:
    """Elements behind the end of an epoch, or behind an item that is left out, cannot be sent; others can."""

    async def elements(x: int) -> Any:
        for _ in range(4):
            await asyncio.sleep((x * 7919 + seed) % 5)
            if ending == "skip" and x % 3 == 1:
                raise ValueError(x)
            yield Heavy(x, 25)

    on_error: Any = "skip" if ending == "skip" else "raise"
    options: dict[str, Any] = {"on_error": on_error, "skip_limit": 100} if ending == "skip" else {}
    flat_map = af.items(range(9)).flat_map(elements, concurrency=8, ordered=False, **options).repeat(3)
    count, used = run_virtual(drain(flat_map, limit, seed), seed=seed)
    assert (count, used) == ((3 * 6 if ending == "skip" else 3 * 9) * 4, 0)


@pytest.mark.parametrize("stages", [1, 2])
def test_an_interleave_that_lacks_an_item_gets_it_though_the_open_items_fill_the_memory(
    stages: int, seed: int
) -> None:
    """The turn is at an empty slot: the next item is needed before the elements of the open items can be sent."""

    async def heavy(x: Heavy) -> Heavy:
        await asyncio.sleep((x.value * 7919 + seed) % 5)
        return Heavy(x.value, 100)

    def some(x: Heavy) -> Iterator[Heavy]:
        yield from [Heavy(x.value, 100)] * (x.value % 3)

    pipeline = (
        af.items([Heavy(x, 0) for x in range(30)]).map(heavy, concurrency=2).interleave(some, cycle=3, block=2)
    )
    if stages == 2:
        pipeline = pipeline.interleave(lambda x: [x], cycle=2)
    assert run_virtual(drain(pipeline, 1, seed), seed=seed) == (30, 0)


@pytest.mark.parametrize("make", ["one_by_one", "lazily"])
def test_an_element_that_fails_gives_its_part_of_the_memory_back(make: str, seed: int) -> None:
    """What was set aside for an element is free again where none comes, so the limit does not wear out."""
    made = Made(0, (1000,), 0.01, 2)
    flat_map = af.items([Heavy(x, 0) for x in range(200)]).flat_map(
        getattr(made, make), on_error="skip", skip_limit=1000
    )
    count, used = run_virtual(drain(flat_map, 20_000, seed), seed=seed)
    assert count > 100
    assert used == 0


def test_items_that_a_hop_gives_back_are_taken_again_though_all_workers_wait_for_memory() -> None:
    """Auto has gone down to one thread, and whoever waits for memory waits for the items that were given back."""
    threads = 4

    started = 0

    def fewer_threads() -> int:
        nonlocal started
        started += 1
        return threads if started % 7 < 4 else 1

    async def main() -> list[int]:
        nonlocal started
        loop: Any = asyncio.get_running_loop()
        loop.patience = 2.0
        started = 0
        asked = af.items([Heavy(x, 1000) for x in range(200)]).map(
            lambda x: Heavy(x.value, 1000), concurrency=threads
        )
        async with asked.open(memory_limit=10_000) as feed:
            limit_threads(feed, fewer_threads)
            return [item.value async for item in feed]

    with groups_that_end_after(-1):
        for seed in range(20):
            with group_clocks(Clock(seed, (0.0, 1e-6, 1e-4))):
                assert run_virtual(main, seed=seed) == list(range(200))


@pytest.mark.parametrize("drawn", range(4))
def test_calls_that_waited_for_memory_begin_in_the_order_of_the_stream(drawn: int) -> None:
    """No call overtakes one that was just admitted, and whose task has not gone on yet."""
    chance = random.Random(drawn)
    things = [Heavy(x, chance.choice([100, 1000, 4000])) for x in range(60)]
    seconds = [chance.random() for _ in things]
    begun: list[int] = []

    async def call(x: Heavy) -> Heavy:
        begun.append(x.value)
        await asyncio.sleep(seconds[x.value])
        return Heavy(x.value, x.nbytes)

    async def main() -> None:
        async with af.items(things).map(call, concurrency=3).open(memory_limit=10_000) as feed:
            async for _ in feed:
                pass

    run_virtual(main)  # without a seed: asyncio's own order keeps those in order that are admitted together
    assert begun == list(range(60))


@pytest.mark.parametrize("merge", [af.concat, lambda *inputs: af.mix(*inputs, seed=1)])
def test_what_an_input_leaves_out_is_given_back(merge: Callable[..., af.Pipeline[Any]]) -> None:
    """Its last chunk has no items, and the bytes of those that were skipped."""

    async def main() -> int:
        inputs = [af.items([b"x" * 1000]).map(later).skip(1), af.items([b"y" * 1000]).map(later).skip(1)]
        async with merge(af.items([b"z"]).map(later), *inputs).open() as feed:
            assert [each async for each in feed] == [b"z"]
            return memory_used(feed)

    for seed in range(8):
        assert run_virtual(main, seed=seed) == 0


async def later(item: bytes) -> bytes:
    await asyncio.sleep(0.01)
    return item
