"""Context variables reach the user's functions as they were where the feed was opened, and nothing comes back."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

import asyncfeed as af
from asyncfeed.testing import run_virtual
from tests.conftest import Run

REQUEST: ContextVar[str] = ContextVar("REQUEST", default="none")


def plain(_: Any) -> str:
    return REQUEST.get()


async def later(_: Any) -> str:
    await asyncio.sleep(0)
    return REQUEST.get()


def rows(_: Any = None) -> Iterator[str]:
    for _ in range(5):
        yield REQUEST.get()


async def rows_later(_: Any = None) -> AsyncIterator[str]:
    for _ in range(5):
        await asyncio.sleep(0)
        yield REQUEST.get()


def listed(_: Any) -> list[str]:
    return [REQUEST.get()] * 2


class Stream:
    def __iter__(self) -> Iterator[str]:
        return rows()


def filled(folder: Path) -> af.Pipeline[af.File]:
    for x in range(5):
        if not (path := folder / f"{x}.bin").exists():
            path.write_bytes(b"x")
    return af.files(f"{folder}/*.bin")


NUMBERS = af.items(range(50))
USES: dict[str, Callable[[Path], af.Pipeline[Any]]] = {
    "map": lambda _: NUMBERS.map(plain),
    "async map": lambda _: NUMBERS.map(later),
    "map of many threads": lambda _: NUMBERS.map(plain, concurrency=8, ordered=False),
    "map after a map": lambda _: NUMBERS.map(later, concurrency=8).map(plain),
    "filter": lambda _: NUMBERS.filter(lambda x: REQUEST.get() == "mine").map(plain),
    "async filter": lambda _: NUMBERS.filter(filter_later).map(later),
    "flat_map": lambda _: NUMBERS.flat_map(listed),
    "lazy flat_map": lambda _: NUMBERS.flat_map(rows),
    "async flat_map": lambda _: NUMBERS.flat_map(rows_later),
    "generator function": lambda _: af.items(rows),
    "async generator function": lambda _: af.items(rows_later),
    "iterable": lambda _: af.items(Stream()),
    "decoder": lambda folder: filled(folder).load(plain),
    "async decoder": lambda folder: filled(folder).load(later),
}


async def filter_later(_: Any) -> bool:
    await asyncio.sleep(0)
    return REQUEST.get() == "mine"


@pytest.mark.parametrize("use", USES)
def test_a_plain_for_takes_the_callers_variables_along(use: str, tmp_path: Path) -> None:
    """To its background loop and to all threads."""
    token = REQUEST.set("mine")
    try:
        found = list(USES[use](tmp_path))
    finally:
        REQUEST.reset(token)
    assert set(found) == {"mine"}


@pytest.mark.parametrize("use", USES)
def test_an_async_for_takes_the_callers_variables_along(use: str, tmp_path: Path, run: Run) -> None:
    """Each of two requests on one loop gets its own, also where one feed runs inside of the other."""

    async def request(name: str) -> set[str]:
        REQUEST.set("mine")
        pipeline = USES[use](tmp_path)
        if name == "outer":
            assert await asyncio.create_task(request("inner")) == {"mine"}
        return {found async for found in pipeline}

    async def other() -> set[str]:
        REQUEST.set("other")
        return {found async for found in NUMBERS.map(plain)} | {found async for found in NUMBERS.map(later)}

    async def main() -> None:
        assert await asyncio.gather(request("outer"), other()) == [{"mine"}, {"other"}]
        assert REQUEST.get() == "none"

    run(main)


def test_what_counts_is_where_the_feed_was_opened(run: Run) -> None:
    """Not who draws first: a feed for many requests is of none of them."""

    async def main() -> None:
        feed = NUMBERS.map(plain).open()
        REQUEST.set("mine")
        async with feed:
            assert {found async for found in feed} == {"none"}

    run(main)


def test_what_a_function_sets_stays_with_it(run: Run) -> None:
    """It changes the variables neither of who draws nor of later workers and threads."""

    def sets(x: int) -> int:
        REQUEST.set("changed")
        return x

    async def sets_later(x: int) -> int:
        REQUEST.set("changed")
        await asyncio.sleep(0)
        return x

    async def main() -> None:
        REQUEST.set("mine")
        for fn in (sets, sets_later):
            pipeline = NUMBERS.map(fn, concurrency=4).flat_map(rows_later)
            assert {found async for found in pipeline} == {"mine"}
        assert REQUEST.get() == "mine"

    run(main)


def test_a_later_worker_does_not_see_what_a_function_has_set(seed: int) -> None:
    """A worker that has had an item, and then waited for the next ones, starts the others."""
    found: dict[Any, str] = {}
    all_called = asyncio.Event()

    async def numbers() -> AsyncIterator[int]:
        yield 0
        await asyncio.sleep(1)
        for x in range(1, 50):
            yield x

    async def sets_later(x: int) -> int:
        found.setdefault(asyncio.current_task(), REQUEST.get())
        REQUEST.set("changed")
        if len(found) == 4:
            all_called.set()
        if x > 0:
            await all_called.wait()
        return x

    async def main() -> list[int]:
        REQUEST.set("mine")
        return [x async for x in af.items(numbers).map(sets_later, concurrency=4)]

    assert run_virtual(main, seed=seed) == list(range(50))
    assert list(found.values()) == ["mine"] * 4


def test_a_generator_finds_what_it_has_set_again(run: Run) -> None:
    """Also where it is drawn on several threads, one after the other, and closed early."""
    errors: list[BaseException] = []

    def drawn(x: int) -> Iterator[int]:
        token = REQUEST.set(f"row {x}")
        try:
            for _ in range(300):
                assert REQUEST.get() == f"row {x}"
                yield x
        finally:
            try:
                REQUEST.reset(token)
            except ValueError as error:  # "was created in a different Context"
                errors.append(error)

    async def main() -> None:
        pipeline = af.items(range(20)).flat_map(drawn, concurrency=4)
        assert len([x async for x in pipeline]) == 6000
        async for _ in pipeline:
            break

    run(main)
    assert errors == []


def test_variables_are_let_go_of_with_the_run() -> None:
    """What a request keeps in them goes when the run's threads have ended."""

    class Session:
        pass

    session: ContextVar[Any] = ContextVar("session")
    mine = Session()
    seen = weakref.ref(mine)

    async def main() -> None:
        session.set(seen())
        async for _ in NUMBERS.map(plain):
            pass

    asyncio.run(main())
    del mine
    for thread in threading.enumerate():
        if thread.name.startswith("asyncfeed"):
            thread.join(10)
    gc.collect()
    assert seen() is None
