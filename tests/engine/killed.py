"""A program that trains, until it is killed: `python killed.py FOLDER MODE EVERY`. Started again, it goes on.

It prints a line for each batch that it has trained on: the epoch, the number and a digest of the batch.

* `file`: the feed writes its own state. Each result goes to a file that is named after the batch.
* `model`: the program saves its model and the state of the feed together. The model is a digest of all batches.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

import asyncfeed as af

EPOCHS = 4


def augment(sample: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a sample with noise, so the digest of a batch depends on its random numbers, too."""
    return sample + rng.random(sample.shape, np.float32)


def pipeline(folder: Path) -> af.Pipeline[Any]:
    """Return batches of the files, each with its number in the epoch."""
    files = af.files(f"{folder}/data/*.npy")
    return files.shuffle(seed=7).load(af.npy).map(augment, rng=True).batch(4).enumerate()


def digest_of(batch: np.ndarray) -> str:
    """Train on a batch: some milliseconds of work."""
    return hashlib.sha256(batch.tobytes() * 2000).hexdigest()


def report(*words: object) -> None:
    """Print a line that is there whole or not at all, also after a kill."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def with_a_file(folder: Path, every: int) -> None:
    """Train with the file that the feed writes."""
    (folder / "results").mkdir(exist_ok=True)
    for epoch in pipeline(folder).epochs(EPOCHS, path=folder / "feed.json", checkpoint_every=every):
        for number, batch in epoch:
            digest = digest_of(batch)
            part = folder / "results" / "part"
            part.write_text(digest)
            part.replace(folder / "results" / f"{epoch.number}-{number:04}")
            report(epoch.number, number, digest)


def with_a_model(folder: Path, every: int) -> None:
    """Train with a checkpoint of the model, which has the state of the feed in it."""
    saved = folder / "model.json"
    model, state = json.loads(saved.read_text()) if saved.exists() else ("", None)
    trained = 0
    for epoch in (epochs := pipeline(folder).epochs(EPOCHS, state=state)):
        for number, batch in epoch:
            digest = digest_of(batch)
            model = hashlib.sha256((model + digest).encode()).hexdigest()
            report(epoch.number, number, digest)
            trained += 1
            if trained % every == 0:
                save(saved, model, epochs.feed.state_dict())
        save(saved, model, epochs.feed.state_dict())


def save(place: Path, model: str, state: dict[str, Any]) -> None:
    """Replace the checkpoint as a whole."""
    part = place.with_suffix(".part")
    part.write_text(json.dumps([model, state]))
    part.replace(place)


if __name__ == "__main__":
    run = {"file": with_a_file, "model": with_a_model}[sys.argv[2]]
    run(Path(sys.argv[1]), int(sys.argv[3]))
