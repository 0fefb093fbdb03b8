"""The ordinary program: files, a function of Python for each sample, batches.

python benchmarks/ordinary.py [--help] [--quick] [--rows double noise] [--markdown FILE]
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import harness
import numpy as np
from filesets import BATCH, SEED, FileSet, fileset
from harness import Contender, Entry, Made, Row
from report import Goal, Section

import asyncfeed as af

PACKAGES = ("asyncfeed", "numpy", "torch")
FILES = 4096
OURS, OURS_PROCESSES, APART = "asyncfeed", 'asyncfeed, on="process"', "asyncfeed, stages apart"
LOOP, POOL, HAND, TORCH = "plain loop", "pool of 2 threads", "one thread, whole batches", "torch DataLoader"


# -- what is done with each sample


def double(sample: Any) -> Any:
    """Do next to nothing: what is measured is everything else."""
    return sample * 2


def augment(sample: Any, rng: np.random.Generator) -> Any:
    """Roll a sample and add noise, as an augmentation does: some 20 to 60 us."""
    rolled = np.roll(sample, int(rng.integers(len(sample))))
    return rolled + rng.standard_normal(len(sample), np.float32)


def own_augment(sample: Any) -> Any:
    """Do the same with one generator for the process, as most programs do."""
    return augment(sample, GENERATOR)


GENERATOR = np.random.default_rng(SEED)


class Files:
    """The dataset that users of torch write."""

    def __init__(self, paths: list[str], fn: Callable[[Any], Any]) -> None:
        self.paths = paths
        self.fn = fn

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, place: int) -> Any:
        import torch

        return torch.from_numpy(self.fn(np.load(self.paths[place])))


def shuffled(files: FileSet, items: int) -> list[str]:
    """Return the paths in a random order."""
    paths = files.take(items)
    random.Random(SEED).shuffle(paths)
    return paths


# -- contenders


def contenders(fn: Callable[..., Any], alone: Callable[[Any], Any], *, rng: bool) -> Iterator[Contender]:
    """Yield our pipelines, and what users write in their place. `alone` is `fn` without our generator."""

    def ours(files: FileSet, items: int, *, on: Any = "thread", apart: bool = False) -> Iterable[Any]:
        loaded = af.files(files.take(items)).shuffle(seed=SEED).load(af.npy, on=on)
        mapped = (loaded.prefetch(64) if apart else loaded).map(fn, rng=rng, on=on)
        return (mapped.prefetch(64) if apart else mapped).batch(BATCH)

    yield Contender(OURS, {"": Made(ours)})
    yield Contender(OURS_PROCESSES, {"": Made(partial(ours, on="process"))})
    yield Contender(APART, {"": Made(partial(ours, apart=True))})

    def each(path: str) -> Any:
        return alone(np.load(path))

    def loop(files: FileSet, items: int) -> Iterator[Any]:
        rows: list[Any] = []
        for path in shuffled(files, items):
            rows.append(each(path))
            if len(rows) == BATCH:
                yield np.stack(rows)
                rows = []
        if rows:
            yield np.stack(rows)

    def pool(files: FileSet, items: int) -> Iterator[Any]:
        paths = shuffled(files, items)
        with ThreadPoolExecutor(2) as threads:
            for start in range(0, items, BATCH):
                yield np.stack(list(threads.map(each, paths[start : start + BATCH])))

    def hand(files: FileSet, items: int) -> Iterator[Any]:
        paths = shuffled(files, items)
        shape, offset = files.tail, files.offset
        for start in range(0, items, BATCH):
            some = paths[start : start + BATCH]
            batch = np.empty((len(some), *shape), np.float32)
            for place, path in enumerate(some):
                with open(path, "rb", buffering=0) as file:
                    data = file.read()
                batch[place] = alone(np.frombuffer(data, np.float32, offset=offset).reshape(shape))
            yield batch

    for name, made in ((LOOP, loop), (POOL, pool), (HAND, hand)):
        yield Contender(name, {"": _Generated(made)})


class _Generated:
    """A run over a generator that is begun anew each turn."""

    def __init__(self, make: Callable[[FileSet, int], Iterator[Any]]) -> None:
        self._make = make

    def __call__(self, files: FileSet, items: int, consume: Callable[[Any], None]) -> None:
        """Iterate."""
        for batch in self._make(files, items):
            consume(batch)


def loader(alone: Callable[[Any], Any]) -> Iterator[Contender]:
    """Yield the DataLoader, its workers kept from epoch to epoch."""
    from torch.utils.data import DataLoader

    def make(workers: int, files: FileSet, items: int) -> Any:
        data: Any = Files(files.take(items), alone)
        return DataLoader(data, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0)

    yield Contender(TORCH, {f"workers {count}": Made(partial(make, count)) for count in (0, 2)})


def measure(
    what: str,
    fn: Callable[..., Any],
    alone: Callable[[Any], Any],
    goals: dict[tuple[str, str], float],
    *,
    rng: bool,
    quick: bool,
) -> Section:
    """Measure all contenders on files of 4 KB."""
    section = Section(f"4 KB `.npy`, {what}, batches of 32", PACKAGES)
    found, missing = harness.available([partial(contenders, fn, alone, rng=rng), partial(loader, alone)])
    with fileset("small", 512 if quick else FILES) as files:
        compare(section, found, files, OURS, goals, quick=quick)
    section.remarks.extend(missing)
    return section


def compare(
    section: Section,
    contenders: Iterable[Contender],
    work: Any,
    base: str,
    goals: dict[tuple[str, str], float],
    *,
    quick: bool,
) -> None:
    """Race contenders, and note their times and the goals: how many times as fast the first of two must be."""
    seconds = 0.3 if quick else 1.0
    entries = []
    for contender in contenders:
        trials = {
            setting: harness.trial(run, work, seconds * 0.4, harness.Turn(), 1 << 20)
            for setting, run in contender.settings.items()
        }
        best = min(trials, key=trials.__getitem__)
        items = max(256, round(seconds / trials[best] / 64) * 64)
        entries.append(Entry(contender.name, contender.settings[best], best, items, harness.chosen(contender)))
    times = harness.race(entries, work, 1 if quick else 7, within=90)
    section.tables.append(
        harness.side_by_side(entries, times, base=base, unit="items/s", value=lambda each: 1 / each)
    )
    for (name, than), least in goals.items():
        if than in times:
            measured = harness.ratio(times, over=than, under=name)
            section.goals.append(
                Goal(f"{than} / {name}", f">= {least:g}", measured.show(), measured.median >= least)
            )


def doubled(*, quick: bool) -> Section:
    """Measure a function that does next to nothing."""
    goals = {(OURS, HAND): 0.8, (OURS, LOOP): 5.0, (OURS, TORCH): 4.0}
    return measure("doubled", double, double, goals, rng=False, quick=quick)


def augmented(*, quick: bool) -> Section:
    """Measure an augmentation with random numbers."""
    goals = {(OURS, HAND): 0.8, (OURS, TORCH): 2.0, (OURS_PROCESSES, HAND): 1.6}
    return measure("rolled, with noise", augment, own_augment, goals, rng=True, quick=quick)


ROWS = {
    "double": Row("a function that does next to nothing, between `load` and `batch`", 90, doubled),
    "noise": Row("an augmentation with random numbers, between `load` and `batch`", 90, augmented),
}


if __name__ == "__main__":
    harness.main(__doc__ or "", ROWS)
