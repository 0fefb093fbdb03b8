"""Stages that are called together deliver what they deliver apart, and keep every promise of each of them."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.testing import run_virtual
from tests.engine import in_worker
from tests.engine.failing import Oops
from tests.engine.inside import CHUNK, LATE, as_run, chunks_of, group_clocks, groups_that_end_after, stages_apart
from tests.reading.readers import SlowStore
from tests.searching import searched


def names(pipeline: af.Pipeline[Any]) -> list[str]:
    """Return how the stages of a pipeline run."""
    return [str(node) for node in as_run(pipeline)]


def double(number: Any) -> Any:
    return 2 * number


def following(number: Any) -> Any:
    return number + 1


def noise(number: Any, rng: np.random.Generator) -> Any:
    return number + int(rng.integers(1000))


def collated(rows: list[Any]) -> Any:
    return np.array(rows)


async def later(number: Any) -> Any:
    return number


# -- what is a segment

NUMBERS = af.items(range(40))
FILE = af.items([af.File("a.npy", 1)])


@pytest.mark.parametrize(("pipeline", "runs"), [
    (NUMBERS.map(double).map(following), ["map(double).map(following)"]),
    (NUMBERS.map(double).batch(4), ["map(double).batch(4)"]),
    (NUMBERS.map(noise, rng=True).batch(4).pad(), ["map(noise, rng=True).batch(4).pad()"]),
    (NUMBERS.map(double).batch(4, collate=collated), ["map(double).batch(4, collate=collated)"]),
    (NUMBERS.map(double).batch(4).map(double), ["map(double).batch(4)", "map(double)"]),
    (NUMBERS.map(double, concurrency=2).batch(4), ["map(double, concurrency=2).batch(4)"]),
    (FILE.load(af.npy).map(double).batch(4), ["load(npy).map(double).batch(4)"]),
    (FILE.load(af.npy).batch(4), ["load(npy).batch(4)"]),
    (FILE.load(af.json).map(double), ["load(json).map(double)"]),
    (FILE.map(str).load(af.json).map(double), ["map(str)", "load(json).map(double)"]),
    (
        NUMBERS.map(in_worker.double, on="process").map(in_worker.double, on="process").batch(2),
        ["map(double, on='process').map(double, on='process').batch(2)"],
    ),
], ids=lambda value: "" if isinstance(value, list) else repr(value))  # fmt: skip
def test_neighbours_that_call_sync_functions_in_order_are_called_together(
    pipeline: af.Pipeline[Any], runs: list[str]
) -> None:
    assert names(pipeline) == runs


@pytest.mark.parametrize("pipeline", [
    NUMBERS.map(double).prefetch(2).map(double),
    NUMBERS.map(double).prefetch(2).batch(4),
    NUMBERS.map(double).map(later),
    NUMBERS.map(later).batch(4),
    NUMBERS.map(double).map(double, concurrency=1),
    NUMBERS.map(double).map(in_worker.double, on="process"),
    NUMBERS.map(in_worker.double, on="process").batch(4, collate=collated),
    NUMBERS.map(double, ordered=False).batch(4),
    NUMBERS.map(double, on_error="skip", skip_limit=1).batch(4),
    NUMBERS.map(double).batch(4, timeout=1.0),
    NUMBERS.map(double).filter(bool),
    NUMBERS.map(double).scan(lambda total, number: (total, number), 0),
    NUMBERS.map(double).repeat(2).batch(3),
    NUMBERS.batch(4).map(double),
], ids=repr)  # fmt: skip
def test_everything_else_keeps_stages_apart(pipeline: af.Pipeline[Any]) -> None:
    assert len(names(pipeline)) == len(pipeline.stages)


def test_explain_and_stats_show_a_segment_as_one() -> None:
    pipeline = NUMBERS.map(double).map(following).batch(4)
    assert (
        "map(double).map(following).batch(4)  regroups items on the loop; 1 to 256 threads" in pipeline.explain()
    )
    with group_clocks(lambda: 0.0, lambda: 0.0), pipeline.open() as feed:  # no call looks slow
        next(feed)
        assert feed.stats().concurrency == (("map(double).map(following).batch(4)", 1),)


def test_one_call_moves_a_pipeline_to_processes() -> None:
    pipeline = NUMBERS.map(in_worker.double).map(later).map(in_worker.number_and_noise, rng=True).batch(4)
    moved = pipeline.in_processes(2)
    assert names(moved) == [
        "map(double, concurrency=2, on='process')",
        "map(later)",
        "map(number_and_noise, concurrency=2, rng=True, on='process').batch(4)",
    ]
    assert [batch.tolist() for batch in moved] == [batch.tolist() for batch in pipeline]
    with pytest.raises(af.PipelineError, match="no load or map with a sync function is before it"):
        NUMBERS.filter(bool).in_processes()
    with pytest.raises(af.PipelineError, match="count must be at least 1"):
        NUMBERS.map(double).in_processes(0)


# -- they deliver the same


class Outcome(NamedTuple):
    """What a run delivered, and where it failed."""

    batches: list[Any]
    where: Any


class Fails:
    """A function that fails for one number."""

    def __init__(self, bad: int) -> None:
        self.bad = bad

    def __call__(self, number: Any) -> Any:
        if int(number) % 1000 == self.bad:
            raise Oops(int(number))
        return number


def outcome(pipeline: af.Pipeline[Any], seed: int, limit: int | None) -> Outcome:
    async def main() -> Outcome:
        batches = []
        async with pipeline.open(memory_limit=limit) as feed:
            try:
                async for item in feed:
                    batches.append(item.tolist() if hasattr(item, "tolist") else item)
            except (Oops, ValueError) as error:
                failure = feed.failure
                assert failure is not None and failure.error is error
                stage = failure.stage.split(".")[-1] if failure.stage.startswith("batch") else failure.stage
                return Outcome(batches, (str(error), stage, failure.key, failure.ordinal, failure.epoch))
            return Outcome(batches, None)

    return run_virtual(main, seed=seed)


@st.composite
def segments(draw: st.DrawFn) -> af.Pipeline[Any]:
    """Draw stages that are called together, with others around them."""
    pipeline = draw(st.sampled_from([NUMBERS, af.items(np.arange(40)), af.items(lambda: iter(range(40)))]))
    if draw(st.booleans()):
        pipeline = pipeline.shuffle(seed=1, buffer=9) if pipeline.size() is None else pipeline.shuffle(seed=1)
    if draw(st.booleans()):
        pipeline = pipeline.repeat(2)
    for _ in range(draw(st.integers(1, 3))):
        concurrency = draw(st.sampled_from(["auto", "auto", "auto", 1, 3]))
        kind = draw(st.sampled_from(["double", "noise", "noise", "fails", "array"]))
        if kind == "noise":
            pipeline = pipeline.map(noise, rng=True, seed=draw(st.integers(0, 3)), concurrency=concurrency)
        elif kind == "fails":
            pipeline = pipeline.map(Fails(draw(st.integers(0, 60))), concurrency=concurrency)
        elif kind == "array":
            pipeline = pipeline.map(np.int64, concurrency=concurrency)
        else:
            pipeline = pipeline.map(double, concurrency=concurrency)
    for _ in range(draw(st.integers(0, 2))):
        size, drop = draw(st.integers(1, 9)), draw(st.booleans())
        pipeline = pipeline.batch(size, drop_remainder=drop, collate=draw(st.sampled_from([None, collated])))
        if draw(st.booleans()):
            pipeline = pipeline.map(double)
    return pipeline


@searched(60)
@given(
    pipeline=segments(),
    seed=st.integers(0, 2**32),
    limit=st.sampled_from([None, 1, 5000]),
    length=st.sampled_from([1, 3, CHUNK]),
    late=st.sampled_from([LATE, -1]),
    slow=st.booleans(),
)
def test_together_and_apart_deliver_and_report_the_same(
    pipeline: af.Pipeline[Any], seed: int, limit: int | None, length: int, late: float, slow: bool
) -> None:
    """Item by item, and which item failed in which stage, on any schedule and with any number of threads."""
    with stages_apart():
        expected = outcome(pipeline, seed, None)
    with chunks_of(length), groups_that_end_after(late, slow=slow):
        assert outcome(pipeline, seed, limit) == expected


@pytest.mark.parametrize("on", ["thread", "process"])
def test_a_batch_of_two_epochs_draws_for_each_member_in_its_own(on: Any) -> None:
    pipeline = af.items(range(10)).repeat(2).map(in_worker.number_and_noise, rng=True, on=on).batch(4)
    with stages_apart():
        expected = [
            batch.tolist()
            for batch in af.items(range(10)).repeat(2).map(in_worker.number_and_noise, rng=True).batch(4)
        ]
    assert [batch.tolist() for batch in pipeline] == expected


@pytest.mark.parametrize("decoder", ["npy", "ragged", "json", "function"])
@pytest.mark.parametrize("listing", ["eager", "names"])
def test_files_are_the_same_whether_they_are_read_together_or_not(
    tmp_path: Path, decoder: str, listing: Any
) -> None:
    for number in range(70):
        if decoder in ("npy", "ragged"):
            np.save(tmp_path / f"{number:02}", np.arange(3 + number % 2 * (decoder == "ragged")) + number)
        else:
            (tmp_path / f"{number:02}.npy").write_text(str(number))
    how: Any = {"npy": af.npy, "ragged": af.npy, "json": af.json, "function": int}[decoder]
    pipeline = af.files(f"{tmp_path}/*.npy", listing=listing).shuffle(seed=1).load(how).map(np.sum)
    with stages_apart():
        expected = [batch.tolist() for batch in pipeline.batch(8)]
    assert [batch.tolist() for batch in pipeline.batch(8)] == expected
    assert [number for batch in expected for number in batch] == [int(number) for number in pipeline]


def test_objects_of_a_store_are_read_on_the_loop_before_their_functions(seed: int) -> None:
    contents = {f"{number:02}": b"%d" % number for number in range(40)}
    store = SlowStore(contents)
    store.reads_on_loop = True  # type: ignore[misc]
    alone = af.items(store.files()).load(int)
    on_loop = af.Pipeline(alone.source, (replace(alone.stages[0], on_loop=True),))
    pipeline: af.Pipeline[Any] = on_loop.map(double).batch(8)
    assert "calls on the loop" in pipeline.explain()
    with stages_apart():
        expected = outcome(pipeline, seed, None)
    for limit in (None, 1, 5000):
        assert outcome(pipeline, seed, limit) == expected
    assert np.concatenate(expected.batches).tolist() == list(range(0, 80, 2))


def test_a_file_that_cannot_be_read_is_reported_as_if_it_was_read_alone(tmp_path: Path) -> None:
    for number in range(20):
        np.save(tmp_path / f"{number:02}", np.arange(3))
    (tmp_path / "13.npy").write_bytes(b"nothing")
    pipeline = af.files(f"{tmp_path}/*.npy").load(af.npy).map(double).batch(4)
    for apart in (True, False):
        with stages_apart(apart), pipeline.open() as feed:
            batches = 0
            with pytest.raises(af.Corrupt):
                for _ in feed:
                    batches += 1
            failure = feed.failure
        assert failure is not None and batches == 3
        assert (failure.stage, Path(failure.key).name, failure.ordinal) == ("load(npy)", "13.npy", 13)


def test_a_function_may_change_its_input_in_place(tmp_path: Path) -> None:
    for number in range(8):
        np.save(tmp_path / str(number), np.zeros(4))

    def add(row: Any) -> Any:
        row += 1
        return row

    pipeline = af.files(f"{tmp_path}/*.npy").load(af.npy).map(add).map(add).batch(4).repeat(2)
    assert all((batch == 2).all() for batch in pipeline)


class Together:
    """A dataset that reads many items with one call."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 64

    def __getitem__(self, number: int) -> int:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: list[int]) -> list[int]:
        self.asked.append(len(numbers))
        return numbers


