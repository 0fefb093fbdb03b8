"""What a run held is let go of when it ends, without the help of the garbage collector; and nothing is kept."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import functools
import gc
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import asyncfeed as af
from asyncfeed.testing import no_leaks
from tests.engine.failing import Oops, kinds, raises
from tests.engine.inside import Run
from tests.engine.outside import run_tasks
from tests.engine.witness import later
from tests.searching import SEARCH, sampled

OFTEN = max(15, int(15 * SEARCH))
"""How often each way to end is tried."""


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Switch the garbage collector off: only reference counts free anything."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Numbers:
    """An iterator of the user's; being a class, it can be asked whether it is still there."""

    def __init__(self) -> None:
        self.number = 0

    def __iter__(self) -> Numbers:
        return self

    def __next__(self) -> int:
        self.number += 1
        return self.number


class NumbersLater(Numbers):
    """The same, async."""

    def __aiter__(self) -> NumbersLater:
        return self

    async def __anext__(self) -> int:
        await asyncio.sleep(0)
        return next(self)


def join() -> None:
    """Wait until the threads of abandoned feeds have ended."""
    for thread in threading.enumerate():
        if thread.name.startswith("asyncfeed"):
            thread.join(10)


async def settle() -> None:
    """Wait until the tasks of abandoned feeds have ended."""
    while len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(0.001)


def plain(pipeline: af.Pipeline[Any], most: int) -> None:
    for number, _ in enumerate(pipeline):
        if number == most:
            break


def with_block(pipeline: af.Pipeline[Any], most: int) -> None:
    with pipeline.open() as feed:
        for number, _ in enumerate(feed):
            if number == most:
                break


def async_plain(pipeline: af.Pipeline[Any], most: int) -> None:
    async def main(pipeline: af.Pipeline[Any]) -> None:
        number = 0
        async for _ in pipeline:
            if number == most:
                break
            number += 1

    async def outer(box: list[af.Pipeline[Any]]) -> None:
        try:
            await main(box.pop())
        finally:
            await settle()

    asyncio.run(outer([pipeline]))


def async_with(pipeline: af.Pipeline[Any], most: int) -> None:
    async def main() -> None:
        async with pipeline.open() as feed:
            number = 0
            async for _ in feed:
                if number == most:
                    break
                number += 1

    asyncio.run(main())


WAYS = [plain, with_block, async_plain, async_with]
PIPELINES: dict[str, Callable[[Any], af.Pipeline[Any]]] = {
    "source": af.items,
    "map": lambda numbers: af.items(numbers).map(lambda x: x),
    "async map": lambda numbers: af.items(numbers).map(later),
    "flat_map": lambda numbers: af.items(numbers).flat_map(lambda x: [x, x]),
    "batch": lambda numbers: af.items(numbers).batch(2).map(lambda x: x),
    "prefetch": lambda numbers: af.items(numbers).prefetch(2).map(lambda x: x),
    "shuffle": lambda numbers: af.items(numbers).shuffle(buffer=9),
    "zip": lambda numbers: af.zip(af.items(numbers), af.items(range(10**9)).map(lambda x: x)),
    "concat": lambda numbers: af.concat(af.items(numbers), af.items([1, 2, 3]).filter(bool)),
}


@sampled(24)
@pytest.mark.parametrize("numbers", [Numbers, NumbersLater])
@pytest.mark.parametrize("kind", PIPELINES)
@pytest.mark.parametrize("leave", WAYS)
@pytest.mark.usefixtures("no_collector")
def test_the_users_iterator_is_let_go_of_at_once(leave: Any, kind: str, numbers: type[Numbers]) -> None:
    """With the run that drew from it, whichever way that was left."""
    mine = numbers()
    seen = weakref.ref(mine)
    leave(PIPELINES[kind](mine), 3)
    del mine
    join()
    assert seen() is None


# -- every way to end, again and again


def _numbers() -> af.Pipeline[int]:
    return af.items(range(10**9)).map(later, concurrency=2)


def by_the_end(_: Path) -> None:
    assert len(list(af.items(range(20)).map(later).batch(4))) == 5


def by_stop(_: Path) -> None:
    with contextlib.suppress(af.ClosedError):
        for item in (feed := _numbers().open()):
            if item == 3:
                feed.stop("enough")


def by_close(_: Path) -> None:
    feed = _numbers().open()
    next(feed)
    feed.close()


def by_aclose(_: Path) -> None:
    async def main() -> None:
        feed = _numbers().open()
        await anext(feed)
        await feed.aclose()

    asyncio.run(main())


