"""`to_shards` into `.npy` and Parquet files: what is read is what was written, also after an interruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncfeed as af

needs_pyarrow = pytest.param(
    "parquet", marks=pytest.mark.skipif("not __import__('importlib').util.find_spec('pyarrow')")
)
FORMATS = ["npy", needs_pyarrow]


def sample(n: int) -> np.ndarray[Any, Any]:
    return np.full((2, 3), n, "<f4")


def samples_of(form: str, count: int = 20) -> af.Pipeline[Any]:
    numbers = af.items(range(count)).map(sample)
    return numbers if form == "npy" else numbers.map(lambda x: {"x": x, "label": int(x[0, 0])})


def read(form: str, paths: list[str]) -> list[int]:
    if form == "npy":
        return [int(x[0, 0]) for x in af.files(paths).load(af.npy).unbatch()] if paths else []
    return [int(row["label"]) for row in af.files(paths).flat_map(af.parquet).unbatch()]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("items", [1, 7, 20, 50])
def test_what_is_read_is_what_was_written(tmp_path: Path, form: Any, items: int) -> None:
    made = samples_of(form).to_shards(tmp_path, format=form, max_items=items, progress=False)
    assert len(made.paths) == -(-20 // items)
    assert (made.items, made.nbytes) == (20, sum(map(len, contents(tmp_path).values())))
    assert read(form, made.paths) == list(range(20))
    assert not list(tmp_path.glob(".*.index"))


@pytest.mark.parametrize("form", FORMATS)
def test_a_shard_has_no_more_than_its_size(tmp_path: Path, form: Any) -> None:
    made = samples_of(form).to_shards(tmp_path, format=form, max_bytes=248, progress=False)
    assert read(form, made.paths) == list(range(20))
    if form == "npy":  # a header of 128 bytes, and 5 rows of 24
        assert [len(each) for each in contents(tmp_path).values()] == [248] * 4
    assert len(made.paths) > 3


def test_rows_of_npy_shards_are_read_by_number_in_an_exact_shuffle(tmp_path: Path) -> None:
    made = samples_of("npy").to_shards(tmp_path, format="npy", max_items=6, progress=False)
    shards = [np.load(path, mmap_mode="r") for path in made.paths]
    assert [each.shape for each in shards] == [(6, 2, 3)] * 3 + [(2, 2, 3)]
    rows = af.concat(*map(af.arrays, shards)).shuffle(seed=1)
    order = [int(x[0, 0]) for x in rows]
    assert sorted(order) == list(range(20)) != order


@pytest.mark.parametrize(
    "value", [3, 2.5, True, np.int8(4), np.zeros(0, "<i2"), np.zeros((), ">f8"), np.array(["a", "b"])]
)
def test_rows_of_npy_shards_are_numbers_or_arrays_of_any_shape(tmp_path: Path, value: Any) -> None:
    made = af.items([value] * 5).to_shards(tmp_path, format="npy", max_items=3, progress=False)
    for path, count in zip(made.paths, (3, 2), strict=True):
        found = np.load(path)
        assert found.dtype == np.asarray(value).dtype
        assert np.array_equal(found, np.stack([np.asarray(value)] * count))


def test_columns_of_parquet_have_the_types_of_the_first_sample(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    row = {
        "int": 1, "float": 0.5, "bool": True, "text": "é", "bytes": b"\0", "f4": np.float32(0.1), "u1": np.uint8(200),
        "flag": np.bool_(True), "words": ["a", "b"], "deep": {"a": 1}, "scalar": np.array(7, "<i2"),
        "image": np.arange(12, dtype="u1").reshape(2, 2, 3), "big": np.array([1.5], ">f4"),
        "half": np.ones((1, 2), "f2"), "mask": np.array([True, False, True]),
    }  # fmt: skip
    made = af.items([row] * 3).to_shards(tmp_path, format="parquet", progress=False)
    (batch,) = af.files(made.paths).flat_map(af.parquet)
    assert list(batch) == list(row)
    for name, kind in {
        "int": "i8",
        "float": "f8",
        "bool": "?",
        "f4": "f4",
        "u1": "u1",
        "flag": "?",
        "scalar": "i2",
    }.items():
        assert (batch[name].dtype, batch[name].tolist()) == (np.dtype(kind), [row[name]] * 3)
    for name in ("image", "big", "half", "mask"):
        assert batch[name].shape == (3, *row[name].shape)
        assert batch[name].dtype == row[name].dtype.newbyteorder("=")
        assert (batch[name] == row[name]).all()
    assert (batch["text"].tolist(), batch["bytes"].tolist()) == (["é"] * 3, [b"\0"] * 3)
    assert [each.tolist() for each in batch["words"]] == [["a", "b"]] * 3
    assert batch["deep"]["a"].tolist() == [1] * 3


def test_large_rows_become_several_row_groups_with_checksums(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = af.items(range(40)).map(lambda n: {"n": n, "x": np.random.default_rng(n).random(1 << 17)})
    (path,) = rows.to_shards(tmp_path, format="parquet", progress=False).paths
    assert [parquet.read_metadata(path).row_group(each).num_rows for each in range(3)] == [16, 16, 8]
    numbers = [int(n) for batch in af.files(path).flat_map(af.parquet) for n in batch["n"]]
    assert numbers == list(range(40))


@pytest.mark.parametrize("form", FORMATS)
def test_a_pipeline_without_samples_makes_one_empty_shard(tmp_path: Path, form: Any) -> None:
    made = af.items([]).to_shards(tmp_path, format=form, progress=False)
    assert (len(made.paths), made.items) == (1, 0)
    assert read(form, made.paths) == []


@pytest.mark.parametrize("form", FORMATS)
def test_a_conversion_that_failed_goes_on_behind_its_last_shard(tmp_path: Path, form: Any) -> None:
    samples_of(form).to_shards(tmp_path / "whole", format=form, max_items=3, progress=False)
    fails = [True]

    def maybe(each: Any) -> Any:
        number = each["label"] if form == "parquet" else int(each[0, 0])
        if number == 13 and fails:
            raise OSError
        return each

    pipeline, folder = samples_of(form).map(maybe, concurrency=1), tmp_path / "parts"
    with pytest.raises(OSError):
        pipeline.to_shards(folder, format=form, max_items=3, progress=False)
    assert len(contents(folder)) == 4
    assert not list(folder.glob(".*.part"))
    fails.clear()
    assert pipeline.to_shards(folder, format=form, max_items=3, progress=False).items == 20
    assert contents(folder) == contents(tmp_path / "whole")


@pytest.mark.parametrize("form", FORMATS)
def test_a_conversion_that_goes_on_holds_to_the_first_shard(tmp_path: Path, form: Any) -> None:
    """Else shards that were written later might not fit to those before."""
    wrong = np.zeros(3, "<f4") if form == "npy" else {"x": np.zeros((2, 3), "<f4"), "label": "text"}
    fails = [True]

    def change(n: int) -> Any:
        if n == 4 and fails:
            raise OSError
        good = sample(n) if form == "npy" else {"x": sample(n), "label": n}
        return wrong if n >= 3 else good

    pipeline = af.items(range(6)).map(change, concurrency=1)
    for error in (TypeError, TypeError):
        with pytest.raises(error, match="first one") as caught:
            pipeline.to_shards(tmp_path, format=form, max_items=3, progress=False)
        assert "sample 3" in str(caught.value.__notes__)
        assert len(contents(tmp_path)) == 1


BAD: list[tuple[Any, Any, str]] = [
    ("npy", {"x": 1}, "holds arrays and numbers, not dict"),
    ("npy", "text", "holds arrays and numbers, not str"),
    (
        "npy",
        np.zeros((3, 2), "<f4"),
        r"this sample is float32 of shape \(3, 2\), the first one float32 of shape \(2, 3\)",
    ),
    ("npy", np.zeros((2, 3)), r"this sample is float64 of shape \(2, 3\)"),
    ("parquet", 1, "holds dicts of values by column, not int"),
    ("parquet", {}, "holds dicts of values by column"),
    ("parquet", {"x": sample(1)}, "a row has the columns x, the first one has x, label"),
    (
        "parquet",
        {"x": sample(1), "label": 1.5},
        "column 'label' is double in this row, and int64 in the first one",
    ),
    ("parquet", {"x": sample(1), "label": True}, "column 'label' is bool in this row"),
    ("parquet", {"x": sample(1), "label": None}, "column 'label' is None"),
    ("parquet", {"x": sample(1), "label": 1 << 70}, "column 'label': "),
    ("parquet", {"x": sample(1)[0], "label": 1}, r"column 'x' is .*shape=\[3\]"),
    (
        "parquet",
        {"x": np.zeros(0), "label": 1},
        r"column 'x': an array of float64 and shape \(0,\): write array.tolist",
    ),
    ("parquet", {"x": np.array(["a"]), "label": 1}, "column 'x': an array of <U1"),
    ("parquet", {"x": "\ud800", "label": 1}, "column 'x': "),
    ("parquet", {"x": [1, "a"], "label": 1}, "column 'x': "),
    ("parquet", {"x": object(), "label": 1}, "column 'x': "),
]


@pytest.mark.parametrize(("form", "wrong", "says"), BAD, ids=range(len(BAD)))
def test_a_sample_that_does_not_fit_is_named(tmp_path: Path, form: Any, wrong: Any, says: str) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow")
    good = list(samples_of(form, 2))
    with pytest.raises(TypeError, match=says) as caught:
        af.items([*good, wrong]).to_shards(tmp_path, format=form, max_items=1, progress=False)
    assert "sample 2" in str(caught.value.__notes__)
    assert len(contents(tmp_path)) == 2


def test_arrays_that_a_npy_file_cannot_hold_are_refused(tmp_path: Path) -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    for wrong in (np.array([None]), np.zeros(2, bfloat16)):
        with pytest.raises(TypeError, match="a .npy file cannot hold (object|bfloat16)"):
            af.items([wrong]).to_shards(tmp_path, format="npy", progress=False)
