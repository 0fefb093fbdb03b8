"""Usual programs beside the loop that a user would write by hand: one row for each.

python benchmarks/usual.py [--help] [--quick] [--rows table window json child fetch hdf5 jpeg] [--markdown FILE]
"""

from __future__ import annotations

import asyncio
import csv
import json
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import harness
import numpy as np
from filesets import BATCH, SEED, fileset
from harness import Contender, Made, Row
from images import SIZE, by_simplejpeg, photos
from ordinary import compare, double, own_augment
from report import Section

import asyncfeed as af

OURS, OURS_PROCESSES, LOOP = "asyncfeed", "asyncfeed, in processes", "plain loop"
Make = Callable[[Any, int], Iterable[Any]]


def section(
    title: str,
    work: AbstractContextManager[Any],
    makers: dict[str, Make],
    goals: dict[tuple[str, str], float],
    *,
    quick: bool,
    packages: Sequence[str] = ("asyncfeed", "numpy"),
) -> Section:
    """Measure the programs. What each yields has as many items as its length says."""
    made = Section(title, packages)
    contenders = [Contender(name, {"": Made(make)}) for name, make in makers.items()]
    with work as given:
        compare(made, contenders, given, OURS, goals, quick=quick)
    return made


def of_processes(ours: Make) -> Make:
    """Return the same pipeline with its functions in processes."""
    return lambda work, items: ours(work, items).in_processes()  # type: ignore[attr-defined]


class Again:
    """A loop that begins anew each time."""

    def __init__(self, begin: Callable[[], Iterator[Any]]) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[Any]:
        return self._begin()


def by_hand(loop: Callable[[Any, int], Iterator[Any]]) -> Make:
    """Return what makes a loop of a generator function."""
    return lambda work, items: Again(partial(loop, work, items))


def stacked(samples: Iterable[Any], stack: Callable[[list[Any]], Any] = np.stack) -> Iterator[Any]:
    """Yield batches of samples."""
    rows: list[Any] = []
    for sample in samples:
        rows.append(sample)
        if len(rows) == BATCH:
            yield stack(rows)
            rows = []
    if rows:
        yield stack(rows)


# -- rows of a table that name files


class Rows(list[Any]):
    """A batch of images and labels, whose length is the number of its rows."""

    def __len__(self) -> int:
        return len(self[0])


def labelled(rows: list[dict[str, Any]]) -> Rows:
    """Stack rows as a user would."""
    return Rows([np.stack([row["image"] for row in rows]), np.array([row["label"] for row in rows])])


def doubled_row(row: dict[str, Any]) -> dict[str, Any]:
    """Do next to nothing with a row."""
    return {"image": row["image"] * 2, "label": row["label"]}


def table(*, quick: bool) -> Section:
    """Measure a table of files, and the files without the table."""

    def names(work: Any, items: int) -> Path:
        place = Path(work.paths[0]).parent / f"{items}.csv"
        with place.open("w", newline="") as file:
            csv.writer(file).writerows([("image", "label"), *((path, 3) for path in work.take(items))])
        return place

    def ours(work: Any, items: int) -> Iterable[Any]:
        rows = af.table(names(work, items), files="image").shuffle(seed=SEED)
        batches = rows.load(af.npy).map(doubled_row).batch(BATCH)
        return Again(lambda: (Rows(batch.values()) for batch in batches))

    def files(work: Any, items: int) -> Iterable[Any]:
        return af.files(work.take(items)).shuffle(seed=SEED).load(af.npy).map(double).batch(BATCH)

    def loop(work: Any, items: int) -> Iterator[Any]:
        paths = work.take(items)
        random.Random(SEED).shuffle(paths)
        return stacked((doubled_row({"image": np.load(path), "label": 3}) for path in paths), labelled)

    return section(
        "Rows of a table with 4 KB `.npy` files, doubled, batches of 32",
        fileset("small", 512 if quick else 4096),
        {OURS: ours, "the files without the table": files, LOOP: by_hand(loop)},
        {(OURS, "the files without the table"): 0.87},
        quick=quick,
    )


# -- windows of a series in memory


