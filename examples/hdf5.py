"""Rows and chunks of an HDF5 file in a new order each epoch: `python examples/hdf5.py`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import h5py
import numpy as np

import asyncfeed as af


def write(path: Path) -> None:
    """Write 2,000 rows in compressed chunks of 100. Your file goes here."""
    draw = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=draw.normal(size=(2_000, 16)), chunks=(100, 16), compression="gzip")
        file.create_dataset("label", data=draw.integers(0, 10, 2_000), chunks=(100,))


def main(path: Path) -> None:
    """Read all rows twice: one by one in an exact shuffle, and chunk by chunk, which unpacks each chunk once."""
    write(path)
    with h5py.File(path) as file:
        x, label, step = file["x"], file["label"], file["x"].chunks[0]
        rows = af.arrays({"x": x, "label": label}).shuffle(seed=1).batch(32)
        starts = af.items(range(0, len(x), step)).shuffle(seed=1)
        chunks = starts.map(lambda at: {"x": x[at : at + step], "label": label[at : at + step]}).rebatch(32)
        for name, batches in {"rows": rows, "chunks": chunks}.items():
            sums = [float(batch["x"].sum()) for batch in batches]
            print(f"{name}: {len(sums)} batches, sum {sum(sums):.3f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder, "data.h5"))
