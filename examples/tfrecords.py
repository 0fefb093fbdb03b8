"""Read TFRecord shards without TensorFlow: an exact shuffle over all shards, and batches parsed at once."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping

import numpy as np

import asyncfeed as af

FEATURES = {"image": af.feature("float32", (8, 8)), "label": "int64", "name": bytes}


def sample(number: int) -> Mapping[str, object]:
    """Return an image that shows its label, so that something can be learned."""
    image = np.zeros((8, 8), np.float32)
    image[number % 8] = 1
    return {"image": image, "label": number % 8, "name": f"image {number}"}


with tempfile.TemporaryDirectory() as folder:
    # Any TFRecord files will do. These are written here, so that the example runs as it is.
    shards = af.items(range(2000)).map(sample).to_shards(folder, format="tfrecord", max_items=500, progress=False)

    records = af.files(shards.paths).flat_map(af.tfrecord(indexed=True))
    train, test = records.split(0.9, 0.1, seed=7)
    batches = train.shuffle(seed=7).batch(100, collate=af.example(FEATURES))

    for epoch in batches.epochs(2):
        right = total = 0
        for batch in epoch:
            right += int((batch["image"].sum(axis=2).argmax(axis=1) == batch["label"]).sum())
            total += len(batch["label"])
        print(f"epoch {epoch.number}: {total} images of {len(shards.paths)} shards, {right} with their label")
    print(f"{test.size()} records are left for the test")
