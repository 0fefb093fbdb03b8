"""The folder of a cache: its bound, several processes, kills, full disks, damage, and who may write to it."""

from __future__ import annotations

import errno
import importlib.util
import itertools
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.reading import cache_folder
from asyncfeed.reading.cache_folder import (
    HEADER,
    NO_LIMIT,
    STALE_SECONDS,
    SWEPT_AGAIN_SECONDS,
    USED_AGAIN_SECONDS,
    CacheFolder,
)
from tests.reading.versions import VersionStore, entries, left, numbered, run

COUNT = 64
CHARGED = 4096
"""What a small entry is charged with."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def store() -> VersionStore:
    return VersionStore(numbered(COUNT))


def cached(store: VersionStore, folder: Path, max_bytes: int | None = None, seed: int = 5) -> af.Pipeline[Any]:
    return af.items(store.files()).cache(folder, max_bytes=max_bytes).shuffle(seed=seed).load(af.npy).batch(8)


def right(batches: list[Any], count: int = COUNT) -> bool:
    rows = sorted(tuple(row.tolist()) for batch in batches for row in batch)
    return rows == [(number,) * 10 for number in range(count)]


def name(number: int) -> str:
    return f"{number:032x}"


def make_older(path: Path, seconds: float) -> None:
    status = path.stat()
    os.utime(path, (status.st_atime, status.st_mtime - seconds))


# The bound


def test_data_larger_than_the_cache_keeps_a_fixed_part_of_it(store: VersionStore, folder: Path) -> None:
    """The hit rate is the size of the cache over the size of the data, in each epoch and in any order."""
    limit = COUNT // 4 * CHARGED
    first: list[Path] = []
    for epoch in range(3):
        items, did = run(cached(store, folder, limit, seed=epoch))
        assert right(items)
        first = first or entries(folder)
        assert entries(folder) == first
        assert len(first) == COUNT // 4
        # The first file of all may be read once more, for its header.
        assert COUNT - COUNT // 4 <= did["misses, not kept"] <= COUNT - COUNT // 4 + 1
        if epoch:
            assert COUNT // 4 <= did["hits"] <= COUNT // 4 + 1


@pytest.mark.parametrize("limit", [CHARGED, 10 * CHARGED, 100 * CHARGED, 1000 * CHARGED])
def test_processes_keep_to_the_bound_together(folder: Path, limit: int) -> None:
    """Each `CacheFolder` is what one process sees of the folder."""
    processes = [CacheFolder(str(folder)) for _ in range(3)]
    for each in processes:
        each.check()
    kept = sum(
        process.keep(name(number), [bytearray(CHARGED - HEADER)], limit)
        for number, process in zip(range(1200), itertools.cycle(processes), strict=False)
    )
    assert kept == len(entries(folder))
    assert kept * CHARGED <= limit
    assert kept * CHARGED >= limit - limit // 16  # what the others have taken and not used
    assert sum(path.stat().st_size for path in entries(folder)) <= limit


def test_what_is_there_counts_even_if_the_count_is_lost(folder: Path) -> None:
    limit = 20 * CHARGED
    for lost in (None, b"", b"nonsense", b"x" * 20):
        process = CacheFolder(str(folder))
        process.check()
        if lost is not None:
            (folder / "size").write_bytes(lost)
        for number in range(30):
            process.keep(name(number), [bytearray(10)], limit)
        assert len(entries(folder)) == 20
        for path in entries(folder)[10:]:
            path.unlink()
        (folder / "swept").unlink(missing_ok=True)


def test_a_part_of_the_disk_stays_free(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = CacheFolder(str(folder))
    process.check()
    disk = SimpleNamespace(f_bavail=51, f_blocks=1000, f_frsize=CHARGED)
    monkeypatch.setattr(os, "statvfs", lambda _: disk)
    assert process.keep(name(1), [bytearray(10)], NO_LIMIT)
    disk.f_bavail = 50
    assert not process.keep(name(2), [bytearray(10)], NO_LIMIT)


def test_old_entries_make_room_and_those_in_use_stay(store: VersionStore, folder: Path) -> None:
    limit = COUNT * CHARGED
    run(cached(store, folder, limit))
    used = set(entries(folder)[::2])
    for path in set(entries(folder)) - used:
        make_older(path, STALE_SECONDS + 1)
    for path in used:
        make_older(path, STALE_SECONDS - 60)
    other = VersionStore(numbered(COUNT), "other")
    assert right(run(cached(other, folder, limit))[0])
    assert len(entries(folder)) == COUNT
    assert used < set(entries(folder))
    made = set(entries(folder)) - used
    assert right(run(cached(VersionStore(numbered(COUNT), "third"), folder, limit))[0])
    assert set(entries(folder)) == made | used


def test_a_process_that_reads_an_old_entry_notes_that_it_is_used(store: VersionStore, folder: Path) -> None:
    run(cached(store, folder))
    for path in entries(folder):
        make_older(path, STALE_SECONDS + 1)
    run(cached(store, folder))
    now = (folder / "size").stat().st_mtime
    assert all(path.stat().st_mtime > now - 600 for path in entries(folder))


def test_all_entries_are_looked_at_only_now_and_then(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = CacheFolder(str(folder))
    process.check()
    for number in range(10):
        process.keep(name(number), [bytearray(10)], 4 * CHARGED)
    looked = []
    scan = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: looked.append(path) or scan(path))  # type: ignore[func-returns-value]
    for _ in range(3):
        process.begin()
        assert not process.keep(name(20), [bytearray(10)], 4 * CHARGED)
    assert str(folder) not in looked
    make_older(folder / "swept", SWEPT_AGAIN_SECONDS)
    for _ in range(3):
        process.begin()
        assert not process.keep(name(20), [bytearray(10)], 4 * CHARGED)
    assert looked.count(str(folder)) == 1


# Several processes, and kills

FILL = """
import sys, asyncfeed as af
files, folder = sys.argv[1:]
print("ready", flush=True)
for batch in af.files(files + "/*.npy").cache(folder).shuffle(seed=int(sys.stdin.readline())).load(af.npy).batch(4):
    print([int(row[0]) for row in batch], flush=True)
