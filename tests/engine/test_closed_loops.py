"""A run whose event loop is closed under it lets go of everything at once: see `asyncfeed.engine.closed_loop`.

`loop.close()` alone does it. What ends a little later, because a thread is still in a call, is joined.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import logging
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

import asyncfeed as af
from asyncfeed.reading.memory import MemoryReader, MemoryStore
from asyncfeed.testing import no_leaks
from tests.engine.inside import Run, kept, watch_on
from tests.engine.outside import run_threads, threads_ended
from tests.reading.readers import SlowStore

COUNT = 5000
LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.SelectorEventLoop]
if sys.platform != "win32":
    import uvloop

    LOOPS.append(uvloop.new_event_loop)


class Ledger:
    """Counts what was opened and not closed."""

    def __init__(self) -> None:
        self.opened = self.closed = 0

    def __enter__(self) -> None:
        self.opened += 1

    def __exit__(self, *_: object) -> None:
        self.closed += 1


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    made = Ledger()
    gc.disable()  # it is not what closes
    yield made
    gc.enable()
    assert threads_ended()
    assert made.opened == made.closed


@pytest.fixture(autouse=True)
def silence(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing is written, logged or warned of: see `filterwarnings`."""
    unraisable: list[Any] = []
    before, sys.unraisablehook = sys.unraisablehook, unraisable.append
    caplog.set_level(logging.WARNING)
    yield
    gc.collect()
    sys.unraisablehook = before
    assert unraisable == []
    assert caplog.record_tuples == []
    assert capfd.readouterr().err == ""


async def later(x: Any) -> Any:
    await asyncio.sleep(0)
    return x


async def never(x: Any) -> Any:
    return await asyncio.Event().wait() if x == 40 else x


def same(x: Any) -> Any:
    return x


# -- what a run holds

SOURCES: dict[str, Callable[[Ledger, Path], af.Pipeline[Any]]] = {}
STAGES: dict[str, Callable[[af.Pipeline[Any], Ledger], af.Pipeline[Any]]] = {
    "nothing": lambda pipeline, _: pipeline,
    "async": lambda pipeline, _: pipeline.map(later, concurrency=3),
    "an async function that waits": lambda pipeline, _: pipeline.map(never, concurrency=2),
    "threads": lambda pipeline, _: pipeline.map(same, concurrency=3),
    "threads, in batches": lambda pipeline, _: pipeline.batch(3).map(same).prefetch(2).unbatch(),
    "async expansions": lambda pipeline, ledger: pipeline.flat_map(lambda x: rows(ledger, x), concurrency=3),
    "sync expansions": lambda pipeline, ledger: pipeline.flat_map(lambda x: plain_rows(ledger, x), concurrency=3),
    "interleave": lambda pipeline, ledger: pipeline.interleave(lambda x: rows(ledger, x), cycle=2),
    "little memory": lambda pipeline, _: pipeline.map(lambda x: bytes(1 << 20), concurrency=4).map(never),
    "a merge": lambda pipeline, _: af.mix(pipeline.map(later), af.items(lambda: iter(range(COUNT))), seed=1),
}


def source(fn: Callable[[Ledger, Path], af.Pipeline[Any]]) -> Callable[[Ledger, Path], af.Pipeline[Any]]:
    SOURCES[fn.__name__] = fn
    return fn


async def rows(ledger: Ledger, x: Any) -> AsyncIterator[Any]:
    with ledger:
        for _ in range(COUNT):
            await asyncio.sleep(0)
            yield x


def plain_rows(ledger: Ledger, x: Any) -> Iterator[Any]:
    with ledger:
        for _ in range(COUNT):
            yield x


@source
def places(ledger: Ledger, _: Path) -> af.Pipeline[Any]:
    return af.items(range(COUNT))


@source
def generator(ledger: Ledger, _: Path) -> af.Pipeline[Any]:
    return af.items(lambda: plain_rows(ledger, 1))


@source
def async_generator(ledger: Ledger, _: Path) -> af.Pipeline[Any]:
    return af.items(lambda: rows(ledger, 1))


@source
def lines(ledger: Ledger, folder: Path) -> af.Pipeline[Any]:
    for number in range(8):
        (folder / f"{number}.txt").write_text("line\n" * 50_000)
    return af.files(str(folder / "*.txt")).flat_map(af.lines, concurrency=4)


@source
def loaded(ledger: Ledger, folder: Path) -> af.Pipeline[Any]:
    for number in range(100):
        (folder / f"{number}.txt").write_text("text")
    return af.files(str(folder / "*.txt")).load(af.text).repeat()


@source
def store_on_the_loop(ledger: Ledger, _: Path) -> af.Pipeline[Any]:
    return af.items(SlowStore({f"{each}": b"x" for each in range(100)}).files()).load(af.text).repeat()


