"""Plain `for`, `next` and `with` where they would block an event loop: what says what to write, and when."""

from __future__ import annotations

import ast
import asyncio
import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import aclosing
from typing import Any

import pytest

import asyncfeed as af
from tests.conftest import Run
from tests.engine.inside import held_up_is_reported_after

NUMBERS = af.items(range(5))


@pytest.fixture(autouse=True, scope="module")
def may_block(detector: Any) -> Iterator[None]:
    """Blocking is what this is about."""
    detector.deactivate()
    yield
    detector.activate()


async def a_for() -> None:
    for _ in NUMBERS:
        pass


async def a_next() -> None:
    next(NUMBERS.open())


async def a_comprehension() -> list[int]:
    return [x + 1 for x in NUMBERS]


async def a_for_in_a_function() -> list[int]:
    return sum_up(NUMBERS)


async def a_for_in_a_generator() -> list[int]:
    return [x + 1 for x in (y for y in NUMBERS)]


async def a_for_in_a_block() -> None:
    with NUMBERS.open() as feed:
        for _ in feed:
            pass


async def a_next_in_a_block() -> None:
    with NUMBERS.open() as feed:
        next(feed)


async def epochs_in_a_block() -> None:
    with NUMBERS.epochs(2) as epochs:
        for epoch in epochs:
            next(epoch)


def sum_up(numbers: Any) -> int:
    return sum(numbers)


@pytest.mark.parametrize(
    "wrong",
    [
        a_for, a_next, a_comprehension, a_for_in_a_function, a_for_in_a_generator, a_for_in_a_block,
        a_next_in_a_block, epochs_in_a_block,
    ],
)  # fmt: skip
def test_a_plain_for_in_a_coroutine_says_what_to_write(wrong: Callable[[], Any], run: Run) -> None:
    """Wherever on the way from the coroutine it stands."""
    with pytest.raises(
        RuntimeError, match=rf"event loop that runs {wrong.__name__}\(\).*async for.*async with.*to_thread"
    ):
        run(wrong)


def test_what_the_error_says_to_write_works(run: Run) -> None:
    """Both ways."""

    async def main() -> None:
        assert [x async for x in NUMBERS] == list(range(5))
        assert await asyncio.to_thread(sum_up, NUMBERS) == 10
        with NUMBERS.open() as feed:
            assert await asyncio.to_thread(list, feed) == list(range(5))
        async with aclosing(NUMBERS.open()) as feed:
            assert await asyncio.to_thread(list, feed) == list(range(5))

    run(main)


def test_an_async_for_in_a_plain_with_says_that_the_with_is_wrong(run: Run) -> None:
    """The feed runs on a thread by then."""

    async def main() -> None:
        with (
            NUMBERS.open() as feed,
            pytest.raises(af.ClosedError, match="`with`.*background thread.*`async with`"),
        ):
            await anext(feed)

    run(main)


@pytest.mark.parametrize(("noticed", "count"), [(-1.0, 1), (60.0, 0)])
def test_a_with_that_held_up_a_loop_at_its_end_is_reported(
    noticed: float, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It may stand in a coroutine, around threads that draw. Closing waits for what is under way."""

    async def main() -> None:
        with NUMBERS.open() as feed:
            assert await asyncio.to_thread(next, feed) == 0

    with caplog.at_level(logging.WARNING, "asyncfeed"), held_up_is_reported_after(noticed):
        asyncio.run(main())
        with NUMBERS.open() as feed:  # there is no loop here
            next(feed)
    assert len(caplog.records) == count
    assert all("runs main()" in each.message and "aclosing" in each.message for each in caplog.records)


@pytest.mark.parametrize("cell", ["found = list(numbers)", "await sleep(0)\nfound = [x for x in numbers]"])
def test_a_plain_for_in_a_cell_of_a_notebook_works(cell: str, run: Run) -> None:
    """A notebook runs its cells on its loop's thread, as a coroutine where they await something."""
    space: dict[str, Any] = {"numbers": NUMBERS, "sleep": asyncio.sleep}
    code = compile(cell, "<ipython-input>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    async def execute() -> None:
        made = eval(code, space)
        if inspect.iscoroutine(made):
            await made

    run(execute)
    assert space["found"] == list(range(5))