"""


def start(files: Path, folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", FILL, str(files), str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.fixture
def files(tmp_path: Path) -> Path:
    where = tmp_path / "files"
    where.mkdir()
    for path, data in numbered(COUNT).items():
        (where / path).write_bytes(data)
    return where


def test_a_process_that_is_killed_leaves_only_whole_entries(files: Path, folder: Path) -> None:
    for kill in range(6):
        process = start(files, folder)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{kill}\n")
        process.stdin.flush()
        for _ in range(kill):
            process.stdout.readline()
        process.kill()
        process.communicate()
        if len(entries(folder)) == COUNT:
            for path in entries(folder):
                path.unlink()
    before = len(entries(folder))
    items, did = run(af.files(f"{files}/*.npy").cache(folder).load(af.npy).batch(4))
    assert right(items)
    assert "damaged, read again" not in did
    assert did.get("misses, now kept", 0) == COUNT - before


def test_two_processes_fill_one_folder_at_once(files: Path, folder: Path) -> None:
    processes = [start(files, folder) for _ in range(2)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("1\n")  # the same order, so that they meet at each file
        process.stdin.flush()
    for process in processes:
        out, _ = process.communicate()
        assert sorted(number for line in out.splitlines() for number in eval(line)) == list(range(COUNT))
        assert process.returncode == 0
    assert len(entries(folder)) == COUNT
    assert left(folder) == []
    items, did = run(af.files(f"{files}/*.npy").cache(folder).load(af.npy).batch(4))
    assert right(items)
    assert did == {"hits": COUNT + 1}


def test_processes_of_two_containers_may_have_one_number(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process has a copy of the module, and writes an entry while this one does."""
    spec = importlib.util.spec_from_file_location("in_another_container", cache_folder.__file__)
    assert spec is not None
    assert spec.loader is not None
    other = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(other)
    monkeypatch.setattr(cache_folder, "_numbers", itertools.count())  # both are new processes
    replace, kept = os.replace, []

    def replace_later(*names: Any) -> None:
        monkeypatch.setattr(os, "replace", replace)
        kept.append(other.CacheFolder(str(folder)).keep(name(2), [bytearray(10)], NO_LIMIT))
        replace(*names)

    monkeypatch.setattr(os, "replace", replace_later)
    kept.append(CacheFolder(str(folder)).keep(name(1), [bytearray(10)], NO_LIMIT))
    assert kept == [True, True]
    assert len(entries(folder)) == 2


def test_what_a_killed_process_was_writing_is_removed_when_it_is_old(store: VersionStore, folder: Path) -> None:
    (folder / "new").mkdir(parents=True)
    folder.chmod(0o700)
    for each in ("old", "young"):
        (folder / "new" / each).write_bytes(b"half")
    make_older(folder / "new" / "old", cache_folder.LEFT_SECONDS + 1)
    run(cached(store, folder))
    assert left(folder) == ["young"]


# A disk that does not take more

ERRORS = [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO]


