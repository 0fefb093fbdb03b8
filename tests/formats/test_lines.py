"""`lines`: a text file line by line, never more than a block of it in memory, and closed in every case."""

from __future__ import annotations

import asyncio
import io
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.errors import Corrupt
from asyncfeed.formats.lines import Lines, lines
from asyncfeed.reading.file import File
from asyncfeed.reading.threaded import BLOCK


def is_open(path: Path) -> bool:
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor that listed them
            if fd.readlink() == path:
                return True
    return False


def read(path: Any, **options: Any) -> list[str]:
    async def collect() -> list[str]:
        return [line async for line in lines(path, **options)]

    return asyncio.run(collect())


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    where = tmp_path / "a.txt"
    yield where
    assert not is_open(where)


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\nb\r\n\r\n", ["a", "b", ""]),
        (b"a\rb\n", ["a\rb"]),
        ("grüße\n☃".encode(), ["grüße", "☃"]),
    ],
)
def test_lines_come_without_their_ends(path: Path, contents: bytes, expected: list[str]) -> None:
    path.write_bytes(contents)
    assert read(path) == expected
    assert read(File(str(path), len(contents))) == expected


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 3 * BLOCK), max_size=6), st.sampled_from(["\n", "\r\n"]))
def test_lines_of_any_length_come_whole_across_blocks(path: Path, lengths: list[int], end: str) -> None:
    expected = ["é" * (length // 2) + "x" * (length % 2) for length in lengths]
    path.write_bytes("".join(line + end for line in expected).encode())
    assert read(path) == expected


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 9), max_size=30), st.integers(1, 12), st.booleans(), st.integers(0, 40))
def test_a_block_is_decoded_in_pieces_of_whole_lines(
    path: Path, monkeypatch: pytest.MonkeyPatch, lengths: list[int], nbytes: int, ends: bool, wrong: int
) -> None:
    """Nobody can tell, not even from the number of a line in an error."""
    monkeypatch.setattr(Lines, "together", nbytes)
    contents = [b"x" * length for length in lengths]
    path.write_bytes(b"\n".join(contents) + (b"\n" if ends else b""))
    expected = [line.decode() for line in contents]
    if expected and not ends and not expected[-1]:
        expected.pop()  # a file that ends with a line's end
    if not lengths and ends:
        expected = [""]
    assert read(path) == expected
    if wrong < len(lengths):
        contents[wrong] += b"\xff"
        path.write_bytes(b"\n".join(contents))
        with pytest.raises(Corrupt, match=f"offset {lengths[wrong]} of line {wrong + 1}"):
            read(path)


def test_a_line_that_never_ends_is_corrupt(path: Path) -> None:
    path.write_bytes(b"ok\n" + b"x" * 300_000)
    with pytest.raises(Corrupt, match=r"a\.txt: line 2 is longer than 100000 bytes"):
        read(path, max_line=100_000)
    with pytest.raises(Corrupt, match="line 1 is longer than 1 bytes"):
        read(path, max_line=1)


def test_bytes_that_are_not_utf8_are_corrupt_and_located(path: Path) -> None:
    path.write_bytes(b"fine\nab\xff\n")
    with pytest.raises(Corrupt, match=r"a\.txt is not utf-8: byte 0xff at offset 2 of line 2"):
        read(path)


def test_a_missing_file_keeps_its_error(path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"a\.txt"):
        read(path)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the names of the threads on which files are opened."""
    seen: set[str] = set()
    opened = open

    def spy(*args: Any, **options: Any) -> Any:
        seen.add(threading.current_thread().name)
        return opened(*args, **options)

    monkeypatch.setattr("asyncfeed.reading.local.open", spy, raising=False)
    return seen


def test_alone_it_reads_on_the_threads_of_the_loop(path: Path, threads: set[str]) -> None:
    path.write_bytes(b"a\nb\n")

    async def collect() -> list[str]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1, "ours"))
        return [line async for line in lines(path)]

    assert asyncio.run(collect()) == ["a", "b"]
    assert threads == {"ours_0"}


@pytest.mark.parametrize("fn", [lines, lambda path: lines(path), partial(lines, max_line=3)])
def test_in_a_run_it_reads_on_the_threads_of_the_run(path: Path, threads: set[str], fn: Any) -> None:
    """Also where a function of the user's calls it."""
    path.write_bytes(b"a\nb\n")
    assert list(af.items([str(path)]).flat_map(fn)) == ["a", "b"]
    assert len(threads) == 1
    assert all(name.startswith("asyncfeed-") for name in threads)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)])
def test_it_takes_the_contents_of_a_file_that_was_read_elsewhere(kind: Any) -> None:
    assert read(kind(b"a\nb")) == ["a", "b"]
    assert read(kind(b"")) == []
    with pytest.raises(Corrupt, match="<bytes> is not utf-8: byte 0xff at offset 0 of line 1"):
        read(kind(b"\xff"))


