"""One generator, many threads or tasks: every item once, no end that hides an error, no deadlock."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import asyncfeed as af
from asyncfeed.testing import cancel_everywhere, run_virtual

MANY = 8


def draw_all(shared: Iterator[int], threads: int = MANY) -> tuple[list[int], list[BaseException]]:
    """Draw from many threads that begin together; return the items and what each thread ended with."""
    together = threading.Barrier(threads)
    items: list[int] = []
    errors: list[BaseException] = []

    def draw() -> None:
        together.wait()
        try:
            for item in shared:
                items.append(item)
        except BaseException as error:
            errors.append(error)

    with ThreadPoolExecutor(threads) as pool:
        for _ in range(threads):
            pool.submit(draw)
    return items, errors


def test_every_item_goes_to_one_thread() -> None:
    items, errors = draw_all(af.threadsafe(n for n in range(5000)))
    assert sorted(items) == list(range(5000)) and errors == []


def test_the_decorator_makes_what_a_function_returns_shareable() -> None:
    @af.threadsafe_generator
    def numbers(first: int, *, last: int) -> Iterator[int]:
        """Count."""
        yield from range(first, last)

    assert (numbers.__name__, numbers.__doc__) == ("numbers", "Count.")
    items, _ = draw_all(numbers(10, last=2000))
    assert sorted(items) == list(range(10, 2000))
    assert list(numbers(0, last=2)) == [0, 1]


def test_an_exception_is_seen_by_every_thread() -> None:
    def failing() -> Iterator[int]:
        yield from range(100)
        raise ValueError("item 100")

    shared = af.threadsafe(failing())
    items, errors = draw_all(shared)
    assert sorted(items) == list(range(100))
    assert len(errors) == MANY and len(set(map(id, errors))) == 1
    depths = []
    for _ in range(3):
        with pytest.raises(ValueError, match="item 100") as caught:
            next(shared)
        depths.append(len(caught.traceback))
    assert len(set(depths)) == 1
    shared.close()
    with pytest.raises(ValueError, match="item 100"):
        next(shared)


def test_an_iterator_that_goes_on_after_an_exception_ends_by_itself() -> None:
    class Parser:
        def __init__(self) -> None:
            self.lines = iter(["1", "bad", "3"])

        def __iter__(self) -> Parser:
            return self

        def __next__(self) -> int:
            return int(next(self.lines))

    shared = af.threadsafe(Parser())
    assert next(shared) == 1
    with pytest.raises(ValueError, match="bad"):
        next(shared)
    assert list(shared) == [3]


def test_close_passes_through_and_ends_those_who_wait() -> None:
    """It waits for the draw that is under way; that one still gets its item."""
    entered, leave = threading.Event(), threading.Event()
    closed: list[bool] = []

    def slow() -> Iterator[int]:
        try:
            entered.set()
            leave.wait(60)
            yield 0
            yield 1
        finally:
            closed.append(True)

    shared = af.threadsafe(slow())
    got: list[list[int]] = [[], [], []]

    def draw(into: list[int]) -> None:
        into.extend(shared)

    threads = [threading.Thread(target=draw, args=(got[0],))]
    threads[0].start()
    entered.wait(60)
    threads += [threading.Thread(target=draw, args=(into,)) for into in got[1:]]
    threads.append(threading.Thread(target=shared.close))
    for thread in threads[1:]:
        thread.start()
    while not shared._closed:
        threads[-1].join(0.001)  # until `close` has said so
    leave.set()
    for thread in threads:
        thread.join(60)
    assert sorted(got, key=len) == [[], [], [0]] and closed == [True]
    assert list(shared) == []


def test_closing_what_has_no_close_is_the_end() -> None:
    shared = af.threadsafe([1, 2, 3])
    assert next(shared) == 1
    with contextlib.closing(shared):
        pass
    assert list(shared) == []


def test_send_and_throw_pass_through() -> None:
    def echo() -> Iterator[int]:
        got = yield 0
        while True:
            try:
                got = yield got * 2
            except KeyError:
                got = -1

    shared = af.threadsafe(echo())
    assert (next(shared), shared.send(4), shared.throw(KeyError()), shared.send(1)) == (0, 8, -2, 2)
    with pytest.raises(OSError):
        shared.throw(OSError("thrown"))
    with pytest.raises(OSError, match="thrown"):
        next(shared)
    with pytest.raises(AttributeError):
        af.threadsafe([1]).send(1)


@pytest.mark.parametrize("method", ["__next__", "close"])
def test_a_generator_that_draws_from_itself_is_told_so(method: str) -> None:
    def own() -> Iterator[int]:
        yield getattr(shared, method)()

    shared = af.threadsafe(own())
    with pytest.raises(ValueError, match="generator already executing"):
        next(shared)


def test_what_cannot_be_drawn_from_is_refused() -> None:
    with pytest.raises(TypeError, match="expected a generator or an iterator, not 3"):
        af.threadsafe(3)  # type: ignore[call-overload]
    shared = af.threadsafe([1])
    assert af.threadsafe(shared) is shared
    assert repr(af.threadsafe(iter("a"))).startswith("threadsafe(<str")


def test_a_shared_generator_is_a_source() -> None:
    @af.threadsafe_generator
    def numbers() -> Iterator[int]:
        yield from range(10)

    assert list(af.items(numbers).batch(5).map(sum)) == [10, 35]


# -- many tasks


async def count(last: int, closed: list[int] | None = None) -> AsyncIterator[int]:
    try:
        for number in range(last):
            await asyncio.sleep(number % 3)
            yield number
    finally:
        if closed is not None:
            await asyncio.sleep(1)
            closed.append(1)


async def gather(shared: AsyncIterator[int], into: list[int]) -> None:
    async for item in shared:
        into.append(item)
        await asyncio.sleep(item % 2)


def test_every_item_goes_to_one_task(seed: int) -> None:
    async def main() -> None:
        items: list[int] = []
        shared = af.threadsafe(count(50))
        await asyncio.gather(*(gather(shared, items) for _ in range(MANY)))
        assert sorted(items) == list(range(50))

    run_virtual(main, seed=seed)


def test_tasks_get_their_turns_in_the_order_they_ask() -> None:
    async def main() -> None:
        shared = af.threadsafe_generator(count)(20)
        assert inspect.isawaitable(first := anext(shared))
        assert await asyncio.gather(first, *(anext(shared) for _ in range(19))) == list(range(20))
        await shared.aclose()

    run_virtual(main)


def test_a_cancelled_task_loses_no_item_and_ends_nothing(seed: int) -> None:
    """Cancelled at each turn of the loop, while others draw: what it would have got is another's."""

    async def main() -> None:
        shared = af.threadsafe(count(6))
        mine: list[int] = []
        others: list[int] = []
        other = asyncio.create_task(gather(shared, others))
        cancelled: asyncio.CancelledError | None = None
        for wait in (gather(shared, mine), asyncio.wait([other]), asyncio.wait([other])):
            try:
                await wait
            except asyncio.CancelledError as error:
                cancelled = error
        assert other.done() and sorted(mine + others) == list(range(6))
        if cancelled is not None:
            raise cancelled

    assert cancel_everywhere(main, seed=seed) > 10


