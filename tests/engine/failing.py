"""Pipelines that fail at one known item, one for each place where user code is called."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import asyncfeed as af
from asyncfeed.formats import StreamDecoder

COUNT, BAD = 40, 17


class Oops(Exception):
    """What the user's code raises."""


class Drawn(NamedTuple):
    """What came out of a feed, and what ended it (None: the end of the data)."""

    items: list[Any]
    error: BaseException | None
    failure: af.Failure | None


class Kind(NamedTuple):
    """A way to fail: builds the pipeline for a concurrency; what comes first; what the failure is called."""

    build: Callable[[Any], af.Pipeline[Any]]
    before: list[Any]
    stage: str
    key: str
    ordinal: Any


async def draw(pipeline: af.Pipeline[Any], **options: Any) -> Drawn:
    """Draw everything on the running loop."""
    items, error = [], None
    async with pipeline.open(**options) as feed:
        try:
            async for item in feed:
                items.append(item)
        except BaseException as raised:  # noqa: BLE001 - whatever it is
            error = raised
        return Drawn(items, error, feed.failure)


def draw_on_thread(pipeline: af.Pipeline[Any], **options: Any) -> Drawn:
    """Draw everything with a plain `for`."""
    items, error = [], None
    with pipeline.open(**options) as feed:
        try:
            for item in feed:
                items.append(item)
        except BaseException as raised:  # noqa: BLE001 - whatever it is
            error = raised
        return Drawn(items, error, feed.failure)


def raises(error: Callable[[], BaseException], bad: int = BAD) -> Callable[[int], int]:
    def fn(x: int) -> int:
        if x == bad:
            raise error()
        return x

    return fn


def calls_given(x: int, *, fn: Callable[[int], int]) -> int:
    return fn(x)


async def awaits_given(x: int, fn: Callable[[int], Any]) -> int:
    result: int = await fn(x)
    return result


def raises_later(error: Callable[[], BaseException], bad: int = BAD) -> Callable[[int], Any]:
    async def fn(x: int) -> int:
        await asyncio.sleep((x * 7919) % 13 / 1000)  # in another order than that of the items
        if x == bad:
            raise error()
        return x

    return fn


def scans(error: Callable[[], BaseException], bad: int = BAD) -> Callable[[int, int], tuple[int, int]]:
    def fn(state: int, x: int) -> tuple[int, int]:
        return state + 1, raises(error, bad)(x)

    return fn


def scans_later(error: Callable[[], BaseException], bad: int = BAD) -> Callable[[int, int], Any]:
    async def fn(state: int, x: int) -> tuple[int, int]:
        return state + 1, await raises_later(error, bad)(x)

    return fn


def generator(error: Callable[[], BaseException], bad: int = BAD) -> Callable[[], Iterator[int]]:
    """Return a source that fails; its iterator is a class, so the error comes out as it is."""

    class Source:
        def __init__(self) -> None:
            self.next = 0

        def __iter__(self) -> Source:
            return self

        def __next__(self) -> int:
            self.next += 1
            if self.next == bad + 1:
                raise error()
            return self.next - 1

    return Source


def async_generator(error: Callable[[], BaseException], bad: int = BAD) -> Callable[[], AsyncIterator[int]]:
    class Source:
        def __init__(self) -> None:
            self.next = 0

        def __aiter__(self) -> Source:
            return self

        async def __anext__(self) -> int:
            await asyncio.sleep(self.next % 3 / 1000)
            self.next += 1
            if self.next == bad + 1:
                raise error()
            return self.next - 1

    return Source


class Sequence:
    """A sequence whose `[number]` fails."""

    def __init__(self, error: Callable[[], BaseException]) -> None:
        self._fn = raises(error)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, place: int) -> int:
        return self._fn(place)


class LazyArray(Sequence):
    """The same with what makes it an array, as a file that holds one has."""

    shape = (COUNT,)
    dtype = np.dtype(np.int64)


class KerasDataset(Sequence):
    """The same with what makes it a dataset of Keras."""

    def on_epoch_end(self) -> None:
        """Do nothing, as Keras' own."""


KerasDataset.on_epoch_end.__module__ = "keras"


