"""Train a small torch model from files: shuffled, read ahead, and as tensors without a copy."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch

import asyncfeed as af


def label(image: np.ndarray) -> tuple[np.ndarray, np.float32]:
    """Return an image with its label: whether it is brighter on the left."""
    return image, np.float32(image[:, :8].mean() > image[:, 8:].mean())


with tempfile.TemporaryDirectory() as folder:
    rng = np.random.default_rng(0)
    for number in range(512):
        np.save(Path(folder) / f"{number:03}.npy", rng.random((16, 16), dtype=np.float32))

    images = af.files(f"{folder}/*.npy").split(0.75, 0.25, seed=7)
    train, test = (part.shuffle(seed=7).load(af.npy).map(label).batch(32).to_torch() for part in images)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(256, 1), torch.nn.Flatten(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(15):
        for inputs, targets in train:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    right = sum(int(((model(inputs) > 0) == (targets > 0)).sum()) for inputs, targets in test)
    print(f"{right} of 128 images of the test part have the right label")