@pytest.mark.parametrize("turns", range(1, 8))
def test_a_draw_that_is_closed_gives_its_turn_to_the_next(seed: int, turns: int) -> None:
    """A coroutine that waits for its turn, or has just got it, is closed and not cancelled: nobody hangs."""

    async def numbers() -> AsyncIterator[int]:
        for x in range(8):
            await asyncio.sleep(0)
            yield x

    async def main() -> list[int]:
        shared = af.threadsafe(numbers())
        tasks = [asyncio.ensure_future(anext(shared))]
        await asyncio.sleep(0)
        closed = shared.__anext__()
        closed.send(None)
        tasks += [asyncio.ensure_future(anext(shared)) for _ in range(4)]
        for _ in range(turns):
            await asyncio.sleep(0)
        closed.close()
        got = sorted(await asyncio.gather(*tasks))
        await shared.aclose()
        return got

    assert run_virtual(main, seed=seed) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("has_turn", [False, True])
def test_a_draw_that_is_closed_does_not_hold_up_the_next(has_turn: bool, seed: int) -> None:
    """It waits for its turn, or has been given it and has not gone on."""

    async def main() -> list[int]:
        entered = asyncio.Event()

        async def numbers() -> AsyncIterator[int]:
            entered.set()
            await asyncio.sleep(1)
            yield 0
            yield 1

        shared = af.threadsafe(numbers())
        first = asyncio.ensure_future(anext(shared))
        await entered.wait()
        closed = shared.__anext__()
        closed.send(None)
        other = asyncio.ensure_future(anext(shared))
        if has_turn:
            await first
        closed.close()
        got = await asyncio.gather(first, other)
        await shared.aclose()
        return got

    assert run_virtual(main, seed=seed) == [0, 1]


