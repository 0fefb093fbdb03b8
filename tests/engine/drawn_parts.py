"""Pipelines with a `shard`, drawn by hypothesis, for any number of processes. Their items are told apart."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

import asyncfeed as af
from tests.engine.failing import Oops

Stage = Callable[[af.Pipeline[Any]], af.Pipeline[Any]]


class Dataset:
    """Items that the user's code reads."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> int:
        if not 0 <= number < self._count:
            raise IndexError(number)
        return number


class Flaky:
    """A function that fails for one item, until it is told to succeed."""

    def __init__(self) -> None:
        self.bad: float | None = None

    def __call__(self, item: Any) -> Any:
        if self.bad is not None and _number(item) == self.bad:
            raise Oops(item)
        return item


@dataclass(frozen=True)
class Parts:
    """A pipeline for each number of processes."""

    whole: af.Pipeline[Any]
    behind: tuple[Stage, ...]
    uneven: str
    said: str
    flaky: Flaky
    draws_by_part: bool = False
    """Whether random numbers depend on the number of parts."""

    def part(self, index: int, count: int) -> af.Pipeline[Any]:
        """Return one part."""
        return self._behind(self.whole.shard(index, count, uneven=self.uneven))  # type: ignore[arg-type]

    def alone(self) -> af.Pipeline[Any]:
        """Return everything without a shard."""
        return self._behind(self.whole)

    def _behind(self, pipeline: af.Pipeline[Any]) -> af.Pipeline[Any]:
        for stage in self.behind:
            pipeline = stage(pipeline)
        return pipeline

    def __repr__(self) -> str:
        return f"Parts({self.said})"


def noisy(item: Any, rng: np.random.Generator) -> tuple[Any, float]:
    """Add a random number, which tells epochs and items apart."""
    return item, float(rng.random())


def flat(received: Any) -> Iterator[Any]:
    """Yield the items of batches of batches."""
    if isinstance(received, tuple) and len(received) == 2 and isinstance(received[1], float):
        yield received
    elif isinstance(received, list):
        for each in received:
            yield from flat(each)
    else:
        yield received


def tally(received: Any, *, noise: bool = True) -> Counter[Any]:
    """Count the items, with or without their random numbers."""
    return Counter(each if noise else _quiet(each) for each in flat(received))


def _quiet(item: Any) -> Any:
    if not isinstance(item, tuple):
        return item
    inner, number = item
    return (_quiet(inner), number) if number.is_integer() else _quiet(inner)


def _number(item: Any) -> Any:
    while isinstance(item, tuple | list):
        item = item[0]
    return item


def _thirds(item: Any) -> bool:
    return bool(_number(item) % 3)


def _sum(total: int, item: Any) -> tuple[int, Any]:
    return total + 1, (item, float(total))


async def _late_thirds(item: Any) -> bool:
    await asyncio.sleep(_number(item) * 7919 % 13 / 1000)
    return _thirds(item)


def _children(item: Any) -> list[Any]:
    return [(item, float(number)) for number in range(_number(item) % 4)]


async def _late_children(item: Any) -> AsyncIterator[Any]:
    for each in _children(item):
        await asyncio.sleep(_number(item) * 31 % 5 / 1000)
        yield each


async def _late(item: Any) -> Any:
    await asyncio.sleep(_number(item) * 7919 % 13 / 1000)
    return item


def _fails_for_some(item: Any) -> Any:
    if _number(item) % 7 == 2:
        raise Oops(item)
    return item


def _length(item: Any) -> int:
    return int(_number(item)) % 5


def _grouped(items: list[Any]) -> list[Any]:
    return items


def _stream(count: int) -> Iterator[int]:
    yield from range(count)


async def _late_stream(count: int) -> AsyncIterator[int]:
    for each in range(count):
        await asyncio.sleep(each % 3 / 1000)
        yield each