def test_a_dataset_is_still_asked_for_many_items_at_once() -> None:
    dataset = Together()
    batches = list(af.items(dataset, concurrency="auto").map(double).batch(16))
    assert [batch.tolist() for batch in batches] == [
        list(range(2 * at, 2 * at + 32, 2)) for at in range(0, 64, 16)
    ]
    assert max(dataset.asked) == 16
    dataset.asked.clear()
    assert list(af.items(dataset).map(double)) == list(range(0, 128, 2))
    assert max(dataset.asked) > 1


# -- threads


@pytest.mark.parametrize("size", [4, 8])
def test_functions_of_one_batch_may_wait_for_each_other(size: int) -> None:
    """As many as were asked for run at a time, also of one batch, and if there is no other."""
    together = threading.Barrier(4)

    def meets(number: int) -> int:
        time.sleep(0.003)  # worth a hand-over: members that take less go to a thread together
        together.wait(timeout=20)
        return number

    count = 16 if size == 8 else 4
    batches = list(af.items(range(count)).map(meets, concurrency=4).batch(size))
    assert np.concatenate(batches).tolist() == list(range(count))


def test_functions_that_wait_get_threads_whatever_reads_their_files(tmp_path: Path) -> None:
    """Eight of them run at a time at some moment, though the kernel reads the files for one thread."""
    for number in range(64):
        np.save(tmp_path / f"{number:02}", np.arange(4))
    lock = threading.Lock()
    now = most = 0

    def waits(row: Any) -> Any:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.02)
        with lock:
            now -= 1
        return row

    files = af.files(f"{tmp_path}/*.npy").repeat(3)
    assert sum(len(batch) for batch in files.load(af.npy).map(waits).batch(32)) == 192
    assert most >= 8


