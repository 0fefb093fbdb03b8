"""What every reader promises, whatever its store is, on threads and on the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.reading import scope
from asyncfeed.reading.reader import Reader
from tests.reading.readers import KINDS, Folder, open_reader, streamed
from tests.searching import sampled

DATA = b"0123456789"

# Calls a method of the reader, wherever it runs, and returns what it returns.
Call = Callable[..., Any]


# A server that outlives a test is started before the test looks what is open.
pytestmark = pytest.mark.usefixtures("moto_server")


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Folder]:
    made = KINDS[request.param](tmp_path)
    made.write("a", DATA)
    made.write("b", b"bb")
    made.write("empty", b"")
    yield made
    made.close()


@pytest.fixture(params=["loop", "thread"])
def call(request: pytest.FixtureRequest, folder: Folder) -> Call:
    """Return what calls a method of a reader of the folder: on the loop, or on a thread."""
    if request.param == "loop":
        outside_a_run(folder)

        async def on_loop(name: str, *args: Any) -> Any:
            async with open_reader(folder.store) as reader:
                return await getattr(reader, name)(*args)

        return lambda name, *args: asyncio.run(on_loop(name, *args))
    return lambda name, *args: on_thread(folder, lambda reader: getattr(reader, name)(*args))


def outside_a_run(folder: Folder) -> None:
    if folder.needs_run:
        pytest.skip("a cache reads such a store with the reader of a run")


def on_thread(folder: Folder, fn: Callable[[Reader], Any]) -> Any:
    """Call a function on a thread of a run, with the run's reader of the folder."""

    def call(_: int) -> int:
        run = scope.current.get()
        assert run is not None
        found.append(fn(run.reader(folder.store)))
        return 0

    found: list[Any] = []
    assert list(af.items([0]).map(call)) == [0]
    return found[0]


def test_a_file_is_read_whole_into_memory_of_its_own(folder: Folder, call: Call) -> None:
    one, another = call("read", [folder.file("a"), folder.file("a", 10)])
    assert one.tobytes() == another.tobytes() == DATA
    assert one.dtype == np.uint8
    assert one.flags.writeable
    one[:] = 0
    assert another.tobytes() == DATA
    assert call("read", [folder.file("a")])[0].tobytes() == DATA


def test_an_empty_file_is_no_bytes(folder: Folder, call: Call) -> None:
    (found,) = call("read", [folder.file("empty", 0)])
    assert found.shape == (0,)
    assert call("read_into", [folder.file("empty")], [[bytearray()]]) == [None]
    assert [each.size for each in call("look", [folder.file("empty")])] == [0]


def test_outcomes_are_in_the_order_asked_for_and_one_bad_file_harms_no_other(folder: Folder, call: Call) -> None:
    names = ["b", "none", "a", "empty", "none", "b"]
    found = call("read", [folder.file(name) for name in names])
    assert [type(each) if isinstance(each, Exception) else each.tobytes() for each in found] == [
        b"bb", FileNotFoundError, DATA, b"", FileNotFoundError, b"bb",
    ]  # fmt: skip


def test_parts_are_read_in_the_order_asked_for(folder: Folder, call: Call) -> None:
    found = call("read_ranges", folder.file("a"), [(7, 10), (0, 2), (4, 4), (1, 3)])
    assert [each.tobytes() for each in found] == [b"789", b"01", b"", b"12"]


def test_a_part_that_ends_behind_the_file_is_corrupt(folder: Folder, call: Call) -> None:
    good, bad, beyond = call("read_ranges", folder.file("a"), [(0, 3), (8, 11), (20, 21)])
    assert good.tobytes() == b"012"
    for each, stop in ((bad, 11), (beyond, 21)):
        assert isinstance(each, af.Corrupt)
        assert f"a ends before byte {stop}" in str(each)


def test_files_are_read_into_memory_that_is_there(folder: Folder, call: Call) -> None:
    whole, head, body = bytearray(2), bytearray(3), np.zeros(7, np.uint8)
    files = [folder.file("b"), folder.file("a", 10)]
    assert call("read_into", files, [[whole], [head, body.data]]) == [None, None]
    assert (bytes(whole), bytes(head), body.tobytes()) == (b"bb", b"012", b"3456789")


@pytest.mark.parametrize("room", [9, 11, 0])
def test_memory_that_a_file_does_not_fill_exactly_is_an_error_of_that_file(
    folder: Folder, call: Call, room: int
) -> None:
    good = bytearray(2)
    wrong, right = call("read_into", [folder.file("a"), folder.file("b")], [[bytearray(room)], [good]])
    assert isinstance(wrong, af.Corrupt)
    assert f"a has 10 bytes, and {room} were expected" in str(wrong)
    assert (right, bytes(good)) == (None, b"bb")


