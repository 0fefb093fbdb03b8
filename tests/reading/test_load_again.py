"""`load` from a store whose reads fail, hang and come late: the policy of the store, and that of the `load`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.attempts.retry import Policy
from asyncfeed.reading import AsyncReader, Bytes, File, Range, Reader, Store
from asyncfeed.stats import SlowPaths

COUNT = 20
PATIENT = af.Retry(attempts=3, first_delay=1e-3)


class Flaky(Store):
    """Files of four bytes; each of their reads fails a number of times. Compared by identity."""

    def __init__(self, failures: int, policy: Policy | None = None, *, on_threads: bool = False) -> None:
        self.failures = failures
        self.reads: Counter[str] = Counter()
        self.followed: list[Policy] = []
        self.broken = ""
        """The path of a file that cannot be had."""
        self._policy = policy or Policy()
        self._on_threads = on_threads

    @property
    def policy(self) -> Policy:
        return self._policy

    def files(self) -> list[File]:
        return [File(f"{number}.raw", 4, etag="1", store=self) for number in range(COUNT)]

    def read(self, file: File) -> Bytes | Exception:
        self.reads[file.path] += 1
        if file.path == self.broken or self.reads[file.path] <= self.failures:
            return af.Unavailable(f"{file.path}: busy", kind="throttled")
        return np.full(4, int(file.path.split(".")[0]), np.uint8)

    def reader(self) -> Reader | AsyncReader:
        return OnThreads(self) if self._on_threads else OnLoop(self)


class OnLoop(AsyncReader):
    def __init__(self, store: Flaky) -> None:
        self._store = store

    def follow(self, policy: Policy, again: SlowPaths) -> None:
        self._store.followed.append(policy)

    async def look(self, files: Sequence[File]) -> list[File | Exception]:
        return list(files)

    async def read_ranges(self, file: File, ranges: Sequence[Range]) -> list[Bytes | Exception]:
        return [self._store.read(file) for _ in ranges]


class OnThreads(Reader):
    def __init__(self, store: Flaky) -> None:
        self._store = store

    def look(self, files: Sequence[File]) -> list[File | Exception]:
        return list(files)

    def read_ranges(self, file: File, ranges: Sequence[Range]) -> list[Bytes | Exception]:
        return [self._store.read(file) for _ in ranges]


def samples(pipeline: af.Pipeline[Any]) -> list[int]:
    return [int(value) for each in pipeline for value in np.atleast_2d(each)[:, 0]]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("of", ["store", "load"])
def test_reads_that_fail_are_repeated_as_the_store_or_the_load_says(fused: bool, of: str) -> None:  # noqa: FBT001
    store = Flaky(2, Policy(retry=PATIENT) if of == "store" else None)
    loaded = af.items(store.files()).load(af.raw("uint8"), **({} if of == "store" else {"retry": PATIENT}))
    assert samples(loaded.batch(5) if fused else loaded) == list(range(COUNT))
    del store.reads["0.raw"]  # a batch reads the first file once more, for its layout
    assert store.reads == {f"{number}.raw": 3 for number in range(1, COUNT)}


def test_a_load_may_want_one_attempt_where_its_store_wants_many() -> None:
    store = Flaky(2, Policy(retry=PATIENT))
    with pytest.raises(af.Unavailable, match="0.raw: busy"):
        samples(af.items(store.files()).load(af.raw("uint8"), retry=None, concurrency=1))
    assert store.reads["0.raw"] == 1


def test_what_fails_at_last_is_raised_with_its_attempts_and_its_name() -> None:
    store = Flaky(3, Policy(retry=PATIENT))
    with pytest.raises(af.Unavailable, match="0.raw: busy") as raised:
        samples(af.items(store.files()).load(af.raw("uint8")))
    assert [each.number for each in raised.value.attempts] == [1, 2]
    assert "item 0.raw" in str(raised.value.__notes__)


@pytest.mark.parametrize("columns", [1, 2])
def test_a_batch_asks_no_more_often_for_a_file_than_a_sample_does(columns: int) -> None:
    """One file cannot be had. Its batch is not read again file by file, which would take as long once more."""
    store = Flaky(0, Policy(retry=PATIENT))
    files = store.files()
    pipeline: Any = af.items(files if columns == 1 else list(zip(files, files[::-1], strict=True)))
    store.broken = "7.raw"
    with pytest.raises(af.Unavailable, match="7.raw: busy") as raised:
        list(pipeline.load(af.raw("uint8")).batch(10))
    assert "item 7.raw" in str(raised.value.__notes__) or columns == 2
    assert store.reads["7.raw"] <= PATIENT.attempts * columns
    assert store.reads["8.raw"] <= columns


def test_statistics_count_what_was_read_again() -> None:
    store = Flaky(1, Policy(retry=PATIENT))
    with af.items(store.files()).load(af.raw("uint8")).open() as feed:
        assert len(list(feed)) == COUNT
        assert dict(feed.stats().slow_paths) == {"read again after: throttled": COUNT}


def test_stages_that_want_the_same_share_a_reader_which_is_told_what_they_want() -> None:
    store = Flaky(0, Policy(retry=PATIENT, timeout=7.0, hedge=0.5))
    items = [(file, {"same": file, "other": file}) for file in store.files()]
    pipeline = af.items(items).load(af.raw("uint8"))
    assert len(list(pipeline)) == COUNT
    assert store.followed == [Policy(retry=PATIENT, timeout=7.0, hedge=0.5)]
    store.followed.clear()
    assert len(list(af.items(store.files()).load(af.raw("uint8"), retry=None, timeout=2.0, hedge=None))) == COUNT
    assert store.followed == [Policy(timeout=2.0)]


def test_a_store_that_is_read_on_threads_repeats_nothing() -> None:
    """Its calls cannot be cancelled: it does that itself, as fsspec does."""
    store = Flaky(1, Policy(retry=PATIENT), on_threads=True)
    with pytest.raises(af.Unavailable):
        samples(af.items(store.files()).load(af.raw("uint8"), concurrency=1))
    assert store.reads["0.raw"] == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retry": 3}, r"load: retry must be an asyncfeed.Retry\(...\) or None, not 3"),
        ({"timeout": -1}, "load: timeout must be a number of seconds above 0, not -1"),
        ({"hedge": "often"}, "load: hedge must be a number of seconds above 0, or \"auto\", not 'often'"),
    ],
    ids=str,
)
def test_options_are_checked_where_they_are_written(options: dict[str, Any], message: str) -> None:
    with pytest.raises(af.PipelineError, match=message):
        af.files(__file__).load(af.text, **options)
