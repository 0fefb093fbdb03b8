"""What a run reads with: opened once on its loop, shared by its stages, and closed once however the run ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import Context, copy_context
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.reading.file import Bytes, File
from asyncfeed.reading.memory import MemoryReader, MemoryStore
from asyncfeed.reading.reader import AsyncReader, Range, Store
from asyncfeed.testing import no_leaks, run_virtual
from tests.engine.failing import Oops
from tests.engine.outside import threads_ended
from tests.reading.readers import SlowStore
from tests.searching import sampled

COUNT = 40


@pytest.fixture
def store() -> SlowStore:
    return SlowStore({f"{number:02}": b"%02d\nx\n" % number for number in range(COUNT)})


def events(store: SlowStore) -> list[list[str]]:
    """Return what was opened and closed for each run; a run on a thread of its own ends a little after its items."""
    assert threads_ended(30)
    return store.events


def everything(store: SlowStore) -> af.Pipeline[Any]:
    """Read the files in every way: on threads, and on the loop."""
    files = af.items(store.files())
    return af.zip(files.load(af.text), files.flat_map(af.lines).filter(str.isdigit), files.load(bytes))


def test_all_stages_share_one_reader_which_is_opened_once_and_closed_at_the_end(
    store: SlowStore, seed: int
) -> None:
    async def main() -> list[Any]:
        return [item async for item in everything(store)]

    found = run_virtual(main, seed=seed)
    assert found == [(f"{each:02}\nx\n", f"{each:02}", b"%02d\nx\n" % each) for each in range(COUNT)]
    assert events(store) == [["open", "close"]]


@pytest.mark.parametrize("variables", [Context, copy_context])
def test_it_does_not_matter_whether_the_caller_has_context_variables(store: SlowStore, variables: Any) -> None:
    """An empty context is false, and passed for none."""
    assert len(variables().run(list, everything(store))) == COUNT
    assert events(store) == [["open", "close"]]


def test_each_run_has_a_reader_of_its_own(store: SlowStore) -> None:
    pipeline = everything(store)
    for _ in range(3):
        assert len(list(pipeline)) == COUNT
    assert events(store) == [["open", "close"]] * 3


def test_the_readers_of_two_stores_are_apart() -> None:
    one, two = SlowStore({"a": b"1"}), SlowStore({"a": b"2"})
    files = [af.File("a", store=one), af.File("a", store=two), *MemoryStore({"a": b"3"}).files()]
    assert list(af.items(files).load(af.text)) == ["1", "2", "3"]
    assert events(one) == events(two) == [["open", "close"]]


def test_a_store_that_no_file_is_read_from_is_not_opened(store: SlowStore) -> None:
    assert len(list(af.items(store.files()))) == COUNT
    assert store.made == []


def npy_bytes(array: Any) -> bytes:
    np.save(out := BytesIO(), array)
    return out.getvalue()


def arrays(count: int = 8) -> dict[str, bytes]:
    return {f"{number}.npy": npy_bytes(np.full((2, 3), number, np.float32)) for number in range(count)}


@pytest.mark.parametrize("make", [SlowStore, MemoryStore])
def test_files_of_any_store_are_read_straight_into_a_batch(make: Any) -> None:
    pipeline = af.items(make(arrays()).files()).load(af.npy).batch(4)
    with pipeline.open() as feed:
        first, second = feed
        assert feed.stats().slow_paths == ()
    assert first[:, 0, 0].tolist() == [0, 1, 2, 3]
    assert second[:, 1, 2].tolist() == [4, 5, 6, 7]
    assert first.ctypes.data % 64 == 0


def test_a_batch_out_of_several_stores_is_the_same_and_says_what_it_cost() -> None:
    contents = arrays(2)
    files = [file for make in (SlowStore, MemoryStore) for file in make(contents).files()]
    with af.items(files).load(af.npy).batch(4).open() as feed:
        (batch,) = feed
        ((what, count),) = feed.stats().slow_paths
    assert batch[:, 0, 0].tolist() == [0, 1, 0, 1]
    assert (what.rpartition(": ")[2], count) == ("the files are in several stores", 1)


@pytest.mark.parametrize("make", [SlowStore, MemoryStore])
def test_files_that_nobody_has_listed_and_archives_are_looked_at_in_their_store(make: Any, tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.arange(5))
    made = make({"a": b"one", "a.npz": (tmp_path / "a.npz").read_bytes()})
    assert list(af.items([af.File("a", store=made)]).load(af.text)) == ["one"]
    (found,) = af.items([af.File("a.npz", store=made)]).load(af.npz)
    assert found["x"].tolist() == [0, 1, 2, 3, 4]


# -- every way to end

ENDS: dict[str, Callable[[SlowStore], None]] = {}


def end(fn: Callable[[SlowStore], None]) -> Callable[[SlowStore], None]:
    ENDS[fn.__name__] = fn
    return fn


@end
def at_the_end(store: SlowStore) -> None:
    assert len(list(everything(store))) == COUNT


@end
def at_the_end_on_a_loop(store: SlowStore) -> None:
    async def main() -> None:
        assert len([item async for item in everything(store)]) == COUNT

    asyncio.run(main())


@end
def by_an_error(store: SlowStore) -> None:
    def fails(item: Any) -> Any:
        if item[1] == "05":
            raise Oops
        return item

    with pytest.raises(Oops):
        list(everything(store).map(fails))


@end
def by_a_missing_file(store: SlowStore) -> None:
    files = [*store.files()[:5], af.File("none", store=store)]
    with pytest.raises(FileNotFoundError):
        list(af.items(files).load(af.text))


@end
def by_a_stop(store: SlowStore) -> None:
    with everything(store).open() as feed, contextlib.suppress(af.ClosedError):
        for _ in feed:
            feed.stop("enough")


@end
def by_a_break(store: SlowStore) -> None:
    for _ in everything(store):
        break


@end
def by_a_break_on_a_loop(store: SlowStore) -> None:
    async def main() -> None:
        async with everything(store).open() as feed:
            async for _ in feed:
                break

    asyncio.run(main())


@end
def by_a_cancellation(store: SlowStore) -> None:
    async def main() -> None:
        async def consume() -> None:
            async for _ in everything(store):
                begun.set()

        begun = asyncio.Event()
        task = asyncio.ensure_future(consume())
        await begun.wait()
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(main())


@end
def by_the_end_of_its_loop(store: SlowStore) -> None:
    async def main() -> None:
        feed = everything(store).open()
        await anext(feed)
        kept.append(feed)

    kept: list[Any] = []
    asyncio.run(main())


def ended_well(events: list[list[str]]) -> bool:
    return all(each in (["open", "close"], []) for each in events) and ["open", "close"] in events


@sampled(3)
@pytest.mark.parametrize("way", ENDS)
def test_a_reader_is_closed_once_however_the_run_ends(way: str, store: SlowStore) -> None:
    with no_leaks(types=(af.Feed,), patience=10):
        for _ in range(100):
            ENDS[way](store)
        assert threads_ended(30)
    assert ended_well(events(store))
    assert len(store.made) == 100


# What asyncio says of tasks that were pending when their loop was closed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("waits", [False, True])
def test_a_reader_is_let_go_of_when_its_loop_was_closed(store: SlowStore, waits: bool) -> None:
    """Threads that wait for it do not wait for ever, and those that have nothing to do end."""

    async def wait() -> None:
        if waits and store.made[-1].reading > 2:
            await asyncio.sleep(10**6)

    store.wait = wait
    # pytest keeps what is raised while garbage is collected, with the frames of that moment: no feed may be in them.
    gc.disable()
    try:
        for _ in range(100):
            loop = asyncio.SelectorEventLoop()
            feed = af.items(store.files()).load(af.text, concurrency=4, ordered=False).open()
            loop.run_until_complete(anext(feed))
            loop.close()
            del feed
            gc.collect()
    finally:
        gc.enable()
    assert events(store) == [["open", "abandon"]] * 100, [
        each.made_at for each in store.made if len(each.events) < 2
    ]
    gc.collect()  # what the last thread held, while this test is one that may


# -- opening and closing that fail, or take their time


def test_a_store_that_cannot_be_opened_fails_the_run_with_its_own_error_and_is_closed(store: SlowStore) -> None:
    store.fails["open"] = Oops("no such host")
    for build in (lambda files: files.load(af.text), lambda files: files.flat_map(af.lines)):
        with pytest.raises(Oops, match="no such host"):
            list(build(af.items(store.files())))
    assert events(store) == [["open", "close"]] * 2


def test_a_store_that_cannot_be_closed_is_reported_and_ends_nothing(store: SlowStore) -> None:
    async def main() -> list[Any]:
        reported: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        async with everything(store).open() as feed:
            assert len([item async for item in feed]) == COUNT
        await asyncio.sleep(0)
        return [str(each["exception"]) for each in reported]

    store.fails["close"] = Oops("still busy")
    assert asyncio.run(main()) == ["still busy"]
    assert events(store) == [["open", "close"]]


def hangs_in(store: SlowStore, what: str, seed: int) -> list[list[str]]:
    """Let a method hang, close the feed after a second with a grace of five, and return what happened and when.

    A run that has read all its files has ended before it is closed.
    """

    async def wait() -> None:
        if store.made[-1].events[-1] == what:
            await asyncio.sleep(10**6)

    async def main() -> float:
        store.wait = wait
        feed = af.items(store.files()).load(af.text).open(grace=5)
        drawing = asyncio.ensure_future(anext(feed))
        await asyncio.sleep(1)
        await feed.aclose()
        await asyncio.wait([drawing])
        assert isinstance(drawing.exception(), af.ClosedError) or drawing.result()
        return asyncio.get_running_loop().time()

    ended = run_virtual(main, seed=seed)
    return [*store.events, [str(round(ended))]]


def test_opening_that_hangs_is_cancelled_with_the_run(store: SlowStore, seed: int) -> None:
    assert hangs_in(store, "open", seed) == [["open", "close"], ["1"]]


def test_closing_that_hangs_is_cancelled_when_the_grace_is_over_and_named(
    store: SlowStore, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "asyncfeed"):
        assert hangs_in(store, "close", seed) == [["open", "close"], ["5"]]
    assert "closing a store" in caplog.text


def test_a_read_that_hangs_is_cancelled_with_the_run(store: SlowStore, seed: int) -> None:
    """Though a thread waits for it."""

    async def main() -> None:
        async def hangs() -> None:
            if store.made[-1].events[-1] == "open" and store.made[-1].reading:
                await asyncio.sleep(10**6)

        store.wait = hangs
        feed = everything(store).open(grace=5)
        drawing = asyncio.ensure_future(anext(feed))
        await asyncio.sleep(1)
        assert store.made[-1].reading > 1
        before = asyncio.get_running_loop().time()
        await feed.aclose()
        assert asyncio.get_running_loop().time() == before
        await asyncio.wait([drawing])
        assert isinstance(drawing.exception(), af.ClosedError) or drawing.result()
        assert store.made[-1].reading == 0

    run_virtual(main, seed=seed)
    assert events(store) == [["open", "close"]]


# -- readers that block


class Warehouse(Store):
    """Files in memory whose reader is to be closed, on a thread."""

    def __init__(self, contents: dict[str, bytes]) -> None:
        self.contents = contents
        self.closed: list[str] = []
        self.made = 0

    def files(self) -> list[af.File]:
        return [af.File(path, store=self) for path in self.contents]

    def reader(self) -> Any:
        self.made += 1
        return WarehouseReader(self)


class WarehouseReader(MemoryReader):
    def __init__(self, store: Warehouse) -> None:
        super().__init__(store.contents)
        self._store = store

    def read(self, files: Sequence[af.File]) -> list[Bytes | Exception]:
        assert self._store.closed == []
        return super().read(files)

    def close(self) -> None:
        self._store.closed.append(threading.current_thread().name)


@pytest.fixture
def warehouse() -> Iterator[Warehouse]:
    made = Warehouse({str(number): b"x" for number in range(100)})
    yield made
    assert threads_ended(30)
    assert made.made == len(made.closed) == 1


def test_a_reader_that_blocks_is_made_once_though_many_threads_ask_for_it(warehouse: Warehouse) -> None:
    assert list(af.items(warehouse.files()).load(af.text, concurrency=16)) == ["x"] * 100
    assert threads_ended(30)
    assert "worker" in warehouse.closed[0]


def test_a_reader_that_blocks_is_closed_by_whoever_reads_outside_a_run(warehouse: Warehouse) -> None:
    async def main() -> list[str]:
        return [line async for line in af.lines(warehouse.files()[0])]

    assert asyncio.run(main()) == ["x"]


def test_a_reader_on_the_loop_serves_outside_a_run_too(store: SlowStore) -> None:
    async def main() -> list[str]:
        return [line async for line in af.lines(store.files()[3])]

    assert asyncio.run(main()) == ["03", "x"]
    assert events(store) == [["open", "close"]]


def test_the_first_items_are_read_first_also_if_opening_takes_a_while() -> None:
    """If later reads came first, and a store answered none of them, the first item would wait for ever."""
    begun: list[str] = []

    class Slow(AsyncReader):
        async def open(self) -> None:
            for _ in range(3):
                await asyncio.sleep(0)

        async def look(self, files: Sequence[File]) -> list[File | Exception]:
            return list(files)

        async def read_ranges(self, file: File, ranges: Sequence[Range]) -> list[Bytes | Exception]:
            begun.append(file.path)
            for _ in range(30):
                await asyncio.sleep(0)
            return [np.zeros(stop - start, np.uint8) for start, stop in ranges]

    class SlowToOpen(Store):
        reads_on_loop: ClassVar[bool] = True

        def reader(self) -> AsyncReader:
            return Slow()

    async def main() -> None:
        store = SlowToOpen()
        files = [File(f"{number:02}", 1, store=store) for number in range(40)]
        async with af.items(files).load(af.raw("u1"), concurrency=8).open() as feed:
            _ = [sample async for sample in feed]

    asyncio.run(main())  # its tasks run in their order
    assert begun[:8] == [f"{number:02}" for number in range(8)]
