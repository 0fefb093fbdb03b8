"""Small files into tensors, beside torch's DataLoader: `python benchmarks/torch_loader.py [kilobytes ...]`.

Both read `.npy` files from the page cache, shuffle them, and make batches of 32. The loader keeps its workers, so
their start is not measured. All contenders take turns in one process. The table has the time of each as a multiple
of asyncfeed's, as the median of all turns, and the lowest and highest turn.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import asyncfeed as af

TURNS = 7
FILES = 2048
BATCH = 32
WORKERS = (0, 1, 2, 4)


class Files(Dataset[Any]):
    """The dataset that users of torch write."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.from_numpy(np.load(self.paths[number]))


def epoch(batches: Iterable[torch.Tensor]) -> float:
    """Return the seconds that an epoch takes."""
    start = time.perf_counter()
    rows = 0
    for batch in batches:
        rows += len(batch)
    assert rows == FILES
    return time.perf_counter() - start


def contenders(folder: str) -> dict[str, Callable[[], float]]:
    """Return a function for each contender that runs an epoch."""
    ours = af.files(f"{folder}/*.npy").shuffle(seed=7).load(af.npy).batch(BATCH).to_torch()
    paths = sorted(map(str, Path(folder).glob("*.npy")))
    found = {"asyncfeed": lambda: epoch(ours)}
    for workers in WORKERS:
        loader: Any = DataLoader(
            Files(paths), batch_size=BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0
        )
        found[f"DataLoader, {workers} workers"] = lambda loader=loader: epoch(loader)
    return found


def measure(kilobytes: int) -> None:
    """Print the row of one size of files."""
    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        for number in range(FILES):
            np.save(Path(folder) / f"{number:05}.npy", rng.random(kilobytes * 256, dtype=np.float32))
        runs = contenders(folder)
        times: dict[str, list[float]] = {name: [] for name in runs}
        for turn in range(TURNS + 1):
            for name, run in runs.items():
                seconds = run()
                if turn:  # the first one starts the workers
                    times[name].append(seconds)
        own = times["asyncfeed"]
        print(f"{kilobytes} KB: asyncfeed {FILES / statistics.median(own):,.0f} files a second")
        for name in list(times)[1:]:
            ratios = [theirs / mine for theirs, mine in zip(times[name], own, strict=True)]
            print(
                f"  {name}: {statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})", flush=True
            )


if __name__ == "__main__":
    for size in map(int, sys.argv[1:] or ("4", "32", "100")):
        measure(size)
