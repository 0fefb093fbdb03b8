"""Filesystems of fsspec as stores."""

from __future__ import annotations

import asyncio
import errno
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

import asyncfeed as af
from asyncfeed.attempts.retry import Policy
from asyncfeed.reading.fsspec_store import TIMEOUT, FsspecStore, translate

fsspec = pytest.importorskip("fsspec")
AsyncFileSystem: Any = pytest.importorskip("fsspec.asyn").AsyncFileSystem
fsspec.asyn.get_loop()  # it stays for the rest of the process


@pytest.fixture
def memory() -> Iterator[Any]:
    made = fsspec.filesystem("memory")
    made.store.clear()
    for key in ("train/b.txt", "train/a.txt", "train/deep/c.txt", "train/.hidden.txt", "x [1].txt"):
        made.pipe_file(f"/{key}", key.encode())
    yield made
    made.store.clear()


def test_a_pattern_lists_and_reads_what_it_matches(memory: Any) -> None:
    for store, path in (
        ("fsspec", "memory://train/*.txt"),
        (memory, "/train/*.txt"),
        (FsspecStore(memory), "/train/*.txt"),
    ):
        listed = af.files(path, store=store)
        assert [(file.path, file.size) for file in listed] == [
            ("memory:///train/a.txt", 11),
            ("memory:///train/b.txt", 11),
        ]
        assert list(listed.load(af.text)) == ["train/a.txt", "train/b.txt"]
    assert list(af.files("memory://train/**/{c,b}.txt", store="fsspec").load(af.text)) == [
        "train/b.txt",
        "train/deep/c.txt",
    ]
    assert list(af.files(["/train/b.txt", "/train/a.txt"], store=memory).load(af.text)) == [
        "train/b.txt",
        "train/a.txt",
    ]
    assert list(af.files("/train/*.txt", store=memory).flat_map(af.lines)) == ["train/a.txt", "train/b.txt"]


def test_what_is_not_there_is_an_error(memory: Any) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        af.files("memory://none.txt", store="fsspec")
    assert caught.value.filename == "memory://none.txt"
    for path in ("memory://none/*.txt", "memory://train/*.npy"):
        with pytest.raises(af.PipelineError, match="matches no file"):
            af.files(path, store="fsspec")
    with pytest.raises(IsADirectoryError):
        af.files("memory://train", store="fsspec")


def test_stores_are_values(memory: Any) -> None:
    one, same = FsspecStore(memory), FsspecStore(fsspec.filesystem("memory"))
    assert one == same
    assert hash(one) == hash(same)
    assert repr(one) == "FsspecStore('memory')"
    assert pickle.loads(pickle.dumps(one)) == one
    local = FsspecStore(fsspec.filesystem("file"))
    assert local != one


def test_what_cannot_be_right_is_refused(memory: Any) -> None:
    for call, says in (
        (lambda: af.files("ftp://user:CANARY@host/a", store="fsspec"), "user name"),
        (lambda: af.files("http://host/a?token=CANARY", store="fsspec"), "query string"),
        (lambda: af.files("CANARYscheme://host/a", store="fsspec"), "no such URL"),
        (lambda: af.files("/a", store=memory, key="CANARY"), "give the options"),
        (lambda: af.files("s3://bucket/a", store=3), "store must be"),
        (lambda: af.files(["/train/a.txt", "/train/*.txt"], store=memory), "either patterns or paths"),
    ):
        with pytest.raises(af.PipelineError, match=says) as caught:
            call()
        assert "CANARY" not in str(caught.value)
    with pytest.raises(af.PipelineError, match="asynchronous"):
        FsspecStore(type("Async", (), {"asynchronous": True, "protocol": "s3"})())


class NoCredentialsError(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "expected", "kind"),
    [
        (FileNotFoundError("CANARY"), FileNotFoundError, None),
        (PermissionError("CANARY"), PermissionError, None),
        (NoCredentialsError("CANARY"), PermissionError, None),
        (TimeoutError("CANARY"), af.Unavailable, "timeout"),
        (ConnectionResetError("CANARY"), af.Unavailable, "connection"),
        (OSError(errno.EBUSY, "CANARY"), af.Unavailable, "throttled"),
        (OSError("CANARY"), af.Unavailable, "other"),
        (KeyError("CANARY"), af.StoreError, None),
    ],
)
def test_errors_say_whether_to_try_again_and_show_no_address(error: Any, expected: Any, kind: Any) -> None:
    found: Any = translate(error, "s3://bucket/a")
    assert type(found) is expected
    assert getattr(found, "kind", None) == kind
    assert "s3://bucket/a" in str(found)
    assert "CANARY" not in repr(found)


class Dripping(AsyncFileSystem):  # type: ignore[misc]
    """Files of 4 bytes. Those whose name begins with "drip" never end."""

    protocol = "dripping"
    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[str] = []

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "size": 4, "type": "file"}

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        if not path.startswith("drip"):
            return b"1234"[start:end]
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.append(path)
        raise AssertionError


@pytest.mark.parametrize("size", [4, None])
def test_a_read_of_an_async_filesystem_ends_at_a_deadline_that_grows_with_its_bytes(
    monkeypatch: pytest.MonkeyPatch, size: int | None
) -> None:
    monkeypatch.setattr("asyncfeed.reading.fsspec_store.TIMEOUT", Policy(timeout=0.05, bytes_per_second=100))
    filesystem = Dripping()
    store = FsspecStore(filesystem)
    reader = store.reader()
    names = ["a", "drip", "b"]
    outcomes = reader.read([af.File(name, size, store=store) for name in names])
    assert [bytes(each) for each in outcomes if not isinstance(each, Exception)] == [b"1234", b"1234"]
    (late,) = (each for each in outcomes if isinstance(each, Exception))
    assert isinstance(late, af.TimedOut)
    assert str(late) == "drip: no answer within 0.09 s with all of 4 bytes; load(timeout=...) allows more"
    assert filesystem.ended == ["drip"]
    (late,) = reader.read_ranges(af.File("drip", 4, store=store), [(0, 2)])
    assert "no answer within 0.07 s with all of 2 bytes" in str(late)
    with pytest.raises(af.TimedOut, match=r"drip: no answer within 0.06 s"):
        list(af.items([af.File("drip", size, store=store)]).load(bytes, timeout=0.02))


def test_the_deadline_of_an_async_filesystem_can_be_lifted() -> None:
    assert TIMEOUT.seconds(0) == 30
    assert TIMEOUT.seconds(10_000_000) == 130
    filesystem = Dripping()
    filesystem.cat_ranges = lambda paths, *_, **__: [b"1234" for _ in paths]
    files = [af.File("drip", 4, store=FsspecStore(filesystem))]
    assert list(af.items(files).load(bytes, timeout=None)) == [b"1234"]
