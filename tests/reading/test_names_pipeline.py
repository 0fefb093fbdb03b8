"""Pipelines over `files(..., listing="names")` deliver what those with sizes deliver."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.reading.file import File
from asyncfeed.reading.listing import FileSpan
from asyncfeed.reading.name_list import expand_names
from asyncfeed.stages.batch import Batch
from asyncfeed.stages.load import Load
from asyncfeed.stages.loading import Measure
from asyncfeed.stages.segment import Segment
from asyncfeed.stages.steps import Work


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(100):
        np.save(tmp_path / f"{number:03}.npy", np.full((3, 2), number, np.float32))
    return tmp_path


def both(folder: Path) -> tuple[af.Pipeline[File], af.Pipeline[File]]:
    return af.files(f"{folder}/*.npy", listing="names"), af.files(f"{folder}/*.npy")


def test_the_files_have_no_size_and_no_version(folder: Path) -> None:
    names, eager = both(folder)
    assert [file.path for file in names] == [file.path for file in eager]
    assert {(file.size, file.version) for file in names} == {(None, None)}
    assert repr(names) == f"files({str(folder / '*.npy')!r}, listing='names')"


def test_everything_that_needs_numbers_works(folder: Path) -> None:
    names, eager = both(folder)
    assert names.size() == 100
    for change in (
        lambda files: files.shuffle(seed=3),
        lambda files: files.shuffle(seed=3).shard(1, 3),
        lambda files: files.split(0.9, 0.1, seed=1)[1],
        lambda files: files.shuffle(seed=1).repeat(2).skip(30),
        lambda files: files.take(7),
    ):
        one, other = change(names), change(eager)
        assert [file.path for file in one] == [file.path for file in other]
        assert one.size() == other.size()
    assert pickle.loads(pickle.dumps(names)) == names


@pytest.mark.parametrize("on", ["thread", "process"])
@pytest.mark.parametrize("kind", ["npy", "npz", "raw", "function", "ragged", "one by one", "columns"])
def test_samples_and_batches_are_the_same(tmp_path: Path, kind: str, on: Any) -> None:
    for number in range(30):
        data = np.full((2 + number % 3 * (kind == "ragged"), 2), number, np.float32)
        if kind == "npz":
            np.savez(tmp_path / f"{number:02}.x", a=data, b=data + 1)
            (tmp_path / f"{number:02}.x.npz").rename(tmp_path / f"{number:02}.x")
        elif kind == "raw":
            (tmp_path / f"{number:02}.x").write_bytes(data.tobytes())
        else:
            with (tmp_path / f"{number:02}.x").open("wb") as file:
                np.save(file, data)
    found = []
    for listing in ("names", "eager"):
        files: Any = af.files(f"{tmp_path}/*.x", listing=listing).shuffle(seed=1)
        if kind == "columns":
            files = af.zip(files, files)
        decoder = {"npz": af.npz, "raw": af.raw("float32"), "function": decode}.get(kind, af.npy)
        loaded = files.load(decoder, on=on)
        if kind == "ragged":
            loaded = loaded.batch(4).pad(lengths=True)
        elif kind != "one by one":
            loaded = loaded.batch(4)
        found.append([leaves(batch) for batch in loaded])
    assert found[0] == found[1]


def decode(data: bytes) -> Any:
    return np.frombuffer(data, np.float32, offset=128)


def leaves(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {key: leaves(each) for key, each in batch.items()}
    if isinstance(batch, tuple | list):
        return [leaves(each) for each in batch]
    return np.asarray(batch).tolist()


def test_a_state_fits_a_pipeline_of_the_same_names(folder: Path) -> None:
    def pipeline() -> af.Pipeline[Any]:
        return af.files(f"{folder}/*.npy", listing="names").shuffle(seed=1).load(af.npy).batch(10)

    whole = [batch[:, 0, 0].tolist() for batch in pipeline()]
    with pipeline().open() as feed:
        first = [next(iter(feed))[:, 0, 0].tolist() for _ in range(3)]
        state = feed.state_dict()
    np.save(folder / "000.npy", np.full((3, 2), 0, np.float32))  # written again: that is not looked at
    with pipeline().open(state=state) as feed:
        assert first + [batch[:, 0, 0].tolist() for batch in feed] == whole
    with pytest.raises(af.StateError):
        af.files(f"{folder}/*.npy").shuffle(seed=1).load(af.npy).batch(10).open(state=state)
    (folder / "100.npy").touch()
    with pytest.raises(af.StateError):
        pipeline().open(state=state)
    (folder / "100.npy").unlink()
    (folder / "050.npy").unlink()
    with pytest.raises(af.StateError):
        pipeline().open(state=state)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose sizes were looked up."""
    found: list[str] = []
    of = Measure._of

    def noted(self: Measure, file: File) -> int:
        found.append(file.path)
        return of(self, file)

    monkeypatch.setattr(Measure, "_of", noted)
    return found


