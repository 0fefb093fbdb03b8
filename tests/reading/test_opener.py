"""`Opener`: many local files opened one after the other, some of them ahead."""

from __future__ import annotations

import errno
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.reading import opener as module
from asyncfeed.reading.opener import MAX_FILES_AHEAD, MAX_THREADS_AHEAD, Opener
from asyncfeed.testing import Leaks

COUNT = 3 * MAX_FILES_AHEAD + 1


@pytest.fixture(autouse=True)
def _by_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open files by calls of threads, and not through io_uring."""
    monkeypatch.setattr("asyncfeed.reading.uring_reader.refusal", lambda: "a test")


@pytest.fixture
def files(tmp_path: Path) -> list[af.File]:
    for number in range(COUNT):
        (tmp_path / f"{number:02}").write_bytes(b"%02d" % number)
    return list(af.files(f"{tmp_path}/*"))


def opener(*, waits: bool) -> Opener:
    made = Opener()
    made.waits = waits
    return made


@pytest.fixture
def hints(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the descriptors that the system got a hint for."""
    given: list[int] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, *_: given.append(fd), raising=False)
    monkeypatch.setattr(module, "HINTS", True)
    return given


@pytest.mark.parametrize("waits", [True, False])
def test_files_come_open_and_in_order_and_are_closed(files: list[af.File], waits: bool) -> None:
    leaks = Leaks()
    most = 0
    for file, fd in zip(files, opener(waits=waits).open(files), strict=True):
        assert isinstance(fd, int)
        assert os.pread(fd, 10, 0).decode() == Path(file.path).name
        most = max(most, len(leaks.files()))
    assert most == (MAX_FILES_AHEAD if waits else 1)
    assert leaks.files() == []


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("missing", [0, 1, MAX_FILES_AHEAD, COUNT - 1])
def test_a_missing_file_is_an_error_in_its_place(files: list[af.File], waits: bool, missing: int) -> None:
    """The others come, and all are closed."""
    leaks = Leaks()
    files[missing] = af.File(files[missing].path + "-none")
    opened = list(opener(waits=waits).open(files))
    (error,) = [each for each in opened if isinstance(each, OSError)]
    assert opened.index(error) == missing
    assert isinstance(error, FileNotFoundError)
    assert error.filename == files[missing].path
    assert leaks.files() == []


def test_a_file_that_cannot_be_opened_ahead_is_opened_when_its_turn_comes(
    files: list[af.File], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Descriptors may be short for a moment."""
    real, opens = os.open, []

    def scarce(path: Any, flags: int) -> int:
        opens.append(path)
        if path == files[3].path and opens.count(path) == 1:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return real(path, flags)

    monkeypatch.setattr(os, "open", scarce)
    assert all(isinstance(each, int) for each in opener(waits=True).open(files))
    assert [each for each in opens if opens.count(each) > 1] == [files[3].path] * 2


@pytest.mark.parametrize("waits", [True, False])
def test_all_are_closed_where_nobody_goes_on(files: list[af.File], waits: bool) -> None:
    leaks = Leaks()
    error = OSError(errno.EIO, "a read failed")

    def read() -> None:
        with closing(opener(waits=waits).open(files)) as opened:
            next(opened)
            next(opened)
            raise error

    with pytest.raises(OSError, match="a read failed"):
        read()
    assert leaks.files() == []


def test_a_system_that_takes_no_hint_is_no_error(files: list[af.File], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ESPIPE, os.strerror(errno.ESPIPE))

    leaks = Leaks()
    monkeypatch.setattr(os, "posix_fadvise", refuse, raising=False)
    assert all(isinstance(each, int) for each in opener(waits=True).open(files))
    assert leaks.files() == []


def test_hints_are_given_ahead_where_reads_wait(files: list[af.File], hints: list[int]) -> None:
    opened = opener(waits=True).open(files)
    with closing(opened):
        next(opened)
        assert len(hints) == MAX_FILES_AHEAD
        next(opened)
        assert len(hints) == MAX_FILES_AHEAD + 1
    list(opener(waits=False).open(files))
    assert len(hints) == MAX_FILES_AHEAD + 1


def test_whether_reads_wait_is_seen_by_the_clocks(
    files: list[af.File], hints: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    wall = iter([0.0, 1.0, 0.0, 1.0, 0.0, 1.0])
    processor = iter([0.0, 0.9, 0.0, 0.5, 0.0, 0.9])
    monkeypatch.setattr(module, "perf_counter", lambda: next(wall))
    monkeypatch.setattr(module, "thread_time", lambda: next(processor))
    made = Opener()
    assert made.waits, "nobody knows yet, and the first files are the likeliest not to be in memory"
    seen = []
    for _ in range(3):
        list(made.open(files[:1]))
        seen.append((made.waits, len(hints)))
    assert seen == [(False, 1), (True, 1), (False, 2)]


def test_what_holds_up_one_file_is_not_the_disk(files: list[af.File], monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread that has the GIL makes a few wait, whatever their bytes are in."""
    now = [0.0]
    monkeypatch.setattr(module, "thread_time", lambda: now[0])
    late: set[int] = set()
    made = opener(waits=False)

    def clock() -> float:
        return now[0] + sum(0.005 for each in late if each * 0.001 < now[0])

    monkeypatch.setattr(module, "perf_counter", clock)
    for some, waits in (({5}, False), ({0, 3}, False), (range(8), True)):
        late = set(some)
        now[0] = 0.0
        for _ in made.open(files[:16]):
            now[0] += 0.001
        assert made.waits is waits
        made.waits = False


def test_where_there_are_no_hints_none_are_given(files: list[af.File], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    monkeypatch.setattr(module, "HINTS", False)
    made = Opener()
    assert len(list(made.open(files))) == COUNT
    assert not made.waits


def test_few_threads_open_ahead_at_the_same_time(files: list[af.File]) -> None:
    """Descriptors are scarce: the user's own files and sockets need some."""
    leaks = Leaks()
    made = opener(waits=True)
    iterators = [made.open(files) for _ in range(MAX_THREADS_AHEAD + 4)]
    for each in iterators:
        next(each)
    assert len(leaks.files()) == MAX_THREADS_AHEAD * MAX_FILES_AHEAD + 4
    for each in iterators:
        each.close()
    assert leaks.files() == []
    assert sum(1 for _ in made.open(files)) == COUNT


def test_a_batch_is_the_same_where_descriptors_are_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be opened ahead is opened when its turn comes."""
    for number in range(COUNT):
        np.save(tmp_path / f"{number:02}.npy", np.full(3, number))
    pipeline = af.files(f"{tmp_path}/*.npy").load(af.npy).batch(COUNT)
    leaks = Leaks()
    real = os.open
    refused = []

    def scarce(path: Any, flags: int, *rest: Any, **words: Any) -> int:
        if str(path).endswith(".npy") and sum(".npy" in each for each in leaks.files()) >= 4:
            refused.append(path)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return real(path, flags, *rest, **words)

    monkeypatch.setattr(os, "open", scarce)
    (batch,) = pipeline
    assert batch[:, 0].tolist() == list(range(COUNT))
    assert refused