def flat(error: Callable[[], BaseException]) -> Callable[[int], list[int]]:
    def fn(x: int) -> list[int]:
        return [raises(error)(x), x]

    return fn


def flat_lazy(error: Callable[[], BaseException]) -> Callable[[int], Iterator[int]]:
    def fn(x: int) -> Iterator[int]:
        yield x
        yield raises(error)(x)

    return fn


@dataclass(frozen=True, repr=False)
class FlatGroups(StreamDecoder[int]):
    """A decoder that yields groups, of numbers instead of files."""

    name = "groups"
    error: Callable[[], BaseException] = Exception

    async def in_groups(self, source: Any, /) -> AsyncGenerator[list[int]]:
        yield [source]
        await asyncio.sleep(source % 3 / 1000)
        yield []
        yield [raises(self.error)(source)]


def flat_async(error: Callable[[], BaseException]) -> Callable[[int], AsyncIterator[int]]:
    async def fn(x: int) -> AsyncIterator[int]:
        yield x
        await asyncio.sleep(x % 3 / 1000)
        yield raises(error)(x)

    return fn


def files(folder: Path) -> af.Pipeline[Any]:
    for x in range(COUNT):
        (folder / f"{x:02}.bin").write_bytes(bytes([x]))
    return af.files(f"{folder}/*.bin")


def labelled(folder: Path) -> af.Pipeline[Any]:
    for x in range(COUNT):
        path = folder / "images" / "one" / f"{x:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([x]))
    return af.image_folder(folder / "images")


def decoder(error: Callable[[], BaseException]) -> Callable[[bytes], int]:
    return lambda data: raises(error)(data[0])


def decoder_async(error: Callable[[], BaseException]) -> Callable[[bytes], Any]:
    fn = raises_later(error)

    async def decode(data: bytes) -> int:
        return await fn(data[0])  # type: ignore[no-any-return]

    return decode


