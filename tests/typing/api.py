"""Usage that must type-check, and what it must be inferred as; read by mypy and pyright, never run."""

from __future__ import annotations

import json
import pickle
from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeGuard, assert_type

import numpy as np
from numpy.typing import NDArray

import asyncfeed as af


async def fetch(x: int) -> str:
    return str(x)


def length(text: str) -> float:
    return float(len(text))


def noisy(x: int, rng: np.random.Generator) -> float:
    return x + rng.random()


async def words(text: str) -> AsyncIterator[str]:
    yield text


def numbers() -> Iterator[int]:
    yield 1


def total(samples: list[int]) -> float:
    return float(sum(samples))


class Dataset:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, number: int) -> str:
        return str(number)


class AsyncDataset:
    def __len__(self) -> int:
        return 3

    async def __getitem__(self, number: int) -> str:
        return str(number)


def decoded(data: bytes) -> complex:
    return complex(len(data))


async def fetched(data: bytes) -> complex:
    return complex(len(data))


def mixed() -> list[int | str]:
    return [1, "a"]


def is_text(item: int | str) -> TypeGuard[str]:
    return isinstance(item, str)


async def listed(x: int) -> list[str]:
    return [str(x)]


async def noisy_fetch(x: int, rng: np.random.Generator) -> str:
    return str(x + rng.random())


Array = NDArray[Any]


def check_loading() -> None:
    """What is loaded has the decoder's type."""
    found = af.files("*")
    assert_type(found.load(af.npy), af.Pipeline[Array])
    assert_type(found.cache("folder", max_bytes="1 GB").load(af.npy).cache("folder"), af.Pipeline[Array])
    assert_type(found.load(af.npz), af.Pipeline[dict[str, Array]])
    assert_type(found.load(af.npz(keys=["x"])), af.Pipeline[dict[str, Array]])
    assert_type(found.load(af.raw("float32", shape=(3,))), af.Pipeline[Array])
    assert_type(found.load(af.text), af.Pipeline[str])
    assert_type(found.load(af.text(encoding="latin-1")), af.Pipeline[str])
    assert_type(found.load(af.json), af.Pipeline[Any])
    assert_type(found.load(decoded), af.Pipeline[complex])
    assert_type(found.load(fetched, concurrency=3, ordered=False), af.Pipeline[complex])
    assert_type(found.load(str, on_error="skip", skip_limit=3), af.Pipeline[str])
    assert_type(found.load(pickle.loads), af.Pipeline[Any])
    assert_type(found.flat_map(af.lines), af.Pipeline[str])
    assert_type(found.interleave(af.lines, cycle=3, block=2), af.Pipeline[str])
    assert_type(found.flat_map(af.lines(max_line=10, compression="gzip")), af.Pipeline[str])
    assert_type(found.flat_map(af.json_lines), af.Pipeline[Any])
    assert_type(found.flat_map(af.json_lines(compression=None)), af.Pipeline[Any])
    assert_type(found.flat_map(af.parquet), af.Pipeline[dict[str, Any]])
    assert_type(found.flat_map(af.parquet(columns=["x"], nulls={"x": 0})), af.Pipeline[dict[str, Any]])
    assert_type(found.interleave(af.arrow(rows=10), cycle=2), af.Pipeline[dict[str, Any]])
    assert_type(found.flat_map(af.csv), af.Pipeline[dict[str, Any]])
    assert_type(found.interleave(af.csv(types={"x": np.float32, "y": int}), cycle=2), af.Pipeline[dict[str, Any]])
    assert_type(found.flat_map(af.mds), af.Pipeline[dict[str, Any]])
    assert_type(af.items(af.mds.by_number("data")), af.Pipeline[dict[str, Any]])
    assert_type(found.flat_map(af.litdata("data")), af.Pipeline[Any])
    assert_type(found.load(af.audio(sample_rate=16_000, mono=True)), af.Pipeline[Any])
    assert_type(af.items([[1, 2]]).flat_map(af.arrayrecord("a").read), af.Pipeline[bytes])
    assert_type(found.load(af.safetensors(keys=["x"])), af.Pipeline[dict[str, Array]])
    assert_type(found.shuffle().repeat(2).load(af.npy).batch(3, drop_remainder=True), af.Pipeline[Array])
    rows = af.table("labels.csv", files="image", types={"label": int})
    assert_type(rows, af.Pipeline[dict[str, Any]])
    assert_type(rows.load(af.npy), af.Pipeline[dict[str, Any]])
    # Where the files are in a sample, and what else is there, types do not say.
    assert_type(af.zip(found, found).load(af.npy), af.Pipeline[Any])
    assert_type(found.load(af.json).load(af.npy), af.Pipeline[Any])