def by_break(_: Path) -> None:
    plain(_numbers(), 3)


def by_break_on_a_loop(_: Path) -> None:
    async_plain(_numbers(), 3)


def by_dropping(_: Path) -> None:
    feed = _numbers().open()
    next(feed)
    del feed


def by_dropping_before_the_start(_: Path) -> None:
    _numbers().open(coord=af.Coordinator())


def by_cancelling(_: Path) -> None:
    async def draw() -> None:
        async for _ in af.items(range(3)).map(hangs):
            pass

    async def hangs(_: int) -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(draw())
        await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait([task])
        await settle()

    asyncio.run(main())


def by_a_cancelled_run(_: Path) -> None:
    async def main() -> None:
        feed = _numbers().open()
        await anext(feed)
        (task,) = run_tasks()
        task.cancel()
        del task
        with contextlib.suppress(af.ClosedError):
            while True:
                await anext(feed)

    asyncio.run(main())


def by_ctrl_c(_: Path) -> None:
    def interrupt(x: int) -> int:
        if x == 3:
            _thread.interrupt_main()
        return x

    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell runs in the background ignores it
    for _ in range(3):
        try:
            # Python drops an interrupt that it raises in a callback of its own, such as that of a `WeakSet`. One in
            # thousands would let the test go on for ever; three in a row are no chance.
            for item in af.items(range(10**9)).map(interrupt, concurrency=1):
                if item == 100_000:
                    break
        except KeyboardInterrupt:
            return
    pytest.fail("three interrupts out of three were dropped")


def by_an_error_of_the_consumer(_: Path) -> None:
    with pytest.raises(Oops):
        for _ in _numbers():
            raise Oops


def by_its_coordinator(_: Path) -> None:
    coord = af.Coordinator()
    with contextlib.suppress(af.ClosedError):
        for item in _numbers().open(coord=coord):
            if item == 3:
                coord.request_stop()
    coord.join()


def by_the_failure_of_its_coordinator(_: Path) -> None:
    coord = af.Coordinator()
    with contextlib.suppress(af.ClosedError):
        for item in _numbers().open(coord=coord):
            if item == 3:
                coord.request_stop(Oops("elsewhere"))
    with pytest.raises(Oops):
        coord.join()


def by_failing_its_coordinator(_: Path) -> None:
    coord = af.Coordinator()
    with contextlib.suppress(Oops):
        for _ in af.items(range(20)).map(raises(Oops)).open(coord=coord):
            pass
    with pytest.raises(Oops):
        coord.join()


def by_an_error_of_its_coordinator_before_the_start(_: Path) -> None:
    coord = af.Coordinator()
    feed = _numbers().open(coord=coord)
    with coord.stop_on_exception():
        raise Oops
    with contextlib.suppress(af.ClosedError):
        next(feed)


def by_exit_of_a_loop(_: Path) -> None:
    async def main() -> None:
        async for _ in _numbers():
            break

    asyncio.run(main())


def by_skipping_too_many(_: Path) -> None:
    with pytest.raises(Oops):
        list(af.items(range(20)).map(raises(Oops), on_error="skip", skip_limit=1).map(raises(Oops, 3)))


_kinds = functools.cache(kinds)


def failing(kind: str, leave: Any) -> Callable[[Path], None]:
    def end(folder: Path) -> None:
        with contextlib.suppress(Oops, ValueError):
            leave(_kinds(folder)[kind].build(3), 10**9)

    return end


ENDS: dict[str, Callable[[Path], None]] = {
    **{name[3:]: fn for name, fn in list(globals().items()) if name.startswith("by_")},
    **{f"an error: {kind}": failing(kind, plain) for kind in kinds(Path("/nowhere"), write=False)},
    **{f"an error on a loop: {kind}": failing(kind, async_plain) for kind in kinds(Path("/nowhere"), write=False)},
}


@sampled(36)
@pytest.mark.parametrize("way", ENDS)
def test_no_way_to_end_keeps_anything(way: str, tmp_path: Path) -> None:
    """After a garbage collection there are as many objects as before; `ASYNCFEED_SEARCH=20` tries it more often."""
    end = ENDS[way]
    for _ in range(3):  # what is made once and kept
        end(tmp_path)
    join()
    with no_leaks(types=(af.Feed, Run), patience=10):
        before = _objects()
        for _ in range(OFTEN):
            end(tmp_path)
        join()
        assert (_objects() - before) / OFTEN < 1


def _objects() -> int:
    gc.collect()
    return len(gc.get_objects())
