"""Convert many small files into a few shards, and train from them in a new exact order in each epoch."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import asyncfeed as af


def parts(sample: tuple[np.ndarray, int]) -> dict[str, object]:
    """Return a sample as the files of an archive: an array, and a class."""
    image, label = sample
    return {"image.npy": image, "cls": label}


def decode(sample: dict[str, bytes]) -> tuple[np.ndarray, int]:
    """Return the image and the class of a sample."""
    return af.npy(sample["image.npy"]), int(sample["cls"])


with tempfile.TemporaryDirectory() as folder:
    rng = np.random.default_rng(0)
    for number in range(1000):
        np.save(Path(folder) / f"{number:04}.npy", rng.random((8, 8), dtype=np.float32))

    small = af.files(f"{folder}/*.npy").load(af.npy)
    labelled = af.zip(small, af.items(range(1000)).map(lambda number: number % 10))
    shards = labelled.map(parts).to_shards(f"{folder}/shards", max_items=300)
    print(f"{shards.items} files are {len(shards.paths)} shards now, of {shards.nbytes} bytes")

    train = af.files(shards.paths).flat_map(af.tar(indexed=True)).shuffle(seed=7).map(decode).batch(100)
    for epoch in train.epochs(2):
        labels = [labels.tolist() for _, labels in epoch]
        print(f"epoch {epoch.number} begins with the classes {labels[0][:8]}")