def test_a_missing_file_is_named(folder: Folder, call: Call) -> None:
    file = folder.file("none")
    outcomes = [
        *call("look", [file]),
        *call("read", [file]),
        *call("read_ranges", file, [(0, 1), (1, 2)]),
        *call("read_into", [file], [[bytearray(1)]]),
    ]
    assert len(outcomes) == 5
    for error in outcomes:
        assert isinstance(error, FileNotFoundError)
        assert error.filename == file.path


@sampled(24)
@pytest.mark.parametrize("now", [b"012", b"0123456789abc", b""])
def test_a_file_whose_size_changed_since_it_was_listed_is_corrupt(folder: Folder, call: Call, now: bytes) -> None:
    (listed,) = call("look", [folder.file("a")])
    folder.write("a", now)
    outcomes = [
        *call("read", [listed]),
        *call("read_ranges", listed, [(0, 1)]),
        *call("read_into", [listed], [[bytearray(10)]]),
    ]
    assert len(outcomes) == 3
    for error in outcomes:
        assert isinstance(error, af.Corrupt)
        assert f"a changed since it was listed (was 10 bytes, is {len(now)})" in str(error)


def test_a_file_that_was_listed_and_is_gone_is_missing(folder: Folder, call: Call) -> None:
    (listed,) = call("look", [folder.file("a")])
    folder.remove("a")
    assert [type(each) for each in call("read", [listed])] == [FileNotFoundError]


def test_a_look_knows_the_size_and_belongs_to_the_store(folder: Folder, call: Call) -> None:
    (found,) = call("look", [folder.file("a")])
    assert (found.path, found.size, found.store) == (folder.path("a"), 10, folder.store)
    assert call("read", [found])[0].tobytes() == DATA


def run(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(main())


def test_a_stream_yields_the_whole_file_and_nothing_empty(folder: Folder) -> None:
    outside_a_run(folder)

    async def main() -> None:
        big = bytes(range(256)) * 10_000
        folder.write("big", big)
        async with open_reader(folder.store) as reader:
            assert await streamed(reader, folder.file("big")) == big
            assert [block async for block in reader.stream(folder.file("empty"))] == []
            async for block in reader.stream(folder.file("big")):
                assert block

    run(main)


def test_a_stream_of_a_missing_file_raises_it_by_name(folder: Folder) -> None:
    outside_a_run(folder)

    async def main() -> None:
        async with open_reader(folder.store) as reader:
            with pytest.raises(FileNotFoundError) as caught:
                await streamed(reader, folder.file("none"))
            assert caught.value.filename == folder.path("none")

    run(main)


def test_a_reader_goes_on_after_a_call_was_cancelled(folder: Folder) -> None:
    """Memory that was to be filled is not written into afterwards."""
    outside_a_run(folder)
    cancelled = threading.Event()
    cancelled.set()

    class Late(ThreadPoolExecutor):
        """Begins no call before the cancellation. Otherwise the call may have ended by then."""

        def submit(self, fn: Any, /, *args: Any, **options: Any) -> Any:
            return super().submit(lambda: cancelled.wait() and fn(*args, **options))

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(Late())
        async with open_reader(folder.store) as reader:
            room = bytearray(10)
            for method, *args in (
                ("read", [folder.file("a")]),
                ("read_into", [folder.file("a")], [[room]]),
                ("read_ranges", folder.file("a"), [(0, 3)]),
                ("look", [folder.file("a")]),
            ):
                cancelled.clear()
                task = asyncio.ensure_future(getattr(reader, method)(*args))
                await asyncio.sleep(0)
                assert task.cancel()
                cancelled.set()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert [each.tobytes() for each in await reader.read([folder.file("a")])] == [DATA]  # type: ignore[union-attr]
            assert room == bytes(10)

    run(main)


def test_a_file_is_open_for_python_as_its_own_files_are(folder: Folder) -> None:

    def use(reader: Reader) -> None:
        with reader.open(folder.file("a")) as opened:
            assert opened.read(3) == b"012"
            assert opened.seek(-4, 2) == 6
            assert opened.read() == b"6789"
            assert opened.seek(1) == 1
            assert opened.seek(1, 1) == 2
            assert opened.read(2) == b"23"
            assert opened.seek(20) == 20
            assert opened.read(2) == b""
            with pytest.raises((OSError, ValueError), match=r"."):
                opened.seek(-1)
        with pytest.raises(FileNotFoundError):
            reader.open(folder.file("none"))

    on_thread(folder, use)
