"""A folder of JPEG photographs to batches of 32 images of 224 x 224, beside other libraries.

500 x 375 pixels, quality 90, shuffled, resized without keeping the aspect; uint8, height x width x channels. The
page cache is warm.

    python benchmarks/images.py [--help] [--quick] [--rows jpeg] [--markdown FILE]
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import harness
import numpy as np
from filesets import BATCH, SEED
from harness import Contender, Made, Row, Turn, WrongError
from report import Section

import asyncfeed as af

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

PACKAGES = ("asyncfeed", "numpy", "simplejpeg", "pillow", "tensorflow", "torch", "spdl_core")
SIZE = 224
WIDTH, HEIGHT = 500, 375
BITS = 12
"""An image shows its place in the set as so many bright or dark squares."""
OURS, TF, TF_SMOOTH, TORCH, SPDL, ONE = (
    "asyncfeed",
    "tf.data",
    "tf.data, antialias=True",
    "torch DataLoader",
    "SPDL",
    "one thread",
)


@dataclass(frozen=True, eq=False)
class ImageSet:
    """JPEG files, as a camera would write them."""

    paths: list[str]

    def take(self, items: int) -> list[str]:
        """Return that many paths, beginning anew where the set ends."""
        return (self.paths * (items // len(self.paths) + 1))[:items]

    def warm(self) -> None:
        """Read all files."""
        for path in self.paths:
            Path(path).read_bytes()


def photo(place: int) -> bytes:
    """Return a JPEG file with smooth shapes, some noise, and its place."""
    from PIL import Image

    random = np.random.default_rng((SEED, place))
    small = Image.fromarray(random.integers(0, 255, (24, 32, 3), np.uint8))
    smooth = np.asarray(small.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), np.float32)
    pixels = (smooth + random.normal(0, 6, smooth.shape)).clip(0, 255).astype(np.uint8)
    for bit in range(BITS):
        pixels[:48, bit * WIDTH // BITS : (bit + 1) * WIDTH // BITS] = 230 if place >> bit & 1 else 20
    made = io.BytesIO()
    Image.fromarray(pixels).save(made, "JPEG", quality=90)
    return made.getvalue()


def place_of(image: Any) -> int:
    """Return the place that an image shows."""
    row = np.asarray(image)[SIZE * 24 // HEIGHT]
    return sum(1 << bit for bit in range(BITS) if row[(2 * bit + 1) * SIZE // (2 * BITS)].mean() > 127)


@contextmanager
def photos(count: int) -> Iterator[ImageSet]:
    """Write that many files, and remove them afterwards."""
    with tempfile.TemporaryDirectory(prefix="asyncfeed-bench-") as folder:
        paths = [str(Path(folder) / f"{place:06d}.jpg") for place in range(count)]
        for place, path in enumerate(paths):
            Path(path).write_bytes(photo(place))
        yield ImageSet(paths)


def by_pillow(path: str) -> np.ndarray[Any, Any]:
    """Return an image as most programs decode it."""
    from PIL import Image

    with Image.open(path) as image:
        return np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR))


def by_simplejpeg(path: str) -> np.ndarray[Any, Any]:
    """Return an image decoded with simplejpeg at the smallest scale that is enough, and resized with Pillow."""
    from PIL import Image
    from simplejpeg import decode_jpeg

    pixels = decode_jpeg(Path(path).read_bytes(), min_height=SIZE, min_width=SIZE)
    return np.asarray(Image.fromarray(pixels).resize((SIZE, SIZE), Image.Resampling.BILINEAR))


DECODERS = {"Pillow": by_pillow, "simplejpeg": by_simplejpeg}


def check(contender: Contender, images: ImageSet, items: int = 100) -> None:
    """Raise unless every setting delivers each image once, near to what Pillow makes of it."""
    for setting, run in contender.settings.items():
        batches: list[Any] = []
        run(images, items, batches.append)
        if isinstance(run, Made):
            run.drop()
        arrays = [np.asarray(batch) for batch in batches]
        wrong = [array for array in arrays if array.shape[1:] != (SIZE, SIZE, 3) or array.dtype != np.uint8]
        if wrong or sorted(map(len, arrays)) != [items % BATCH, *[BATCH] * (items // BATCH)]:
            raise WrongError(f"{contender.name} ({setting}) made other batches")
        places = [place_of(image) for array in arrays for image in array]
        if sorted(places) != list(range(items)):
            raise WrongError(f"{contender.name} ({setting}) lost or repeated images")
        first = by_pillow(images.paths[places[0]]).astype(np.float32)
        if np.abs(first - arrays[0][0]).mean() > 4:
            raise WrongError(f"{contender.name} ({setting}) changed the pixels")


# -- contenders


def ours() -> Iterator[Contender]:
    """Yield our pipeline, with nothing set."""

    def make(images: ImageSet, items: int) -> Iterable[Any]:
        files = af.files(images.take(items)).shuffle(seed=SEED)
        return files.load(af.image(size=SIZE, resize="stretch")).batch(BATCH)

    yield Contender(OURS, {"defaults": Made(make)})


def tf_data(*, antialias: bool) -> Iterator[Contender]:
    """Yield tf.data with its own decoder; by default it resizes without a filter."""
    import tensorflow as tf

    auto = tf.data.AUTOTUNE

    def make(calls: int, ordered: bool, images: ImageSet, items: int) -> Any:
        def load(path: Any) -> Any:
            image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
            return tf.cast(tf.image.resize(image, (SIZE, SIZE), antialias=antialias), tf.uint8)

        paths = tf.data.Dataset.from_tensor_slices(images.take(items)).shuffle(items, seed=SEED)
        return paths.map(load, num_parallel_calls=calls, deterministic=ordered).batch(BATCH).prefetch(auto)

    settings = {
        f"{'AUTOTUNE' if calls == auto else calls}{'' if ordered else ' unordered'}": Made(
            partial(make, calls, ordered)
        )
        for calls in (2, 3, 4, 8, auto)
        for ordered in (True, False)
    }
    note = "parallel calls; " + ("filtered as the others do" if antialias else "each pixel of 2 x 2, unfiltered")
    yield Contender(TF_SMOOTH if antialias else TF, settings, note=note)


class Photos:
    """A map-style dataset, in a module of its own so that workers of any kind can import it."""

    def __init__(self, paths: list[str], decoder: str) -> None:
        self.paths = paths
        self.decoder = decoder

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, place: int) -> Any:
        import torch

        return torch.from_numpy(DECODERS[self.decoder](self.paths[place]).copy())


def torch() -> Iterator[Contender]:
    """Yield the DataLoader, its workers kept from epoch to epoch."""
    from torch.utils.data import DataLoader

    def make(decoder: str, workers: int, images: ImageSet, items: int) -> Any:
        data: Any = Photos(images.take(items), decoder)
        return DataLoader(data, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0)

    settings = {
        f"{decoder}, workers {count}": Made(partial(make, decoder, count))
        for decoder in DECODERS
        for count in (0, 1, 2, 4)
    }
    yield Contender(TORCH, settings, note="batches are tensors; workers live on between epochs")


def spdl() -> Iterator[Contender]:
    """Yield SPDL's engine with Pillow or simplejpeg on its threads. Its decoders need FFmpeg in the system."""
    from spdl.pipeline import PipelineBuilder

    def run(decoder: str, threads: int, images: ImageSet, items: int, consume: Callable[[Any], None]) -> None:
        paths = images.take(items)
        np.random.default_rng(SEED).shuffle(paths)
        builder: Any = PipelineBuilder().add_source(paths).pipe(DECODERS[decoder], concurrency=threads)
        pipeline = builder.aggregate(BATCH).pipe(np.stack).add_sink(4).build(num_threads=threads + 1)
        with pipeline.auto_stop():
            for batch in pipeline:
                consume(batch)

    settings = {
        f"{decoder}, threads {count}": partial(run, decoder, count) for decoder in DECODERS for count in (2, 4)
    }
    yield Contender(SPDL, settings, note="its engine calls the decoder on its threads")