@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
def test_a_disk_that_takes_no_more_turns_the_cache_off_with_one_warning(
    store: VersionStore, folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    writes = 0
    write_all = cache_folder.write_all

    def fails(fd: int, parts: Any) -> None:
        nonlocal writes
        writes += 1
        if writes > 5:
            os.write(fd, b"half")
            raise OSError(number, os.strerror(number))
        write_all(fd, parts)

    monkeypatch.setattr(cache_folder, "write_all", fails)
    with pytest.warns(RuntimeWarning, match="is read and not written to until the next run") as caught:
        items, did = run(cached(store, folder))
    assert len(caught) == 1
    assert os.strerror(number) in str(caught[0].message)
    assert right(items)
    assert did["misses, now kept"] == 5 == len(entries(folder))
    assert left(folder) == []
    monkeypatch.undo()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert right(run(cached(store, folder))[0])
    assert len(entries(folder)) == COUNT


def test_a_folder_that_is_removed_while_it_is_used_harms_nothing(store: VersionStore, folder: Path) -> None:
    pipeline = cached(store, folder)
    with warnings.catch_warnings(record=True), pipeline.repeat(2).open() as feed:
        warnings.simplefilter("always")
        items = [next(feed) for _ in range(COUNT // 8)]
        folder.rename(folder.with_name("elsewhere"))
        assert right(list(feed))
    assert right(items)
    assert right(run(pipeline)[0])


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="only Linux has it")
def test_a_folder_that_cannot_be_made_is_no_cache(store: VersionStore) -> None:
    pipeline = cached(store, Path("/proc/self/none/cache"))
    with pytest.warns(RuntimeWarning, match="not written to"):
        assert right(run(pipeline)[0])


# Damage

Damage = Callable[[Path], None]


def written_to(path: Path, data: bytes) -> None:
    """Write to an entry in place. Some file systems tell only times that differ by milliseconds."""
    path.write_bytes(data)
    make_older(path, 1)


def replaced_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


KINDS: dict[str, Damage] = {
    "empty": lambda path: written_to(path, b""),
    "cut short": lambda path: written_to(path, path.read_bytes()[:-1]),
    "cut to its header": lambda path: written_to(path, path.read_bytes()[:HEADER]),
    "longer": lambda path: written_to(path, path.read_bytes() + b"\0"),
    "zeros": lambda path: written_to(path, bytes(len(path.read_bytes()))),
    "zeros behind the header": lambda path: written_to(
        path, path.read_bytes()[:HEADER] + bytes(len(path.read_bytes()) - HEADER)
    ),
    "another entry": lambda path: written_to(
        path, next(each for each in entries(path.parents[1]) if each != path).read_bytes()
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("known", [True, False], ids=["in the process that wrote it", "in another process"])
def test_a_damaged_entry_is_counted_and_replaced(
    store: VersionStore, folder: Path, kind: str, known: bool
) -> None:
    run(cached(store, folder))
    if not known:
        forget(folder)
    damaged = entries(folder)[7]
    KINDS[kind](damaged)
    store.reads.clear()
    for expected in (1, 0):
        items, did = run(cached(store, folder))
        assert right(items)
        assert did.get("damaged, read again", 0) == did.get("misses, now kept", 0) == expected
    assert sum(store.reads.values()) == 1


def forget(folder: Path) -> None:
    """Let this process see the folder as a new one does."""
    for key in [key for key in cache_folder.folders if key[1] == str(folder)]:
        del cache_folder.folders[key]


@given(st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_byte_of_an_entry_can_change_unnoticed(tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "cache"
    store = VersionStore(numbered(3))
    run(cached(store, folder))
    if data.draw(st.booleans(), "a new process"):
        forget(folder)
    path = data.draw(st.sampled_from(entries(folder)))
    held = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(held) - 1), "place")
    held[at] ^= data.draw(st.integers(1, 255), "bits")
    written_to(path, bytes(held))
    items, did = run(cached(store, folder))
    assert right(items, 3)
    assert did["damaged, read again"] == 1


def test_an_entry_that_cannot_be_opened_is_a_miss(store: VersionStore, folder: Path) -> None:
    run(cached(store, folder))
    replaced_by_a_folder(entries(folder)[7])
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        assert right(run(cached(store, folder))[0])


def test_entries_are_checked_again_after_some_hours(
    store: VersionStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(cached(store, folder))
    path = entries(folder)[7]
    held, times = bytearray(path.read_bytes()), path.stat()
    held[-1] ^= 1
    path.write_bytes(held)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # as when the disk itself fails
    later = cache_folder.time.monotonic() + USED_AGAIN_SECONDS + 1
    monkeypatch.setattr(cache_folder.time, "monotonic", lambda: later)
    items, did = run(cached(store, folder))
    assert right(items)
    assert did["damaged, read again"] == 1


# Whose it is


def test_only_its_owner_may_read_what_is_kept(store: VersionStore, folder: Path) -> None:
    before = os.umask(0)
    try:
        run(cached(store, folder))
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700
    for path in folder.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o600 if path.is_file() else 0o700), path


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_folder_that_others_may_write_to_is_refused(store: VersionStore, folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(PermissionError, match="another user could write to this cache"):
        run(cached(store, folder))
    assert not list(folder.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(store: VersionStore, folder: Path) -> None:
    folder.mkdir(0o700)
    os.chown(folder, 12345, 12345)
    with pytest.raises(PermissionError, match="another user could write to this cache"):
        run(cached(store, folder))
