"""Memory where results are heavy: lists, first calls, buffers, and what the process keeps of what was freed."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import asyncfeed as af
from asyncfeed.testing import run_virtual
from tests.engine.inside import memory_used
from tests.engine.test_weights import Block, memory_peak
from tests.reading.readers import SlowStore
from tests.searching import sampled

MB = 1 << 20
LIMIT = 64 * MB
ITEMS = af.items(range(60))


@pytest.fixture(autouse=True)
def _fresh() -> None:
    gc.collect()
    Block.alive = Block.peak = 0


def list_of_blocks(_: int) -> list[Block]:
    return [Block(MB) for _ in range(20)]


async def awaited_list(number: int) -> list[Block]:
    await asyncio.sleep(0.01)
    return list_of_blocks(number)


def yields_blocks(_: int) -> Iterator[Block]:
    for _ in range(20):
        yield Block(MB)


@pytest.mark.parametrize("build", [
    lambda: ITEMS.flat_map(list_of_blocks),
    lambda: ITEMS.flat_map(list_of_blocks, concurrency=1),
    lambda: ITEMS.flat_map(list_of_blocks, concurrency=16),
    lambda: ITEMS.flat_map(list_of_blocks, ordered=False),
    lambda: ITEMS.flat_map(awaited_list),
    lambda: ITEMS.flat_map(awaited_list, concurrency=16),
    lambda: ITEMS.interleave(list_of_blocks, cycle=4),
    lambda: ITEMS.interleave(awaited_list, cycle=3),  # each open item has a list
    lambda: ITEMS.flat_map(yields_blocks),
], ids=["auto", "one", "many", "unordered", "async", "many async", "turns", "async turns", "yields"])  # fmt: skip
def test_a_list_of_results_counts_before_it_is_made(build: Any, seed: int) -> None:
    """The limit is exceeded by one list at most."""

    async def main() -> int:
        async with build().open(memory_limit=LIMIT) as feed:
            count = 0
            async for item in feed:
                del item
                count += 1
                await asyncio.sleep(0.001)
            assert count == 60 * 20
            return feed.stats().memory_peak

    assert run_virtual(main, seed=seed) <= LIMIT + 20 * MB
    assert Block.peak <= LIMIT + 2 * 20 * MB  # and one that is on its way to be weighed


@pytest.mark.parametrize("limit", [1, 1000, MB])
def test_lists_come_to_their_end_under_any_limit(limit: int, seed: int) -> None:
    async def main() -> int:
        pipeline = ITEMS.take(8).flat_map(awaited_list, concurrency=4).interleave(list_of_two, cycle=3)
        async with pipeline.open(memory_limit=limit) as feed:
            return len([item async for item in feed])

    assert run_virtual(main, seed=seed) == 8 * 20 * 2


def list_of_two(block: Block) -> list[Block]:
    return [block, Block(MB)]


@pytest.mark.parametrize("children", [0, 1, 3, 1000])
def test_a_list_is_sent_as_it_was_returned(children: int) -> None:
    pipeline = af.items(range(20)).flat_map(lambda x: list(range(x % 3 * children)))
    assert list(pipeline) == [each for x in range(20) for each in range(x % 3 * children)]


def test_a_function_may_return_a_list_or_an_iterator() -> None:
    def made(x: int) -> Any:
        return [list, tuple, iter, lambda given: (each for each in given)][x % 4](range(x))

    assert list(af.items(range(40)).flat_map(made)) == [each for x in range(40) for each in range(x)]


@pytest.mark.parametrize("concurrency", ["auto", 64])
def test_first_calls_go_a_few_at_a_time_until_one_is_weighed(concurrency: Any, seed: int) -> None:
    """Results of 40 MB after 20 ms: the limit, and one result."""

    async def heavy(_: int) -> Block:
        await asyncio.sleep(0.02)
        return Block(40 * MB)

    peak = run_virtual(memory_peak(ITEMS.map(heavy, concurrency=concurrency), LIMIT), seed=seed)
    assert peak <= LIMIT + 40 * MB


def test_calls_that_wait_for_each_other_all_begin() -> None:
    """The limit has room for a megabyte of each."""

    async def main() -> int:
        begun = asyncio.Barrier(64)

        async def together(x: int) -> int:
            await begun.wait()
            return x

        async with af.items(range(64)).map(together, concurrency=64).open(memory_limit=LIMIT) as feed:
            return len([item async for item in feed])

    assert run_virtual(main) == 64


@pytest.mark.parametrize("weighs", [True, False])
def test_results_without_weight_and_failures_hold_nobody_back(weighs: bool) -> None:
    async def slow(x: int) -> str:
        await asyncio.sleep(1)
        if not weighs:
            raise ValueError(x)
        return ""

    async def main() -> float:
        pipeline = af.items(range(1000)).map(slow, concurrency=100, on_error="skip", skip_limit=1000)
        async with pipeline.open(memory_limit=10 * LIMIT) as feed:
            async for _ in feed:
                pass
        return asyncio.get_running_loop().time()

    assert run_virtual(main) < 12


def test_a_buffer_above_the_limit_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "asyncfeed"):
        pipeline = ITEMS.repeat(2).map(lambda _: Block(2 * MB)).shuffle(seed=1, buffer=50)
        assert len(list(pipeline.open(memory_limit=LIMIT))) == 120
    (warning,) = [each.getMessage() for each in caplog.records]
    assert "shuffle(seed=1, buffer=50) holds" in warning
    assert "the memory limit is 64 MB" in warning


def test_buffers_within_the_limit_are_not_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "asyncfeed"):
        assert len(list(ITEMS.map(lambda _: Block(MB)).shuffle(seed=1, buffer=50).open(memory_limit=LIMIT))) == 60
        assert len(list(ITEMS.map(lambda _: Block(MB)).shuffle(seed=1, buffer=9).open(memory_limit=MB))) == 60
    assert not caplog.records


@pytest.mark.parametrize("store", [None, SlowStore])
def test_row_groups_of_open_files_count(store: Any, tmp_path: Path) -> None:
    """While samples of a row group are made, it counts as it lies in the file."""
    table = pa.table({"x": np.random.default_rng(1).standard_normal(MB // 8 * 4)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=MB // 8, compression=None)
    contents = {f"{number}.parquet": (tmp_path / "a.parquet").read_bytes() for number in range(4)}
    files = [af.File(str(tmp_path / "a.parquet"))] * 4 if store is None else store(contents).files()
    with af.items(files).interleave(af.parquet(rows=100), cycle=4).open() as feed:
        assert sum(1 for _ in feed) > 1000
        assert 4 * MB < feed.stats().memory_peak < 16 * MB
    assert memory_used(feed) == 0


def test_pixels_count_while_an_image_is_made_smaller(tmp_path: Path) -> None:
    """Pillow's pixels, and those of the array: twice 3 MB for each image."""
    for number in range(8):
        Image.new("RGB", (1000, 1000)).save(tmp_path / f"{number}.png")
    with af.files(tmp_path / "*.png").load(af.image(size=(8, 8)), concurrency=2).batch(2).open() as feed:
        assert len(list(feed)) == 4
        assert 5 * MB < feed.stats().memory_peak < 16 * MB
    assert memory_used(feed) == 0


