"""Pipelines whose fingerprints are equal in every process. `python -m tests.state.described` prints them."""

from __future__ import annotations

import json
import re
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import asyncfeed as af
from asyncfeed.file_source import Files
from asyncfeed.reading import ObjectStore
from asyncfeed.reading.keys import ObjectList, Place
from asyncfeed.reading.listing import FileList
from asyncfeed.state.fingerprint import Fingerprint, fingerprint


def of(pipeline: af.Pipeline[Any]) -> Fingerprint:
    return fingerprint(pipeline.source, pipeline.stages)


def double(x: Any) -> Any:
    return 2 * x


def crop(x: Any, size: int = 0, *, names: Any = ()) -> Any:
    return x


def numbers() -> Any:
    yield from range(3)


@dataclass(frozen=True)
class Scale:
    """A function of the user's that is an object."""

    by: float
    names: frozenset[str] = frozenset()

    def __call__(self, x: Any) -> Any:
        return x


class Words:
    """A dataset that shows its words in the order of a set, which is another one in each process."""

    def __init__(self, *words: str) -> None:
        self.words = set(words)

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, place: int) -> str:
        return sorted(self.words)[place]

    def __repr__(self) -> str:
        return f"Words({self.words})"


def local_files(folder: str, count: int = 3) -> af.Pipeline[Any]:
    found = FileList([f"{folder}/{n}.npy" for n in range(count)], range(count), range(count))
    return af.Pipeline(Files(f"{folder}/*.npy", found=found))


def objects(
    bucket: str, names: str = "abc", *, etags: str | None = "xyz", size: int = 1, **options: Any
) -> af.Pipeline[Any]:
    base = f"s3://{bucket}"
    place = Place(f"{base}/", ObjectStore(base, **options))
    found = [(name, size, etags and etags[at], 0) for at, name in enumerate(names)]
    return af.Pipeline(Files(f"{base}/*", found=ObjectList([place], found)))


def pipelines() -> dict[str, af.Pipeline[Any]]:
    items = af.items(range(10))
    return {
        "range": items.shuffle(seed=3).batch(4, drop_remainder=True).repeat(2),
        "numbers": af.items([1, 2.5, None, True, -(10**30)]).take(3).skip(1).enumerate(),
        "texts": af.items(["ä", "\udc80", "z" * 10_000, b"y" * 10_000, b"x"]).window(2),
        "trees": af.items([{"b": (1, [2]), "a": {"x", "y", "zz"}, 3: deque([1])}]),
        "arrays": af.arrays({"x": np.arange(6.0).reshape(3, 2), "y": np.array(["a", "bc", ""])}),
        "structured": af.items(np.zeros(3, [("a", "<i4"), ("b", "<f8")])).batch(2),
        "generator": af.items(numbers).shuffle(buffer=10),
        "dataset": af.items(Words("one", "two", "three", "four")),
        "files": local_files("/data/a").load(af.npy).batch(2).pad(),
        "objects": objects("bucket").load(af.npz(keys=["x"])),
        "lambda": items.map(lambda x: [y**2 for y in (x, 3) if y not in ("a", "b")] + x["key"]),
        "partial": items.map(partial(crop, size=3, names={"b", "a", "cc"})).filter(bool),
        "objects as functions": items.map(Scale(0.5, frozenset({"u", "v", "w"})))
        .map("abc".join)
        .map(re.compile("a").match),
        "functions": items.map(double)
        .flat_map(af.lines)
        .interleave(af.csv(types={"x": int, "y": float}), cycle=2),
        "merged": af.zip(
            items, af.concat(items, items.shuffle()), af.mix(items, items, weights=[1, 2], seed=4), strict=False
        ),
        "random": items.map(crop, rng=True, seed=7).bucket(boundaries=[3, 5], size=2).pack(8),
        "split": items.split(0.5, 0.5, seed=3, key=double)[1],
    }


if __name__ == "__main__":
    print(json.dumps({name: of(pipeline).value for name, pipeline in pipelines().items()}))
