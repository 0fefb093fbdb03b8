"""Bad files: each is a clear error that names the file, after everything before it."""

from __future__ import annotations

import os
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.reading import sampled
from asyncfeed.testing import run_virtual
from tests.engine.failing import draw, draw_on_thread

BAD = 5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten arrays, `00.npy` to `09.npy`."""
    for number in range(10):
        np.save(tmp_path / f"{number:02}.npy", np.full(4, number, np.float32))
    return tmp_path


def listed(folder: Path) -> af.Pipeline[Any]:
    return af.files(f"{folder}/*.npy")


def check(pipeline: af.Pipeline[Any], folder: Path, kind: type[BaseException], *says: str) -> None:
    """Assert that the first five come, and then an error that names the sixth, for any schedule."""
    drawn = [run_virtual(draw(pipeline), seed=seed) for seed in range(5)]
    for each in [*drawn, draw_on_thread(pipeline)]:
        assert [int(array[0]) for array in each.items] == list(range(BAD))
        assert isinstance(each.error, kind), repr(each.error)
        path = str(folder / f"{BAD:02}.npy")
        assert path in str(each.error)
        assert each.failure.key == path
        for text in says:
            assert text in str(each.error)


def missing(path: Path) -> None:
    path.unlink()


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def grown(path: Path) -> None:
    np.save(path, np.zeros(9))


def rewritten(path: Path) -> None:
    before = path.stat().st_mtime_ns
    np.save(path, np.full(4, 77, np.float32))  # as long as before
    os.utime(path, ns=(before, before + 1))


def emptied(path: Path) -> None:
    path.write_bytes(b"")


AFTER_LISTING = {
    missing: (FileNotFoundError, []),
    directory: (IsADirectoryError, []),
    pipe: (OSError, ["not a regular file"]),
    grown: (af.Corrupt, ["changed since it was listed"]),
    rewritten: (af.Corrupt, ["changed since it was listed", "written to"]),
    emptied: (af.Corrupt, ["changed since it was listed"]),
}


@pytest.mark.parametrize("change", AFTER_LISTING, ids=lambda change: change.__name__)
def test_a_file_that_changes_between_listing_and_reading(change: Callable[[Path], None], folder: Path) -> None:
    """It is gone, is something else, or is not what was listed."""
    pipeline = listed(folder).load(af.npy)
    change(folder / f"{BAD:02}.npy")
    kind, says = AFTER_LISTING[change]
    check(pipeline, folder, kind, *says)


def save_truncated(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])


def save_header_only(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


def save_objects(path: Path) -> None:
    np.save(path, np.array([{"a": 1}, None], object), allow_pickle=True)


def save_text(path: Path) -> None:
    path.write_text("this is no array")


BROKEN = {
    emptied: ["is empty"],
    save_truncated: ["cut short"],
    save_header_only: ["cut short"],
    save_objects: ["never unpickled"],
    save_text: ["is not an .npy file"],
}


@pytest.mark.parametrize("spoil", BROKEN, ids=lambda spoil: spoil.__name__)
def test_a_file_that_is_no_whole_array(spoil: Callable[[Path], None], folder: Path) -> None:
    """`Corrupt`, with what is wrong with it."""
    spoil(folder / f"{BAD:02}.npy")
    check(listed(folder).load(af.npy), folder, af.Corrupt, *BROKEN[spoil])


@pytest.mark.parametrize("spoil", [*AFTER_LISTING, *BROKEN], ids=lambda spoil: spoil.__name__)
@pytest.mark.parametrize("pad", [False, True])
def test_a_bad_file_in_a_batch_that_is_read_in_one(
    spoil: Callable[[Path], None], pad: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`load().batch()` reads straight into the batch, and fails as reading one by one does.

    Except that one small file in 64 is looked at for other contents of the same size: `test_uring.py`. Here all are.
    """
    monkeypatch.setattr(sampled, "SAMPLED", 1)
    path = folder / f"{BAD:02}.npy"
    if spoil in BROKEN:
        spoil(path)
    batches = listed(folder).load(af.npy).batch(2)
    spoil(path)
    pipeline = batches.pad(value=0) if pad else batches
    kind, says = AFTER_LISTING.get(spoil, (af.Corrupt, [])) if spoil not in BROKEN else (af.Corrupt, [])
    for seed in range(3):
        drawn = run_virtual(draw(pipeline), seed=seed)
        assert [batch[:, 0].tolist() for batch in drawn.items] == [[0, 1], [2, 3]]
        assert isinstance(drawn.error, kind), repr(drawn.error)
        assert all(text in str(drawn.error) for text in (str(path), *says))
        assert drawn.failure.key == str(path)
        assert drawn.failure.ordinal == BAD


