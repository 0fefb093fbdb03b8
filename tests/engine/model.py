"""Pipelines and what they mean in plain Python, drawn together by hypothesis."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.randomness import stage_seed
from asyncfeed.randomness.generator import generator_at
from asyncfeed.randomness.permutation import Permutation
from asyncfeed.stages.shuffle import BufferShuffle
from tests.engine.inside import ENDLESS


class At(NamedTuple):
    """A value, and where it stands: the epoch of its source, and its ordinal in it."""

    value: int
    epoch: int
    ordinal: Any


Pass = Callable[[int], list[At]]
"""Returns what a pipeline delivers in its epoch of this number."""


@dataclass
class Case:
    """A pipeline of numbers, and what each of its epochs is by the book."""

    pipeline: af.Pipeline[Any]
    of_epoch: Pass
    sized: bool
    by_number: bool = False
    """Whether its items can be reached by number, so that an exact shuffle may follow."""
    renumbers: bool = False
    """Whether a `take` or `skip` that follows is worked into the source, and so numbers the items anew."""
    random: int = 0
    """How many random stages it has."""

    def epoch(self, number: int = 0) -> list[int]:
        """Return the values of one epoch."""
        return [at.value for at in self.of_epoch(number)]

    def __repr__(self) -> str:
        return repr(self.pipeline)


# -- what the stages call


def double(x: int) -> int:
    return 2 * x


async def waits(x: int) -> int:
    """Wait for a time that reorders what is in flight."""
    await asyncio.sleep((x * 7919) % 13 / 1000)
    return x + 1


async def at_once(x: int) -> int:
    return x + 1


def odd(x: int) -> bool:
    return x % 2 == 1


async def thirds(x: int) -> bool:
    await asyncio.sleep((x * 31) % 5 / 1000)
    return x % 3 != 0


def noise(x: int, rng: np.random.Generator) -> int:
    return x + int(rng.integers(50))


async def late_noise(x: int, rng: np.random.Generator) -> int:
    await asyncio.sleep((x * 31) % 5 / 1000)
    return x + int(rng.integers(50))


def copies(x: int) -> list[int]:
    return [x] * (x % 4)


def countdown(x: int) -> Iterator[int]:
    yield from range(x % 5, 0, -1)


async def ticks(x: int) -> Any:
    for tick in range(x % 3):
        await asyncio.sleep(tick / 1000)
        yield tick


# -- what they mean, a function of the items of an epoch for each


def mapped(fn: Callable[[int], int]) -> Callable[[list[At], int], list[At]]:
    return lambda items, _: [at._replace(value=fn(at.value)) for at in items]


def kept(fn: Callable[[int], bool]) -> Callable[[list[At], int], list[At]]:
    return lambda items, _: [at for at in items if fn(at.value)]


def expanded(fn: Callable[[int], list[int]]) -> Callable[[list[At], int], list[At]]:
    return lambda items, _: [
        At(value, at.epoch, (at.ordinal, place)) for at in items for place, value in enumerate(fn(at.value))
    ]


def noisy(seed: int) -> Callable[[list[At], int], list[At]]:
    return lambda items, _: [
        at._replace(value=noise(at.value, generator_at(seed, at.epoch, at.ordinal))) for at in items
    ]


def permuted(seed: int) -> Callable[[list[At], int], list[At]]:
    def shuffled(items: list[At], epoch: int) -> list[At]:
        order = Permutation(len(items), seed, epoch).numbers(np.arange(len(items), dtype=np.uint64))
        return numbered([items[place].value for place in order], epoch)

    return shuffled


def buffered(seed: int, size: int) -> Callable[[list[At], int], list[At]]:
    def shuffled(items: list[At], epoch: int) -> list[At]:
        buffer = BufferShuffle(size, seed)
        buffer.begin(epoch)
        return [*buffer.push(items, range(len(items)))[0], *buffer.flush()[0]]

    return shuffled


def rebatched(size: int, drop: bool) -> Callable[[list[At], int], list[At]]:
    def out(items: list[At], _: int) -> list[At]:
        groups = [items[start : start + size] for start in range(0, len(items), size)]
        return [
            At(at.value, group[0].epoch, ([each.ordinal for each in group], place))
            for group in groups
            if len(group) == size or not drop
            for place, at in enumerate(group)
        ]

    return out


def numbered(values: list[int], epoch: int) -> list[At]:
    return [At(value, epoch, place) for place, value in enumerate(values)]


def repeated(case: Case, count: int) -> Pass:
    return lambda epoch: [at for number in range(count) for at in case.of_epoch(epoch * count + number)]


def cut(case: Case, count: int) -> Pass:
    """Return the first `count` items of an endless repeat."""

    def taken(epoch: int) -> list[At]:
        out: list[At] = []
        for number in itertools.count(epoch * ENDLESS):
            if len(out) >= count:
                return out[:count]
            out += case.of_epoch(number)
        raise AssertionError

    return taken


concurrency = st.sampled_from(["auto", 1, 2, 3, 8, 64])


@st.composite
def sources(draw: st.DrawFn) -> Case:
    values = draw(st.lists(st.integers(0, 50), max_size=draw(st.sampled_from([3, 20, 300]))))
    kind = draw(st.sampled_from(["list", "function", "async", "bare", "odd sequence"]))

    async def stream() -> Any:
        for value in values:
            if value % 5 == 0:
                await asyncio.sleep(value / 10000)
            yield value

    class Odd:
        def __len__(self) -> int:
            return len(values)

        def __getitem__(self, place: int) -> int:
            return values[place]

    made: dict[str, Any] = {
        "list": values, "function": lambda: iter(values), "async": stream, "bare": set(values) and values[:],
        "odd sequence": Odd(),
    }  # fmt: skip
    sized = kind not in ("function", "async")
    by_number = sized and (kind != "bare" or bool(values))
    return Case(af.items(made[kind]), lambda epoch: numbered(values, epoch), sized, by_number, by_number)


def then(case: Case, pipeline: af.Pipeline[Any], fn: Callable[[list[At], int], list[At]]) -> Case:
    """Return the case after a stage that makes a stream of the items."""
    before = case.of_epoch
    return Case(pipeline, lambda epoch: fn(before(epoch), epoch), sized=False, random=case.random)


def sliced(case: Case, pipeline: af.Pipeline[Any], fn: Callable[[list[At]], list[At]]) -> Case:
    """Return the case after a stage that picks by place, which may be worked into the source."""
    before, renumbers = case.of_epoch, case.renumbers

    def of_epoch(epoch: int) -> list[At]:
        items = fn(before(epoch))
        return numbered([at.value for at in items], epoch) if renumbers else items

    return replace(case, pipeline=pipeline, of_epoch=of_epoch)


MAPS = ["map", "async map", "quick map", "noise", "late noise"]
FILTERS = ["filter", "async filter"]
FLAT = ["flat list", "flat lazy", "flat async"]
PLACES = ["take", "skip", "repeat", "cut", "enumerate", "shuffle", "buffer shuffle", "take", "repeat"]
OTHERS = ["batch", "prefetch", "zip", "concat"]
RANDOM = ["noise", "late noise", "shuffle", "buffer shuffle"]
ALL = MAPS + FILTERS + FLAT + PLACES + OTHERS


@st.composite
def pipelines(draw: st.DrawFn, depth: int = 5) -> Case:
    """Draw a pipeline of whole numbers; every stage is ordered, so there is one right answer."""
    case = draw(sources())
    for _ in range(draw(st.integers(0, depth))):
        case = draw(one_more(case))
    return case


@st.composite
def cut_short(draw: st.DrawFn) -> Case:
    """Draw a pipeline with random numbers in which a `take` cuts a `repeat` short, and is repeated."""
    case = draw(sources())
    for kinds in (RANDOM, RANDOM + FILTERS + ["batch"], [*FILTERS, "batch", "noise", "prefetch", "zip"]):
        if draw(st.booleans()):
            case = draw(one_more(case, kinds))
    case = draw(one_more(case, ["cut", "repeat"]))
    for kinds in (RANDOM, ["take"], ["repeat"], [*RANDOM, "batch"], ["take", "repeat", "noise"]):
        case = draw(one_more(case, kinds))
    return case


@st.composite
def one_more(draw: st.DrawFn, case: Case, kinds: list[str] = ALL) -> Case:
    """Draw a stage of one of these kinds after a case."""
    p, k = case.pipeline, draw(concurrency)
    kind = draw(st.sampled_from(kinds))
    seed = draw(st.integers(0, 2))
    own_seed = stage_seed(seed, case.random)
    match kind:
        case "map":
            return then(case, p.map(double, concurrency=k), mapped(double))
        case "async map":
            return then(case, p.map(waits, concurrency=k), mapped(lambda x: x + 1))
        case "quick map":
            return then(case, p.map(at_once, concurrency=k), mapped(lambda x: x + 1))
        case "noise" | "late noise":
            fn: Any = noise if kind == "noise" else late_noise
            noised = then(case, p.map(fn, rng=True, seed=seed, concurrency=k), noisy(own_seed))
            return replace(noised, random=case.random + 1)
        case "filter":
            return then(case, p.filter(odd, concurrency=k), kept(odd))
        case "async filter":
            return then(case, p.filter(thirds, concurrency=k), kept(lambda x: x % 3 != 0))
        case "flat list":
            return then(case, p.flat_map(copies, concurrency=k), expanded(copies))
        case "flat lazy":
            return then(case, p.flat_map(countdown, concurrency=k), expanded(lambda x: list(countdown(x))))
        case "flat async":
            return then(case, p.flat_map(ticks, concurrency=k), expanded(lambda x: list(range(x % 3))))
        case "take":
            n = draw(st.integers(0, 40))
            return sliced(case, p.take(n), lambda items: items[:n])
        case "skip":
            n = draw(st.integers(0, 40))
            return sliced(case, p.skip(n), lambda items: items[n:])
        case "enumerate":
            counted = p.enumerate().map(sum, concurrency=k)
            return then(
                sliced(case, p.enumerate(), list),
                counted,
                lambda items, _: [at._replace(value=at.value + i) for i, at in enumerate(items)],
            )
        case "repeat":
            n = draw(st.integers(1, 3))
            return replace(case, pipeline=p.repeat(n), of_epoch=repeated(case, n), renumbers=False)
        case "cut" if len(case.epoch()) > 3:  # random stages may leave an epoch without items, which is an error
            n = draw(st.integers(0, 2 * len(case.epoch())))
            if case.random and any(word in repr(p) for word in ("filter", "flat_map")):
                return case
            return replace(
                case, pipeline=p.repeat().take(n), of_epoch=cut(case, n), by_number=False, renumbers=False
            )
        case "shuffle" if case.by_number:
            return Case(
                p.shuffle(seed=seed),
                lambda epoch, before=case.of_epoch: permuted(own_seed)(before(epoch), epoch),
                case.sized, by_number=True, renumbers=True, random=case.random + 1,
            )  # fmt: skip
        case "buffer shuffle":
            n = draw(st.integers(1, 30))
            shuffled = then(case, p.shuffle(seed=seed, buffer=n), buffered(own_seed, n))
            return replace(shuffled, random=case.random + 1)
        case "batch":
            n, drop = draw(st.integers(1, 7)), draw(st.booleans())
            return then(case, p.batch(n, drop_remainder=drop).unbatch().map(int), rebatched(n, drop))
        case "prefetch":
            return then(case, p.prefetch(draw(st.integers(1, 4))), lambda items, _: items)
        case "zip":
            other = draw(pipelines(depth=2))
            return merged(
                case, other, af.zip(p, other.pipeline, strict=False).map(sum),
                lambda a, b: [x + y for x, y in zip(a, b, strict=False)],
            )  # fmt: skip
        case "concat":
            other = draw(pipelines(depth=2))
            return merged(case, other, af.concat(p, other.pipeline), lambda a, b: a + b)
    return case


def merged(
    case: Case, other: Case, pipeline: af.Pipeline[Any], fn: Callable[[list[int], list[int]], list[int]]
) -> Case:
    """Return two cases as one; a merge numbers its items anew."""
    return Case(
        pipeline,
        lambda epoch: numbered(fn(case.epoch(epoch), other.epoch(epoch)), epoch),
        sized=False,
        random=max(case.random, other.random),
    )