@source
def lines_of_a_store(ledger: Ledger, _: Path) -> af.Pipeline[Any]:
    return (
        af.items(MemoryStore({f"{each}": b"x\n" * 99 for each in range(100)}).files()).flat_map(af.lines).repeat()
    )


def closed_under(new_loop: Callable[[], asyncio.AbstractEventLoop], pipeline: af.Pipeline[Any], count: int) -> Any:
    """Draw some items, and close the loop; return the feed."""
    loop = new_loop()
    feed = pipeline.open(memory_limit=4 << 20)

    async def draw() -> None:
        for _ in range(count):
            await anext(feed)

    try:
        loop.run_until_complete(draw())
    finally:
        loop.close()
    return feed


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", SOURCES)
def test_nothing_is_left_of_a_run_whose_loop_is_closed(
    name: str, stage: str, ledger: Ledger, tmp_path: Path
) -> None:
    pipeline = STAGES[stage](SOURCES[name](ledger, tmp_path), ledger)
    for new_loop in LOOPS:
        new_loop().close()  # uvloop's first one opens a pipe
    with no_leaks(types=(af.Feed, Run), patience=10):
        for new_loop in LOOPS:
            for count in (1, 3, 20):
                feed = closed_under(new_loop, pipeline, count)
                assert threads_ended()  # though the feed is still held
                assert ledger.opened == ledger.closed
                assert "stopped: its event loop was closed" in repr(feed)
                del feed


# -- threads and processes in the middle of something


def test_a_thread_ends_after_the_call_it_is_in(ledger: Ledger) -> None:
    begun, go_on = threading.Event(), threading.Event()
    called: list[int] = []

    def hangs(x: int) -> int:
        called.append(x)
        begun.set()
        assert go_on.wait(20)
        return x

    async def main() -> None:
        drawing = asyncio.ensure_future(anext(feed))
        await asyncio.get_running_loop().run_in_executor(None, begun.wait, 10)
        drawing.cancel()

    loop = asyncio.SelectorEventLoop()
    feed = af.items(range(100)).map(hangs, concurrency=1).open()
    loop.run_until_complete(main())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    assert len(run_threads()) == 1
    go_on.set()
    assert threads_ended()
    assert called == [0]


def test_a_generator_that_is_in_the_middle_of_an_item_is_closed_by_its_thread(ledger: Ledger) -> None:
    begun, go_on = threading.Event(), threading.Event()
    closed_on: list[str] = []

    def hangs() -> Iterator[int]:
        try:
            yield 0
            begun.set()
            assert go_on.wait(20)
            yield 1
        finally:
            closed_on.append(threading.current_thread().name)

    for pipeline in (af.items(hangs), af.items([0]).flat_map(lambda _: hangs())):
        begun.clear()
        go_on.clear()
        loop = asyncio.SelectorEventLoop()
        feed = pipeline.open()
        loop.run_until_complete(anext(feed))
        loop.run_until_complete(loop.run_in_executor(None, begun.wait, 10))
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        assert closed_on == []
        go_on.set()
        assert threads_ended()
        assert "worker" in closed_on.pop()


class _Slow(io.BytesIO):
    """A file whose second block comes when it may."""

    begun, go_on = threading.Event(), threading.Event()
    reads = 0

    def read(self, size: int | None = -1) -> bytes:
        self.reads += 1
        if self.reads == 2:
            self.begun.set()
            assert self.go_on.wait(20)
        assert not self.closed
        return super().read(2)


class _SlowReader(MemoryReader):
    opened: ClassVar[list[_Slow]] = []

    def open(self, file: af.File) -> Any:
        self.opened.append(_Slow(b"x\n" * 9))
        return self.opened[-1]


class _SlowFiles(MemoryStore):
    def reader(self) -> Any:
        return _SlowReader({"a": b""})


def test_a_file_of_lines_that_is_just_read_is_closed_after_that_read() -> None:
    loop = asyncio.SelectorEventLoop()
    feed = af.items([af.File("a", store=_SlowFiles({}))]).flat_map(af.lines).open()
    loop.run_until_complete(anext(feed))
    loop.run_until_complete(loop.run_in_executor(None, _Slow.begun.wait, 10))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    (file,) = _SlowReader.opened
    assert not file.closed
    _Slow.go_on.set()
    assert threads_ended()
    assert file.closed


@pytest.mark.quiet
def test_worker_processes_end_or_are_kept(tmp_path: Path) -> None:
    kept.end_all()
    with no_leaks(types=(af.Feed, Run), patience=10):
        for count in (1, 20):
            feed = closed_under(asyncio.SelectorEventLoop, af.items(range(COUNT)).map(abs, on="process"), count)
            assert threads_ended()
            del feed