def test_a_draw_that_times_out_leaves_its_item_to_the_next(seed: int) -> None:
    async def main() -> None:
        async def slow() -> AsyncIterator[int]:
            for number in range(3):
                await asyncio.sleep(10)
                yield number

        shared = af.threadsafe(slow())
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(shared), 3)
        assert [item async for item in shared] == [0, 1, 2]
        assert asyncio.get_running_loop().time() == 30.0

    run_virtual(main, seed=seed)


def test_an_exception_is_seen_by_every_task(seed: int) -> None:
    async def failing() -> AsyncIterator[int]:
        yield 0
        await asyncio.sleep(1)
        raise ValueError("item 1")

    async def main() -> None:
        shared = af.threadsafe(failing())
        found = await asyncio.gather(*(gather(shared, []) for _ in range(MANY)), return_exceptions=True)
        assert [str(error) for error in found] == ["item 1"] * MANY

    run_virtual(main, seed=seed)


def test_a_generator_that_cancels_itself_does_not_cancel_who_draws(seed: int) -> None:
    async def own() -> AsyncIterator[int]:
        yield 0
        raise asyncio.CancelledError

    async def main() -> None:
        shared = af.threadsafe(own())
        assert await anext(shared) == 0
        for _ in range(2):
            with pytest.raises(RuntimeError, match="a step of the async generator was cancelled"):
                await anext(shared)

    run_virtual(main, seed=seed)


def test_aclose_ends_the_generator_and_those_who_wait(seed: int) -> None:
    async def main() -> None:
        closed: list[int] = []
        shared = af.threadsafe(count(1000, closed))
        tasks = [asyncio.create_task(gather(shared, [])) for _ in range(3)]
        await asyncio.sleep(5)
        await asyncio.gather(shared.aclose(), shared.aclose())
        assert closed == [1]
        await asyncio.gather(*tasks)
        assert [item async for item in shared] == []

    run_virtual(main, seed=seed)


def test_an_error_of_closing_reaches_who_closes() -> None:
    async def bad() -> AsyncIterator[int]:
        try:
            await asyncio.sleep(10)
            yield 0
        finally:
            raise OSError("closing")

    async def main() -> None:
        shared = af.threadsafe(bad())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(shared), 1)
        with pytest.raises(OSError, match="closing"):
            await shared.aclose()

    run_virtual(main)


def test_asend_and_athrow_pass_through(seed: int) -> None:
    async def echo() -> AsyncIterator[int]:
        got = yield 0
        while True:
            try:
                await asyncio.sleep(2)
                got = yield got * 2
            except KeyError:
                got = -1

    async def main() -> None:
        shared = af.threadsafe(echo())
        assert await anext(shared) == 0
        assert await shared.asend(4) == 8
        assert await shared.athrow(KeyError()) == -2
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(shared.asend(5), 1)
        assert await shared.asend(6) == 12
        assert await anext(shared) == 10  # what was left
        await shared.aclose()

    run_virtual(main, seed=seed)


def test_an_async_generator_that_draws_from_itself_is_told_so() -> None:
    async def own() -> AsyncIterator[int]:
        yield await anext(shared)

    shared = af.threadsafe(own())

    async def main() -> None:
        with pytest.raises(ValueError, match="generator already executing"):
            await anext(shared)

    run_virtual(main)


def test_a_second_loop_is_refused() -> None:
    shared = af.threadsafe(count(10))

    async def main() -> int:
        return await anext(shared)

    run_virtual(main)
    with pytest.raises(RuntimeError, match="the event loop of its first draw"):
        run_virtual(main)


def test_a_step_that_nobody_waits_for_ends_when_the_iterator_is_dropped(seed: int) -> None:
    async def main() -> None:
        closed: list[int] = []
        shared = af.threadsafe(count(1000, closed))
        await anext(shared)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(shared), 0.5)
        assert len(asyncio.all_tasks()) == 2
        del shared
        gc.collect()
        await asyncio.sleep(5)
        assert len(asyncio.all_tasks()) == 1 and closed == [1]

    run_virtual(main, seed=seed)
