"""What results weigh before anybody has seen one, when they change, and where only a file can tell."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.testing import run_virtual
from tests.engine.inside import DYING, group_clocks, memory_guessed

MB = 1 << 20


class Block:
    """So many bytes that are alive, and how many were at most."""

    alive = peak = 0
    # Without the GIL, a block that another thread dropped may go while this thread counts one.
    lock = threading.RLock()

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        with Block.lock:
            Block.alive += nbytes
            Block.peak = max(Block.peak, Block.alive)
        weakref.finalize(self, Block.gone, nbytes)

    @classmethod
    def gone(cls, nbytes: int) -> None:
        with cls.lock:
            cls.alive -= nbytes


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Block.alive = Block.peak = 0


async def last_time(pipeline: af.Pipeline[Any], **options: Any) -> tuple[float, int]:
    count = 0
    async with pipeline.open(**options) as feed:
        async for item in feed:
            del item
            count += 1
    return asyncio.get_running_loop().time(), count


async def slowly(x: int) -> np.ndarray[Any, Any]:
    await asyncio.sleep(10)
    return np.zeros(100 + x)


async def slow_yes(x: int) -> bool:
    await asyncio.sleep(10)
    return x >= 0


async def slow_elements(x: int) -> Any:
    await asyncio.sleep(10)
    yield np.zeros(100 + x)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(("stage", "fn"), [("map", slowly), ("filter", slow_yes), ("flat_map", slow_elements)])
def test_all_calls_that_were_asked_for_run_though_the_first_takes_long(
    stage: str, fn: Any, ordered: bool, seed: int
) -> None:
    """50 calls of 10 s, 50 at a time, take 10 s and a few more: they do not wait until one is weighed."""
    pipeline = getattr(af.items(range(50)), stage)(fn, concurrency=50, ordered=ordered)
    seconds, count = run_virtual(last_time(pipeline, memory_limit=100 * MB), seed=seed)
    assert count == 50
    assert 10 <= seconds < 14


def test_all_calls_on_threads_run_though_the_first_takes_long() -> None:
    """Each of 20 calls on threads waits for all the others."""
    meet = threading.Barrier(20)

    def together(x: int) -> np.ndarray[Any, Any]:
        meet.wait(20)
        return np.zeros(100 + x)

    assert len(list(af.items(range(20)).map(together, concurrency=20))) == 20


def test_elements_made_on_threads_do_not_wait_for_the_first() -> None:
    """The same in a `flat_map`."""
    meet = threading.Barrier(8)

    def together(x: int) -> Iterator[int]:
        meet.wait(20)
        yield x

    assert list(af.items(range(8)).flat_map(together, concurrency=8)) == list(range(8))


def test_a_guess_is_corrected_by_the_first_result() -> None:
    """Where results are small, a second stage has the memory that was set aside for those still worked on."""

    async def first(x: int) -> np.ndarray[Any, Any]:
        await asyncio.sleep(5 if x == 0 else 100)
        return np.zeros(10)

    async def main() -> int:
        async with af.items(range(50)).map(first, concurrency=50).open(memory_limit=100 * MB) as feed:
            await asyncio.sleep(4.5)
            assert memory_guessed(feed) > 90 * MB
            assert feed.stats().memory_used < MB
            await asyncio.sleep(1)
            return feed.stats().memory_used

    assert run_virtual(main) < MB


def _slow_branches(nbytes: int) -> af.Pipeline[Any]:
    async def make(_: int) -> Block:
        await asyncio.sleep(1)
        return Block(nbytes)

    return af.concat(*(af.items(range(40)).map(make, concurrency=calls) for calls in (16, 8)))


def _slow_maps(nbytes: int) -> af.Pipeline[Any]:
    async def make(_: int) -> Block:
        await asyncio.sleep(1)
        return Block(nbytes)

    async def copied(_: Block) -> Block:
        return await make(0)

    return af.items(range(40)).map(make, concurrency=16).map(copied, concurrency=8).prefetch(100)


def _slow_elements(nbytes: int) -> af.Pipeline[Any]:
    async def make(_: int) -> Any:
        for _ in range(4):
            await asyncio.sleep(1)
            yield Block(nbytes)

    return af.items(range(10)).flat_map(make, concurrency=8)


def _slow_beside(nbytes: int) -> af.Pipeline[Any]:
    return af.concat(_slow_elements(nbytes), _slow_branches(nbytes), _slow_maps(nbytes))


async def memory_peak(pipeline: af.Pipeline[Any], limit: int) -> int:
    async with pipeline.open(memory_limit=limit) as feed:
        async for item in feed:
            del item
        return feed.stats().memory_peak


@pytest.mark.parametrize("make", [_slow_branches, _slow_maps, _slow_elements, _slow_beside])
@pytest.mark.parametrize("limit", [4 * MB, 10 * MB, 64 * MB])
def test_slow_calls_of_unknown_results_stay_within_the_limit(make: Any, limit: int, seed: int) -> None:
    """However long the first call takes: what weighs no more than an unknown result is charged never exceeds it."""
    nbytes = min(MB, limit // 20) if make is _slow_beside else MB
    assert run_virtual(memory_peak(make(nbytes), limit), seed=seed) <= limit


@pytest.mark.parametrize("calls", [1, 2, 7, 16])
def test_only_calls_that_had_begun_before_the_first_result_exceed_the_limit(calls: int, seed: int) -> None:
    """Each by its weight less its share of the limit; none begins until the others are within the limit again."""
    limit, begun = 32 * MB, []

    async def make(x: int) -> Block:
        begun.append(asyncio.get_running_loop().time())
        await asyncio.sleep(10)
        return Block(limit // 2)

    peak = run_virtual(memory_peak(af.items(range(40)).map(make, concurrency=calls), limit), seed=seed)
    first = [at for at in begun if at < 10]
    assert len(first) == calls
    assert peak <= max(limit, calls * limit // 2) + 4096
    later = begun[calls:]
    assert max(sum(at <= other < at + 10 for other in later) for at in later) <= 2


async def _small_async(x: int) -> np.ndarray[Any, Any]:
    await asyncio.sleep(0.01)
    return np.zeros(100, np.float32)


def _small(x: int) -> np.ndarray[Any, Any]:
    return np.zeros(100, np.float32)


def _some_small(x: int) -> Iterator[np.ndarray[Any, Any]]:
    yield from map(_small, range(3))


async def _some_small_async(x: int) -> AsyncIterator[np.ndarray[Any, Any]]:
    for each in range(3):
        yield await _small_async(each)


@pytest.mark.parametrize(
    "pipeline",
    [
        af.items(range(32)).repeat(4).map(_small),
        af.items(range(32)).repeat(4).map(_small_async, concurrency=16),
        af.items(range(32)).repeat(4).flat_map(_some_small),
        af.items(range(32)).repeat(4).flat_map(_some_small_async),
        af.items(lambda: map(_small, range(128))),
        af.items(lambda: map(_small, range(128))).map(_small).filter(np.any).map(_small_async, ordered=False),
    ],
    ids=str,
)
def test_the_peak_is_of_what_was_there_and_not_of_what_was_set_aside(
    pipeline: af.Pipeline[Any], seed: int
) -> None:
    """A call whose result nobody has weighed is charged its share of the limit, and a thread that draws an eighth."""

    async def main() -> tuple[int, int]:
        async with pipeline.batch(8).open(memory_limit=1000 * MB) as feed:
            async for _ in feed:
                assert 0 <= feed.stats().memory_used <= feed.stats().memory_peak
            return feed.stats().memory_peak, feed.stats().nbytes

    peak, nbytes = run_virtual(main, seed=seed)
    assert 8 * 400 <= peak < MB
    assert nbytes == 0 or peak <= 4 * nbytes


def test_what_a_thread_has_drawn_is_in_the_peak() -> None:
    """Here four items of a megabyte, while the trainer has the first."""
    ahead = threading.Event()

    def draw() -> Iterator[Any]:
        for number in range(40):
            if number == 5:
                ahead.set()
            yield np.zeros(MB, np.uint8)

    with af.items(draw).prefetch(1).open(memory_limit=32 * MB) as feed:
        next(feed)
        assert ahead.wait(30)
        for _ in feed:
            pass
        assert 3 * MB <= feed.stats().memory_peak <= 32 * MB


def _sync(x: int) -> Block:
    return Block(100 if x < 100 else 20 * MB)


async def _async(x: int) -> Block:
    await asyncio.sleep(0.001 if x else 1)
    return _sync(x)


async def _at_once(x: int) -> Block:
    return _sync(x)


def _lazy(x: int) -> Iterator[Block]:
    yield _sync(x)


def _long(_: int) -> Iterator[Block]:
    yield from map(_sync, range(160))


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("concurrency", [1, 8, "auto"])
@pytest.mark.parametrize("fn", [_sync, _async, _at_once])
def test_results_that_become_large_stay_within_the_limit(fn: Any, concurrency: Any, ordered: bool) -> None:
    """A hundred are small and the next have 20 MB each, under 100 MB: one surprise for each call in flight at most."""
    pipeline = af.items(range(160)).map(fn, concurrency=concurrency, ordered=ordered)
    _, count = asyncio.run(last_time(pipeline, memory_limit=100 * MB))
    assert count == 160
    at_once = 8 if concurrency == 8 else 1 if concurrency == 1 else 32 if fn is not _sync else 3 + DYING
    assert Block.peak <= (100 + 20 * (at_once + 2)) * MB


@pytest.mark.parametrize("fn", [_lazy, _long])
def test_elements_that_become_large_stay_within_the_limit(fn: Any) -> None:
    """The same in a `flat_map`, also where one iterable has them all."""
    items = range(160) if fn is _lazy else [0]
    _, count = asyncio.run(last_time(af.items(items).flat_map(fn, concurrency=4), memory_limit=100 * MB))
    assert count == 160
    assert Block.peak <= (100 + 20 * 6) * MB


def test_a_group_ends_where_its_results_turn_out_to_be_large() -> None:
    """The rest of the group is taken again, by then with what is known: each is delivered before the next is made."""
    delivered = [threading.Event() for _ in range(120)]
    before: list[bool] = []

    def make(x: int) -> tuple[int, Block]:
        if x > 100:
            before.append(all(before) and delivered[x - 1].wait(10))
        return x, _sync(x)

    with group_clocks(lambda: 0.0):  # no call takes any time, so groups are large
        with af.items(range(120)).map(make, concurrency=1).open(memory_limit=100 * MB) as feed:
            for x, block in feed:
                delivered[x].set()
                del block
    assert before == [True] * 19


@pytest.fixture
def archives(tmp_path: Path) -> Path:
    for number in range(24):
        np.savez_compressed(tmp_path / f"{number:02}.npz", x=np.full((MB // 2,), number % 7, np.float64))
    return tmp_path


@pytest.mark.parametrize("batch", [0, 2])
def test_archives_are_admitted_by_what_they_unpack_to(archives: Path, batch: int) -> None:
    """4 KB that unpack to 4 MB, three of them under 14 MB."""
    pipeline = af.files(f"{archives}/*.npz").load(af.npz, concurrency=8)
    if batch:
        pipeline = pipeline.batch(batch)
    with pipeline.open(memory_limit=14 * MB) as feed:
        assert sum(1 for _ in feed) == 24 // (batch or 1)
        assert feed.stats().memory_peak <= 14 * MB


def test_a_broken_archive_is_the_error_of_the_item(archives: Path) -> None:
    """Looking at it before fails in silence; reading it says what is wrong."""
    (archives / "05.npz").write_bytes(b"nothing")
    with pytest.raises(af.Corrupt, match="05.npz"):
        list(af.files(f"{archives}/*.npz").load(af.npz))


def test_files_that_nobody_looked_at_are_measured_before_they_are_read(tmp_path: Path) -> None:
    """`items([File(path), ...])`: unknown is not zero."""
    paths = [tmp_path / f"{number:02}.npy" for number in range(27)]
    for number, path in enumerate(paths):
        np.save(path, np.full(MB // 2, number, np.float64))
    for decode in (af.npy, lambda data: np.frombuffer(data[128:])):
        pipeline = af.items([af.File(str(path)) for path in paths]).load(decode, concurrency=8)
        with pipeline.open(memory_limit=10 * MB) as feed:
            assert [int(array[0]) for array in feed] == list(range(27))
            assert feed.stats().memory_peak <= 10 * MB


def test_a_file_that_is_not_there_is_the_error_of_the_item(tmp_path: Path) -> None:
    """Measuring it fails in silence; reading it says what is wrong."""
    with pytest.raises(FileNotFoundError, match="gone"):
        list(af.items([af.File(str(tmp_path / "gone.npy"))]).load(af.npy))


class Heavy:
    """An item that says how much it weighs."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