RESIDENT = """
import asyncio, os, sys, threading, time
import numpy as np
import asyncfeed as af

MB = 1 << 20
COUNT = 200

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def array(number):
    return np.full(MB // 4, number, np.float32)

def generator():
    for number in range(COUNT):
        yield array(number)

async def async_generator():
    for number in range(COUNT):
        yield array(number)

async def awaited(number):
    await asyncio.sleep(0)
    return array(number)

class Sequence:
    def __len__(self):
        return COUNT
    def __getitem__(self, number):
        return array(number)

SOURCES = {
    "generator": lambda: af.items(generator),
    "async generator": lambda: af.items(async_generator),
    "sequence": lambda: af.items(Sequence()),
    "array": lambda: af.arrays(np.zeros((COUNT, 8))).map(lambda row: array(row[0])),
    "map": lambda: af.items(range(COUNT)).map(array),
    "async map": lambda: af.items(range(COUNT)).map(awaited),
    "lists": lambda: af.items(range(COUNT // 10)).flat_map(lambda n: [array(n) for _ in range(10)]),
    "generators": lambda: af.items(range(COUNT // 10)).flat_map(lambda n: (array(n) for _ in range(10))),
    "zip": lambda: af.zip(af.items(generator), af.items(range(COUNT)).filter(lambda _: True)).map(lambda p: p[0]),
    "concat": lambda: af.concat(af.items(generator).take(COUNT // 2), af.items(generator).skip(COUNT // 2)),
}
kind, way = sys.argv[1:]
pipeline = SOURCES[kind]().shuffle(seed=1, buffer=100).batch(2)
most, start, done = 0, resident(), threading.Event()

def watch():
    global most
    while not done.wait(0.002):
        most = max(most, resident())

threading.Thread(target=watch).start()
if way == "a feed an epoch":
    for _ in range(20):
        for batch in pipeline.open(memory_limit=150 * MB):
            del batch
else:
    for batch in pipeline.repeat(20).open(memory_limit=150 * MB):
        del batch
done.set()
print((most - start) // MB)
"""
KINDS = [
    "generator", "async generator", "sequence", "array", "map", "async map", "lists", "generators", "zip", "concat",
]  # fmt: skip


@pytest.mark.quiet
@sampled(4)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("way", ["a feed an epoch", "one feed"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_process_keeps_no_more_than_it_needs_over_twenty_epochs(kind: str, way: str) -> None:
    """A limit of 150 MB, a buffer of 100 arrays of 1 MB, 20 epochs. By hand it is 124 MB and more with each thread."""
    done = subprocess.run(
        [sys.executable, "-c", RESIDENT, kind, way], capture_output=True, text=True, check=True, timeout=100
    )
    assert int(done.stdout) <= 450, done.stdout
