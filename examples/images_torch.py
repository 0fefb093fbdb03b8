"""Train a torch model on a folder of JPEG images, with one folder for each class."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import asyncfeed as af


def write_images(root: Path) -> None:
    """Write `red/0.jpg`, `green/1.jpg`, `blue/2.jpg` and so on. Any folder like it will do."""
    rng = np.random.default_rng(0)
    for number in range(300):
        name = ("red", "green", "blue")[number % 3]
        noise = rng.integers(0, 160, (*rng.integers(40, 80, 2), 3), np.uint8)
        (root / name).mkdir(exist_ok=True)
        Image.fromarray(noise + 30 * np.eye(3, dtype=np.uint8)[number % 3]).save(root / name / f"{number}.jpg")


with tempfile.TemporaryDirectory() as folder:
    write_images(Path(folder))
    images = af.image_folder(folder)
    train, test = (part.load(af.image(size=32, dtype="float32")) for part in images.split(0.8, 0.2, seed=7))
    batches = train.shuffle(seed=7).batch(32).to_torch()
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(32 * 32 * 3, len(images.class_names)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(5):
        for inputs, labels in batches:
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    right = sum(int((model(inputs).argmax(1) == labels).sum()) for inputs, labels in test.batch(32).to_torch())
    print(f"{right} of {test.size()} images are in the right class of {', '.join(images.class_names)}")