def test_it_is_a_value_and_shows_itself() -> None:
    assert pickle.loads(pickle.dumps(lines)) == lines == Lines() != Lines(max_line=3)
    assert (repr(lines), repr(Lines(max_line=3))) == ("lines", "lines(max_line=3)")
    assert repr(af.items(["a"]).flat_map(lines)).endswith(".flat_map(lines)")


def test_the_file_is_closed_when_the_generator_is(path: Path) -> None:
    path.write_bytes(b"a\nb\n")

    async def scenario() -> None:
        stream = lines(path)
        assert await anext(stream) == "a"
        assert is_open(path)
        await stream.aclose()
        assert not is_open(path)

    asyncio.run(scenario())


def test_the_file_is_closed_after_an_error(path: Path) -> None:
    path.write_bytes(b"\xff\n")

    async def scenario() -> None:
        with pytest.raises(Corrupt):
            await anext(lines(path))
        assert not is_open(path)

    asyncio.run(scenario())


class Gate:
    """Holds a thread until it is let through."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.reached = asyncio.Event()
        self.through = threading.Event()

    def wait(self) -> None:
        self.loop.call_soon_threadsafe(self.reached.set)
        self.through.wait()


class Held(io.BufferedReader):
    """A file one call of which is held by a gate."""

    gates: dict[str, Gate]

    def read(self, size: int | None = -1) -> bytes:
        if gate := self.gates.pop("read", None):
            gate.wait()
        return super().read(size)

    def close(self) -> None:
        if gate := self.gates.pop("close", None):
            gate.wait()
        super().close()


@pytest.mark.parametrize("call", ["open", "open that fails", "read", "close"])
def test_the_file_is_closed_when_a_call_is_cancelled(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path.write_bytes(b"a\nb\n")

    async def scenario() -> None:
        gate = Gate()

        def opened(name: str, *_: Any, **__: Any) -> Held:
            if "open" in call:
                gate.wait()
            if "fails" in call:
                raise FileNotFoundError(name)
            held = Held(io.FileIO(name))
            held.gates = {call: gate}
            return held

        monkeypatch.setattr("asyncfeed.reading.local.open", opened, raising=False)
        stream = lines(path)
        with ThreadPoolExecutor(2) as threads:
            asyncio.get_running_loop().set_default_executor(threads)
            if call == "close":
                await anext(stream)
            task = asyncio.ensure_future(stream.aclose() if call == "close" else anext(stream))
            await gate.reached.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert asyncio.all_tasks() == {asyncio.current_task()}
            gate.through.set()
        assert not is_open(path)

    asyncio.run(scenario())


def test_the_file_is_closed_when_it_opened_just_before_the_cancellation(path: Path) -> None:
    path.write_bytes(b"a\n")

    class Held(ThreadPoolExecutor):
        """Has made each call when `submit` returns. The loop hears of it later."""

        def submit(self, fn: Any, /, *args: Any, **options: Any) -> Any:
            done = super().submit(fn, *args, **options)
            wait([done])
            self.heard: Future[Any] = Future()
            asyncio.get_running_loop().call_soon(self.tell, self.heard, done.result())
            return self.heard

        def tell(self, heard: Future[Any], result: Any) -> None:
            if heard.set_running_or_notify_cancel():
                heard.set_result(result)

    async def scenario() -> None:
        with Held(1) as threads:
            asyncio.get_running_loop().set_default_executor(threads)
            task = asyncio.ensure_future(anext(lines(path)))
            while not is_open(path):
                await asyncio.sleep(0)
            assert task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert not is_open(path)

    asyncio.run(scenario())


class LateLoop(asyncio.SelectorEventLoop):
    """Has seconds pass between any two looks at its clock, as if the machine had no time for it."""

    looks = 0

    def time(self) -> float:
        self.looks += 1
        return super().time() + 2 * self.looks


@pytest.mark.parametrize("loop", [asyncio.SelectorEventLoop, LateLoop])
@pytest.mark.parametrize("call", ["open", "read", "close"])
def test_a_call_that_hangs_leaves_no_task_behind(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str, loop: type[asyncio.AbstractEventLoop]
) -> None:
    """Closing a feed over it waits for `grace` seconds, and ends, also on a busy machine; the loop is the user's."""
    path.write_bytes(b"a\nb\n")

    async def scenario() -> None:
        gate = Gate()

        def opened(name: str, *_: Any, **__: Any) -> Held:
            if call == "open":
                gate.wait()
            held = Held(io.FileIO(name))
            held.gates = {call: gate}
            return held

        monkeypatch.setattr("asyncfeed.reading.local.open", opened, raising=False)
        before = set(threading.enumerate())
        feed = af.items([str(path)]).flat_map(lines).open(grace=0.01)
        drawing = asyncio.ensure_future(anext(feed))
        if call == "close":
            await drawing
        else:
            await gate.reached.wait()
        await feed.aclose()
        await asyncio.wait([drawing])
        assert call == "close" or isinstance(drawing.exception(), af.ClosedError)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        gate.through.set()
        for thread in set(threading.enumerate()) - before:
            thread.join(30)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(scenario())
    assert not is_open(path)
