"""`read_into`: one local file, whole, into a buffer of its own."""

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
from asyncfeed.storage.base import File
from asyncfeed.storage.local import expand, read_into


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
    buffer = read_into(File(str(path)))
    assert buffer.tobytes() == b"0123456789"
    assert buffer.dtype == np.uint8
    assert buffer.flags.writeable
    assert buffer.flags.owndata


def test_an_empty_file_gives_an_empty_buffer(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert read_into(File(str(tmp_path / "empty"), 0)).shape == (0,)


def test_a_file_that_is_as_it_was_listed_is_read(path: Path) -> None:
    assert len(read_into(expand(path)[0])) == 10


@pytest.mark.parametrize("contents", [b"012", b"0123456789abc"])
def test_a_file_whose_size_changed_since_it_was_listed_is_corrupt(path: Path, contents: bytes) -> None:
    file = expand(path)[0]
    path.write_bytes(contents)
    with pytest.raises(Corrupt, match=rf"a\.bin changed .* \(was 10 bytes, is {len(contents)}\)"):
        read_into(file)


def test_a_file_rewritten_at_the_same_size_since_it_was_listed_is_corrupt(path: Path) -> None:
    file = expand(path)[0]
    os.utime(path, ns=(0, 1))
    with pytest.raises(Corrupt, match=r"a\.bin changed since it was listed \(it was written to\)"):
        read_into(file)


def test_reads_that_stop_early_are_continued(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readv = os.readv
    monkeypatch.setattr(os, "readv", lambda fd, buffers: readv(fd, [buffers[0][:3]]))
    assert read_into(File(str(path))).tobytes() == b"0123456789"


def test_a_file_cut_short_while_it_is_read_is_corrupt(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readv = os.readv

    def cut(fd: int, buffers: Any) -> int:
        got = readv(fd, [buffers[0][:4]])
        os.truncate(path, 4)
        return got

    monkeypatch.setattr(os, "readv", cut)
    with pytest.raises(Corrupt, match=r"a\.bin was cut short while it was read: 4 of 10 bytes"):
        read_into(File(str(path)))


def test_a_missing_file_keeps_its_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        read_into(File(str(tmp_path / "none")))
    assert caught.value.filename == str(tmp_path / "none")


def test_an_unreadable_file_keeps_its_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, _flags: int) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)

    monkeypatch.setattr(os, "open", refuse)  # the tests may run as root, who may read everything
    with pytest.raises(PermissionError) as caught:
        read_into(File(str(path)))
    assert caught.value.filename == str(path)


@pytest.mark.parametrize("call", ["fstat", "readv"])
def test_an_error_of_the_disk_names_the_file(path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def fail(*_: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def read() -> None:
        with monkeypatch.context() as patched:  # pytest calls these as well, so they are put back at once
            patched.setattr(os, call, fail)
            read_into(File(str(path)))

    with pytest.raises(OSError, match=r"Input/output error.*a\.bin"):
        read()


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as caught:
        read_into(File(str(tmp_path)))
    assert caught.value.filename == str(tmp_path)


def test_a_named_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreError, match="pipe is not a regular file"):
        read_into(File(str(tmp_path / "pipe")))


def test_a_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s")
        with pytest.raises(OSError, match="s"):
            read_into(File("s"))


def test_no_descriptor_is_left_after_many_good_and_bad_reads(path: Path, tmp_path: Path) -> None:
    before = descriptors()
    for _ in range(200):
        read_into(File(str(path)))
        for bad in (File(str(path), 3), File(str(tmp_path)), File(str(tmp_path / "none"))):
            with pytest.raises(OSError, match=r"."):
                read_into(bad)
    assert descriptors() == before
