"""One pass over a folder of .npy files in a process that has read nothing before, and then a long run.

    python benchmarks/fresh.py FOLDER

Prints as JSON: the seconds until the first batch, with and without the import of asyncfeed, the seconds an item
from the first batch on, and the seconds an item of a run of 20 passes.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

BATCH = 32
PASSES = 20


def clocked(batches: Iterator[Any]) -> tuple[float, float]:
    """Return when the first batch was there, and the seconds an item after it."""
    next(batches)
    first = time.perf_counter()
    items = sum(map(len, batches))
    return first, (time.perf_counter() - first) / items


def main(folder: str) -> None:
    begun = time.perf_counter()
    import asyncfeed as af

    imported = time.perf_counter()
    files = af.files(f"{folder}/*.npy")
    listed = time.perf_counter()
    first, short = clocked(iter(files.shuffle(seed=1).load(af.npy).batch(BATCH)))
    _, long = clocked(iter(files.shuffle(seed=1).repeat(PASSES).load(af.npy).batch(BATCH)))
    print(json.dumps([first - listed + imported - begun, first - listed, short, long]))


if __name__ == "__main__":
    main(sys.argv[1])