@pytest.mark.parametrize("other", ["float64", "longer"])
def test_files_that_make_no_batch_are_named_both_when_read_in_one(other: str, folder: Path) -> None:
    """By their paths, whatever the headers of earlier batches were."""
    array = np.full(4, BAD, np.float64) if other == "float64" else np.full(6, BAD, np.float32)
    np.save(folder / f"{BAD:02}.npy", array)
    drawn = run_virtual(draw(listed(folder).load(af.npy).batch(2)))
    assert [batch[:, 0].tolist() for batch in drawn.items] == [[0, 1], [2, 3]]
    assert isinstance(drawn.error, ValueError)
    for number in (4, 5):
        assert str(folder / f"{number:02}.npy") in str(drawn.error)


def test_a_header_that_lies_about_its_shape_allocates_nothing(folder: Path) -> None:
    """It is held against the size of the file first: a terabyte is never asked for."""
    path = folder / f"{BAD:02}.npy"
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f4", "fortran_order": False, "shape": (1 << 20, 1 << 20)}
        )
        file.write(bytes(16))
    check(listed(folder).load(af.npy), folder, af.Corrupt, "does not fit its header", "cut short")
    drawn = run_virtual(draw(listed(folder).load(af.npy).batch(2)))
    assert isinstance(drawn.error, af.Corrupt)
    path.rename(folder / "00.npy")  # as the first, which says what the others should be
    assert isinstance(run_virtual(draw(listed(folder).load(af.npy).batch(9))).error, af.Corrupt)


def test_a_file_that_may_not_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the system says, with the name."""
    path, open_file = str(folder / f"{BAD:02}.npy"), os.open

    def refuses(name: Any, *args: Any, **options: Any) -> int:
        if name == path:
            raise PermissionError(13, "Permission denied", path)
        return open_file(name, *args, **options)

    monkeypatch.setattr(os, "open", refuses)
    check(listed(folder).load(af.npy), folder, PermissionError)


def test_what_is_missing_at_the_description_fails_there(tmp_path: Path) -> None:
    """The line that wrote it raises, with the path."""
    with pytest.raises(FileNotFoundError, match="nowhere.npy"):
        af.files(tmp_path / "nowhere.npy")
    with pytest.raises(IsADirectoryError, match="directory"):
        af.files(tmp_path)
    with pytest.raises(af.PipelineError, match="matches nothing|no file"):
        af.files(f"{tmp_path}/*.npy")


# -- samples that make no batch

Pair = namedtuple("Pair", "a b")  # noqa: PYI024 - what users have


def swap(bad: int, other: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda array: other(array) if int(array[0]) == bad else array


DIFFERENT = {
    "structure": (lambda array: (array, array), "different structure"),
    "dtype": (lambda array: array.astype(np.float64), "different type"),
    "shape": (lambda array: array[:2], "different shape"),
    "kind": (lambda array: 7, "different"),
    "names": (lambda array: {"x": array}, "different structure"),
    "named tuple": (lambda array: Pair(array, 1), "different structure"),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_samples_that_differ_are_named_both(what: str, folder: Path) -> None:
    """The first of the batch and the first that differs from it, by their files; whole batches before come."""
    other, says = DIFFERENT[what]
    pipeline = listed(folder).load(af.npy).map(swap(BAD, other)).batch(2)
    for seed in range(5):
        drawn = run_virtual(draw(pipeline), seed=seed)
        assert [batch[:, 0].tolist() for batch in drawn.items] == [[0, 1], [2, 3]]
        assert isinstance(drawn.error, ValueError), repr(drawn.error)
        assert says in str(drawn.error)
        for number in (4, 5):
            assert str(folder / f"{number:02}.npy") in str(drawn.error)
        assert drawn.failure.ordinal == [4, 5]


def test_differing_samples_are_named_after_a_shuffle_too(folder: Path) -> None:
    """By the files that they come from, wherever the shuffle put them."""
    pipeline = listed(folder).shuffle(seed=3).load(af.npy).map(swap(BAD, DIFFERENT["dtype"][0])).batch(10)
    drawn = run_virtual(draw(pipeline))
    assert isinstance(drawn.error, ValueError)
    assert str(folder / f"{BAD:02}.npy") in str(drawn.error)


def test_a_tree_of_files_names_all_of_them(folder: Path, tmp_path: Path) -> None:
    """One sample of several files: the key has each, the message the one that is broken."""
    emptied(folder / f"{BAD:02}.npy")
    pairs = af.zip(listed(folder), listed(folder).skip(0)).load(af.npy)
    drawn = run_virtual(draw(pairs))
    path = str(folder / f"{BAD:02}.npy")
    assert len(drawn.items) == BAD
    assert drawn.failure.key == f"{path}, {path}"