@pytest.mark.parametrize("kind", ["npy", "npz"])
@pytest.mark.parametrize("ring", [True, False])
def test_no_size_is_looked_up_after_the_first_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: list[str], ring: bool, kind: str
) -> None:
    """The first batch tells the size of the others. Readers look at one file in 64, for other reasons."""
    if not ring:
        monkeypatch.setattr("asyncfeed.reading.uring_reader.refusal", lambda: "this test wants none")
    for number in range(100):
        data = np.full((3, 2), number, np.float32)
        if kind == "npz":
            np.savez(tmp_path / f"{number:03}.npz", x=data)
        else:
            np.save(tmp_path / f"{number:03}.npy", data)
    files = af.files(f"{tmp_path}/*", listing="names").shuffle(seed=1).repeat(20)
    pipeline = files.load(af.npz if kind == "npz" else af.npy, concurrency=1).batch(10)
    with pipeline.open() as feed:
        assert sum(1 for _ in feed) == 200
        assert not feed.stats().slow_paths
    assert 0 < len(measured) <= 40


def test_files_of_another_size_are_looked_up_again(tmp_path: Path, measured: list[str]) -> None:
    """What the last batch was like says nothing any more after one that was not like it."""
    for number in range(8):
        np.save(tmp_path / f"{number}.npy", np.zeros(10 + number // 4 * 90))
    names = expand_names(f"{tmp_path}/*.npy")
    node = Segment((Load(af.npy), Batch(2))).over(names)
    assert node is not None
    work = node.steps()[-1]
    assert isinstance(work, Work)
    spans = [FileSpan(names, range(at, at + 2)) for at in range(0, 8, 2)]
    for small, size in ((spans[0], 208), (spans[1], 208), (spans[2], 928), (spans[3], 928)):
        assert work.cost is not None
        assert work.measure is not None
        if small in (spans[0], spans[3]):
            assert work.cost(small) is None
            assert work.measure(small) == 2 * size
        elif small is spans[1]:
            assert work.cost(small) == work.measure(small) == 2 * size
        assert work.fn(small, SimpleNamespace(name=str)).nbytes == 2 * (size - 128)
    assert [Path(path).name for path in measured] == ["0.npy", "1.npy", "6.npy", "7.npy"]


@pytest.mark.parametrize("on", ["thread", "process"])
def test_a_folder_with_two_shapes_is_delivered_whole(tmp_path: Path, on: Any) -> None:
    for number in range(60):
        np.save(tmp_path / f"{number:02}.npy", np.full(10 + number // 30 * 5000, number))
    pipeline = af.files(f"{tmp_path}/*.npy", listing="names").load(af.npy, on=on).batch(10)
    with pipeline.open(memory_limit=1_000_000) as feed:
        assert [batch[:, 0].tolist() for batch in feed] == [list(range(at, at + 10)) for at in range(0, 60, 10)]


def test_a_file_that_is_gone_is_an_error_that_names_it(folder: Path) -> None:
    names, _ = both(folder)
    (folder / "007.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"007\.npy"):
        list(names.load(af.npy).batch(10))


def test_stores_and_manifests_tell_sizes_so_names_alone_are_refused(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("a.npy\n")
    for given, options in (("s3://bucket/*.npy", {}), (None, {"manifest": tmp_path / "list.txt"})):
        with pytest.raises(af.PipelineError, match='listing="names" is for local paths'):
            af.files(given, listing="names", **options)
