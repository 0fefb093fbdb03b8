"""`example`: a `tf.train.Example` parsed without TensorFlow, one or a batch at a time."""

from __future__ import annotations

import pickle
import random
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.errors import Corrupt, PipelineError
from tests.formats.tfrecords import example_of, message, varint

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
FLOAT = st.floats(width=32, allow_nan=False)


def plain(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in sample.items()}


@given(
    st.lists(INT64, max_size=6),
    st.lists(FLOAT, max_size=6),
    st.lists(st.binary(max_size=9), max_size=4),
    st.booleans(),
)
def test_lists_come_as_they_were_written_packed_or_not(
    ints: list[int], floats: list[float], texts: list[bytes], packed: bool
) -> None:
    record = example_of({"i": ints, "f": floats, "b": texts, "unknown": [1]}, packed=packed)
    parse = af.example(
        {
            "i": af.feature("int64", (None,)),
            "f": af.feature("float32", (None,)),
            "b": af.feature(bytes, (None,)),
        }
    )
    for _ in range(2):  # the second time the layout of the record is known
        assert plain(parse(record)) == {"i": ints, "f": floats, "b": texts}


@given(
    st.lists(st.tuples(INT64, st.tuples(FLOAT, FLOAT, FLOAT, FLOAT), st.binary(max_size=5)), max_size=30),
    st.booleans(),
)
def test_a_batch_is_its_records_one_by_one(rows: list[tuple[int, tuple[float, ...], bytes]], packed: bool) -> None:
    records = [example_of({"i": [i], "f": list(f), "b": [b]}, packed=packed) for i, f, b in rows]
    parse = af.example({"i": "int64", "f": af.feature("float32", (2, 2)), "b": bytes})
    batch = parse(records)
    singles = [parse(record) for record in records]
    for name in ("i", "f", "b"):
        assert [each.tolist() if hasattr(each, "tolist") else each for each in batch[name]] == [
            single[name].tolist() if hasattr(single[name], "tolist") else single[name] for single in singles
        ]
    assert (batch["i"].dtype, batch["f"].dtype, batch["f"].shape) == ("int64", "float32", (len(rows), 2, 2))
    found, error = parse.rows(records, "a", 0)
    assert error is None
    assert list(map(plain, found)) == list(map(plain, singles))


@pytest.mark.parametrize(
    ("dtype", "values", "found"),
    [
        ("uint8", [0, 255], [0, 255]),
        ("bool", [0, 1], [False, True]),
        ("int32", [-5, 7], [-5, 7]),
        ("float64", [0.5, -2.0], [0.5, -2.0]),
        ("float16", [0.5, -2.0], [0.5, -2.0]),
    ],
)
def test_numbers_are_read_as_the_dtype_that_was_asked_for(dtype: str, values: Any, found: Any) -> None:
    sample = af.example({"x": af.feature(dtype, (2,))})(example_of({"x": values}))
    assert sample["x"].dtype == dtype
    assert sample["x"].tolist() == found


@pytest.mark.parametrize(("dtype", "value"), [("uint8", 256), ("uint8", -1), ("int32", 1 << 31), ("bool", 2)])
def test_a_number_that_does_not_fit_is_an_error(dtype: str, value: int) -> None:
    records = [example_of({"x": [value]})] * 9
    parse = af.example({"x": dtype})
    for given_ in (records[0], records):
        with pytest.raises(Corrupt, match=f"feature 'x': a value does not fit into {dtype}"):
            parse(given_)


def test_defaults_take_the_place_of_what_is_missing() -> None:
    parse = af.example(
        {
            "a": af.feature("int64", default=7),
            "b": af.feature("float32", (2,), default=0.5),
            "c": af.feature(bytes, default=b"none"),
            "d": af.feature("int64", (None,)),
        }
    )
    empty = b""
    assert plain(parse(empty)) == {"a": 7, "b": [0.5, 0.5], "c": b"none", "d": []}
    assert plain(parse(example_of({"a": [], "b": [], "c": []}))) == {
        "a": 7,
        "b": [0.5, 0.5],
        "c": b"none",
        "d": [],
    }
    first, second = parse(empty), parse(empty)
    first["b"][0] = 9
    assert second["b"][0] == 0.5
    batch = af.example({"a": af.feature("int64", default=7)})([empty, example_of({"a": [1]}), empty, empty, empty])
    assert batch["a"].tolist() == [7, 1, 7, 7, 7]


