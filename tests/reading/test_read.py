"""`LocalReader`: files of the disk, and what the disk may do to them; see `test_readers.py` for what all readers do."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncfeed.errors import Corrupt, StoreError
from asyncfeed.reading.file import File
from asyncfeed.reading.listing import expand
from asyncfeed.reading.local import LocalReader
from asyncfeed.reading.reader import value


def read(file: File) -> Any:
    """Return what is in a file, or raise what is wrong with it."""
    return value(*LocalReader().read([file]))


def read_into(file: File, *sizes: int) -> Any:
    """Return what fills buffers of these sizes, or raise what is wrong."""
    buffers = [bytearray(size) for size in sizes]
    value(*LocalReader().read_into([file], [buffers]))
    return [bytes(each) for each in buffers]


def descriptors() -> set[str]:
    return {each.name for each in Path("/proc/self/fd").iterdir()}


@pytest.fixture(autouse=True)
def _no_descriptor_stays_open() -> Iterator[None]:
    before = len(descriptors())
    yield
    assert len(descriptors()) == before


@pytest.fixture
def path(tmp_path: Path) -> Path:
    where = tmp_path / "a.bin"
    where.write_bytes(b"0123456789")
    return where


def test_a_file_is_read_whole_into_a_writable_buffer(path: Path) -> None:
    buffer = read(File(str(path)))
    assert buffer.tobytes() == b"0123456789"
    assert buffer.dtype == np.uint8
    assert buffer.flags.writeable
    assert buffer.flags.owndata


def test_an_empty_file_gives_an_empty_buffer(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert read(File(str(tmp_path / "empty"), 0)).shape == (0,)


def test_a_file_that_is_as_it_was_listed_is_read(path: Path) -> None:
    assert len(read(expand(path)[0])) == 10


@pytest.mark.parametrize("contents", [b"012", b"0123456789abc"])
def test_a_file_whose_size_changed_since_it_was_listed_is_corrupt(path: Path, contents: bytes) -> None:
    file = expand(path)[0]
    path.write_bytes(contents)
    with pytest.raises(Corrupt, match=rf"a\.bin changed .* \(was 10 bytes, is {len(contents)}\)"):
        read(file)


def test_a_file_rewritten_at_the_same_size_since_it_was_listed_is_corrupt(path: Path) -> None:
    file = expand(path)[0]
    os.utime(path, ns=(0, 1))
    with pytest.raises(Corrupt, match=r"a\.bin changed since it was listed \(it was written to\)"):
        read(file)


def test_reads_that_stop_early_are_continued(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readv = os.readv
    monkeypatch.setattr(os, "readv", lambda fd, buffers: readv(fd, [buffers[0][:3]]))
    assert read(File(str(path))).tobytes() == b"0123456789"


def test_reads_into_buffers_that_stop_early_are_continued(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readv = os.readv

    def short(fd: int, buffers: Any) -> int:
        return readv(fd, [memoryview(next(filter(len, buffers)))[:3]])

    monkeypatch.setattr(os, "readv", short)
    assert read_into(File(str(path)), 4, 0, 6) == [b"0123", b"", b"456789"]


def test_a_file_cut_short_while_it_is_read_is_corrupt(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readv = os.readv

    def cut(fd: int, buffers: Any) -> int:
        got = readv(fd, [buffers[0][:4]])
        os.truncate(path, 4)
        return got

    monkeypatch.setattr(os, "readv", cut)
    with pytest.raises(Corrupt, match=r"a\.bin was cut short while it was read: 4 of 10 bytes"):
        read(File(str(path)))
    path.write_bytes(b"0123456789")
    with pytest.raises(Corrupt, match=r"a\.bin was cut short while it was read: 4 of 10 bytes"):
        read_into(File(str(path)), 10)


def test_a_missing_file_keeps_its_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        read(File(str(tmp_path / "none")))
    assert caught.value.filename == str(tmp_path / "none")


def test_an_unreadable_file_keeps_its_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, _flags: int) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)

    monkeypatch.setattr(os, "open", refuse)  # the tests may run as root, who may read everything
    with pytest.raises(PermissionError) as caught:
        read(File(str(path)))
    assert caught.value.filename == str(path)


@pytest.mark.parametrize("call", ["fstat", "readv"])
def test_an_error_of_the_disk_names_the_file(path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def fail(*_: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def fails(call_of_ours: Any) -> None:
        with monkeypatch.context() as patched:  # pytest calls these as well, so they are put back at once
            patched.setattr(os, call, fail)
            call_of_ours()

    for each in (lambda: read(File(str(path))), lambda: read_into(File(str(path)), 10)):
        with pytest.raises(OSError, match=r"Input/output error.*a\.bin"):
            fails(each)


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as caught:
        read(File(str(tmp_path)))
    assert caught.value.filename == str(tmp_path)


def test_a_named_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreError, match="pipe is not a regular file"):
        read(File(str(tmp_path / "pipe")))
    with pytest.raises(StoreError, match="pipe is not a regular file"):
        read_into(File(str(tmp_path / "pipe")))


def test_a_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s")
        with pytest.raises(OSError, match="s"):
            read(File("s"))


def test_no_descriptor_is_left_after_many_good_and_bad_reads(path: Path, tmp_path: Path) -> None:
    before = descriptors()
    for _ in range(200):
        read(File(str(path)))
        read_into(File(str(path)), 4, 6)
        for bad in (File(str(path), 3), File(str(tmp_path)), File(str(tmp_path / "none"))):
            with pytest.raises(OSError, match=r"."):
                read(bad)
            with pytest.raises(OSError, match=r"."):
                read_into(bad, 10)
    assert descriptors() == before


@pytest.mark.parametrize("version", [{"size": 3}, {"mtime_ns": 1}])
def test_buffers_are_not_filled_by_a_file_that_is_not_as_it_was_listed(
    path: Path, version: dict[str, int]
) -> None:
    with pytest.raises(Corrupt, match=r"a\.bin changed since it was listed"):
        read_into(File(str(path), **version), 10)


def test_a_range_of_a_file_that_is_not_as_it_was_listed_is_corrupt(path: Path) -> None:
    outcomes = LocalReader().read_ranges(File(str(path), 3), [(0, 1), (1, 2)])
    assert [type(each) for each in outcomes] == [Corrupt, Corrupt]


def test_an_outcome_that_is_an_error_holds_no_frames(path: Path, tmp_path: Path) -> None:
    """They would hold the list of outcomes, which holds the error: only a garbage collection would free it."""
    reader, none = LocalReader(), File(str(tmp_path / "none"))
    for outcome in [*reader.read([none]), *reader.look([none]), *reader.read_ranges(none, [(0, 1)])]:
        assert isinstance(outcome, FileNotFoundError)
        assert outcome.__traceback__ is None
    for error in reader.read_into([none, File(str(path))], [[bytearray(1)], [bytearray(1)]]):
        assert isinstance(error, OSError)
        assert error.__traceback__ is None
