"""A reader that reads again what failed in a way that may pass."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.reading.file import Bytes, File
from asyncfeed.reading.reader import AsyncReader, Buffers, Range
from asyncfeed.reading.retrying import RetryingReader
from asyncfeed.stats import SlowPaths
from asyncfeed.testing import run_virtual

RETRY = af.Retry(attempts=4, seconds=1000)
Fault = Callable[[str, int], Exception | None]


def busy() -> Exception:
    return af.Unavailable("503", kind="throttled")


class Faulty(AsyncReader):
    """Reads files whose contents are their names. `fault` says how the n-th read of a path fails."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.reads: Counter[str] = Counter()
        self.calls: list[list[str]] = []

    def _fails(self, path: str) -> Exception | None:
        self.reads[path] += 1
        return self.fault(path, self.reads[path])

    async def look(self, files: Sequence[File]) -> list[File | Exception]:
        self.calls.append([each.path for each in files])
        return [self._fails(each.path) or File(each.path, len(each.path), etag="1") for each in files]

    async def read(self, files: Sequence[File]) -> list[Bytes | Exception]:
        self.calls.append([each.path for each in files])
        return [self._fails(each.path) or np.frombuffer(each.path.encode(), np.uint8) for each in files]

    async def read_ranges(self, file: File, ranges: Sequence[Range]) -> list[Bytes | Exception]:
        text = file.path.encode()
        self.calls.append([f"{start}" for start, _ in ranges])
        return [
            self._fails(f"{start}") or np.frombuffer(text[start:stop], np.uint8).copy() for start, stop in ranges
        ]

    async def read_into(self, files: Sequence[File], into: Sequence[Buffers]) -> list[Exception | None]:
        self.calls.append([each.path for each in files])
        outcomes = []
        for file, (buffer,) in zip(files, into, strict=True):
            outcomes.append(self._fails(file.path))
            buffer[:] = b"x" * len(buffer) if outcomes[-1] else file.path.encode()
        return outcomes

    async def stream(self, file: File, start: int = 0) -> AsyncGenerator[bytes]:
        self.calls.append([f"{start}"])
        for at in range(start, len(file.path)):
            error = self._fails(f"{at}")
            if error is not None:
                raise error
            yield file.path[at].encode()


def read(
    faulty: Faulty, ask: Callable[[RetryingReader], Coroutine[Any, Any, Any]], retry: af.Retry = RETRY
) -> Any:
    return run_virtual(ask(RetryingReader(faulty, retry, SlowPaths())))


async def streamed(reader: AsyncReader, file: File) -> bytes:
    return b"".join([block async for block in reader.stream(file)])


METHODS: dict[str, Callable[[AsyncReader, list[File]], Coroutine[Any, Any, list[Any]]]] = {
    "look": lambda reader, files: reader.look(files),
    "read": lambda reader, files: reader.read(files),
    "read_into": lambda reader, files: reader.read_into(files, [[bytearray(len(each.path))] for each in files]),
}


@pytest.mark.parametrize("method", METHODS)
@given(failures=st.lists(st.integers(0, 6), max_size=8))
def test_each_file_is_read_until_it_comes_or_the_attempts_are_over(method: str, failures: list[int]) -> None:
    """Only what failed is read again, and each outcome is of its own file."""
    faulty = Faulty(lambda path, number: busy() if number <= failures[int(path)] else None)
    files = [File(str(at)) for at in range(len(failures))]
    outcomes = read(faulty, lambda reader: METHODS[method](reader, files))
    assert [isinstance(each, Exception) for each in outcomes] == [each >= 4 for each in failures]
    assert faulty.reads == {str(at): min(each + 1, 4) for at, each in enumerate(failures)}
    for at, outcome in enumerate(outcomes):
        if isinstance(outcome, af.Unavailable):
            assert [each.number for each in outcome.attempts] == [1, 2, 3]
        elif method == "read":
            assert outcome.tobytes() == str(at).encode()


def test_bytes_of_a_failed_attempt_are_not_left_in_memory_that_was_given() -> None:
    faulty = Faulty(lambda _, number: busy() if number < 3 else None)
    into = [[bytearray(3)], [bytearray(4)]]
    assert read(faulty, lambda reader: reader.read_into([File("abc"), File("defg")], into)) == [None, None]
    assert into == [[bytearray(b"abc")], [bytearray(b"defg")]]


def test_parts_of_a_file_are_read_again_one_by_one() -> None:
    faulty = Faulty(lambda start, number: busy() if start == "2" and number == 1 else None)
    parts = read(faulty, lambda reader: reader.read_ranges(File("abcdef"), [(0, 2), (2, 4), (4, 6)]))
    assert [each.tobytes() for each in parts] == [b"ab", b"cd", b"ef"]
    assert faulty.calls == [["0", "2", "4"], ["2"]]


