"""Taking what is ready from a running feed: for bridges, which cross to another framework with several at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncfeed.engine.budget import Budget
from asyncfeed.engine.failed import Failed
from asyncfeed.engine.outlet import Outlet
from asyncfeed.errors import ClosedError, Failure
from asyncfeed.stages.base import END, NO_MARK, Span

BIG = 1 << 30


async def filled(room: int, sizes: list[int], *, mark: int = NO_MARK, failure: Any = None) -> Outlet:
    """Return an outlet with an item of each size, named by its number."""
    outlet = Outlet(room, asyncio.get_running_loop(), Budget(BIG))
    for number, size in enumerate(sizes):
        outlet._budget.charge(size)
        await outlet.put(Span([number], [number], NO_MARK, None, size))
    if mark != NO_MARK or failure is not None:
        await outlet.put(Span([], (), mark, failure))
    return outlet


@pytest.mark.parametrize(
    ("sizes", "limits", "taken"),
    [
        ([1, 1, 1], (9, 9), [0, 1, 2]),
        ([1, 1, 1], (2, 9), [0, 1]),
        ([1, 1, 1], (0, 9), []),
        ([4, 9, 4], (9, 5), [0]),
        ([9, 4, 4], (9, 5), []),
        ([2, 2, 2], (9, 4), [0, 1]),
        ([BIG // 32, BIG // 32, 1], (9, BIG), [0, 1]),
        ([0, 0, 0], (9, 0), [0, 1, 2]),
        ([], (9, 9), []),
    ],
)
def test_it_takes_what_is_there_in_order_as_far_as_it_is_not_much(
    sizes: list[int], limits: tuple[int, int], taken: list[int]
) -> None:
    """At most so many, and at most so many bytes: never more than a sixteenth of the memory limit."""

    async def main() -> None:
        outlet = await filled(9, sizes)
        assert outlet.take_ready(*limits) == taken
        assert (len(outlet), outlet.delivered) == (len(sizes) - len(taken), len(taken))
        outlet.settle()
        assert outlet._budget.used == sum(sizes[len(taken) :])

    asyncio.run(main())


def test_the_end_and_a_failure_are_for_the_next_that_takes_one() -> None:
    async def main() -> None:
        error = ValueError("item 2")
        ended = await filled(9, [1, 1], mark=END)
        failed = await filled(9, [1, 1], failure=Failure(error, "map", "2", 2, 0))
        for outlet, raised in ((ended, StopIteration), (failed, Failed)):
            assert outlet.take_ready(9, 9) == [0, 1]
            assert outlet.take_ready(9, 9) == []
            with pytest.raises(raised):
                outlet.take()

    asyncio.run(main())


def test_nothing_is_taken_after_a_stop() -> None:
    async def main() -> None:
        outlet = await filled(9, [1, 1])
        outlet.cut("enough")
        assert outlet.take_ready(9, 9) == []
        with pytest.raises(ClosedError, match="enough"):
            outlet.take()

    asyncio.run(main())


def test_whoever_waits_for_room_goes_on() -> None:
    """As after taking them one by one."""

    async def main() -> None:
        outlet = await filled(4, [1, 1, 1])
        putting = asyncio.create_task(outlet.put(Span([3, 4, 5], [3, 4, 5], NO_MARK, None, 3)))
        await asyncio.sleep(0)
        assert not putting.done()
        assert outlet.take_ready(9, 9) == [0, 1, 2, 3]
        await putting
        assert outlet.take_ready(9, 9) == [4, 5]

    asyncio.run(main())