def check_sources() -> None:
    """Rows of arrays may be arrays or numbers."""
    x = np.zeros((3, 2))
    assert_type(af.arrays(x), af.Pipeline[Any])
    assert_type(af.arrays(x, x), af.Pipeline[tuple[Any, Any]])
    assert_type(af.arrays(x, x, x, concurrency=1), af.Pipeline[tuple[Any, Any, Any]])
    assert_type(af.arrays(x, x, x, x), af.Pipeline[tuple[Any, ...]])
    assert_type(af.arrays({"x": x, "y": x}), af.Pipeline[dict[str, Any]])
    assert_type(af.arrays({"x": x}).batch(3), af.Pipeline[dict[str, Any]])
    assert_type(af.arrays(x).batch(3), af.Pipeline[Any])


def check_together() -> None:
    """Up to five inputs of `zip` keep their types."""
    a, b = af.items([1]), af.items(["a"])
    c, d, e = af.items([1.5]), af.items([b""]), af.items([None])
    assert_type(af.zip(a), af.Pipeline[tuple[int]])
    assert_type(af.zip(a, b), af.Pipeline[tuple[int, str]])
    assert_type(af.zip(a, b, c), af.Pipeline[tuple[int, str, float]])
    assert_type(af.zip(a, b, c, d), af.Pipeline[tuple[int, str, float, bytes]])
    assert_type(af.zip(a, b, c, d, e, strict=False), af.Pipeline[tuple[int, str, float, bytes, None]])
    assert_type(af.zip(a, b, c, d, e, a), af.Pipeline[tuple[Any, ...]])
    assert_type(af.zip(*[a, a]), af.Pipeline[tuple[Any, ...]])
    assert_type(af.mix(a, a, weights=[1, 2], seed=1, stop="first"), af.Pipeline[int])
    assert_type(af.concat(a, a), af.Pipeline[int])
    for number, text in af.zip(a, b):
        assert_type(number, int)
        assert_type(text, str)


def check_batches() -> None:
    """Numbers, text and arrays become arrays; pairs, triples and dicts stay what they are."""
    ints = af.items(range(3))
    arrays = af.files("*.npy").load(af.npy)
    pairs = af.zip(arrays, ints)
    triples = af.zip(arrays, ints, ints)
    named = af.files("*.npz").load(af.npz)
    parsed = af.files("*.json").load(af.json)
    nested = af.items([[1, 2]])
    assert_type(ints.batch(3), af.Pipeline[Array])
    assert_type(af.items(["a"]).batch(3), af.Pipeline[Array])
    assert_type(arrays.batch(3), af.Pipeline[Array])
    assert_type(pairs.batch(3), af.Pipeline[tuple[Any, Any]])
    assert_type(triples.batch(3), af.Pipeline[tuple[Any, Any, Any]])
    assert_type(named.batch(3), af.Pipeline[dict[str, Any]])
    assert_type(parsed.batch(3), af.Pipeline[Any])
    assert_type(nested.batch(3), af.Pipeline[Any])
    assert_type(ints.batch(3, drop_remainder=True, collate=total), af.Pipeline[float])
    assert_type(ints.batch(3, collate=list), af.Pipeline[list[int]])
    assert_type(arrays.batch(3).pad(multiple_of=8), af.Pipeline[Array])
    assert_type(pairs.batch(3).pad(to=(None, 3), value=1), af.Pipeline[tuple[Any, Any]])
    assert_type(triples.batch(3).pad(), af.Pipeline[tuple[Any, Any, Any]])
    assert_type(named.batch(3).pad(), af.Pipeline[dict[str, Any]])
    assert_type(parsed.batch(3).pad(), af.Pipeline[Any])
    assert_type(arrays.batch(3).pad(lengths=True), af.Pipeline[tuple[Any, Any]])
    assert_type(arrays.bucket(boundaries=[3], size=2), af.Pipeline[Array])
    assert_type(arrays.bucket(boundaries=[3], size=[2, 4], length_of=len, drop_remainder=True), af.Pipeline[Array])
    assert_type(pairs.bucket(boundaries=[3], size=2), af.Pipeline[tuple[Any, Any]])
    assert_type(named.bucket(boundaries=[3], size=2), af.Pipeline[dict[str, Any]])
    assert_type(nested.bucket(boundaries=[3], size=2), af.Pipeline[Any])
    assert_type(ints.bucket(boundaries=[3], size=2, length_of=int, collate=total), af.Pipeline[float])
    assert_type(ints.window(3, stride=2, drop_remainder=False), af.Pipeline[Array])
    assert_type(pairs.window(3), af.Pipeline[tuple[Any, Any]])
    assert_type(named.window(3), af.Pipeline[dict[str, Any]])
    assert_type(nested.window(3), af.Pipeline[Any])
    assert_type(ints.batch(3).rebatch(2), af.Pipeline[Array])
    assert_type(pairs.batch(3).rebatch(2), af.Pipeline[tuple[Any, Any]])
    assert_type(arrays.pack(512).batch(8), af.Pipeline[tuple[Any, Any, Any]])
    assert_type(ints.map_batches(total, 4), af.Pipeline[Any])
    assert_type(ints.apply(lambda p: p.take(3)), af.Pipeline[int])
    assert_type(ints.batch(3).unbatch(), af.Pipeline[Any])
    assert_type(pairs.batch(3).unbatch(), af.Pipeline[tuple[Any, Any]])
    assert_type(named.batch(3).unbatch(), af.Pipeline[dict[str, Any]])


