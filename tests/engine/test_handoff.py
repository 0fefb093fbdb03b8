"""The last queue of a run: items that are taken without a further look, and those that need one."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from asyncfeed.epoch_end import END_OF_STREAM, epoch_end
from asyncfeed.stages.steps import Chunk
from tests.engine.inside import Budget, Handoff

SPANS = st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=12)
"""How many items each chunk has, and whether an epoch ends with it."""


def chunks(sizes: list[tuple[int, bool]], weight: int) -> tuple[list[Chunk], list[list[int]]]:
    """Return the chunks, and the items of each epoch."""
    made, epochs, number = [], [[]], 0
    for size, ends in sizes:
        items = list(range(number, number + size))
        number += size
        epochs[-1].extend(items)
        made.append(Chunk(list(items), list(items), epoch_end(0) if ends else None, None, weight * size))
        if ends:
            epochs.append([])
    return made, epochs


async def until_nothing_moves() -> None:
    """Let every task go as far as it comes."""
    for _ in range(50):
        await asyncio.sleep(0)


@given(sizes=SPANS, room=st.integers(1, 12), by_epoch=st.booleans(), weight=st.integers(0, 5), data=st.data())
def test_a_consumer_gets_every_item_and_the_loop_brings_more_as_soon_as_half_is_left(
    sizes: list[tuple[int, bool]], room: int, by_epoch: bool, weight: int, data: Any
) -> None:
    """In order, epoch by epoch, whoever draws next to it; what was taken is booked by the time more comes."""

    async def main() -> None:
        made, epochs = chunks(sizes, weight)
        budget = Budget(10**9)
        budget.charge(sum(each.nbytes for each in made))
        handoff = Handoff(room, asyncio.get_running_loop(), budget)
        budget.freed = handoff.freed
        if by_epoch:
            handoff.epoch_level = 0

        async def produce() -> None:
            for chunk in made:
                await handoff.put(chunk)
            await handoff.put(Chunk([], (), END_OF_STREAM))

        producing = asyncio.create_task(produce())
        await until_nothing_moves()
        got: list[list[int]] = []
        for number, expected in enumerate(epochs if by_epoch else [sum(epochs, [])]):
            handoff.go_to(number)
            got.append([])
            while True:
                await until_nothing_moves()
                if not producing.done():
                    assert len(handoff) > room // 2
                with suppress(StopIteration):
                    for _ in range(data.draw(st.integers(1, 5), label="taken in a row")):
                        if data.draw(st.integers(0, 5), label="together") == 0:
                            got[-1].extend(handoff.take_ready(2, 10**9))
                        if len(handoff) or handoff.ended:
                            got[-1].append(handoff.take(number if by_epoch else None))
                    continue
                break
            assert got[-1] == expected
        await until_nothing_moves()
        handoff.settle()
        assert producing.done()
        assert handoff.delivered.count == sum(map(len, epochs))
        assert handoff.delivered.nbytes == weight * handoff.delivered.count
        assert budget.used == 0

    asyncio.run(main())


@given(sizes=SPANS, room=st.integers(1, 12), left_after=st.lists(st.integers(0, 9), max_size=12))
def test_an_epoch_that_is_left_is_left_whole_and_what_it_held_is_free(
    sizes: list[tuple[int, bool]], room: int, left_after: list[int]
) -> None:
    """The next begins with its first item."""

    async def main() -> None:
        made, epochs = chunks(sizes, 3)
        budget = Budget(10**9)
        budget.charge(sum(each.nbytes for each in made))
        handoff = Handoff(room, asyncio.get_running_loop(), budget)
        budget.freed = handoff.freed
        handoff.epoch_level = 0

        async def produce() -> None:
            for chunk in made:
                await handoff.put(chunk)
            await handoff.put(Chunk([], (), END_OF_STREAM))

        producing = asyncio.create_task(produce())
        for number, expected in enumerate(epochs):
            handoff.go_to(number)
            most = left_after[number] if number < len(left_after) else 99
            got: list[int] = []
            with suppress(StopIteration):
                while len(got) < most:
                    await until_nothing_moves()
                    got.append(handoff.take(number))
            assert got == expected[:most]
        handoff.go_to(len(epochs))
        await until_nothing_moves()
        handoff.settle()
        assert producing.done()
        assert budget.used == 0

    asyncio.run(main())
