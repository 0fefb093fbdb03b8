"""`cache` before `load`: files of a slow store are kept on the local disk."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.reading.cached import CachedStore
from asyncfeed.reading.memory import MemoryStore
from asyncfeed.testing import no_leaks
from tests.reading.versions import VersionStore, counts, entries, left, npy, numbered, run
from tests.servers.objects import ObjectServer, serving
from tests.servers.running import open_sockets, wait_for_sockets

COUNT = 70


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    pytest.importorskip("obstore")
    with serving() as made:
        for path, data in numbered(COUNT).items():
            made.put("bucket", f"train/{path}", data)
        yield made
        assert made.wait_closed()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def listed(server: ObjectServer) -> af.Pipeline[af.File]:
    return af.files("s3://bucket/train/*.npy", endpoint=server.url, anonymous=True)


def values(batches: list[Any]) -> list[int]:
    return [int(row[0]) for batch in batches for row in batch]


# What is requested


def test_a_second_epoch_makes_no_request(server: ObjectServer, folder: Path) -> None:
    plain = listed(server)
    # A hedge of this run might come after the count has begun.
    expected = values(list(plain.shuffle(seed=1).load(af.npy, hedge=None).batch(32)))
    server.requests.clear()
    cached = plain.cache(folder).shuffle(seed=1).load(af.npy, hedge=None).batch(32)
    first, did = run(cached)
    assert values(first) == expected
    assert did["misses, now kept"] == COUNT
    assert server.requests["GET"] == COUNT
    second, did = run(cached)
    assert values(second) == expected
    assert set(did) == {"hits"}
    assert server.requests["GET"] == COUNT


def test_a_listing_that_is_streamed_is_kept(server: ObjectServer, folder: Path) -> None:
    files = af.files("s3://bucket/train/*.npy", listing="streamed", endpoint=server.url, anonymous=True)
    cached = files.cache(folder).load(af.npy, hedge=None).batch(32)
    for did in ("misses, now kept", "hits"):
        items, counted = run(cached)
        assert values(items) == list(range(COUNT))
        assert counted[did] >= COUNT
    assert server.requests["GET"] == COUNT


def test_epochs_of_one_run_share_what_is_kept(server: ObjectServer, folder: Path) -> None:
    cached = listed(server).cache(folder).shuffle(seed=1).load(af.npy, concurrency=1, hedge=None)
    for epoch in cached.epochs(3):
        assert sorted(int(sample[0]) for sample in epoch) == list(range(COUNT))
    assert server.requests["GET"] == COUNT


def test_the_misses_of_a_batch_are_requested_side_by_side(server: ObjectServer, folder: Path) -> None:
    server.faults.delay = 0.02
    run(listed(server).take(32).cache(folder).load(af.npy, concurrency=1).batch(32))
    assert server.at_once > 8


def test_a_file_that_is_read_as_a_stream_is_kept_in_parts(server: ObjectServer, folder: Path) -> None:
    pytest.importorskip("obstore")
    text = "".join(f"line {number}\n" for number in range(300_000))
    server.put("bucket", "text/a.txt", text.encode())
    texts = (
        af.files("s3://bucket/text/*.txt", endpoint=server.url, anonymous=True).cache(folder).flat_map(af.lines)
    )
    assert list(texts) == text.splitlines()
    requests = server.requests["GET"]
    assert requests > 1
    assert list(texts) == text.splitlines()
    assert server.requests["GET"] == requests


def test_what_failed_is_not_kept_and_is_named(folder: Path) -> None:
    store = VersionStore(numbered(3))
    files = store.files()
    del store.contents["001.npy"]
    with pytest.raises(FileNotFoundError) as caught:
        list(af.items(files).cache(folder).load(af.npy))
    assert caught.value.filename == "001.npy"
    assert "item 001.npy (ordinal 1 of epoch 0)" in caught.value.__notes__[-1]
    assert len(entries(folder)) in (1, 2)  # the third may not have been asked for


# What it is found by


def test_another_version_is_another_entry(folder: Path) -> None:
    store = VersionStore({"a.npy": npy(np.full(10, 1))})
    read = lambda: int(next(iter(af.items(store.files()).cache(folder).load(af.npy)))[0])  # noqa: E731
    assert read() == 1
    store.contents["a.npy"] = npy(np.full(10, 2))
    assert [read(), read()] == [2, 2]
    assert store.reads["a.npy"] == 2
    store.contents["a.npy"] = npy(np.full(10, 1))
    assert read() == 1
    assert store.reads["a.npy"] == 2


def test_the_same_path_in_two_stores_is_two_entries(folder: Path) -> None:
    contents = {"a.npy": npy(np.arange(3))}
    one, another, same = (
        VersionStore(contents, "one"),
        VersionStore(contents, "two"),
        VersionStore(contents, "one"),
    )
    for store in (one, another, same):
        run(af.items(store.files()).cache(folder).load(af.npy))
    assert [sum(store.reads.values()) for store in (one, another, same)] == [1, 1, 0]


def test_a_local_file_is_found_from_another_working_directory(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Local files may be on a slow disk."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.npy").write_bytes(npy(np.full(3, len(entries(tmp_path)))))
        os.utime(tmp_path / name / "a.npy", (1, 1))  # only the path tells them apart
    monkeypatch.chdir(tmp_path / "one")
    kept = af.files("a.npy").cache(folder).load(af.npy)
    assert run(kept)[1] == {"misses, now kept": 1}
    assert run(af.files(tmp_path / "one" / "a.npy").cache(folder).load(af.npy))[1] == {"hits": 1}
    monkeypatch.chdir(tmp_path / "two")
    assert run(af.files("a.npy").cache(folder).load(af.npy))[1] == {"misses, now kept": 1}


def test_a_local_file_that_was_written_to_is_read_again(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "a.npy"
    for number in (1, 2):
        path.write_bytes(npy(np.full(3, number)))
        os.utime(path, (number, number))
        assert int(next(iter(af.files(path).cache(folder).load(af.npy)))[0]) == number


def test_a_file_of_unknown_version_is_looked_up_once_a_run(folder: Path) -> None:
    """It is kept by the version that it has when a run first reads it."""
    store = VersionStore(numbered(3))
    unlisted = [af.File(path, store=store) for path in store.contents]
    cached = af.items(unlisted).cache(folder).load(af.npy, concurrency=1)
    for number, reads in enumerate((3, 3, 6), 1):
        if number == 3:
            store.contents.update({path: npy(np.full(10, 50)) for path in store.contents})
        for epoch in cached.epochs(2):
            assert [int(each[0]) for each in epoch] == ([50] * 3 if number == 3 else [0, 1, 2])
        assert (store.looks, sum(store.reads.values())) == (3 * number, reads)


def test_a_file_of_a_web_server_is_looked_up(server: ObjectServer, folder: Path) -> None:
    urls = [f"{server.url}/bucket/train/{number:03}.npy" for number in range(3)]
    cached = af.files(urls, allow_http=True, endpoint=server.url).cache(folder).load(af.npy, hedge=None)
    for _ in range(2):
        assert [int(each[0]) for each in cached] == [0, 1, 2]
    assert server.requests["GET"] == 3


def test_files_without_a_version_are_read_each_time_and_counted(folder: Path) -> None:
    store = MemoryStore(numbered(4))
    cached = af.items(store.files()).cache(folder).load(af.npy)
    for _ in range(2):
        items, did = run(cached)
        assert [int(each[0]) for each in items] == [0, 1, 2, 3]
        assert did == {"not kept, version unknown": 4}
    assert entries(folder) == []
    unnamed = VersionStore(numbered(4), identity=None)
    assert run(af.items(unnamed.files()).cache(folder).load(af.npy))[1] == {"not kept, version unknown": 4}


# What stands after it


def test_the_items_keep_their_order_and_their_number(folder: Path) -> None:
    files = af.items(VersionStore(numbered(20)).files())
    cached = files.cache(folder)
    arranged = lambda pipeline: [  # noqa: E731
        [each.path for each in part]
        for part in (
            pipeline, pipeline.shuffle(seed=3), pipeline.skip(2).take(5), pipeline.split(0.5, 0.5, seed=1)[1],
            pipeline.shuffle(seed=3).take(4).repeat(2),
        )
    ]  # fmt: skip
    assert arranged(cached) == arranged(files)
    assert len(cached) == 20
    assert cached.take(3).size() == 3


@pytest.mark.parametrize("kind", ["list", "iterable", "async", "dataset"])
def test_files_may_come_from_anywhere_and_in_trees(folder: Path, kind: str) -> None:
    store = VersionStore(numbered(4))
    pairs = [{"x": store.file(f"{number:03}.npy"), "y": number} for number in range(4)]

    async def drawn() -> AsyncIterator[Any]:
        for pair in pairs:
            yield pair

    class Dataset:
        def __len__(self) -> int:
            return 4

        async def __getitem__(self, number: int) -> Any:
            return pairs[number]

    source = {"list": pairs, "iterable": lambda: iter(pairs), "async": drawn, "dataset": Dataset()}[kind]
    cached = af.items(source).cache(folder).load(af.npy)
    for expected in ("misses, now kept", "hits"):
        items, did = run(cached)
        assert [(int(each["x"][0]), each["y"]) for each in items] == [(0, 0), (1, 1), (2, 2), (3, 3)]
        assert did == {expected: 4}


def test_a_cache_of_something_else_says_where_it_belongs(folder: Path) -> None:
    numbers = af.items(range(3))
    with pytest.raises(TypeError, match="put it directly behind files"):
        list(numbers.cache(folder))
    files = af.items(VersionStore(numbered(2)).files())
    for wrong in (
        lambda: files.load(af.npy).shuffle(buffer=2).cache(folder),
        lambda: files.load(af.npy).batch(2).cache(folder),
        lambda: numbers.batch(2).cache(folder),
        lambda: files.cache(folder, version="1"),
        lambda: files.cache(folder, max_bytes="many"),
        lambda: files.cache(folder, max_bytes=0),
        lambda: files.load(af.npy).cache(folder, version=1),  # type: ignore[arg-type]
    ):
        with pytest.raises(af.PipelineError, match="cache: "):
            wrong()


# The description


def test_a_description_is_a_value_and_shows_no_secret(folder: Path) -> None:
    pytest.importorskip("obstore")
    with serving() as server:
        server.put("bucket", "a.npy", npy(np.arange(3)))
        options = {"access_key_id": "CANARY", "secret_access_key": "CANARY"}
        files = af.files("s3://bucket/*.npy", endpoint=server.url, options=options)
        cached = files.cache(folder, max_bytes="1 GB").load(af.npy)
        assert f"cache({str(folder)!r}, max_bytes='1 GB')" in repr(cached)
        (file,) = files.cache(folder)
        assert pickle.loads(pickle.dumps(cached)) == cached
        assert pickle.loads(pickle.dumps(file)) == file
        assert isinstance(file.store, CachedStore)
        run(cached)
        assert server.wait_closed()
    for shown in (repr(cached), cached.explain(), repr(file), repr(file.store)):
        assert "CANARY" not in shown
    for path in folder.rglob("*"):
        assert "CANARY" not in path.name
        assert not path.is_file() or b"CANARY" not in path.read_bytes()


def test_another_process_reads_what_this_one_kept(server: ObjectServer, folder: Path) -> None:
    cached = listed(server).cache(folder).load(af.npy).batch(32)
    run(cached)
    server.requests.clear()
    code = "import pickle, sys; print([int(r[0]) for b in pickle.load(sys.stdin.buffer) for r in b])"
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(cached), capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == str(list(range(COUNT)))
    assert not server.requests


def test_a_worker_process_reads_through_the_cache(folder: Path, tmp_path: Path) -> None:
    for name, data in numbered(6).items():
        (tmp_path / name).write_bytes(data)
    cached = af.files(f"{tmp_path}/*.npy").cache(folder)
    assert list(cached.map(_stored, on="process", concurrency=1)) == [str(folder)] * 6


def _stored(file: af.File) -> str:
    assert isinstance(file.store, CachedStore)
    return file.store.folder


# The end


def test_a_run_that_is_left_leaves_nothing(server: ObjectServer, folder: Path) -> None:
    cached = listed(server).cache(folder).shuffle(seed=1).load(af.npy).batch(4)
    for _ in cached:  # what the first run of a process opens
        break
    assert server.wait_closed()
    before = open_sockets()
    with no_leaks():
        for stop in range(1, 12, 5):
            with cached.repeat().open() as feed:
                for _ in range(stop):
                    next(feed)
            del feed
        wait_for_sockets(before)
    assert left(folder) == []
    items, did = run(cached)
    assert sorted(values(items)) == list(range(COUNT))
    assert did.get("damaged, read again", 0) == 0


def test_parts_are_kept_by_their_range_and_taken_from_the_whole_file(folder: Path) -> None:
    store = VersionStore({"a": bytes(range(100)), "b": b"x" * 50})

    def parts(_: int) -> list[bytes]:
        from asyncfeed.reading.scope import current  # noqa: PLC0415 - in the run

        scope = current.get()
        assert scope is not None
        file = CachedStore(store, str(folder)).file(store.file("a"))
        reader = scope.reader(file.store)
        read = [each.tobytes() for each in reader.read_ranges(file, [(5, 9), (90, 100), (3, 3)])]  # type: ignore[union-attr]
        with reader.open(file) as opened:
            opened.seek(7)
            read.append(opened.read(2))
        assert isinstance(reader.read_ranges(file, [(90, 101)])[0], af.Corrupt)
        return read

    expected = [bytes(range(5, 9)), bytes(range(90, 100)), b"", bytes([7, 8])]
    for reads in (2, 2):  # one for the ranges, one for a block of the open file
        assert list(af.items([0]).map(parts)) == [expected]
        assert store.reads["a"] == reads
    for path in entries(folder):
        path.unlink()
    with af.items(store.files()).cache(folder).load(lambda data: len(data)).open() as feed:
        assert list(feed) == [100, 50]
        assert counts(feed) == {"misses, now kept": 2}
    assert list(af.items([0]).map(parts)) == [expected]
    assert store.reads["a"] == 3
