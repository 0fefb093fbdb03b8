"""Train a small Keras model on handwritten digits, read from one file per image.

Run it with `make demo`, or with `python examples/digits.py`. It writes the 1,797 real images that come with
scikit-learn as .npy files, describes two pipelines over them, trains for some epochs, and ends with what the
pipeline did and whether it kept up. It needs `asyncfeed[demo]`.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported, or it is too late

import keras
import numpy as np
from sklearn.datasets import load_digits

import asyncfeed as af

# A progress bar redraws its line, which needs a terminal, and one wide enough for it.
BARS = sys.stdout.isatty() and shutil.get_terminal_size().columns >= 100


def write_images(folder: Path) -> None:
    """Write each image as a file of its own, and two tables that say which digit it shows."""
    digits = load_digits()
    names = [f"images/{number:04}.npy" for number in range(len(digits.target))]
    order = np.random.default_rng(0).permutation(len(names))
    (folder / "images").mkdir(parents=True, exist_ok=True)
    progress = keras.utils.Progbar(len(names), unit_name="file", verbose=int(BARS))
    for name, image in zip(names, digits.images, strict=True):
        np.save(folder / name, image.astype(np.float32) / 16)
        progress.add(1)
    for table, rows in (("train.csv", order[360:]), ("validation.csv", order[:360])):
        with (folder / table).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["image", "label"])
            writer.writerows((names[row], digits.target[row]) for row in rows)


def augment(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Shift an image by up to a pixel and add a little noise: other numbers for each item and epoch."""
    down, right = rng.integers(-1, 2, size=2)
    image = np.roll(sample["image"], (down, right), axis=(0, 1))
    image = image + rng.normal(0, 0.05, image.shape).astype(np.float32)
    return {**sample, "image": image}


def for_keras(batch: dict[str, Any]) -> tuple[Any, Any]:
    """Return what `fit` takes: images with a channel, and labels."""
    return batch["image"][..., np.newaxis], batch["label"]


def make_model() -> keras.Model:
    """Return a small convolutional network."""
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.Adam(3e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def main(folder: Path, epochs: int) -> None:
    """Write the files, train, and show how it went."""
    keras.utils.set_random_seed(7)
    print(f"writing the images to {folder}")
    write_images(folder)

    images = af.table(folder / "train.csv", files="image")
    train = (
        images.shuffle(seed=7)  # another order in each epoch
        .load(af.npy)
        .map(augment, rng=True)
        .batch(32)
        .map(for_keras)
        .prefetch(4)
    )
    validation = (
        af.table(folder / "validation.csv", files="image").load(af.npy).batch(120).map(for_keras).prefetch(2)
    )
    print("the pipeline:")
    for line in train.explain().splitlines():
        stage, *how = re.split(" {2,}", line)
        print(textwrap.fill(stage, 60, initial_indent="  ", subsequent_indent="  ", break_long_words=False))
        if how:
            print(f"      {how[0]}")

    feeds: list[af.Feed[Any]] = []  # one for each pass over the training files
    history = make_model().fit(
        train.to_tf(on_open=feeds.append),
        validation_data=validation.to_tf(),
        epochs=epochs,
        shuffle=False,  # the pipeline does that
        verbose=int(BARS),
        callbacks=[] if BARS else [keras.callbacks.LambdaCallback(on_epoch_end=line_for(epochs))],
    )

    print(summary(feeds, len(images) * len(feeds)))
    accuracy = history.history["val_accuracy"][-1]
    print(verdict(feeds))
    print(f"validation accuracy: {accuracy:.1%}")
    assert accuracy >= 0.95, "expected at least 95 %"


def line_for(epochs: int) -> Callable[[int, dict[str, float]], None]:
    """Return what prints one plain line for each epoch."""

    def line(epoch: int, logs: dict[str, float]) -> None:
        accuracy, validation = logs["accuracy"], logs["val_accuracy"]
        print(f"Epoch {epoch + 1}/{epochs}: accuracy {accuracy:.1%}, validation {validation:.1%}", flush=True)

    return line


def verdict(feeds: list[af.Feed[Any]]) -> str:
    """Return in one sentence whether the pipeline was fast enough for the trainer."""
    stats = [feed.stats() for feed in feeds]
    seconds = sum(each.seconds for each in stats)
    trainer = sum(each.consumer_waited for each in stats) / seconds
    data = sum(each.producer_waited for each in stats) / seconds
    if data >= trainer:
        return f"The pipeline kept up: its data waited {data:.0%} of the time, the trainer {trainer:.0%}."
    return f"The pipeline was too slow: the trainer waited {trainer:.0%} of the time, its data {data:.0%}."


def summary(feeds: list[af.Feed[Any]], images: int) -> str:
    """Return what all passes together did, as a table."""
    stats = [feed.stats() for feed in feeds]
    seconds = sum(each.seconds for each in stats)
    nbytes = sum(each.nbytes for each in stats)
    trainer, data = sum(each.consumer_waited for each in stats), sum(each.producer_waited for each in stats)
    rows = [
        ("images", f"{images:,}", f"{images / seconds:,.0f} /s"),
        ("bytes", f"{nbytes / 1e6:.1f} MB", f"{nbytes / seconds / 1e6:.2f} MB/s"),
        ("trainer waited for data", f"{trainer:.2f} s", f"{trainer / seconds:.0%} of the time"),
        ("data waited for trainer", f"{data:.2f} s", f"{data / seconds:.0%} of the time"),
    ]
    lines = [f"{name:<25}{value:>12}{rate:>19}" for name, value, rate in rows]
    return "\n".join([f"what the pipeline did in {len(stats)} passes:", *lines])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="where to write the images (default: a temporary folder)")
    parser.add_argument("--epochs", type=int, default=15)
    options = parser.parse_args()
    if options.data is not None:
        main(options.data, options.epochs)
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary), options.epochs)
