"""WebDataset archives, shuffled exactly over all of them in each epoch: `python examples/tar.py`."""

from __future__ import annotations

import io
import tarfile
import tempfile
from pathlib import Path

import numpy as np

import asyncfeed as af


def write(folder: Path) -> None:
    """Write three archives of 100 samples: an array and a class each. Your archives go here."""
    for shard in range(3):
        with tarfile.open(folder / f"{shard}.tar", "w") as archive:
            for number in range(100 * shard, 100 * (shard + 1)):
                np.save(image := io.BytesIO(), np.full((8, 8), number, np.float32))
                for name, data in ((f"{number}.npy", image.getvalue()), (f"{number}.cls", b"%d" % (number % 10))):
                    (member := tarfile.TarInfo(name)).size = len(data)
                    archive.addfile(member, io.BytesIO(data))


def decode(sample: dict[str, bytes]) -> tuple[np.ndarray, int]:
    """Return the image and the class. The members of a sample come together, as bytes by suffix."""
    return af.npy(sample["npy"]), int(sample["cls"])


with tempfile.TemporaryDirectory() as place:
    write(Path(place))
    samples = af.files(f"{place}/*.tar").flat_map(af.tar(indexed=True))
    for epoch in samples.shuffle(seed=7).map(decode).batch(50).epochs(2):
        batches = list(epoch)
        first = sorted({int(image[0, 0]) // 100 for image in batches[0][0]})
        count = len({int(number) for images, _ in batches for number in images[:, 0, 0]})
        print(f"epoch {epoch.number}: {count} samples, and the first batch is from the archives {first}")
