"""Reading straight into the batch is the same as loading and then batching: every bit, and every error."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.engine.plan import arrange
from asyncfeed.stages.load_batch import LoadBatch
from asyncfeed.testing import Leaks

many = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def same(x: Any) -> Any:
    return x


def outcome(pipeline: af.Pipeline[Any]) -> list[Any]:
    """Return the batches, flattened, and at the end the error there was."""
    got: list[Any] = []
    crooked = 0
    with pipeline.open() as feed:
        try:
            for batch in feed:
                leaves = batch if isinstance(batch, tuple) else (batch,)
                got += [(leaf.dtype, leaf.shape, leaf.tobytes()) for leaf in leaves]
                crooked += leaves[0].ctypes.data % 64 or not leaves[0].flags.writeable
        except Exception as error:
            failure = feed.failure
            assert failure is not None
            text = re.sub(r"\.batch\(.*", "", failure.stage)
            got.append((type(error), str(error), failure.key.split(" to ")[0], text.startswith("load")))
    assert not crooked
    return got


def compare(fused: af.Pipeline[Any], loaded: af.Pipeline[Any], finish: Any) -> None:
    assert any(isinstance(node, LoadBatch) for node in arrange(finish(fused).stages))
    one, another = outcome(finish(fused)), outcome(finish(loaded.map(same)))
    if another and isinstance(another[-1][0], type) and not another[-1][-1]:
        # A batch that cannot be stacked: the stages have other names, the error is the same.
        assert one[:-1] == another[:-1]
        assert one[-1][:2] == another[-1][:2]
    else:
        assert one == another


shapes = st.sampled_from([(), (0,), (3,), (4, 2), (2, 3, 2)])
dtypes = st.sampled_from(["<f4", ">f8", "i8", "u1", "?", "U3", "c8", "M8[s]", [("a", "i4"), ("b", "f2")]])


@st.composite
def arrays_like(draw: st.DrawFn) -> list[np.ndarray]:
    """Draw arrays as a folder holds them: mostly of one kind, sometimes with a stranger among them."""
    shape, dtype = draw(shapes), np.dtype(draw(dtypes))
    arrays = []
    for number in range(draw(st.integers(1, 9))):
        own, kind = shape, dtype
        if draw(st.integers(0, 9)) == 0:
            own, kind = draw(shapes), np.dtype(draw(dtypes))
        count = int(np.prod(own))
        raw = np.random.default_rng(number).integers(0, 2, count * kind.itemsize, np.uint8)
        array = raw.view(kind).reshape(own) if count else np.empty(own, kind)
        arrays.append(np.asfortranarray(array) if draw(st.integers(0, 9)) == 0 else array)
    return arrays


@many
@given(arrays=arrays_like(), size=st.integers(1, 5), drop=st.booleans(), harm=st.integers(0, 6))
def test_batches_are_bit_equal(
    tmp_path_factory: pytest.TempPathFactory, arrays: list[np.ndarray], size: int, drop: bool, harm: int
) -> None:
    """Any shapes, dtypes and orders; files that are cut short, empty, gone or changed."""
    folder = tmp_path_factory.mktemp("npy")
    paths = []
    for number, array in enumerate(arrays):
        np.save(folder / f"{number}.npy", array)
        paths.append(folder / f"{number}.npy")
    files = af.files([str(path) for path in paths])
    victim = paths[len(paths) // 2]
    if harm == 1:
        victim.unlink()
    elif harm == 2:
        victim.write_bytes(victim.read_bytes()[:-1])
    elif harm == 3:
        victim.write_bytes(b"")
        files = af.files([str(path) for path in paths])
    elif harm == 4:
        data = victim.read_bytes()
        victim.write_bytes(data[:40] + b"X" + data[41:])
        files = af.files([str(path) for path in paths])
    if harm:
        drop = False  # the files of a remainder that is dropped are not even read
    leaks = Leaks()
    compare(files.load(af.npy), files.load(af.npy), lambda p: p.batch(size, drop_remainder=drop))
    assert leaks.files() == []


@many
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=9),
    size=st.integers(1, 5),
    pad=st.sampled_from(
        [{}, {"value": 7.5}, {"to": 9}, {"to": 5}, {"multiple_of": 4}, {"lengths": True}, {"to": (9, 4)}]
    ),
)
def test_padded_batches_are_bit_equal(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], size: int, pad: dict[str, Any]
) -> None:
    """Ragged files, padded in every way."""
    folder = tmp_path_factory.mktemp("ragged")
    for number, length in enumerate(sizes):
        np.save(folder / f"{number}.npy", np.full((length, 3), number + 1, np.float32))
    files = af.files(f"{folder}/*.npy")
    compare(files.load(af.npy), files.load(af.npy), lambda p: p.batch(size).pad(**pad))


def test_trees_of_files_and_labels(tmp_path: Path) -> None:
    """Files stand anywhere in the sample; what is no file is stacked beside them."""
    for number in range(7):
        np.save(tmp_path / f"x{number}.npy", np.full((2, 2), number, np.float32))
        np.save(tmp_path / f"y{number}.npy", np.full(3, number, np.int16))
    both = af.zip(af.files(f"{tmp_path}/x*.npy"), af.files(f"{tmp_path}/y*.npy"), af.items(range(7)))
    compare(both.load(af.npy), both.load(af.npy), lambda p: p.batch(3))


@pytest.mark.parametrize("shape", [None, (-1, 2), (2, 2)])
def test_raw_files(tmp_path: Path, shape: tuple[int, ...] | None) -> None:
    """`raw` has no header: the size says what is in a file."""
    for number in range(5):
        (tmp_path / f"{number}.bin").write_bytes(np.full(4, number, "<f4").tobytes())
    files = af.files(f"{tmp_path}/*.bin")
    compare(files.load(af.raw("<f4", shape)), files.load(af.raw("<f4", shape)), lambda p: p.batch(2))


def test_a_failing_file_is_named_and_what_was_before_is_delivered(tmp_path: Path) -> None:
    """The failure is that of the file, not of the batch."""
    for number in range(8):
        np.save(tmp_path / f"{number}.npy", np.arange(number, number + 3))
    pipeline = af.files(f"{tmp_path}/*.npy").load(af.npy).batch(2)
    os.truncate(tmp_path / "5.npy", 130)
    with pipeline.open() as feed:
        assert [next(feed)[0, 0] for _ in range(2)] == [0, 2]
        with pytest.raises(af.Corrupt, match=r"5\.npy"):
            next(feed)
        failure = feed.failure
        assert failure is not None
        assert failure.key.endswith("5.npy")
        assert (failure.ordinal, failure.epoch, failure.stage) == (5, 0, "load(npy)")


def test_the_files_of_a_dropped_remainder_are_not_read(tmp_path: Path) -> None:
    """Nobody would see what is in them."""
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", np.arange(3))
    (tmp_path / "2.npy").write_bytes(b"broken")
    pipeline = af.files(f"{tmp_path}/*.npy").load(af.npy).batch(2, drop_remainder=True)
    assert [batch.shape for batch in pipeline] == [(2, 3)]


def test_stages_that_must_see_samples_end_the_fusing() -> None:
    """A map between, skipping, or another order: the sample exists on its own again."""
    files = af.items([af.File("a.npy", 1)])
    for pipeline in (
        files.load(af.npy).map(same).batch(2),
        files.load(af.npy, on_error="skip", skip_limit=3).batch(2),
        files.load(af.npy, ordered=False).batch(2),
        files.load(af.json).batch(2),
    ):
        assert not any(isinstance(node, LoadBatch) for node in arrange(pipeline.stages))


def test_the_description_is_printed_as_it_was_written() -> None:
    """Fusing is how it runs, not what it is; `explain` shows both calls."""
    pipeline = af.items([af.File("a.npy", 1)]).load(af.npy).batch(2).pad(value=1.0)
    assert repr(pipeline).endswith(".load(npy).batch(2).pad(value=1.0)")
    assert "load(npy).batch(2).pad(value=1.0)" in pipeline.explain()


def test_a_take_after_a_load_reads_nothing_in_vain(tmp_path: Path) -> None:
    """It moves before the load."""
    np.save(tmp_path / "0.npy", np.arange(3))
    (tmp_path / "1.npy").write_bytes(b"broken")
    assert [array.tolist() for array in af.files(f"{tmp_path}/*.npy").load(af.npy).take(1)] == [[0, 1, 2]]