@pytest.mark.parametrize(
    ("features", "record", "says"),
    [
        ({"x": "int64"}, b"", "feature 'x': the record does not have it, and there is no default"),
        ({"x": "int64"}, example_of({"x": [1, 2]}), "feature 'x': it has 2 values, and 1 are expected"),
        ({"x": "int64"}, example_of({"x": [1.0]}), "feature 'x': it has values of float, and not of int64"),
        ({"x": bytes}, example_of({"x": [1]}), "feature 'x': it has values of int64, and not of bytes"),
        (
            {"x": af.feature("int64", (None, 2))},
            example_of({"x": [1, 2, 3]}),
            "feature 'x': 3 values are no rows of 2",
        ),
        ({"x": "int64"}, b"\x0a\xff", "is not a tf.train.Example"),
        ({"x": "int64"}, b"\x0b", "is of the unknown kind 3"),
        ({"x": "int64"}, b"\x80" * 11, "more than ten bytes"),
    ],
)
def test_what_does_not_fit_is_an_error_that_names_it(features: Any, record: bytes, says: str) -> None:
    with pytest.raises(Corrupt, match=re.escape(says)):
        af.example(features)(record)


def test_the_last_entry_of_a_name_counts_and_fields_may_come_in_pieces() -> None:
    entry = [message(1, message(1, b"x") + message(2, message(3, message(1, varint(n))))) for n in (1, 2)]
    parse = af.example({"x": "int64"})
    assert parse(message(1, b"".join(entry)))["x"] == 2
    assert parse(message(1, entry[0]) + message(1, entry[1]))["x"] == 2
    split = message(1, message(1, b"x") + message(2, message(3, message(1, varint(1)) + b"\x08" + varint(300))))
    assert af.example({"x": af.feature("int64", (2,))})(message(1, split))["x"].tolist() == [1, 300]


def test_ten_thousand_mutations_give_a_sample_or_a_clear_error() -> None:
    rng = random.Random(0)
    record = example_of({"i": [1, -2, 300], "f": [0.5, 1.5], "b": [b"one", b"two"], "other": [7]})
    parse = af.example(
        {"i": af.feature("int64", (3,)), "f": af.feature("float32", (2,)), "b": af.feature(bytes, (None,))}
    )
    for _ in range(10_000):
        mutated = bytearray(record)
        for _ in range(rng.randrange(1, 4)):
            mutated[rng.randrange(len(mutated))] = rng.randrange(256)
        cut = bytes(mutated[: rng.randrange(len(mutated) + 1)] if rng.random() < 0.3 else mutated)
        try:
            sample = parse(cut)
        except Corrupt:
            continue
        assert (sample["i"].shape, sample["f"].shape) == ((3,), (2,))
        assert all(isinstance(each, bytes) for each in sample["b"])


def test_it_is_a_stage_of_a_pipeline_in_both_ways() -> None:
    records = [example_of({"x": [float(n), 1.0], "n": [n]}) for n in range(10)]
    parse = af.example({"x": af.feature("float32", (2,)), "n": "int64"})
    for batches in (af.items(records).map(parse).batch(4), af.items(records).batch(4, collate=parse)):
        found = list(batches)
        assert [batch["n"].tolist() for batch in found] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert found[1]["x"].tolist() == [[4, 1], [5, 1], [6, 1], [7, 1]]
    again = pickle.loads(pickle.dumps(parse))
    assert again == parse
    assert plain(again(records[3])) == plain(parse(records[3]))


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(PipelineError, match="any length, so a list of records makes no array"):
        af.example({"x": af.feature("int64", (None,))})([b"", b""])
    for shape in ((2, None), (-1,), ("x",), (True,), (None, 0)):
        with pytest.raises(PipelineError, match="feature: "):
            af.feature("int64", shape)
    for default in (b"x", [1, 2], 0.5, "x"):
        with pytest.raises(PipelineError, match="does not fit"):
            af.feature("int64", (), default=default)
    with pytest.raises(PipelineError, match="the dtype must be bytes, or"):
        af.feature(str)
    with pytest.raises(TypeError, match="takes a record as bytes"):
        af.example({"x": "int64"})("text")  # type: ignore[call-overload]
    assert np.array_equal(af.feature("int64", (2,), default=1).missing(), [1, 1])
