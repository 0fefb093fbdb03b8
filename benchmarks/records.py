"""Records of shards, beside the library that people use for each format: `python benchmarks/records.py [row ...]`.

All files are in the page cache. All contenders of a row take turns in one process. The table has the rate of each
as a multiple of the first one, as the median of all turns, and the lowest and highest turn.
"""

from __future__ import annotations

import os
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

import asyncfeed as af

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
TURNS = 3
BATCH = 32
SHARDS = 4
Contenders = dict[str, Callable[[], Iterable[Any]]]


def measure(what: str, count: int, contenders: Contenders) -> None:
    """Print the rate of each contender, which delivers `count` records in batches or one by one."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(TURNS + 1):
        for name, make in contenders.items():
            start = time.perf_counter()
            for _ in make():
                pass
            if turn:  # the first one warms up
                times[name].append(time.perf_counter() - start)
    first = next(iter(times.values()))
    print(f"\n{what}: {next(iter(times))} {count / statistics.median(first):,.0f} records a second")
    for name, seconds in list(times.items())[1:]:
        ratios = [mine / theirs for mine, theirs in zip(first, seconds, strict=True)]
        print(f"  {name}: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)


def write_tfrecords(folder: str, count: int, make: Callable[[int], Any]) -> list[str]:
    """Write shards of examples with TensorFlow."""
    import tensorflow as tf

    paths = []
    for shard in range(SHARDS):
        paths.append(f"{folder}/{shard}.tfrecord")
        with tf.io.TFRecordWriter(paths[-1]) as out:
            for number in range(shard, count, SHARDS):
                out.write(make(number).SerializeToString())
    return paths


def example(x: Any, label: int, name: bytes | None = None) -> Any:
    """Return an example of TensorFlow."""
    from tensorflow.train import BytesList, Example, Feature, Features, FloatList, Int64List

    feature = {
        "x": Feature(float_list=FloatList(value=x)),
        "label": Feature(int64_list=Int64List(value=[label])),
    }
    if name is not None:
        feature["name"] = Feature(bytes_list=BytesList(value=[name]))
    return Example(features=Features(feature=feature))


def tfrecord(floats: int, count: int) -> None:
    """Parsed batches, in order of the shards."""
    import tensorflow as tf

    rng = np.random.default_rng(0)
    spec = {
        "x": tf.io.FixedLenFeature([floats], tf.float32),
        "label": tf.io.FixedLenFeature([], tf.int64),
        "name": tf.io.FixedLenFeature([], tf.string),
    }
    wanted = {"x": af.feature("float32", (floats,)), "label": "int64", "name": bytes}
    with tempfile.TemporaryDirectory() as folder:
        paths = write_tfrecords(
            folder, count, lambda n: example(rng.random(floats, dtype=np.float32), n, b"sample %d" % n)
        )

        def theirs(reads: int | None, calls: int | None) -> Callable[[], Iterable[Any]]:
            def batches() -> Iterable[Any]:
                records = tf.data.TFRecordDataset(paths, num_parallel_reads=reads)
                parsed = records.batch(BATCH).map(
                    lambda batch: tf.io.parse_example(batch, spec), num_parallel_calls=calls
                )
                return parsed.prefetch(4).as_numpy_iterator()  # type: ignore[no-any-return]

            return batches

        files, parse = af.files(paths), af.example(wanted)
        auto = tf.data.AUTOTUNE
        measure(
            f"TFRecord, {floats} floats and 2 more features, batches of {BATCH}",
            count,
            {
                "flat_map(tfrecord(features)).batch": lambda: files.flat_map(af.tfrecord(features=wanted)).batch(
                    BATCH
                ),
                "flat_map(tfrecord).batch(collate=example)": lambda: files.flat_map(af.tfrecord).batch(
                    BATCH, collate=parse
                ),
                "interleave(tfrecord, cycle=4).batch(collate=example)": lambda: files.interleave(
                    af.tfrecord, cycle=4, block=16
                ).batch(BATCH, collate=parse),
                "tf.data": theirs(None, None),
                "tf.data, parallel calls": theirs(None, auto),
                "tf.data, parallel reads and calls": theirs(auto, auto),
            },
        )
        single = af.tfrecord(indexed=True)
        measure(
            f"TFRecord, {floats} floats, raw records by number",
            count,
            {
                "flat_map(tfrecord)": lambda: files.flat_map(af.tfrecord),
                "indexed, in order": lambda: files.flat_map(single),
                "indexed, shuffled": lambda: files.flat_map(single).shuffle(seed=1),
            },
        )
        single = af.tfrecord(features=wanted, indexed=True)
        measure(
            f"TFRecord, {floats} floats, parsed records by number",
            count,
            {
                "flat_map(tfrecord(features)).batch": lambda: files.flat_map(af.tfrecord(features=wanted)).batch(
                    BATCH
                ),
                "indexed, in order": lambda: files.flat_map(single).batch(BATCH),
                "indexed, shuffled": lambda: files.flat_map(single).shuffle(seed=1).batch(BATCH),
            },
        )


def tar(size: int, count: int) -> None:
    """Samples of an image and a class."""
    from webdataset import WebDataset

    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        samples = af.items(range(count)).map(lambda n: {"jpg": rng.bytes(size), "cls": n % 10}, concurrency=1)
        paths = samples.to_shards(folder, max_items=count // SHARDS, progress=False).paths
        files = af.files(paths)
        single = af.tar(indexed=True)

        def standard() -> Iterable[Any]:
            for path in paths:
                with tarfile.open(fileobj=BytesIO(Path(path).read_bytes())) as archive:
                    for member in archive:
                        opened = archive.extractfile(member)
                        assert opened is not None
                        yield opened.read()

        measure(
            f"tar, samples of {size // 1000} KB",
            count,
            {
                "flat_map(tar)": lambda: files.flat_map(af.tar),
                "interleave(tar, cycle=4)": lambda: files.interleave(af.tar, cycle=4),
                "webdataset": lambda: WebDataset(paths, shardshuffle=False, empty_check=False),
                "tarfile": standard,
                "indexed, shuffled": lambda: files.flat_map(single).shuffle(seed=1),
            },
        )


ROWS: dict[str, Callable[[], None]] = {
    "tfrecord": lambda: tfrecord(1024, 4000),
    "tfrecord_small": lambda: tfrecord(16, 20_000),
    "tar": lambda: tar(10_000, 8000),
    "tar_large": lambda: tar(100_000, 2000),
}


if __name__ == "__main__":
    for row in sys.argv[1:] or ROWS:
        ROWS[row]()
