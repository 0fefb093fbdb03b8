"""TFRecord files and examples, against TensorFlow's own writer and parser."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.errors import Corrupt

pytestmark = pytest.mark.tensorflow
RECORDS = st.lists(st.binary(max_size=2000), max_size=10)


@settings(max_examples=30)
@given(RECORDS, st.sampled_from(["", "GZIP", "ZLIB"]))
def test_what_tensorflow_writes_is_read(
    tmp_path_factory: pytest.TempPathFactory, records: list[bytes], compression: str
) -> None:
    import tensorflow as tf

    path = tmp_path_factory.mktemp("tf") / "a.tfrecord"
    with tf.io.TFRecordWriter(str(path), compression) as out:
        for record in records:
            out.write(record)
    assert list(af.files(path).flat_map(af.tfrecord)) == records
    assert [each.numpy() for each in tf.data.TFRecordDataset(str(path), compression)] == records
    if not compression:
        assert list(af.files(path).flat_map(af.tfrecord(indexed=True))) == records


def ints(values: Any) -> Any:
    import tensorflow as tf

    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def floats(values: Any) -> Any:
    import tensorflow as tf

    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def texts(values: Any) -> Any:
    import tensorflow as tf

    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def serialized(features: dict[str, Any]) -> bytes:
    import tensorflow as tf

    written: bytes = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
    return written


INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
ROWS = st.lists(
    st.tuples(
        st.lists(INT64, min_size=2, max_size=2),
        st.lists(st.floats(width=32, allow_nan=False), min_size=4, max_size=4),
        st.binary(max_size=20),
        st.lists(INT64, max_size=4),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=40)
@given(ROWS)
def test_examples_are_parsed_as_tensorflow_parses_them(rows: list[Any]) -> None:
    import tensorflow as tf

    records = [
        serialized(
            {"i": ints(i), "f": floats(f), "b": texts([b]), "ragged": ints(r), **({"d": ints([9])} if has else {})}
        )
        for i, f, b, r, has in rows
    ]
    spec = {
        "i": tf.io.FixedLenFeature([2], tf.int64),
        "f": tf.io.FixedLenFeature([2, 2], tf.float32),
        "b": tf.io.FixedLenFeature([], tf.string),
        "d": tf.io.FixedLenFeature([], tf.int64, default_value=-1),
        "ragged": tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True),
    }
    features = {
        "i": af.feature("int64", 2),
        "f": af.feature("float32", (2, 2)),
        "b": bytes,
        "d": af.feature("int64", default=-1),
    }
    parse_one, parse = af.example({**features, "ragged": af.feature("int64", (None,))}), af.example(features)
    for record in records:
        theirs = {name: value.numpy() for name, value in tf.io.parse_single_example(record, spec).items()}
        ours = parse_one(record)
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            assert np.array_equal(ours[name], value)
            assert name == "b" or ours[name].dtype == value.dtype
    del spec["ragged"]
    theirs = {name: value.numpy() for name, value in tf.io.parse_example(records, spec).items()}
    ours = parse(records)
    for name, value in theirs.items():
        assert np.array_equal(ours[name], value)


def test_where_tensorflow_refuses_a_damaged_example_so_do_we_or_the_result_is_the_same() -> None:
    """Random bytes are changed. Only TensorFlow accepts lengths that lead out of their message."""
    import tensorflow as tf

    rng = random.Random(0)
    record = serialized({"i": ints([1, -2]), "f": floats([0.5, 1.5]), "b": texts([b"one"])})
    spec = {
        "i": tf.io.FixedLenFeature([2], tf.int64),
        "f": tf.io.FixedLenFeature([2], tf.float32),
        "b": tf.io.FixedLenFeature([], tf.string),
    }
    parse = af.example({"i": af.feature("int64", 2), "f": af.feature("float32", 2), "b": bytes})
    for _ in range(2000):
        mutated = bytearray(record)
        mutated[rng.randrange(len(mutated))] = rng.randrange(256)
        try:
            theirs = {
                name: value.numpy() for name, value in tf.io.parse_single_example(bytes(mutated), spec).items()
            }
        except (tf.errors.InvalidArgumentError, UnicodeDecodeError):  # the message has the damaged name
            theirs = None
        try:
            ours: Any = parse(bytes(mutated))
        except Corrupt as error:
            ours = None
            assert theirs is None or "cut short" in str(error)
        if ours is not None:
            assert theirs is not None
            for name, value in theirs.items():
                assert np.array_equal(ours[name], value, equal_nan=name == "f"), (bytes(mutated), name)


def test_tensorflow_reads_what_is_written(tmp_path_factory: pytest.TempPathFactory) -> None:
    import tensorflow as tf

    rng = np.random.default_rng(0)
    samples = [
        {
            "x": rng.random((2, 3), dtype=np.float32),
            "label": n - 5,
            "name": f"number {n}",
            "words": [b"a", b"b"][: n % 3],
        }
        if n % 3
        else {"x": rng.random((2, 3), dtype=np.float32), "label": n - 5, "name": f"number {n}"}
        for n in range(10)
    ]
    paths = af.items(samples).to_shards(tmp_path_factory.mktemp("tf"), format="tfrecord", progress=False).paths
    spec = {
        "x": tf.io.FixedLenFeature([2, 3], tf.float32),
        "label": tf.io.FixedLenFeature([], tf.int64),
        "name": tf.io.FixedLenFeature([], tf.string),
        "words": tf.io.VarLenFeature(tf.string),
    }
    read = [tf.io.parse_single_example(record, spec) for record in tf.data.TFRecordDataset(paths)]
    for got, expected in zip(read, samples, strict=True):
        np.testing.assert_array_equal(got["x"].numpy(), expected["x"])
        assert got["label"].numpy() == expected["label"]
        assert got["name"].numpy().decode() == expected["name"]
        assert got["words"].values.numpy().tolist() == expected.get("words", [])
