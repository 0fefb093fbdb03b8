"""`load(decoder, on="process")`: the same as on threads, from files that worker processes read."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.reading.objects import ObjectStore
from asyncfeed.testing import end_kept_processes
from tests.engine import in_worker as fns
from tests.engine.inside import RemoteTraceback
from tests.unit.test_shared import same

COUNT = 70


@pytest.fixture(params=["ring", "no ring"], autouse=True)
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have workers read small files in both ways. A worker with another environment is not used again."""
    monkeypatch.setenv("ASYNCFEED_IO_URING", "0" if request.param == "no ring" else "1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file of each kind for each number."""
    rng = np.random.default_rng(0)
    for at in range(COUNT):
        name = str(tmp_path / f"{at:03}")
        np.save(name, rng.random((4, 3)))
        np.savez(name, x=rng.random(5), y=np.int64(at))
        np.save(name + ".ragged", rng.random((1 + at % 7, 2)))
        rng.random(6, np.float32).tofile(name + ".raw")
        Path(name + ".json").write_text(json.dumps({"at": at, "text": "é" * at}), "utf-8")
    return tmp_path


KINDS: dict[str, Callable[[Path, Any], af.Pipeline[Any]]] = {
    "arrays": lambda at, on: af.files(f"{at}/???.npy").load(af.npy, on=on),
    "rows": lambda at, on: af.files(f"{at}/???.npy").shuffle(seed=1).repeat(2).load(af.npy, on=on).batch(8),
    "several arrays": lambda at, on: af.files(f"{at}/*.npz").load(af.npz, on=on).batch(8),
    "raw rows": lambda at, on: af.files(f"{at}/*.raw").shuffle(seed=1).load(af.raw("float32"), on=on).batch(9),
    "padded": lambda at, on: af.files(f"{at}/*.ragged.npy").load(af.npy, on=on).batch(5).pad(lengths=True),
    "objects": lambda at, on: af.files(f"{at}/*.json").load(af.json, on=on),
    "a function": lambda at, on: af.files(f"{at}/*.json").load(fns.shout, on=on),
    "unordered": lambda at, on: af.files(f"{at}/*.json").load(fns.shout, on=on, ordered=False),
    "trees": lambda at, on: (
        af.items([{"x": af.File(f"{at}/{n:03}.npy"), "y": n} for n in range(COUNT)]).load(af.npy, on=on).batch(8)
    ),
    "lists of files": lambda at, on: af.files(f"{at}/???.npy").batch(3, collate=list).load(af.npy, on=on),
}


@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_those_of_threads(folder: Path, kind: str) -> None:
    """Whatever is decoded, with a batch behind it or without."""
    threads, processes = list(KINDS[kind](folder, "thread")), list(KINDS[kind](folder, "process"))
    if kind == "unordered":
        threads, processes = sorted(threads), sorted(processes)
    assert len(threads) > 5
    assert same(threads, processes)


def test_workers_read_and_this_process_does_not(folder: Path) -> None:
    """The function is called in other processes."""
    pids = set(af.files(f"{folder}/*.json").load(fns.pid, on="process", concurrency=2))
    assert os.getpid() not in pids
    assert 1 <= len(pids) <= 2


def damaged(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def other_shape(path: Path) -> None:
    np.save(path, np.zeros((9, 9)))


def other_type(path: Path) -> None:
    np.save(path, np.zeros((4, 3), np.int8))


def no_array(path: Path) -> None:
    path.write_bytes(b"no array")


def gone(path: Path) -> None:
    path.unlink()


def outcome(pipeline: af.Pipeline[Any]) -> list[Any]:
    """Return what came, and all that is said of the error if there was one."""
    got: list[Any] = []
    with pipeline.open() as feed:
        try:
            for each in feed:
                got.append(each.tobytes())
        except Exception as error:
            assert feed.failure is not None
            stage = re.sub(r"\.batch\(.*|, on='process'|, concurrency=1", "", feed.failure.stage)
            got += [type(error), str(error), feed.failure.key, feed.failure.ordinal, stage]
    return got


@pytest.mark.parametrize("harm", [damaged, other_shape, other_type, no_array, gone])
@pytest.mark.parametrize("batched", [True, False])
def test_errors_are_those_of_threads(folder: Path, harm: Callable[[Path], None], batched: bool) -> None:
    """The same exception with the same text, and the same items before it; its cause tells where it was raised."""
    bad = folder / "051.npy"
    sound = bad.read_bytes()
    found = []
    for on in ("thread", "process"):
        pipeline: af.Pipeline[Any] = af.items([af.File(str(each)) for each in sorted(folder.glob("???.npy"))])
        pipeline = pipeline.load(af.npy, on=on, concurrency=1)  # type: ignore[call-overload]
        pipeline = pipeline.batch(4) if batched else pipeline
        harm(bad)
        found.append(outcome(pipeline))
        bad.write_bytes(sound)
    assert found[0] == found[1]
    if not batched and harm in (other_shape, other_type):
        assert len(found[1]) == COUNT
    else:
        assert "51" in str(found[1][-3])


def test_an_error_has_the_traceback_of_its_process_as_its_cause(folder: Path) -> None:
    """As that of `map` has."""
    no_array(folder / "051.npy")
    for pipeline in (
        af.files(f"{folder}/???.npy").load(af.npy, on="process"),
        af.files(f"{folder}/???.npy").load(af.npy, on="process").batch(8),
    ):
        with pytest.raises(af.Corrupt) as raised:
            list(pipeline)
        assert isinstance(raised.value.__cause__, RemoteTraceback)
        assert "051.npy" in str(raised.value.__notes__)


def test_samples_that_fail_may_be_left_out(folder: Path) -> None:
    """They are counted as on threads."""
    no_array(folder / "051.npy")
    no_array(folder / "003.npy")
    pipeline = af.files(f"{folder}/???.npy").load(af.npy, on="process", on_error="skip", skip_limit=2)
    assert len(list(pipeline)) == COUNT - 2


def test_a_state_of_threads_goes_on_in_processes(folder: Path) -> None:
    """Where files are read is no part of what is delivered."""
    with KINDS["rows"](folder, "thread").open() as feed:
        first = [next(feed) for _ in range(5)]
        state = feed.state_dict()
    with KINDS["rows"](folder, "process").open(state=state) as feed:
        assert same(first + list(feed), list(KINDS["rows"](folder, "thread")))


def test_kept_processes_hold_nothing_of_a_run(folder: Path) -> None:
    """No descriptor of a ring or a file is left when a process has dropped its function."""
    end_kept_processes()
    list(af.items(range(3)).map(fns.square, on="process", concurrency=1))
    before = most_held()
    for _ in range(5):
        list(af.files(f"{folder}/???.npy").load(af.npy, on="process", concurrency=1).batch(8))
    deadline = time.monotonic() + 20  # a process drops its function a little after the run
    while (held := most_held()) > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert held == before
    end_kept_processes()


def most_held() -> int:
    """Return the largest number of descriptors that a child of this process has."""
    children = [each for each in map(int, filter(str.isdigit, os.listdir("/proc"))) if parent(each) == os.getpid()]
    assert children
    return max(len(os.listdir(f"/proc/{each}/fd")) for each in children)


def parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def test_what_cannot_be_done_is_said_at_once(folder: Path) -> None:
    """When the pipeline is written."""
    files = af.files(f"{folder}/*.json")
    with pytest.raises(af.PipelineError, match='load: on must be "thread" or "process", not \'loop\''):
        files.load(af.json, on="loop")  # type: ignore[call-overload]
    with pytest.raises(af.PipelineError, match="load: .* is async and runs on the event loop"):
        files.load(fns.awaited, on="process")
    with pytest.raises(af.PipelineError, match="load: .* cannot be sent to another process"):
        files.load((lambda lock: lambda data: lock)(threading.Lock()), on="process")
    with pytest.raises(af.PipelineError, match="cache: put it before .load"):
        files.load(af.json, on="process").cache("memory", max_bytes="1 MB")


def test_files_that_the_loop_reads_are_refused(folder: Path) -> None:
    """The error says what to write instead."""
    store = ObjectStore("s3://bucket", anonymous=True)
    files = [af.File(f"{at}.npy", 8, etag="1", store=store) for at in range(9)]
    late = [af.File(str(folder / "000.npy")), *files]
    with pytest.raises(af.PipelineError, match=r"load\(bytes\)\.map\(decode, on=\"process\"\)"):
        af.items(files).load(af.npy, on="process")
    with pytest.raises(af.StoreError, match=r"load\(bytes\)\.map\(decode, on=\"process\"\)"):
        list(af.items(late).load(af.npy, on="process"))