def test_a_feed_that_goes_just_after_its_thread_closed_the_loop_says_nothing() -> None:
    """Without the GIL both happen at the same time. With it, the thread may run between two steps of asyncio."""
    loop = asyncio.SelectorEventLoop()
    owner = Ledger()
    watched = watch_on(loop, owner, gc.collect)
    loop.close()
    del owner  # an exception in the callback would fail the test
    assert watched() is None


# -- what is closed


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_finally_that_awaits_is_cancelled_at_each_wait_and_goes_on(new_loop: Any) -> None:
    seen: list[str] = []

    async def waits(x: int) -> int:
        try:
            return await later(x) if x < 2 else await asyncio.get_running_loop().create_future()
        finally:
            if x == 2:
                try:
                    await asyncio.sleep(0)
                finally:
                    seen.append("closed")

    async def rows() -> AsyncIterator[int]:
        try:
            for x in range(COUNT):
                yield x
        finally:
            try:
                await asyncio.sleep(0)
            finally:
                seen.append("source closed")

    closed_under(new_loop, af.items(rows).map(waits), 2)
    assert sorted(seen) == ["closed", "source closed"]


@pytest.mark.parametrize("awaits", [True, False])
def test_what_closing_raises_is_logged_and_keeps_nothing_else_from_closing(
    awaits: bool, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> Iterator[int]:
        try:
            yield from range(COUNT)
        finally:
            raise OSError("the disk is full")

    async def fails_too() -> AsyncIterator[int]:
        with contextlib.closing(fails()) as each:
            for x in each:
                yield x

    pipeline = af.items(fails_too if awaits else fails).flat_map(lambda x: rows(ledger, x))
    closed_under(asyncio.SelectorEventLoop, pipeline, 1)
    assert threads_ended()
    assert [record.exc_info and str(record.exc_info[1]) for record in caplog.records] == ["the disk is full"]
    caplog.clear()


def test_a_function_that_keeps_the_cancellation_to_itself_does_not_go_on(ledger: Ledger) -> None:
    async def keeps(x: int) -> int:
        with ledger:
            try:
                if x:
                    await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                pass
            return x

    closed_under(asyncio.SelectorEventLoop, af.items(range(9)).map(keeps, concurrency=2), 1)


# -- ways to come to it


def test_a_loop_that_an_interrupt_breaks_off(ledger: Ledger) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        async for _ in af.items(lambda: rows(ledger, 1)).map(same, concurrency=2):
            loop.call_soon(interrupt)
            break

    loop = asyncio.SelectorEventLoop()
    loop.create_task(main())
    with pytest.raises(KeyboardInterrupt):
        loop.run_forever()
    loop.close()
    assert threads_ended()
    assert (ledger.opened, ledger.closed) == (1, 1)


def test_a_feed_that_was_dropped_just_before(ledger: Ledger) -> None:
    """Its run was told to stop by a callback that never came."""
    loop = asyncio.SelectorEventLoop()
    feed = af.items(lambda: rows(ledger, 1)).map(same, concurrency=2).open()
    loop.run_until_complete(anext(feed))
    del feed
    loop.close()
    assert threads_ended()


def test_a_run_that_had_not_begun() -> None:
    async def main() -> None:
        drawing = feed.__anext__()
        drawing.send(None)
        drawing.close()

    loop = asyncio.SelectorEventLoop()
    feed = af.items(range(9)).open()
    stop = loop.create_task(main())
    stop.add_done_callback(lambda _: loop.stop())
    loop.run_forever()
    loop.close()
    assert "event loop was closed" in repr(feed)


def test_a_loop_that_is_closed_inside_another(ledger: Ledger) -> None:
    async def close() -> None:
        loop.close()
        await asyncio.sleep(0)

    loop = asyncio.SelectorEventLoop()
    feed = af.items(lambda: rows(ledger, 1)).map(later, concurrency=2).open()
    loop.run_until_complete(anext(feed))
    asyncio.run(close())
    assert (ledger.opened, ledger.closed) == (1, 1)


def test_a_task_factory_that_begins_at_once(ledger: Ledger) -> None:
    if sys.version_info < (3, 12):
        pytest.skip("asyncio has no eager tasks")
    loop = asyncio.SelectorEventLoop()
    loop.set_task_factory(asyncio.eager_task_factory)
    feed = af.items(lambda: rows(ledger, 1)).map(later, concurrency=2).open()
    loop.run_until_complete(anext(feed))
    loop.close()
    assert "event loop was closed" in repr(feed)


def test_a_loop_holds_no_run_that_has_ended() -> None:
    async def main() -> None:
        async with af.items(range(9)).map(later).open() as feed:
            assert len([x async for x in feed]) == 9
        del feed
        await asyncio.sleep(0)
        gc.collect()
        assert not [each for each in gc.get_objects() if type(each) is Run]

    loop = asyncio.SelectorEventLoop()
    loop.run_until_complete(main())
    loop.close()