@pytest.mark.parametrize("error", [FileNotFoundError("a"), PermissionError("a"), af.StoreError("a")], ids=repr)
def test_what_another_attempt_cannot_mend_is_the_outcome_at_once(error: Exception) -> None:
    faulty = Faulty(lambda *_: error)
    assert read(faulty, lambda reader: reader.read([File("a")])) == [error]
    assert faulty.reads == {"a": 1}


def test_a_damaged_answer_is_asked_for_again_as_often_as_no_answer() -> None:
    damaged = Faulty(lambda _, number: af.Corrupt("short", transient=True) if number < 4 else None)
    (outcome,) = read(damaged, lambda reader: reader.read([File("a")]))
    assert outcome.tobytes() == b"a"


@pytest.mark.parametrize("first", [None, busy()], ids=str)
def test_a_file_that_is_not_as_listed_is_read_once_more(first: Exception | None) -> None:
    """Whatever failed before. A file that was written to stays another one."""
    passing = Faulty(lambda _, number: [first, af.Corrupt("old")][number - 1] if first and number < 3 else None)
    (outcome,) = read(passing, lambda reader: reader.read([File("a")]))
    assert outcome.tobytes() == b"a"
    changed = Faulty(lambda *_: af.Corrupt("changed"))
    (outcome,) = read(changed, lambda reader: reader.read([File("a")]))
    assert isinstance(outcome, af.Corrupt)
    assert changed.reads == {"a": 2}


@given(st.text("abc", max_size=12), st.integers(0, 2**32))
def test_a_stream_goes_on_behind_the_last_byte_that_came(text: str, seed: int) -> None:
    random = Random(seed)
    faulty = Faulty(lambda _, number: busy() if number < 4 and random.random() < 0.5 else None)
    assert read(faulty, lambda reader: streamed(reader, File(text, etag="1"))) == text.encode()


def test_a_stream_that_gets_nowhere_is_an_error_that_tells_of_its_attempts() -> None:
    """Attempts count since the last byte that came."""
    faulty = Faulty(lambda at, _: busy() if at == "2" else None)
    with pytest.raises(af.Unavailable) as raised:
        read(faulty, lambda reader: streamed(reader, File("abcd", etag="1")))
    assert len(raised.value.attempts) == 3
    assert faulty.calls == [["0"], ["2"], ["2"], ["2"]]


def test_a_stream_of_a_file_that_was_not_listed_is_of_one_version() -> None:
    faulty = Faulty(lambda *_: None)
    assert read(faulty, lambda reader: streamed(reader, File("ab"))) == b"ab"
    assert faulty.calls == [["ab"], ["0"]], "looked at first"


def test_what_was_read_again_is_counted_by_its_reason() -> None:
    again = SlowPaths()
    faulty = Faulty(lambda path, number: busy() if number <= int(path) else None)
    run_virtual(RetryingReader(faulty, RETRY, again).read([File("1"), File("2"), File("0")]))
    assert dict(again.counts()) == {"read again after: throttled": 3}


class Slow(Faulty):
    """Each call takes 100 seconds, because its requests wait for those of other feeds."""

    async def read(self, files: Sequence[File]) -> list[Bytes | Exception]:
        await asyncio.sleep(100)
        return await super().read(files)


@pytest.mark.parametrize(("failures", "reads"), [(1, 2), (9, 2)])
def test_the_time_before_the_first_failure_is_no_time_in_which_a_read_failed(failures: int, reads: int) -> None:
    faulty = Slow(lambda _, number: busy() if number <= failures else None)
    (outcome,) = read(faulty, lambda reader: reader.read([File("1")]), af.Retry(attempts=4, seconds=60))
    assert isinstance(outcome, af.Unavailable) is (failures > 1)
    assert faulty.reads == {"1": reads}, "after that it counts"


def test_a_read_can_be_cancelled_while_it_waits_for_the_next_attempt() -> None:
    async def main() -> None:
        retry = af.Retry(attempts=100, seconds=1e6, first_delay=1e5, max_delay=1e5)
        reading = asyncio.create_task(
            RetryingReader(Faulty(lambda *_: busy()), retry, SlowPaths()).read([File("a")])
        )
        await asyncio.sleep(1)
        reading.cancel()
        await asyncio.wait([reading])
        assert reading.cancelled()
        assert asyncio.get_running_loop().time() < 2

    run_virtual(main)