def kinds(folder: Path, error: Callable[[], BaseException] = Oops, *, write: bool = True) -> dict[str, Kind]:
    """Return one failing pipeline for each kind of step that calls the user's code."""
    numbers, before = af.items(range(COUNT)), list(range(BAD))
    here = (f"number {BAD}", BAD)
    listed = files(folder) if write else numbers  # without: for the names of the kinds only
    unlisted = af.files(f"{folder}/*.bin", listing="streamed")
    file = (f"{folder}/{BAD:02}.bin", BAD)
    twice = [x for x in before for _ in range(2)]
    ragged = [np.zeros(2 if x == BAD else 1) for x in range(COUNT)]
    wide = [np.zeros((1, 2 if x == BAD else 1)) for x in range(COUNT)]
    dataset = Sequence(error)
    shuffled = list(numbers.shuffle(seed=7))
    place = shuffled.index(BAD)
    return {
        "sequence": Kind(lambda k: af.items(dataset, concurrency=k), before, "items(", *here),
        "shuffled sequence": Kind(
            lambda k: af.items(dataset, concurrency=k).shuffle(seed=7), shuffled[:place], "items(", here[0], place
        ),
        "sequence through a buffer": Kind(
            lambda k: af.items(dataset, concurrency=k).shuffle(buffer=1), before, "items(", *here
        ),
        "rearranged sequence": Kind(
            lambda k: af.items(dataset, concurrency=k).skip(2).take(30).enumerate().repeat(2).take(40),
            [(x - 2, x) for x in before[2:]], "items(", here[0], BAD - 2,
        ),
        "repeated sequence": Kind(
            lambda k: af.items(dataset, concurrency=k).map(lambda x: x, concurrency=k).repeat(), before, "items(",
            *here,
        ),
        "part of a sequence": Kind(
            lambda k: af.items(dataset, concurrency=k).shard(1, 4), before[1::4], "items(", *here
        ),
        "part of a stream": Kind(
            lambda k: numbers.filter(raises(error), concurrency=k).shard(1, 4), before[2::4], "filter(", *here
        ),
        "zip of sequences": Kind(
            lambda k: af.zip(numbers, af.items(dataset, concurrency=k)), [(x, x) for x in before], "zip(",
            f"number {BAD}, number {BAD}", BAD,
        ),
        "concat of sequences": Kind(
            lambda k: af.concat(af.items([-2, -1]), af.items(dataset, concurrency=k)), [-2, -1, *before], "concat(",
            here[0], BAD + 2,
        ),
        "arrays": Kind(lambda k: af.arrays(LazyArray(error), concurrency=k), before, "arrays(", *here),
        "arrays of several": Kind(
            lambda k: af.arrays(np.arange(COUNT), LazyArray(error), concurrency=k), [(x, x) for x in before],
            "arrays(", *here,
        ),
        "Keras dataset": Kind(
            lambda k: af.items(KerasDataset(error), concurrency=k), before, "read(", f"batch {BAD}", BAD
        ),
        "bucket": Kind(
            lambda k: numbers.bucket(boundaries=[100], size=1, length_of=raises(error)).map(len, concurrency=k),
            [1] * BAD, "bucket(", *here,
        ),
        "async map": Kind(lambda k: numbers.map(raises_later(error), concurrency=k), before, "map(", *here),
        "thread map": Kind(lambda k: numbers.map(raises(error), concurrency=k), before, "map(", *here),
        "shuffled map": Kind(
            lambda k: numbers.map(raises(error), concurrency=k).shuffle(seed=7), shuffled[:place], "map(", here[0],
            place,
        ),
        "unnamed map": Kind(lambda k: numbers.map(lambda x: raises(error)(x), concurrency=k), before, "map(", *here),
        "filter": Kind(lambda k: numbers.filter(raises(error), concurrency=k), before[1:], "filter(", *here),
        "async filter": Kind(
            lambda k: numbers.filter(raises_later(error), concurrency=k), before[1:], "filter(", *here
        ),
        "split by key": Kind(
            lambda k: numbers.filter(lambda _: True, concurrency=k).split(0.5, 0.5, key=raises(error))[0],
            list(numbers.take(BAD).split(0.5, 0.5, key=int)[0]), "split(", *here,
        ),
        "iterable": Kind(lambda _: af.items(generator(error)), before, "items(", *here),
        "async iterable": Kind(lambda _: af.items(async_generator(error)), before, "items(", *here),
        "iterable, then map": Kind(
            lambda k: af.items(generator(error)).map(lambda x: x, concurrency=k), before, "items(", *here
        ),
        "async iterable, then map": Kind(
            lambda k: af.items(async_generator(error)).map(raises_later(error, -1), concurrency=k),
            before, "items(", *here,
        ),  # fmt: skip
        "decoder": Kind(lambda k: listed.load(decoder(error), concurrency=k), before, "load(", *file),
        "decoder of labelled images": Kind(
            lambda k: labelled(folder).load(decoder(error), concurrency=k), [(x, 0) for x in before], "load(",
            f"{folder}/images/one/{BAD:02}.jpg", BAD,
        ),
        "decoder of streamed files": Kind(
            lambda k: unlisted.load(decoder(error), concurrency=k), before, "load(", *file
        ),
        "cached file": Kind(
            lambda k: listed.cache(folder / "cache").load(decoder(error), concurrency=k), before, "load(", *file
        ),
        "cached sample": Kind(
            lambda k: listed.load(decoder(error), concurrency=k).cache(folder / "cache", version="1"), before,
            "load(", *file,
        ),
        "async decoder": Kind(lambda k: listed.load(decoder_async(error), concurrency=k), before, "load(", *file),
        "flat_map": Kind(lambda k: numbers.flat_map(flat(error), concurrency=k), twice, "flat_map(", *here),
        "lazy flat_map": Kind(
            lambda k: numbers.flat_map(flat_lazy(error), concurrency=k), [*twice, BAD], "flat_map(", *here
        ),
        "async flat_map": Kind(
            lambda k: numbers.flat_map(flat_async(error), concurrency=k), [*twice, BAD], "flat_map(", *here
        ),
        "grouped flat_map": Kind(
            lambda k: numbers.flat_map(FlatGroups(error), concurrency=k), [*twice, BAD], "flat_map(", *here
        ),
        "interleave": Kind(
            lambda _: numbers.interleave(flat(error), cycle=2, block=2), twice, "interleave(", *here
        ),
        "lazy interleave": Kind(
            lambda _: numbers.interleave(flat_lazy(error), cycle=2),
            [each for x in range(0, BAD - 1, 2) for each in (x, x + 1) * 2] + [BAD - 1, BAD, BAD - 1],
            "interleave(", *here,
        ),  # fmt: skip
        "batch of a failing map": Kind(
            lambda k: numbers.map(raises_later(error), concurrency=k).batch(2).map(list),
            [[x, x + 1] for x in range(0, BAD - 1, 2)], "map(", *here,
        ),  # fmt: skip
        "map of a batch": Kind(
            lambda k: numbers.batch(2).map(lambda b: raises(error)(int(b[1])), concurrency=k),
            list(range(1, BAD, 2)), "map(", f"batch of number {BAD - 1} to number {BAD}", [BAD - 1, BAD],
        ),  # fmt: skip
        "zip": Kind(
            lambda k: af.zip(numbers, numbers.map(raises_later(error), concurrency=k)),
            [(x, x) for x in before], "map(", *here,
        ),  # fmt: skip
        "concat": Kind(
            lambda k: af.concat(af.items([-2, -1]), numbers.map(raises_later(error), concurrency=k), numbers),
            [-2, -1, *before], "map(", *here,
        ),  # fmt: skip
        "mix": Kind(
            lambda k: af.mix(numbers, numbers.map(raises_later(error), concurrency=k), weights=[0, 1]),
            before, "map(", *here,
        ),  # fmt: skip
        "mix of sequences": Kind(
            lambda k: af.mix(af.items(dataset, concurrency=k), numbers, weights=[1, 0]), before, "mix(", *here
        ),
        "map with a resource": Kind(
            lambda k: numbers.using(fn=partial(nullcontext, raises(error))).map(calls_given, concurrency=k), before,
            "map(", *here,
        ),  # fmt: skip
        "async map with a resource": Kind(
            lambda k: numbers.using(fn=partial(nullcontext, raises_later(error))).map(awaits_given, concurrency=k),
            before, "map(", *here,
        ),  # fmt: skip
        "scan": Kind(lambda _: numbers.scan(scans(error), 0), before, "scan(", *here),
        "async scan": Kind(lambda _: numbers.scan(scans_later(error), 0), before, "scan(", *here),
        "pack": Kind(
            lambda _: af.items(ragged).pack(1).map(lambda row: len(row.values)), [1] * BAD, "pack(", *here
        ),
        "rows of a pack": Kind(
            lambda _: af.items(wide).pack(2, bins=1).map(lambda row: len(row.values)), [2] * (BAD // 2), "pack(",
            f"batch of number {BAD - 1} to number {BAD}", [BAD - 1, BAD],
        ),  # fmt: skip
        "rebatch": Kind(
            lambda _: af.items(wide).rebatch(2).map(len), [2] * (BAD // 2), "rebatch(",
            f"batch of number {BAD - 1}[0] to number {BAD}[0]", [(BAD - 1, 0), (BAD, 0)],
        ),  # fmt: skip
        "map_batches": Kind(
            lambda k: numbers.map_batches(lambda b: raises(error)(b[1]) and b, 2, concurrency=k).map(int),
            before[: BAD - 1], "map(", f"batch of number {BAD - 1} to number {BAD}", [BAD - 1, BAD],
        ),  # fmt: skip
        "window": Kind(
            lambda _: af.items(lambda: iter(ragged)).window(2).map(len), [2] * (BAD - 1), "window(",
            f"batch of number {BAD - 1} to number {BAD}", [BAD - 1, BAD],
        ),  # fmt: skip
        "window by number": Kind(
            lambda _: af.items(ragged).window(2).map(len), [2] * (BAD - 1), "items(",
            f"window of number {BAD - 1} to number {BAD}", BAD - 1,
        ),  # fmt: skip
        "unbatch": Kind(
            lambda k: numbers.batch(4).unbatch().map(lambda x: raises(error)(int(x)), concurrency=k),
            before, "map(", f"batch of number 16 to number 19[{BAD - 16}]", None,
        ),  # fmt: skip
        "ragged batch": Kind(
            lambda _: af.items(ragged).batch(2).map(len), [2] * (BAD // 2), "batch(",
            f"batch of number {BAD - 1} to number {BAD}", [BAD - 1, BAD],
        ),  # fmt: skip
    }  # fmt: skip
