"""Batches of a few columns of Parquet files, shuffled: `python examples/parquet.py`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import asyncfeed as af


def write(folder: Path) -> None:
    """Write four files of 5,000 rows. Your files go here."""
    draw = np.random.default_rng(0)
    for number in range(4):
        x = draw.normal(size=(5_000, 8)).astype(np.float32)
        table = pa.table({"x": pa.FixedSizeListArray.from_arrays(x.ravel(), 8), "label": x.sum(1) > 0})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=1_000)


def main(folder: Path) -> None:
    """Train a linear model for one epoch."""
    write(folder)
    files = af.files(str(folder / "*.parquet")).shuffle(seed=1)
    batches = files.interleave(af.parquet(columns=["x", "label"]), cycle=2)
    weights, right, seen = np.zeros(8), 0, 0
    for batch in batches.rebatch(100):
        x, label = batch["x"], batch["label"]
        right, seen = right + np.sum((x @ weights > 0) == label), seen + len(label)
        weights += 0.1 * (label - 1 / (1 + np.exp(-x @ weights))) @ x / len(label)
    print(f"{seen} rows, {right / seen:.0%} right")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
