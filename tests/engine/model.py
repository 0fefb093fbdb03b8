"""Pipelines and what they mean in plain Python, drawn together by hypothesis."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

import asyncfeed as af

Epochs = Callable[[], list[Any]]


@dataclass
class Case:
    """A pipeline of numbers, and a function that returns one epoch of it by the book."""

    pipeline: af.Pipeline[Any]
    epoch: Epochs
    sized: bool

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


def copies(x: int) -> list[int]:
    return [x] * (x % 4)


def countdown(x: int) -> Iterator[int]:
    yield from range(x % 5, 0, -1)


async def ticks(x: int) -> Any:
    for tick in range(x % 3):
        await asyncio.sleep(tick / 1000)
        yield tick


def expand(fn: Callable[[int], list[int]], values: list[int]) -> list[int]:
    return [y for x in values for y in fn(x)]


def chunk(values: list[int], size: int, drop: bool) -> list[list[int]]:
    chunks = [values[i : i + size] for i in range(0, len(values), size)]
    return [each for each in chunks if len(each) == size or not drop]


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
    return Case(af.items(made[kind]), lambda: list(values), kind not in ("function", "async"))


def then(
    case: Case, pipeline: af.Pipeline[Any], fn: Callable[[list[Any]], list[Any]], sized: bool = False
) -> Case:
    before = case.epoch
    return Case(pipeline, lambda: fn(before()), sized)


@st.composite
def pipelines(draw: st.DrawFn, depth: int = 5) -> Case:
    """Draw a pipeline of whole numbers; every stage is ordered, so there is one right answer."""
    case = draw(sources())
    for _ in range(draw(st.integers(0, depth))):
        p, k = case.pipeline, draw(concurrency)
        match draw(
            st.sampled_from(
                ["map", "async map", "quick map", "filter", "async filter", "flat list", "flat lazy", "flat async",
                 "take", "skip", "repeat", "batch", "enumerate", "prefetch", "zip", "concat", "take"]
            )
        ):  # fmt: skip
            case "map":
                case = then(case, p.map(double, concurrency=k), lambda v: [2 * x for x in v])
            case "async map":
                case = then(case, p.map(waits, concurrency=k), lambda v: [x + 1 for x in v])
            case "quick map":
                case = then(case, p.map(at_once, concurrency=k), lambda v: [x + 1 for x in v])
            case "filter":
                case = then(case, p.filter(odd, concurrency=k), lambda v: [x for x in v if x % 2])
            case "async filter":
                case = then(case, p.filter(thirds, concurrency=k), lambda v: [x for x in v if x % 3])
            case "flat list":
                case = then(case, p.flat_map(copies, concurrency=k), lambda v: expand(copies, v))
            case "flat lazy":
                case = then(
                    case, p.flat_map(countdown, concurrency=k), lambda v: expand(lambda x: list(countdown(x)), v)
                )
            case "flat async":
                case = then(
                    case, p.flat_map(ticks, concurrency=k), lambda v: expand(lambda x: list(range(x % 3)), v)
                )
            case "take":
                n = draw(st.integers(0, 40))
                case = then(case, p.take(n), lambda v, n=n: v[:n], case.sized)
            case "skip":
                n = draw(st.integers(0, 40))
                case = then(case, p.skip(n), lambda v, n=n: v[n:], case.sized)
            case "repeat":
                n = draw(st.integers(1, 3))
                case = then(case, p.repeat(n), lambda v, n=n: v * n, case.sized)
            case "batch":
                n, drop = draw(st.integers(1, 7)), draw(st.booleans())
                batches = p.batch(n, drop_remainder=drop).unbatch().map(int)
                case = then(case, batches, lambda v, n=n, drop=drop: list(itertools.chain(*chunk(v, n, drop))))
            case "enumerate":
                case = then(case, p.enumerate().map(sum), lambda v: [i + x for i, x in enumerate(v)])
            case "prefetch":
                case = then(case, p.prefetch(draw(st.integers(1, 4))), lambda v: v)
            case "zip":
                other = draw(pipelines(depth=2))
                both = af.zip(p, other.pipeline, strict=False).map(sum)
                mine, theirs = case.epoch, other.epoch
                case = Case(both, lambda a=mine, b=theirs: [x + y for x, y in zip(a(), b(), strict=False)], False)
            case "concat":
                other = draw(pipelines(depth=2))
                mine, theirs = case.epoch, other.epoch
                case = Case(af.concat(p, other.pipeline), lambda a=mine, b=theirs: a() + b(), False)
    return case
