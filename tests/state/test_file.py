"""A file of a state holds the old state or the new one, whatever happens while it is written."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import asyncfeed as af
from asyncfeed.state import file
from asyncfeed.state.envelope import MAX_BYTES, seal, unseal
from asyncfeed.writing import whole
from tests.state.described import of

OWN = of(af.items(range(10)).batch(2))


def state(number: int) -> dict[str, Any]:
    return seal(OWN, {"next": number, "filler": ["x" * 100] * 100})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.json"


def test_a_state_comes_back_as_it_was_written(path: Path) -> None:
    file.write(path, state(1))
    assert file.read(path) == state(1)
    assert unseal(file.read(str(path)), OWN)["next"] == 1
    file.write(str(path), state(2))
    assert file.read(path) == state(2)
    assert os.listdir(path.parent) == [path.name]


def test_the_file_is_json_that_other_programs_read(path: Path) -> None:
    file.write(path, state(1))
    assert json.loads(path.read_text()) == state(1)


def test_the_text_of_the_file_is_a_state_too(path: Path) -> None:
    file.write(path, state(1))
    assert unseal(path.read_bytes(), OWN)["next"] == 1


def test_a_file_that_is_not_there_is_a_file_not_found_error(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        file.read(path)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\x80", b"[]", b"{}", b"[" * 10**5, json.dumps(state(1)).encode()[:-2], b"\0" * 5000]
)
def test_a_file_that_is_no_state_is_an_error_that_names_it(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(af.StateError, match="state.json: "):
        file.read(path)


def test_a_byte_that_changed_on_the_disk_is_found(path: Path) -> None:
    file.write(path, state(12345))
    path.write_bytes(path.read_bytes().replace(b"12345", b"12346"))
    with pytest.raises(af.StateError, match="checksum"):
        file.read(path)


def test_of_a_file_that_is_too_large_no_more_is_read(path: Path) -> None:
    with path.open("wb") as out:
        out.truncate(MAX_BYTES * 1000)  # it takes no room on the disk
    with pytest.raises(af.StateError, match="too large"):
        file.read(path)


@pytest.mark.parametrize("call", ["fsync", "fchmod", "write", "replace"])
def test_if_writing_fails_the_old_state_stays_and_nothing_else(
    path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write(path, state(1))

    def fail(*_: object) -> None:
        raise KeyboardInterrupt if call == "fchmod" else OSError(28, "No space left on device")

    if call == "replace":
        monkeypatch.setattr(Path, "replace", fail)
    elif call == "write":
        monkeypatch.setattr("asyncfeed.writing.whole.WholeFile.write", fail)
    else:
        monkeypatch.setattr(os, call, fail)
    with pytest.raises((OSError, KeyboardInterrupt)):
        file.write(path, state(2))
    monkeypatch.undo()
    assert file.read(path) == state(1)
    assert os.listdir(path.parent) == [path.name]


class FullDisk(io.FileIO):
    """A file on a disk that takes no more."""

    def write(self, _: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_on_a_full_disk_nothing_stays_of_a_file_that_cannot_be_closed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short state is held in memory until the file is flushed. That fails, and closing tries it again."""
    file.write(path, state(1))
    monkeypatch.setattr(whole, "open", lambda name, mode: io.BufferedWriter(FullDisk(name, mode)), raising=False)
    with pytest.raises(OSError, match="No space left"):
        file.write(path, seal(OWN, {"next": 2}))
    assert file.read(path) == state(1)
    assert os.listdir(path.parent) == [path.name]


def test_in_a_folder_that_is_not_there_it_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        file.write(tmp_path / "missing" / "state.json", state(1))


def test_a_folder_that_cannot_be_synced_is_no_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some network file systems refuse it."""
    real, synced = os.fsync, []

    def fsync(fd: int) -> None:
        synced.append(os.path.isdir(f"/proc/self/fd/{fd}"))
        if synced[-1]:
            raise OSError(22, "Invalid argument")
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    file.write(path, state(1))
    assert file.read(path) == state(1)
    assert synced == [False, True]


def test_the_new_file_may_be_read_by_whom_the_process_lets_and_keeps_what_was_set(path: Path) -> None:
    before = os.umask(0o027)
    try:
        file.write(path, state(1))
        assert path.stat().st_mode & 0o777 == 0o640
        path.chmod(0o604)
        file.write(path, state(2))
        assert path.stat().st_mode & 0o777 == 0o604
    finally:
        os.umask(before)


def test_a_name_of_the_longest_length_is_written(tmp_path: Path) -> None:
    file.write(tmp_path / ("x" * 255), state(1))
    assert file.read(tmp_path / ("x" * 255)) == state(1)


def test_whoever_reads_while_others_write_sees_a_whole_state(path: Path) -> None:
    file.write(path, state(0))
    done = threading.Event()

    def write(first: int) -> None:
        for number in range(first, first + 20):
            file.write(path, state(number))

    writers = [threading.Thread(target=write, args=(first,)) for first in (0, 100)]

    def stop() -> None:
        for each in writers:
            each.join()
        done.set()

    for each in (*writers, watcher := threading.Thread(target=stop)):
        each.start()
    while not done.is_set():
        unseal(file.read(path), OWN)
    watcher.join()
    assert os.listdir(path.parent) == [path.name]


WRITES_ON = """
import sys
from tests.state.test_file import file, state
number = int(sys.argv[2])
while True:
    number += 1
    file.write(sys.argv[1], state(number))
    print(number, flush=True)
"""


def test_after_a_kill_the_last_state_or_the_one_being_written_is_there(path: Path) -> None:
    number = 0
    for kill in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", WRITES_ON, str(path), str(number)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for _ in range(7 * kill + 1):
                number = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            rest = process.stdout.read().split("\n")[:-1]
        number = int(rest[-1]) if rest else number
        found = unseal(file.read(path), OWN)["next"]
        assert found in (number, number + 1)
        number = found
