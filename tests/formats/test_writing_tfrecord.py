"""`to_shards(format="tfrecord")`: records of bytes, and features as a `tf.train.Example`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncfeed as af

FEATURES = {
    "scores": af.feature("float32", (None,)),
    "numbers": af.feature("int64", (None,)),
    "words": af.feature(bytes, (None,)),
    "label": af.feature("int64", default=-1),
    "name": af.feature(bytes, default=b""),
}
SAMPLES = st.lists(
    st.fixed_dictionaries(
        {
            "scores": st.lists(st.floats(width=32, allow_nan=False), max_size=5).map(lambda x: np.array(x, "f4")),
            "numbers": st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5).map(lambda x: np.array(x, "i8")),
            "words": st.lists(st.binary(max_size=5), min_size=1, max_size=5),
        },
        optional={"label": st.integers(0, 300), "name": st.text(max_size=10)},
    ),
    max_size=8,
)


def written(folder: Path, samples: list[Any]) -> list[str]:
    return af.items(samples).to_shards(folder, format="tfrecord", max_items=3, progress=False).paths


@given(st.lists(st.binary(max_size=300), max_size=10))
def test_records_of_bytes_come_back(tmp_path_factory: pytest.TempPathFactory, records: list[bytes]) -> None:
    paths = written(tmp_path_factory.mktemp("shards"), records)
    assert list(af.files(paths).flat_map(af.tfrecord)) == records if paths else not records
    if paths:
        assert list(af.files(paths).flat_map(af.tfrecord(indexed=True))) == records


@given(SAMPLES)
def test_features_come_back(tmp_path_factory: pytest.TempPathFactory, samples: list[dict[str, Any]]) -> None:
    paths = written(tmp_path_factory.mktemp("shards"), samples)
    read = list(af.files(paths).flat_map(af.tfrecord(features=FEATURES))) if paths else []
    assert len(read) == len(samples)
    for got, expected in zip(read, samples, strict=True):
        assert got["scores"].tolist() == expected["scores"].tolist()
        assert got["numbers"].tolist() == expected["numbers"].tolist()
        assert got["words"].tolist() == expected["words"]
        assert got["label"] == expected.get("label", -1)
        assert got["name"] == expected.get("name", "").encode()


@pytest.mark.parametrize(("value", "feature", "expected"), [
    (True, "bool", True),
    (np.float16(0.5), "float32", 0.5),
    (0.1, "float32", np.float32(0.1)),
    (np.arange(6, dtype=np.uint8).reshape(2, 3), af.feature("uint8", (2, 3)), [[0, 1, 2], [3, 4, 5]]),
    (np.array(["a", "bc"]), af.feature(bytes, (2,)), [b"a", b"bc"]),
    ([], af.feature("int64", (None,)), []),
    (["a", b"b"], af.feature(bytes, (2,)), [b"a", b"b"]),
    (np.array([0.5, np.nan]), af.feature("float32", (2,)), [0.5, np.nan]),
])  # fmt: skip
def test_values_of_many_types_are_written(tmp_path: Path, value: Any, feature: Any, expected: Any) -> None:
    """Arrays of more than one axis are read back with `feature(dtype, shape)`."""
    paths = written(tmp_path, [{"x": value}])
    (got,) = af.files(paths).flat_map(af.tfrecord(features={"x": feature}))
    np.testing.assert_array_equal(got["x"], expected)


@pytest.mark.parametrize(("sample", "message"), [
    (5, "a TFRecord file holds bytes, or dicts of features by name, not int: write map"),
    ({1: 2}, "a TFRecord file holds bytes"),
    ({"x": np.array([0.1])}, "feature 'x': an Example has floats of 32 bits: write array.astype"),
    ({"x": 1 << 63}, "feature 'x': a value does not fit into int64"),
    ({"x": np.array([1j])}, "feature 'x': an Example has bytes, floats and whole numbers, not complex128"),
    ({"x": [b"a", None]}, "feature 'x': a list of bytes or texts has no NoneType"),
    ({"x": None}, "feature 'x': a list of bytes or texts has no NoneType"),
])  # fmt: skip
def test_what_a_record_cannot_hold_is_an_error_that_names_the_feature(
    tmp_path: Path, sample: Any, message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        written(tmp_path, [sample])
