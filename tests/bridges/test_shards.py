"""`to_shards`: a pipeline in a few large files, each with an index, whole or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.errors import Corrupt, PipelineError
from asyncfeed.formats import tar as tar_module


def samples(count: int = 10) -> af.Pipeline[dict[str, Any]]:
    return af.items(range(count)).map(part_of)


def part_of(n: int) -> dict[str, Any]:
    return {"cls": n, "txt": "x" * (100 * n)}


def read(folder: Path, **options: Any) -> list[Any]:
    return list(af.files(f"{folder}/*.tar").flat_map(af.tar(**options)))


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".tar"}


PARTS = st.dictionaries(
    st.sampled_from(["bin", "txt", "cls", "deep.json", "npy", "image"]), st.binary(max_size=2000), min_size=1
)


@given(st.lists(PARTS, max_size=12), st.none() | st.integers(1, 5), st.integers(1, 20_000))
def test_what_is_read_is_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[dict[str, bytes]], items: int | None, size: int
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    made = af.items(drawn).to_shards(folder, max_items=items, max_bytes=size, progress=False)
    expected = [{"__key__": f"{n:09}", **parts} for n, parts in enumerate(drawn)]
    assert read(folder) == expected
    assert read(folder, indexed=True) == expected
    assert (made.items, made.nbytes) == (len(drawn), sum(map(os.path.getsize, made.paths)))
    for path in made.paths:
        with tarfile.open(path) as archive:
            found = len({name.partition(".")[0] for name in archive.getnames()})
        assert found <= (items or found)
        assert os.path.getsize(path) <= size or found <= 1


def test_a_part_may_be_text_a_number_an_array_or_json(tmp_path: Path) -> None:
    sample = {
        "__key__": "deep/one", "a.txt": "é", "b.cls": 3, "c.cls": np.float32(0.5), "image": np.arange(3),
        "d.npy": np.eye(2), "e.json": {"x": [1]}, "f": bytearray(b"f"),
    }  # fmt: skip
    af.items([sample]).to_shards(tmp_path, progress=False)
    (found,) = read(tmp_path)
    assert found["__key__"] == "deep/one"
    assert (found["a.txt"].decode(), found["b.cls"], found["c.cls"], found["f"]) == ("é", b"3", b"0.5", b"f")
    assert np.array_equal(af.npy(found["image.npy"]), np.arange(3))
    assert np.array_equal(af.npy(found["d.npy"]), np.eye(2))
    assert json.loads(found["e.json"]) == {"x": [1]}


@pytest.mark.skipif(find_spec("webdataset") is None, reason="needs webdataset")
def test_webdataset_finds_the_same_samples(tmp_path: Path) -> None:
    from webdataset.tariterators import group_by_keys, tar_file_expander

    theirs: list[dict[str, Any]] = []
    for path in samples().to_shards(tmp_path, max_items=4, progress=False).paths:
        with open(path, "rb") as stream:  # its own reader leaves the file open
            theirs += group_by_keys(tar_file_expander([{"url": path, "stream": stream}]))
    assert [{name: value for name, value in each.items() if name != "__url__"} for each in theirs] == read(
        tmp_path
    )


def test_the_index_is_there_and_is_the_one_that_a_scan_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples().to_shards(tmp_path, max_items=4, progress=False)
    assert [path.name for path in sorted(tmp_path.glob(".*.index"))] == [
        ".000000.tar.index", ".000001.tar.index", ".000002.tar.index",
    ]  # fmt: skip
    kept = {path.name: path.read_bytes() for path in tmp_path.glob(".*.index")}
    for name in kept:
        (tmp_path / name).unlink()
    expected = read(tmp_path, indexed=True)
    assert {path.name: path.read_bytes() for path in tmp_path.glob(".*.index")} == kept
    monkeypatch.setattr(tar_module.Tar, "scan", None)  # it is not asked for any more
    assert read(tmp_path, indexed=True) == expected


# -- interrupted


class Stop(Exception):
    pass


def test_a_conversion_that_failed_goes_on_behind_its_last_shard(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    samples(20).to_shards(whole, max_items=3, progress=False)
    calls: list[int] = []

    def fails(n: int) -> dict[str, Any]:
        calls.append(n)
        if n == 13 and len(calls) < 18:
            raise Stop
        return part_of(n)

    pipeline = af.items(range(20)).map(fails, concurrency=1)
    folder = tmp_path / "parts"
    with pytest.raises(Stop):
        pipeline.to_shards(folder, max_items=3, progress=False)
    assert visible(folder) == [f"00000{n}.tar" for n in range(4)]
    assert not list(folder.glob(".*.part"))
    calls.extend([0] * 20)
    made = pipeline.to_shards(folder, max_items=3, progress=False)
    assert made.items == 20
    assert contents(folder) == contents(whole)


def test_a_conversion_that_is_complete_is_not_made_again(tmp_path: Path) -> None:
    first = samples().to_shards(tmp_path, max_items=4, progress=False)
    before = contents(tmp_path)
    calls: list[int] = []
    again = af.items(range(10)).map(part_of).to_shards(tmp_path, max_items=4, progress=False)
    assert (again, contents(tmp_path), calls) == (first, before, [])


def test_a_shard_that_is_gone_is_made_again_and_all_behind_it(tmp_path: Path) -> None:
    samples().to_shards(tmp_path, max_items=3, progress=False)
    before = contents(tmp_path)
    (tmp_path / "000001.tar").unlink()
    assert samples().to_shards(tmp_path, max_items=3, progress=False).items == 10
    assert contents(tmp_path) == before


PROGRAM = """
import sys, time
import asyncfeed as af