def check_order() -> None:
    """What rearranges keeps the type."""
    ints = af.items(range(3))
    ints_or_texts = af.items(mixed())
    assert_type(ints.shuffle(seed=1, buffer=3, reshuffle=False).repeat(2).take(3).skip(1), af.Pipeline[int])
    assert_type(ints.enumerate(start=1).map(pair_sum), af.Pipeline[int])
    assert_type(ints.filter(fetch, concurrency=3, ordered=False, on_error="skip", skip_limit=1), af.Pipeline[int])
    assert_type(ints_or_texts.filter(is_text), af.Pipeline[str])
    train, test = ints.split(0.8, 0.2, seed=1)
    assert_type(train, af.Pipeline[int])
    assert_type(test, af.Pipeline[int])
    assert_type(ints.split(0.8, 0.1, 0.1, key=str), tuple[af.Pipeline[int], af.Pipeline[int], af.Pipeline[int]])
    assert_type(ints.split(0.4, 0.2, 0.2, 0.2), tuple[af.Pipeline[int], ...])
    assert_type(ints.shard(), af.Pipeline[int])
    assert_type(ints.shard(1, 8, uneven="drop"), af.Pipeline[int])
    for epoch in ints.epochs(3, start=1, memory_limit="1GB"):
        assert_type(epoch, af.Epoch[int])
        assert_type(epoch.number, int)
        for item in epoch:
            assert_type(item, int)


def pair_sum(pair: tuple[int, int]) -> int:
    return sum(pair)


def check_functions() -> None:
    """Functions may be sync, async or draw random numbers, and give one item or many."""
    ints = af.items(range(3))
    assert_type(ints.map(noisy_fetch, rng=True, seed=3), af.Pipeline[str])
    assert_type(ints.map(str).map(json.loads), af.Pipeline[Any])
    assert_type(ints.map(str, on="thread"), af.Pipeline[str])
    assert_type(ints.flat_map(range), af.Pipeline[int])
    assert_type(ints.flat_map(listed, concurrency=2, ordered=False), af.Pipeline[str])
    assert_type(ints.map(str).interleave(words, cycle=2), af.Pipeline[str])
    assert_type(ints.interleave(range, cycle=2), af.Pipeline[int])
    assert_type(ints.interleave(listed, cycle=2, on_error="skip", skip_limit=0.5), af.Pipeline[str])