def window(*, quick: bool) -> Section:
    """Measure windows of an array."""
    count = 1 << 18
    series = np.random.default_rng(SEED).random((4 * count + 12, 8), np.float32)

    def ours(_: Any, items: int) -> Iterable[Any]:
        windows = af.arrays(series).window(16, stride=4).shuffle(seed=SEED).repeat()
        return windows.take(items).batch(BATCH)

    def loop(_: Any, items: int) -> Iterator[Any]:
        order = np.random.default_rng(SEED).permutation(count).tolist() * (items // count + 1)
        return stacked(series[4 * place : 4 * place + 16] for place in order[:items])

    return section(
        "Windows of 16 rows of 8 numbers, shuffled, batches of 32",
        nullcontext(),
        {OURS: ours, LOOP: by_hand(loop)},
        {(OURS, LOOP): 0.8},
        quick=quick,
    )


# -- JSON lines


@contextmanager
def documents(count: int) -> Iterator[str]:
    """Write a file of JSON lines with texts of several lengths."""
    draw = random.Random(SEED)
    with tempfile.TemporaryDirectory(prefix="asyncfeed-bench-") as folder:
        place = Path(folder) / "documents.jsonl"
        with place.open("w") as file:
            for number in range(count):
                words = [str(draw.randrange(30_000)) for _ in range(draw.randrange(20, 200))]
                file.write(json.dumps({"id": number, "text": " ".join(words)}) + "\n")
        yield str(place)


def tokens(record: dict[str, Any]) -> Any:
    """Tokenise a text in pure Python: some 30 to 50 us."""
    found = []
    for word in record["text"].split():
        number = 0
        for letter in word:
            number = (31 * number + ord(letter)) % 30_011
        found.append(number)
    return np.array(found, np.int32)


def padded(rows: list[Any]) -> Any:
    """Pad rows as a user would."""
    batch = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for place, row in enumerate(rows):
        batch[place, : len(row)] = row
    return batch


def json_lines(*, quick: bool) -> Section:
    """Measure JSON lines whose tokens are put into batches of like lengths."""
    bounds = [64, 96, 128, 160]

    def ours(work: str, items: int) -> Iterable[Any]:
        records = af.files(work).repeat().flat_map(af.json_lines).take(items)
        return records.map(tokens).bucket(boundaries=bounds, size=BATCH).pad()

    def loop(work: str, items: int) -> Iterator[Any]:
        buckets: list[list[Any]] = [[] for _ in range(len(bounds) + 1)]
        left = items
        while left:
            with Path(work).open() as file:
                for line in file:
                    row = tokens(json.loads(line))
                    into = buckets[sum(len(row) >= bound for bound in bounds)]
                    into.append(row)
                    if len(into) == BATCH:
                        yield padded(into)
                        into.clear()
                    left -= 1
                    if not left:
                        break
        for rest in buckets:
            if rest:
                yield padded(rest)

    return section(
        "JSON lines, tokens, `bucket` and `pad`",
        documents(2_000 if quick else 50_000),
        {OURS: ours, OURS_PROCESSES: of_processes(ours), LOOP: by_hand(loop)},
        {(OURS, LOOP): 0.9, (OURS_PROCESSES, LOOP): 1.6},
        quick=quick,
    )


# -- one child an item


def child(*, quick: bool) -> Section:
    """Measure a `flat_map` that returns one child for each item, beside a `map`."""

    def ours(_: Any, items: int) -> Iterable[Any]:
        return af.items(range(items)).flat_map(lambda item: [item]).batch(BATCH)

    def mapped(_: Any, items: int) -> Iterable[Any]:
        return af.items(range(items)).map(lambda item: item).batch(BATCH)

    return section(
        "`flat_map` with one child an item, batches of 32",
        nullcontext(),
        {OURS: ours, "map": mapped},
        {(OURS, "map"): 0.5},
        quick=quick,
    )


# -- an async function, and one that decodes

SAMPLES = np.random.default_rng(SEED).normal(size=(64, 4000)).astype(np.float32)


async def fetched(number: int) -> Any:
    """Wait as a request does."""
    await asyncio.sleep(0.005)
    return SAMPLES[number % 64]


def fetch(*, quick: bool) -> Section:
    """Measure requests of 5 ms, 128 at a time, whose answers are decoded."""

    def ours(_: Any, items: int) -> Iterable[Any]:
        return af.items(range(items)).map(fetched, concurrency=128).map(own_augment).batch(BATCH)

    def loop(_: Any, items: int) -> Iterator[Any]:
        async def main() -> list[Any]:
            places = asyncio.Semaphore(128)

            async def one(number: int) -> Any:
                async with places:
                    sample = await fetched(number)
                return own_augment(sample)

            rows = await asyncio.gather(*map(one, range(items)))
            return [np.stack(rows[at : at + BATCH]) for at in range(0, items, BATCH)]

        return iter(asyncio.run(main()))

    return section(
        "An async function of 5 ms, 128 calls at a time, a function of numpy, batches of 32",
        nullcontext(),
        {OURS: ours, OURS_PROCESSES: of_processes(ours), "asyncio.gather": by_hand(loop)},
        {(OURS, "asyncio.gather"): 1.2, (OURS_PROCESSES, "asyncio.gather"): 1.8},
        quick=quick,
    )


# -- rows of an HDF5 file


@contextmanager
def hdf5_file(rows: int) -> Iterator[str]:
    """Write a file with rows of 4 KB."""
    import h5py  # type: ignore[import-untyped,import-not-found,unused-ignore]

    with tempfile.TemporaryDirectory(prefix="asyncfeed-bench-") as folder:
        place = str(Path(folder) / "rows.h5")
        with h5py.File(place, "w") as file:
            file["x"] = np.random.default_rng(SEED).random((rows, 1000), np.float32)
        yield place


def hdf5(*, quick: bool) -> Section:
    """Measure rows of an HDF5 file, read by a function."""
    import h5py

    count = 512 if quick else 8192

    def ours(work: str, items: int) -> Iterable[Any]:
        data = h5py.File(work)["x"]
        return af.items(range(items)).map(lambda row: data[row % count], concurrency=1).batch(BATCH)

    def loop(work: str, items: int) -> Iterator[Any]:
        data = h5py.File(work)["x"]
        return stacked(data[row % count] for row in range(items))

    return section(
        "Rows of 4 KB of an HDF5 file, by a function",
        hdf5_file(count),
        {OURS: ours, LOOP: by_hand(loop)},
        {(OURS, LOOP): 0.8},
        quick=quick,
        packages=("asyncfeed", "numpy", "h5py"),
    )


# -- JPEG files with a function behind them


def flipped(image: Any, rng: np.random.Generator) -> Any:
    """Flip an image at random, and normalise it."""
    if rng.random() < 0.5:
        image = image[:, ::-1]
    return (image.astype(np.float32) - 127.5) / 63.75


def jpeg(*, quick: bool) -> Section:
    """Measure images that a function flips and normalises."""
    generator = np.random.default_rng(SEED)

    def ours(work: Any, items: int) -> Iterable[Any]:
        loaded = af.files(work.take(items)).shuffle(seed=SEED).load(af.image(size=(SIZE, SIZE)))
        return loaded.map(flipped, rng=True).batch(BATCH)

    def each(path: str) -> Any:
        return flipped(by_simplejpeg(path), generator)

    def loop(work: Any, items: int) -> Iterator[Any]:
        return stacked(map(each, work.take(items)))

    def pool(work: Any, items: int) -> Iterator[Any]:
        paths = work.take(items)
        with ThreadPoolExecutor(2) as threads:
            for at in range(0, items, BATCH):
                yield np.stack(list(threads.map(each, paths[at : at + BATCH])))

    two = "pool of 2 threads"
    return section(
        "JPEG, flipped and normalised, batches of 32",
        photos(64 if quick else 512),
        {OURS: ours, OURS_PROCESSES: of_processes(ours), LOOP: by_hand(loop), two: by_hand(pool)},
        {(OURS, two): 1.0, (OURS_PROCESSES, OURS): 1.3},
        quick=quick,
        packages=("asyncfeed", "numpy", "simplejpeg", "pillow"),
    )


ROWS = {
    "table": Row("rows of a table that name files", 60, table),
    "window": Row("windows of a series in memory", 30, window),
    "json": Row("JSON lines whose tokens are put into batches of like lengths", 60, json_lines),
    "child": Row("a `flat_map` with one child an item", 30, child),
    "fetch": Row("an async function, and one that decodes", 60, fetch),
    "hdf5": Row("rows of an HDF5 file, by a function", 40, hdf5),
    "jpeg": Row("JPEG files with a function behind them", 90, jpeg),
}


if __name__ == "__main__":
    harness.main(__doc__ or "", ROWS)