def part(n):
    print(n, flush=True)
    time.sleep(0.001)
    return {"cls": n, "bin": bytes(2000)}

af.items(range(300)).map(part, concurrency=2).to_shards(sys.argv[1], max_items=7, progress=False)
"""


def test_a_process_that_is_killed_at_any_moment_leaves_whole_shards_and_is_continued(tmp_path: Path) -> None:
    program = tmp_path / "convert.py"
    program.write_text(PROGRAM)
    folder = tmp_path / "shards"
    for moment in (1, 9, 30, 64, 90, 1000):  # lines after which it is killed; the last run ends by itself
        with subprocess.Popen([sys.executable, str(program), str(folder)], stdout=subprocess.PIPE) as running:
            assert running.stdout is not None
            for _ in range(moment):
                if not running.stdout.readline():
                    break
            running.kill()
        found = read(folder) if list(folder.glob("*.tar")) else []
        assert [int(sample["cls"]) for sample in found] == list(range(len(found)))
        assert all(len(sample["bin"]) == 2000 for sample in found)
    assert running.returncode == 0 or len(found) == 300
    samples_ = [int(sample["cls"]) for sample in read(folder, indexed=True)]
    assert samples_ == list(range(300))


# -- what is shown


def test_a_bar_is_shown_if_it_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    samples().to_shards(tmp_path / "a", progress=True)
    assert "10/10" in capsys.readouterr().err
    samples().to_shards(tmp_path / "b")  # there is no terminal
    assert capsys.readouterr().err == ""


# -- errors that teach


@pytest.mark.parametrize(
    ("sample", "says"),
    [
        (b"bytes", "holds dicts of parts by name, not bytes"),
        ((1, 2), "holds dicts of parts by name, not tuple"),
        ({"__key__": "a"}, "this one has none"),
        ({"__key__": "../a", "cls": 1}, "must be a name without a dot"),
        ({"__key__": "a.b", "cls": 1}, "must be a name without a dot"),
        ({"__key__": "/a", "cls": 1}, "must be a name without a dot"),
        ({"__key__": 7, "cls": 1}, "must be a name without a dot"),
        ({"JPG": b""}, "in lower case, not 'JPG'"),
        ({"a/b": b""}, "in lower case, not 'a/b'"),
        ({"x": {"y": 1}}, "part 'x' is dict"),
        ({"x": None}, "part 'x' is NoneType"),
        ({"x": np.array([None])}, "part 'x.npy' is ndarray"),
    ],
)
def test_a_sample_that_cannot_be_written_is_named(tmp_path: Path, sample: Any, says: str) -> None:
    good = {"cls": 1}
    with pytest.raises(TypeError, match=says) as caught:
        af.items([good, good, sample]).to_shards(tmp_path, max_items=1, progress=False)
    assert "sample 2" in str(caught.value.__notes__)
    assert visible(tmp_path) == ["000000.tar", "000001.tar"]


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    pipeline = samples()
    for wrong in ("one", "{}/x", ".{}", "{} {}", "{name}", 3):
        with pytest.raises(PipelineError, match="a place for the number"):
            pipeline.to_shards(tmp_path, name=wrong)  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="format must be .*'tar'"):
        pipeline.to_shards(tmp_path, format="zip")  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="max_items must be at least 1"):
        pipeline.to_shards(tmp_path, max_items=0)
    with pytest.raises(PipelineError, match="no end"):
        pipeline.repeat().to_shards(tmp_path)
    with pytest.raises(PipelineError, match="progress must be"):
        pipeline.to_shards(tmp_path, progress="bar")  # type: ignore[arg-type]


def test_a_folder_with_shards_of_something_else_is_refused(tmp_path: Path) -> None:
    samples().to_shards(tmp_path, max_items=4, progress=False)
    before = contents(tmp_path)
    for other in (samples(11), samples().skip(1)):
        with pytest.raises(PipelineError, match=r"has shards of another pipeline.*\.shards\.json"):
            other.to_shards(tmp_path, max_items=4, progress=False)
    with pytest.raises(PipelineError, match="or of other options"):
        samples().to_shards(tmp_path, max_items=5, progress=False)
    assert contents(tmp_path) == before
    (tmp_path / ".shards.json").write_text("{")
    with pytest.raises(Corrupt, match="remove it to begin anew"):
        samples().to_shards(tmp_path, max_items=4, progress=False)
