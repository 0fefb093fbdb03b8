"""One pipeline of each kind, over files in a folder: for what must hold whatever runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import asyncfeed as af
from asyncfeed import lines, npy, npz, raw, text


async def fetch(x: int) -> int:
    await asyncio.sleep(0)
    return x


def draws(x: int, rng: np.random.Generator) -> float:
    return x + rng.random()


async def draws_later(x: int, rng: np.random.Generator) -> float:
    return x + rng.random()


def fails() -> Iterator[int]:
    yield 1
    raise OSError


class Dataset:
    """Its items are read."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, number: int) -> int:
        return number


def write(folder: Path) -> None:
    """Write the files that the pipelines read."""
    for number in range(4):
        array = np.arange(5 + number)
        np.save(folder / f"{number}.npy", array)
        np.savez(folder / f"{number}.npz", x=array)
        np.savez_compressed(folder / f"{number}.packed.npz", x=array)
        (folder / f"{number}.raw").write_bytes(bytes(8 + number))
        (folder / f"{number}.txt").write_text("a\nb\n")


def pipelines(folder: Path) -> Iterator[af.Pipeline[Any]]:
    """Yield the pipelines."""
    numbers = af.items(range(40))
    mapped = np.load(folder / "1.npy", mmap_mode="r")
    yield numbers.shuffle(seed=7).map(fetch).map(draws, rng=True).batch(4).prefetch(2)
    yield numbers.map(draws_later, rng=True).filter(lambda x: True).repeat(2).shuffle(buffer=4).take(9)
    yield af.files(f"{folder}/*.npy").load(npy).batch(2).pad()
    yield af.files(f"{folder}/*.npy").repeat(20).load(npy).map(lambda x: np.resize(x, 10_000)).batch(8)
    yield af.files(f"{folder}/*.npz").load(npz).map(lambda sample: sample["x"]).unbatch()
    yield af.files(f"{folder}/*.raw").load(raw("uint8")).bucket(boundaries=[10], size=2).pad()
    yield af.files(f"{folder}/*.txt").load(text).enumerate()
    yield af.files(f"{folder}/*.txt").load(fetch)
    yield af.files(f"{folder}/*.txt").flat_map(lines)
    yield af.zip(af.items(Dataset(), concurrency=2), numbers.map(fetch), strict=False)
    yield af.concat(af.arrays(np.arange(3)), af.items(iter([1, 2])))
    yield af.arrays({"x": np.zeros(6), "y": mapped}).batch(2)
    yield af.items(fails).flat_map(lambda x: [x])
    yield numbers.map(lambda x: 1 / (x - 9), on_error="skip", skip_limit=1)
    yield numbers.map(abs, on="process", concurrency=1)


async def run_all(described: list[af.Pipeline[Any]]) -> None:
    """Draw everything on this loop."""
    for pipeline in described:
        async with pipeline.open() as feed:
            try:
                assert [item async for item in feed]
            except OSError:
                assert feed.failure is not None
            feed.stats()