def test_a_slow_member_holds_no_other_member_up() -> None:
    """It waits here until all others were called, also those of its own batch."""
    called = threading.Semaphore(0)

    def slow(number: int) -> int:
        if number == 2:
            for _ in range(23):
                assert called.acquire(timeout=20)
        else:
            called.release()
            time.sleep(0.003)  # worth a hand-over: members that take less go to a thread together
        return number

    batches = list(af.items(range(24)).map(slow, concurrency=2).batch(6))
    assert np.concatenate(batches).tolist() == list(range(24))


@pytest.mark.parametrize("limit", [1, 3])
def test_no_function_runs_more_often_at_a_time_than_was_asked_for(limit: int) -> None:
    lock = threading.Lock()
    now = most = 0

    def counts(number: int) -> int:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.0005)
        with lock:
            now -= 1
        return number

    called: list[int] = []
    pipeline = af.items(range(120)).map(called.append if limit == 1 else double, concurrency=limit)
    list(pipeline.map(lambda _: 1, concurrency=limit).map(counts, concurrency=limit).batch(16))
    assert most <= limit
    assert limit > 1 or called == list(range(120))


class Counted:
    """A function that counts its calls, each of which takes 2 ms."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, number: int) -> int:
        self.calls += 1
        time.sleep(0.002)
        return number


def test_a_stop_waits_for_no_more_than_the_members_that_are_being_called() -> None:
    slow = Counted()
    with af.items(range(10**6)).map(slow, concurrency=2).batch(256).open() as feed:
        next(feed)
        before = slow.calls
        feed.close()
        assert slow.calls <= before + 4


def test_a_stop_waits_for_no_more_in_processes(tmp_path: Path) -> None:
    """Each call adds a byte to a file."""
    path = tmp_path / "calls"
    path.touch()
    pipeline = af.items([str(path)] * 10**5).map(in_worker.slow_note, on="process", concurrency=2).batch(256)
    with pipeline.open() as feed:
        next(feed)
        before = path.stat().st_size
        feed.close()
        after = path.stat().st_size
    time.sleep(0.1)
    assert path.stat().st_size <= after + 2
    assert after <= before + 20


@pytest.mark.parametrize("size", [0, 8], ids=["items", "batches"])
def test_what_is_made_between_two_functions_counts(size: int) -> None:
    """Each thread has 20 MB between two functions. What comes out has a kilobyte."""
    lock = threading.Lock()
    now = most = 0

    def grow(number: int) -> Any:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        return np.empty(20 << 20, np.uint8)

    def shrink(array: Any) -> Any:
        nonlocal now
        time.sleep(0.005)
        with lock:
            now -= 1
        return array[:1000].copy()

    pipeline = af.items(range(80)).map(grow).map(shrink)
    pipeline = pipeline.batch(size) if size else pipeline
    with pipeline.open(memory_limit=64 << 20) as feed:
        assert sum(1 for _ in feed) == (10 if size else 80)
        assert feed.stats().memory_peak <= 84 << 20
    assert most <= 4


def test_a_stop_iteration_of_a_function_is_its_error() -> None:
    def ends(number: int) -> int:
        return next(iter(())) if number == 5 else number

    with af.items(range(9)).map(ends).batch(3).open() as feed:
        assert next(feed).tolist() == [0, 1, 2]
        with pytest.raises(RuntimeError, match=r"map\(ends\) raised StopIteration"):
            next(feed)


def test_the_earliest_item_is_reported_also_of_a_batch_that_is_never_full(seed: int) -> None:
    """The stream fails before the batch is full, or its last batch is dropped."""
    assert outcome(NUMBERS.map(Fails(1), concurrency=1).map(Fails(0)).batch(4), seed, None).where[:1] == ("0",)
    assert outcome(NUMBERS.map(Fails(38)).batch(16, drop_remainder=True), seed, None).where[:1] == ("38",)


def test_the_earliest_item_of_a_batch_is_reported_though_it_fails_last() -> None:
    def fails(number: int) -> int:
        time.sleep(0.05 if number == 1 else 0.003)
        if number in (1, 3):
            raise Oops(number)
        return number

    with pytest.raises(Oops, match="1"):
        list(af.items(range(8)).map(fails, concurrency=4).batch(8))


def test_the_earliest_item_is_reported_whatever_its_stage(seed: int) -> None:
    pipeline = NUMBERS.map(Fails(9)).map(Fails(7)).batch(4)
    assert outcome(pipeline, seed, None).where[:1] == ("7",)
    with groups_that_end_after(-1, slow=True):
        assert outcome(pipeline, seed, None).where[:1] == ("7",)
