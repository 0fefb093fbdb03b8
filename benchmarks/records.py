"""Records of shards, beside the library that people use for each format.

TFRecord: batches of 32 parsed examples, beside tf.data, and the same records by number. tar: samples of two files,
beside webdataset. All files are in the page cache, in four shards.

    python benchmarks/records.py [--help] [--quick] [--rows tfrecord] [--markdown FILE]
"""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import harness
import numpy as np
from harness import Contender, Entry, Row, WrongError
from report import Goal, Section

import asyncfeed as af

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

PACKAGES = ("asyncfeed", "numpy", "google-crc32c", "tensorflow", "webdataset")
BATCH = 32
SHARDS = 4
Make = Callable[["Shards"], Iterable[Any]]


@dataclass(frozen=True, eq=False)
class Shards:
    """Files of records."""

    paths: list[str]
    count: int
    """Number of records in all of them."""
    pipelines: dict[Make, Iterable[Any]] = field(default_factory=dict)
    """What was made of them: a pipeline is described once, and goes through many epochs."""


def run_of(make: Make) -> Callable[[Shards, int, Callable[[Any], None]], None]:
    """Return a run that goes through all records as often as the number of items says."""

    def run(shards: Shards, items: int, consume: Callable[[Any], None]) -> None:
        if make not in shards.pipelines:
            shards.pipelines[make] = make(shards)
        for _ in range(items // shards.count):
            for found in shards.pipelines[make]:
                consume(Counted(found))

    return run


class Counted:
    """A batch, or a record, as its number of records."""

    def __init__(self, found: Any) -> None:
        single = isinstance(found, bytes) or "label" not in found or np.ndim(found["label"]) == 0
        self.records = 1 if single else len(found["label"])

    def __len__(self) -> int:
        return self.records


def race(
    section: Section, shards: Shards, contenders: Iterable[Contender], *, quick: bool
) -> dict[str, list[float]]:
    """Measure contenders in turns of whole epochs, each with its best setting, and add their table."""
    entries = []
    for each in contenders:
        trials = {
            name: min(harness.cost(run, shards, shards.count) for _ in range(1 if quick else 3))
            for name, run in each.settings.items()
        }
        best = min(trials, key=trials.__getitem__)
        seconds = 0.1 if quick else 1.0
        epochs = max(1, round(seconds / (trials[best] * shards.count)))
        entries.append(Entry(each.name, each.settings[best], best, epochs * shards.count, each.note))
    times = harness.race(entries, shards, 2 if quick else 9, within=90)
    section.tables.append(
        harness.side_by_side(entries, times, base=entries[0].name, unit="records/s", value=lambda each: 1 / each)
    )
    section.remarks.extend(f"{entry.name}: {entry.note}." for entry in entries if entry.note)
    return times


# -- TFRecord


@contextmanager
def examples(floats: int, count: int) -> Iterator[Shards]:
    """Write shards of examples with TensorFlow: floats, a label and a name."""
    from tensorflow.io import TFRecordWriter
    from tensorflow.train import BytesList, Example, Feature, Features, FloatList, Int64List

    draw = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        paths = [f"{folder}/{shard}.tfrecord" for shard in range(SHARDS)]
        for shard, path in enumerate(paths):
            with TFRecordWriter(path) as out:
                for number in range(shard, count, SHARDS):
                    feature = {
                        "x": Feature(float_list=FloatList(value=draw.random(floats, dtype=np.float32))),
                        "label": Feature(int64_list=Int64List(value=[number])),
                        "name": Feature(bytes_list=BytesList(value=[b"sample %d" % number])),
                    }
                    out.write(Example(features=Features(feature=feature)).SerializeToString())
        yield Shards(paths, count)


def wanted(floats: int) -> Any:
    """Return what our parser looks for."""
    return af.example({"x": af.feature("float32", (floats,)), "label": "int64", "name": bytes})


def ours(floats: int, indexed: bool, shuffled: bool, shards: Shards) -> Iterable[Any]:
    """Return batches of our pipeline."""
    records = af.files(shards.paths).flat_map(af.tfrecord(indexed=indexed))
    return (records.shuffle(seed=1) if shuffled else records).batch(BATCH, collate=wanted(floats))


def by_sample(floats: int, shards: Shards) -> Iterable[Any]:
    """Return batches of samples that are parsed one by one."""
    return af.files(shards.paths).flat_map(af.tfrecord(features=wanted(floats))).batch(BATCH)


def taken_in_turns(floats: int, shards: Shards) -> Iterable[Any]:
    """Return batches of records of all shards."""
    records = af.files(shards.paths).interleave(af.tfrecord, cycle=SHARDS, block=16)
    return records.batch(BATCH, collate=wanted(floats))


class AsArrays:
    """A dataset of TensorFlow, as arrays."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return iter(self._dataset.as_numpy_iterator())


def tf_data(floats: int, reads: int | None, calls: int | None, shards: Shards) -> Iterable[Any]:
    """Return batches of tf.data."""
    import tensorflow as tf

    spec = {
        "x": tf.io.FixedLenFeature([floats], tf.float32),
        "label": tf.io.FixedLenFeature([], tf.int64),
        "name": tf.io.FixedLenFeature([], tf.string),
    }
    records = tf.data.TFRecordDataset(shards.paths, num_parallel_reads=reads).batch(BATCH)
    parsed = records.map(lambda batch: tf.io.parse_example(batch, spec), num_parallel_calls=calls)
    return AsArrays(parsed.prefetch(4))


def check(floats: int, shards: Shards) -> None:
    """Raise unless all give the same values."""
    batches = list(tf_data(floats, None, None, shards))
    for make in (
        partial(ours, floats, False, False),
        partial(ours, floats, True, False),
        partial(by_sample, floats),
    ):
        for one, other in zip(make(shards), batches, strict=True):
            for name in ("x", "label", "name"):
                if not np.array_equal(one[name], other[name]):
                    raise WrongError(f"{name} differs")
    labels = [label for batch in ours(floats, True, True, shards) for label in batch["label"].tolist()]
    if sorted(labels) != list(range(shards.count)):
        raise WrongError("the shuffle lost or repeated records")


def tfrecord(floats: int, count: int, *, quick: bool) -> Section:
    """Measure TFRecord."""
    section = Section(f"TFRecord: {floats:,} floats, a label and a name", PACKAGES)
    stream, turns, samples = "asyncfeed", "asyncfeed, interleave", "asyncfeed, features= and batch"
    ordered, shuffled = "asyncfeed, by number", "asyncfeed, by number, shuffled"
    auto = -1  # tf.data.AUTOTUNE
    settings = {
        f"reads {_name(reads)}, calls {_name(calls)}": run_of(partial(tf_data, floats, reads, calls))
        for reads in (None, 2, auto)
        for calls in (None, 2, auto)
    }
    with examples(floats, count // 10 if quick else count) as shards:
        check(floats, shards)
        contenders = [
            Contender(stream, {"defaults": run_of(partial(ours, floats, False, False))}),
            Contender(turns, {"cycle 4": run_of(partial(taken_in_turns, floats))}),
            Contender(samples, {"defaults": run_of(partial(by_sample, floats))}),
            Contender(ordered, {"defaults": run_of(partial(ours, floats, True, False))}),
            Contender(shuffled, {"defaults": run_of(partial(ours, floats, True, True))}),
            Contender("tf.data", settings),
        ]
        times = race(section, shards, contenders, quick=quick)
    _goal(section, harness.faster(times, stream, ["tf.data"], 1))
    _goal(section, harness.faster(times, shuffled, [stream], 0.5))
    section.remarks.append("asyncfeed: flat_map(tfrecord).batch(32, collate=example(...)), defaults.")
    return section


def _name(calls: int | None) -> str:
    return {None: "in turn", -1: "AUTOTUNE"}.get(calls, str(calls))


# -- tar


@contextmanager
def archives(size: int, count: int) -> Iterator[Shards]:
    """Write archives of samples: an image, and a class."""
    draw = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        samples = af.items(range(count)).map(lambda n: {"jpg": draw.bytes(size), "cls": n % 10}, concurrency=1)
        made = samples.to_shards(folder, max_items=-(-count // SHARDS), progress=False)
        yield Shards(made.paths, count)


def webdataset(shards: Shards) -> Iterable[Any]:
    """Return the samples of webdataset."""
    from webdataset import WebDataset

    dataset: Iterable[Any] = WebDataset(shards.paths, shardshuffle=False, empty_check=False)
    return dataset


def standard(paths: Sequence[str]) -> Iterator[bytes]:
    """Yield the members that Python's own library finds."""
    for path in paths:
        with tarfile.open(fileobj=BytesIO(Path(path).read_bytes())) as archive:
            for member in archive:
                opened = archive.extractfile(member)
                assert opened is not None
                yield opened.read()


class Pairs:
    """The members of Python's own library, two for a sample."""

    def __init__(self, shards: Shards) -> None:
        self._paths = shards.paths

    def __iter__(self) -> Iterator[dict[str, bytes]]:
        members = standard(self._paths)
        for one, other in zip(members, members, strict=True):
            yield {"jpg": one, "cls": other}


def tar(size: int, count: int, *, quick: bool) -> Section:
    """Measure tar."""
    section = Section(f"tar: samples of {size // 1000} KB", PACKAGES)
    ours, turns, shuffled = "asyncfeed", "asyncfeed, interleave", "asyncfeed, by number, shuffled"
    with archives(size, count // 10 if quick else count) as shards:
        stream = af.files(shards.paths).flat_map(af.tar)
        for one, other in zip(stream, webdataset(shards), strict=True):
            if one["jpg"] != other["jpg"] or one["cls"] != other["cls"] or one["__key__"] != other["__key__"]:
                raise WrongError("a sample differs")
        contenders = [
            Contender(ours, {"defaults": run_of(lambda shards: af.files(shards.paths).flat_map(af.tar))}),
            Contender(
                turns, {"cycle 4": run_of(lambda shards: af.files(shards.paths).interleave(af.tar, cycle=SHARDS))}
            ),
            Contender(
                shuffled,
                {
                    "defaults": run_of(
                        lambda shards: af.files(shards.paths).flat_map(af.tar(indexed=True)).shuffle(seed=1)
                    )
                },
            ),
            Contender("webdataset", {"defaults": run_of(webdataset)}),
            Contender("tarfile", {"defaults": run_of(Pairs)}, note="Python's own library, from memory"),
        ]
        times = race(section, shards, contenders, quick=quick)
    _goal(section, harness.faster(times, ours, ["webdataset"], 3))
    section.remarks.append("asyncfeed: flat_map(tar), defaults. Samples are dicts of bytes.")
    return section


def _goal(section: Section, goal: Goal | None) -> None:
    section.goals.extend([goal] if goal else [])


ROWS = {
    "tfrecord": Row("records of 4 KB, parsed batches of 32", 90, partial(tfrecord, 1024, 4_000)),
    "tfrecord_small": Row("records of 100 bytes, parsed batches of 32", 90, partial(tfrecord, 16, 20_000)),
    "tar": Row("samples of 10 KB and a class, one by one", 60, partial(tar, 10_000, 8_000)),
    "tar_large": Row("samples of 100 KB and a class, one by one", 60, partial(tar, 100_000, 2_000)),
}


if __name__ == "__main__":
    harness.main(__doc__ or "", ROWS)
