"""Small local files that a thread reads without io_uring: many are open at a time, and they are closed together."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncfeed.reading import local
from asyncfeed.reading.file import File
from asyncfeed.reading.local import LocalReader
from asyncfeed.reading.reader import Rows
from asyncfeed.testing import Leaks

SIZE = 100
COUNT = 2 * local.OPENED + 10


@pytest.fixture
def files(tmp_path: Path) -> list[File]:
    paths = [tmp_path / f"{number}" for number in range(COUNT)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * SIZE)
    files = [File(str(path), SIZE) for path in paths]
    if not local.Sampled().sound(files):
        pytest.skip("not on a plain disk")
    return files


@pytest.fixture
def opening(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[int], None]], None]]:
    """Return a function that has another one called before each file is opened, with the number of opens so far."""
    real = os.open

    def before_each(call: Callable[[int], None]) -> None:
        count = 0

        def opened(path: Any, flags: int) -> int:
            nonlocal count
            if flags == local.FLAGS:
                count += 1
                call(count)
            return real(path, flags)

        monkeypatch.setattr(os, "open", opened)

    yield before_each
    monkeypatch.undo()


def read(files: list[File]) -> tuple[dict[int, Exception], np.ndarray[Any, Any]]:
    """Return the errors of files, and what was read, a row for each."""
    reader = LocalReader()
    reader._opener.waits = False
    out = np.zeros((len(files), SIZE), np.uint8)
    rows = Rows(out.reshape(-1), np.arange(len(files)) * SIZE, np.full(len(files), SIZE))
    return reader.read_rows(files, [[rows]]), out


def test_all_are_closed(files: list[File]) -> None:
    leaks = Leaks()
    failed, out = read(files)
    assert not failed
    assert (out == np.arange(COUNT)[:, None]).all()
    assert leaks.files() == []


@pytest.mark.parametrize("seed", range(10))
def test_files_that_others_open_meanwhile_stay_open(
    files: list[File], opening: Callable[[Callable[[int], None]], None], seed: int
) -> None:
    """Also if their descriptors are between ours, and some are closed again."""
    chance = random.Random(seed)
    theirs: list[int] = []

    def other(_: int) -> None:
        if chance.random() < 0.3:
            theirs.append(os.dup(0))
        if theirs and chance.random() < 0.1:
            os.close(theirs.pop(chance.randrange(len(theirs))))

    leaks = Leaks()
    opening(other)
    failed, out = read(files)
    assert not failed
    assert (out == np.arange(COUNT)[:, None]).all()
    assert len(theirs) > 10
    for fd in theirs:
        os.close(fd)  # raises if it is not open
    assert leaks.files() == []


def test_too_many_open_files_are_read_one_by_one(
    files: list[File], opening: Callable[[Callable[[int], None]], None]
) -> None:
    leaks = Leaks()

    def fail(count: int) -> None:
        if 30 < count <= 50:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    opening(fail)
    failed, out = read(files)
    assert not failed
    assert (out == np.arange(COUNT)[:, None]).all()
    assert leaks.files() == []


def test_all_are_closed_if_the_call_is_interrupted(
    files: list[File], opening: Callable[[Callable[[int], None]], None]
) -> None:
    leaks = Leaks()

    def interrupt(count: int) -> None:
        if count == 100:
            raise KeyboardInterrupt

    opening(interrupt)
    with pytest.raises(KeyboardInterrupt):
        read(files)
    assert leaks.files() == []