def check() -> None:
    ints = af.items(range(3))
    assert_type(ints, af.Pipeline[int])
    assert_type(af.items(numbers), af.Pipeline[int])
    assert_type(af.items([1], concurrency=2), af.Pipeline[int])
    assert_type(af.items(Dataset(), concurrency="auto", on_error="skip", skip_limit=0.1), af.Pipeline[str])
    assert_type(af.items(AsyncDataset()), af.Pipeline[str])
    assert_type(ints.map(fetch), af.Pipeline[str])
    assert_type(ints.map(fetch).map(length), af.Pipeline[float])
    assert_type(ints.map(noisy, rng=True), af.Pipeline[float])
    assert_type(ints.map(str, on="process"), af.Pipeline[str])
    assert_type(ints.map(noisy, rng=True, on="process", concurrency=4), af.Pipeline[float])
    assert_type(ints.filter(bool).take(3).skip(1).shuffle(buffer=3).prefetch(2), af.Pipeline[int])
    assert_type(ints.enumerate(), af.Pipeline[tuple[int, int]])
    assert_type(ints.map(fetch).flat_map(words), af.Pipeline[str])
    assert_type(ints.map(fetch).flat_map(str.split), af.Pipeline[str])
    assert_type(af.files("*.npy"), af.Pipeline[af.File])
    assert_type(af.files("s3://bucket/*.npy", endpoint="http://127.0.0.1", anonymous=True), af.Pipeline[af.File])
    for item in ints:
        assert_type(item, int)
    with ints.map(fetch).open() as feed:
        assert_type(next(feed), str)
        assert_type(len(feed), int)
        assert_type(feed.stats().slow_paths, tuple[tuple[str, int], ...])
    assert_type(af.queues.FIFOQueue(3, [int]).size(), int)


@af.threadsafe_generator
def shared_numbers(last: int) -> Iterator[int]:
    yield last


@af.threadsafe_generator
async def shared_words(text: str) -> AsyncIterator[str]:
    yield text


def check_tensors() -> None:
    pairs = af.arrays([1.0], [2]).batch(2)
    assert_type(len(pairs.to_torch(device="cuda", pin_memory=False)), int)
    with iter(pairs.to_jax()) as batches:
        assert_type(batches.feed.stats().batches, int)
        assert_type(batches.state_dict(), dict[str, Any])
    placed = pairs.to_torch()
    placed.load_state_dict(placed.state_dict())
    assert_type(placed.epoch, int)
    pairs.to_torch_dataset(ranks="split")
    pairs.to_torch("cuda")  # type: ignore[call-arg]
    pairs.to_torch(pin_memory="always")  # type: ignore[arg-type]
    pairs.to_torch_dataset(ranks="all")  # type: ignore[arg-type]


def check_sharing() -> None:
    assert_type(next(shared_numbers(3)), int)
    assert_type(next(af.threadsafe([1.5])), float)
    shared_numbers("3")  # type: ignore[arg-type]
    with af.Coordinator([StopIteration]) as coord, af.items(range(3)).open(coord=coord) as feed:
        assert_type(next(feed), int)
        assert_type(coord.wait_for_stop(1), bool)
        coord.request_stop("bad")  # type: ignore[arg-type]


async def check_sharing_async() -> None:
    assert_type(await anext(shared_words("a")), str)
    async with af.Coordinator() as coord:
        await coord.wait()


async def check_async() -> None:
    async with af.items(range(3)).map(fetch).open() as feed:
        async for item in feed:
            assert_type(item, str)


def check_mistakes() -> None:
    af.fils("*.npy")  # type: ignore[attr-defined]
    ints = af.items(range(3))
    ints.map(length)  # type: ignore[arg-type]
    ints.map(noisy)  # type: ignore[arg-type]
    ints.map(str, on="gpu")  # type: ignore[call-overload]
    ints.batch("3")  # type: ignore[call-overload]
    ints.shuffle(7)  # type: ignore[call-arg]
    af.files("*").load(3)  # type: ignore[call-overload]
    af.files("*").load(length)  # type: ignore[arg-type]
    af.files("*").load(af.npy, 3)  # type: ignore[call-overload]
    af.files("*").load(af.npy).map(length)  # type: ignore[arg-type]
    af.zip(ints, 3)  # type: ignore[call-overload]
    af.arrays()  # type: ignore[call-overload]
    ints.window("3")  # type: ignore[call-overload]
    ints.interleave(range)  # type: ignore[call-overload]
    ints.flat_map(length)  # type: ignore[arg-type]
    ints.filter(length)  # type: ignore[arg-type]
    ints.batch(3, collate=length)  # type: ignore[arg-type]
    ints.bucket(size=2)  # type: ignore[call-overload]
    ints.pad(lengths=3)  # type: ignore[call-overload]
    first, second = ints.split(0.4, 0.3, 0.3)  # type: ignore[misc]
    ints.shard(1, 8, uneven="even")  # type: ignore[arg-type]
    for epoch in ints.epochs("3"):  # type: ignore[arg-type]
        length(next(epoch))  # type: ignore[arg-type]
