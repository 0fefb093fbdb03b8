"""Reading straight into the batch is the same as loading and then batching: every bit, and every error."""

from __future__ import annotations

import os
import re
import zipfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.reading.uring_reader import refusal
from asyncfeed.stages.read_rows import LayoutMismatch
from asyncfeed.stages.steps import MemberError
from asyncfeed.testing import Leaks
from tests.engine.inside import as_run, place_of_batch, reads_batches
from tests.searching import searched

many = searched(40)


@pytest.fixture(autouse=True, params=["through a ring", "by threads"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test in both ways in which small files are read."""
    if request.param == "by threads":
        monkeypatch.setattr("asyncfeed.reading.uring_reader.refusal", lambda: "a test")
    elif why := refusal():
        pytest.skip(f"no io_uring: {why}")


def same(x: Any) -> Any:
    return x


def outcome(pipeline: af.Pipeline[Any]) -> list[Any]:
    """Return the batches, flattened, and at the end the error there was."""
    got: list[Any] = []
    crooked = 0
    with pipeline.open() as feed:
        try:
            for batch in feed:
                leaves = batch.values() if isinstance(batch, dict) else batch
                leaves = list(leaves) if isinstance(batch, (tuple, dict)) else [batch]
                got.append(list(batch) if isinstance(batch, dict) else type(batch))
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
    assert any(reads_batches(node) for node in as_run(finish(fused)))
    one, another = outcome(finish(fused)), outcome(finish(loaded.map(same)))
    if another and isinstance(another[-1], tuple) and isinstance(another[-1][0], type) and not another[-1][-1]:
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


npz_dtypes = st.sampled_from(["<f4", ">f8", "i8", "u1", "U3", [("a", "i4"), ("b", "f2")]])


@st.composite
def archives_like(draw: st.DrawFn) -> list[dict[str, np.ndarray]]:
    """Draw archives as a folder holds them: mostly of one kind, sometimes with a stranger among them."""
    usual = {"x": (draw(shapes), draw(npz_dtypes)), "y": (draw(shapes), draw(npz_dtypes)), "a": ((2,), "u1")}
    archives = []
    for number in range(draw(st.integers(1, 7))):
        kinds = dict(usual)
        match draw(st.integers(0, 15)):
            case 0:
                kinds["x"] = (draw(shapes), kinds["x"][1])
            case 1:
                kinds["y"] = (kinds["y"][0], draw(npz_dtypes))
            case 2:
                kinds = dict(reversed(usual.items()))
            case 3:
                del kinds["a"]
        arrays = {}
        for name, (shape, dtype) in kinds.items():
            kind, count = np.dtype(dtype), int(np.prod(shape))
            raw = np.random.default_rng(number).integers(0, 2, count * kind.itemsize, np.uint8)
            arrays[name] = raw.view(kind).reshape(shape) if count else np.empty(shape, kind)
        if draw(st.integers(0, 15)) == 0:
            arrays["x"] = np.asfortranarray(arrays["x"])
        archives.append(arrays)
    return archives


@many
@given(
    archives=archives_like(),
    size=st.integers(1, 4),
    keys=st.sampled_from([None, ("x",), ("y", "x"), ("a", "a")]),
    damage=st.one_of(st.none(), st.tuples(st.integers(0, 10_000), st.integers(1, 255))),
    compress=st.integers(0, 7),
)
def test_batches_of_archives_are_bit_equal(
    tmp_path_factory: pytest.TempPathFactory,
    archives: list[dict[str, np.ndarray]],
    size: int,
    keys: tuple[str, ...] | None,
    damage: tuple[int, int] | None,
    compress: int,
) -> None:
    """Any arrays, some of them or all; one file may be compressed, and any byte of one may be wrong."""
    folder = tmp_path_factory.mktemp("npz")
    for number, arrays in enumerate(archives):
        save = np.savez_compressed if number == compress else np.savez
        save(folder / f"{number}.npz", **arrays)
    if damage is not None:
        victim = folder / f"{len(archives) // 2}.npz"
        data = bytearray(victim.read_bytes())
        data[damage[0] % len(data)] ^= damage[1]
        victim.write_bytes(data)
    decoder = af.npz if keys is None else af.npz(keys=keys)
    files = af.files(f"{folder}/*.npz")
    leaks = Leaks()
    compare(files.load(decoder), files.load(decoder), lambda p: p.batch(size))
    assert leaks.files() == []


def test_each_byte_of_an_archive_counts_as_it_does_alone(tmp_path: Path) -> None:
    """The second file of a batch, with each of its bytes wrong in turn, gives the same batch or the same error."""
    for number in range(2):
        np.savez(tmp_path / f"{number}.npz", x=np.full(3, number, np.int16), y=np.float32(number))
    victim = tmp_path / "1.npz"
    sound = victim.read_bytes()
    paths = [str(tmp_path / "0.npz"), str(victim)]
    bad = good = 0
    for decoder in (af.npz, af.npz(keys=["y"])):
        fused, alone = reader(decoder)
        for at in range(len(sound)):
            victim.write_bytes(sound[:at] + bytes([sound[at] ^ 0x41]) + sound[at + 1 :])
            files = [af.File(path) for path in paths]
            one, another = (called(each, files) for each in (fused, alone))
            assert one == another, f"byte {at}"
            bad, good = bad + (one[0] is not dict), good + (one[0] is dict)
    assert bad > 500
    assert good > 100


def reader(decoder: Any) -> tuple[Any, Any]:
    """Return what reads a batch in one go, and what always goes the long way."""
    (node,) = as_run(af.items([af.File("a")]).load(decoder).batch(2))
    assert reads_batches(node)
    one, another = (node.steps()[1].fn for _ in range(2))  # type: ignore[union-attr]
    return one, replace(another, padding=None, _rows=Never())


class Never(dict[int, Any]):
    """Finds no file to be as expected."""

    def get(self, *_: Any) -> Any:
        raise LayoutMismatch


def called(read: Any, files: list[af.File]) -> tuple[Any, ...]:
    """Return the batch as something to compare, or the error."""
    try:
        batch = read(files, place_of_batch([0, 1]))
    except MemberError as error:
        return type(error.error), str(error.error), error.member
    except ValueError as error:
        return type(error), str(error)
    return dict, [(name, array.dtype, array.shape, array.tobytes()) for name, array in batch.items()]


@pytest.mark.parametrize("way", ["deflated", "fortran", "prefixed", "commented"])
def test_archives_of_other_kinds_go_the_long_way(tmp_path: Path, way: str) -> None:
    """Compressed, in Fortran's order, with a prefix as of an executable, or with a comment."""
    for number in range(4):
        array = np.full((2, 3), number)
        save = np.savez_compressed if way == "deflated" else np.savez
        save(tmp_path / f"{number}.npz", x=np.asfortranarray(array) if way == "fortran" else array)
        path = tmp_path / f"{number}.npz"
        if way == "prefixed":
            path.write_bytes(b"#!" * number + path.read_bytes())
        if way == "commented":
            with zipfile.ZipFile(path, "a") as archive:
                archive.comment = b"made by hand" * (number + 1)
    files = af.files(f"{tmp_path}/*.npz")
    compare(files.load(af.npz), files.load(af.npz), lambda p: p.batch(2))


def test_archives_written_at_other_times_are_read_in_one_go(tmp_path: Path) -> None:
    """The time and the checksum differ from file to file, and with `keys` what is not asked for."""
    for number in range(4):
        with zipfile.ZipFile(tmp_path / f"{number}.npz", "w") as archive:
            for name in ("x", "other"):
                out = BytesIO()
                np.save(out, np.full(5, number))
                archive.writestr(zipfile.ZipInfo(f"{name}.npy", (2001 + number, 2, 3, 4, 5, 6)), out.getvalue())
    read, _ = reader(af.npz(keys=["x"]))
    files = list(af.files(f"{tmp_path}/*.npz"))
    load_each, calls = read.load_each, []
    read = replace(read, load_each=lambda file: calls.append(file) or load_each(file))
    kind, ((name, *_, data),) = called(read, files)
    assert (kind, name, np.frombuffer(data, "i8").reshape(4, 5)[:, 0].tolist()) == (dict, "x", [0, 1, 2, 3])
    assert calls == []


def test_padded_archives_are_the_same(tmp_path: Path) -> None:
    """They go the long way."""
    for number in range(4):
        np.savez(tmp_path / f"{number}.npz", x=np.full(number, number), y=number)
    files = af.files(f"{tmp_path}/*.npz")
    compare(files.load(af.npz), files.load(af.npz), lambda p: p.batch(2).pad())


def test_trees_of_archives_and_labels(tmp_path: Path) -> None:
    """An archive's arrays stand where it stood."""
    for number in range(5):
        np.savez(tmp_path / f"{number}.npz", y=np.full(2, number), x=number)
    both = af.zip(af.items(range(5)), af.files(f"{tmp_path}/*.npz")).load(af.npz)
    fused, alone = list(both.batch(2)), list(both.map(same).batch(2))
    for (label, arrays), (other, others) in zip(fused, alone, strict=True):
        assert label.tolist() == other.tolist()
        assert list(arrays) == list(others)
        assert all((arrays[key] == others[key]).all() for key in arrays)


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
        assert not any(reads_batches(node) for node in as_run(pipeline))


@pytest.mark.parametrize(
    "between",
    [
        lambda p: p.take(7),
        lambda p: p.skip(3),
        lambda p: p.repeat(3),
        lambda p: p.skip(2).repeat(2).take(9),
        lambda p: p.repeat().take(25),
        lambda p: p.skip(2).repeat(2).skip(3),
    ],
)
def test_stages_that_see_no_sample_do_not_end_the_fusing(tmp_path: Path, between: Any) -> None:
    """They go before the load, or have nothing to do; the batches are the same."""
    for number in range(10):
        np.save(tmp_path / f"{number}.npy", np.full(3, number))
    files = af.files(f"{tmp_path}/*.npy")
    compare(files.load(af.npy), files.load(af.npy), lambda p: between(p).batch(4))


@pytest.mark.parametrize("decoder", [af.npy, af.json])
def test_a_queue_keeps_a_load_and_a_batch_apart(decoder: Any) -> None:
    pipeline = af.items([af.File("a", 1)]).load(decoder).prefetch(3).batch(2)
    assert [node.method for node in as_run(pipeline)] == ["load", "prefetch", "batch"]
    padded = af.items([np.zeros(3)]).batch(2).prefetch(3).pad(to=8)
    assert [node.method for node in as_run(padded)] == ["batch", "prefetch", "pad"]


def test_files_that_are_skipped_are_not_read(tmp_path: Path) -> None:
    """Nobody would see what is in them."""
    (tmp_path / "0.npy").write_bytes(b"broken")
    np.save(tmp_path / "1.npy", np.arange(3))
    assert [array.tolist() for array in af.files(f"{tmp_path}/*.npy").load(af.npy).skip(1)] == [[0, 1, 2]]


def test_the_description_is_printed_as_it_was_written() -> None:
    """Fusing is how it runs, not what it is; `explain` shows both calls."""
    pipeline = af.items([af.File("a.npy", 1)]).load(af.npy).batch(2).pad(value=1.0)
    assert repr(pipeline).endswith(".load(npy).batch(2).pad(value=1.0)")
    assert "load(npy).batch(2).pad(value=1.0)" in pipeline.explain()
    moved = af.items([af.File("a.npy", 1)] * 4).load(af.npy).skip(1).batch(2).explain().splitlines()
    assert moved[0].startswith("items(<list of 4>).skip(1)  ")
    assert moved[1].startswith("load(npy).batch(2)  ")


def test_a_take_after_a_load_reads_nothing_in_vain(tmp_path: Path) -> None:
    """It moves before the load."""
    np.save(tmp_path / "0.npy", np.arange(3))
    (tmp_path / "1.npy").write_bytes(b"broken")
    assert [array.tolist() for array in af.files(f"{tmp_path}/*.npy").load(af.npy).take(1)] == [[0, 1, 2]]