def source(kind: str, count: int) -> af.Pipeline[Any]:
    """Return `count` numbers."""
    match kind:
        case "dataset":
            return af.items(Dataset(count))
        case "stream":
            return af.items(partial(_stream, count))
        case "late stream":
            return af.items(partial(_late_stream, count))
        case "concat":
            return af.concat(af.items(range(count // 3)), af.items(range(count // 3, count)))
        case "mixed streams":
            low, high = af.items(range(count // 3)), af.items(range(count // 3, count))
            return af.mix(low.filter(_all), high.filter(_all), weights=[0.5, 0.5], seed=1)
    return af.items(range(count))


def _all(_: Any) -> bool:
    return True


SOURCES = ["range", "range", "dataset", "stream", "late stream", "concat", "mixed streams"]
BEFORE: dict[str, Stage] = {
    "shuffle": lambda p: p.shuffle(seed=5),
    "filter": lambda p: p.filter(_thirds),
    "flat": lambda p: p.flat_map(_children),
    "interleave": lambda p: p.interleave(_children, cycle=2),
    "scan": lambda p: p.scan(_sum, 0),
    "buffer": lambda p: p.shuffle(buffer=5, seed=6),
    "batch": lambda p: p.batch(3, collate=_grouped),
    "repeat": lambda p: p.repeat(2),
    "noise": lambda p: p.map(noisy, rng=True),
}
BEHIND: dict[str, Stage] = {
    "map": lambda p: p.map(_late),
    "unordered": lambda p: p.map(_late, ordered=False),
    "noise": lambda p: p.map(noisy, rng=True),
    "filter": lambda p: p.filter(_late_thirds),
    "flat": lambda p: p.flat_map(_children),
    "late flat": lambda p: p.flat_map(_late_children),
    "unordered flat": lambda p: p.flat_map(_late_children, ordered=False),
    "interleave": lambda p: p.interleave(_late_children, cycle=3, block=2),
    "buffer": lambda p: p.shuffle(buffer=7, seed=8),
    "batch": lambda p: p.batch(3, collate=_grouped),
    "bucket": lambda p: p.bucket(boundaries=[2], size=3, length_of=_length, collate=_grouped),
    "repeat": lambda p: p.repeat(3),
    "skip": lambda p: p.map(_fails_for_some, on_error="skip", skip_limit=1000),
    "prefetch": lambda p: p.prefetch(2),
}
GROUPS = {"batch", "bucket"}


@st.composite
def parts(draw: st.DrawFn) -> Parts:
    """Draw pipelines for any number of processes."""
    kind = draw(st.sampled_from(SOURCES))
    whole = source(kind, count := draw(st.integers(0, 50)))
    before = draw(st.lists(st.sampled_from(sorted(BEFORE)), max_size=2, unique=True))
    if "shuffle" in before and (whole.size() is None or before[0] != "shuffle"):
        before.remove("shuffle")
    before.sort(key="batch".__eq__)  # a batch may have other items after a merge, so nothing may depend on which
    for each in before:
        whole = BEFORE[each](whole)
    names = draw(st.lists(st.sampled_from(sorted(BEHIND)), max_size=3))
    by_number = whole.size() is not None and not before and kind in ("range", "dataset", "concat")
    shuffled = by_number and draw(st.booleans())
    stages: list[Stage] = [lambda p: p.shuffle(seed=9)] if shuffled else []
    grouped = "batch" in before
    kept = []
    for name in names:
        if grouped and name not in ("map", "unordered", "buffer", "repeat", "prefetch"):
            continue  # a batch is not taken apart
        grouped = grouped or name in GROUPS
        kept.append(name)
    flaky = Flaky()
    stages += [*(BEHIND[each] for each in kept), lambda p: p.map(flaky)]
    if not grouped and draw(st.booleans()):
        stages.append(BEHIND["batch"])
    uneven = draw(st.sampled_from(["pad", "drop", "keep"]))
    said = f"{kind}({count}), {before}, {uneven}, {shuffled=}, {kept}, {len(stages)} stages"
    return Parts(whole, tuple(stages), uneven, said, flaky, shuffled)