@pytest.mark.parametrize("on", ["thread", "loop", "flat_map"])
@pytest.mark.parametrize("light", [0, 1, 300])
@pytest.mark.parametrize("nbytes", [30_000, 3 * MB])
def test_a_light_item_with_a_heavy_result_does_not_make_the_next_seem_huge(
    nbytes: int, light: int, on: str
) -> None:
    """All weigh the same, but for the first item: as many as there are, twice, is more than the run ever holds."""

    async def later(_: Any) -> Heavy:
        return Heavy(nbytes)

    pipeline = af.items([Heavy(light), *(Heavy(nbytes) for _ in range(20))])
    stages = {
        "thread": pipeline.map(lambda _: Heavy(nbytes)),
        "loop": pipeline.map(later),
        "flat_map": pipeline.flat_map(lambda _: [Heavy(nbytes)]),
    }
    with stages[on].open(memory_limit=10**9) as feed:
        assert len(list(feed)) == 21
        assert feed.stats().memory_peak <= 2 * 21 * nbytes


def test_items_that_weigh_nothing_may_have_heavy_results() -> None:
    """A weight of 0 says nothing of the result: the budget bounds them as all others."""
    with (
        af.items([Heavy(0) for _ in range(40)])
        .map(lambda _: Heavy(MB), concurrency=8)
        .open(memory_limit=4 * MB) as feed
    ):
        assert len(list(feed)) == 40
        assert feed.stats().memory_peak <= 5 * MB