def one_thread() -> Iterator[Contender]:
    """Yield a bare loop over our decoder."""

    def run(images: ImageSet, items: int, consume: Callable[[Any], None]) -> None:
        decoder = af.image(size=SIZE, resize="stretch")
        paths = images.take(items)
        for start in range(0, items, BATCH):
            some = paths[start : start + BATCH]
            consume(np.stack([decoder(Path(path).read_bytes()) for path in some]))

    yield Contender(ONE, {"bare loop": run}, note="a bare loop over our decoder")


# -- rows


def jpeg(*, quick: bool) -> Section:
    """Measure the folder."""
    section = Section("Images: a folder of JPEG", PACKAGES)
    count, seconds, most = (128, 0.2, 2) if quick else (1_024, 2.0, 7)
    makers = (
        *(ours, partial(tf_data, antialias=False), partial(tf_data, antialias=True), torch, spdl, one_thread),
    )
    with photos(count) as images:
        found, missing = harness.available(makers)
        harness.forget_heap()
        turn = Turn(before=images.warm)
        entries = [harness.enter(each, images, seconds, check=check, turn=turn) for each in found]
        times = harness.race(entries, images, most, within=120, turn=turn)
    section.tables.append(
        harness.side_by_side(entries, times, base=OURS, unit="images/s", value=lambda seconds: 1 / seconds)
    )
    section.remarks.append(f"{len(times[OURS])} turns of about {seconds:g} s each.")
    section.remarks.append(
        "tf.data resizes without a filter unless antialias=True, which is what the others do. SPDL's own decoders "
        "need the libraries of FFmpeg in the system, which are not there. So it calls Pillow or simplejpeg."
    )
    section.remarks.extend(f"{entry.name}: {entry.note}." for entry in entries if entry.note)
    section.remarks.extend(missing)
    for than, least in (((TF,), 1), ((TF_SMOOTH,), 1), ((TORCH,), 2), ((SPDL,), 1)):
        goal = harness.faster(times, OURS, than, least)
        section.goals.extend([goal] if goal else [])
    return section


ROWS = {"jpeg": Row("JPEG of 500 x 375, resized to 224 x 224, batches of 32, shuffled", 180, jpeg)}

if __name__ == "__main__":
    harness.main(__doc__ or "", ROWS)
