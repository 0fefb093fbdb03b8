"""The queues in tasks: waiting, cancelling, time-outs and ends, on many schedules."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from asyncfeed.errors import AsyncfeedError, ClosedError
from asyncfeed.queues import FIFOQueue, OutOfRangeError, PriorityQueue, QueueBase, RandomShuffleQueue
from asyncfeed.testing import cancel_everywhere, run_virtual
from tests.conftest import Run


def numbers(capacity: int = -1, **arguments: Any) -> FIFOQueue:
    return FIFOQueue(capacity, "int64", [()], **arguments)


def rest(queue: QueueBase) -> list[Any]:
    return [int(queue.dequeue_nowait()) for _ in range(len(queue))]


async def idle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_every_element_arrives_once_and_in_order(run: Run) -> None:
    async def main() -> None:
        queue = numbers(3)
        seen: tuple[list[int], list[int]] = ([], [])

        async def produce(start: int) -> None:
            for number in range(start, start + 20):
                await queue.enqueue(number)

        async def consume(mine: list[int]) -> None:
            async for number in queue:
                mine.append(int(number))
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            for mine in seen:
                group.create_task(consume(mine))
            async with asyncio.TaskGroup() as producers:
                for start in (0, 100, 200):
                    producers.create_task(produce(start))
            await queue.close()
        assert sorted(seen[0] + seen[1]) == [*range(20), *range(100, 120), *range(200, 220)]
        for mine in seen:
            for start in (0, 100, 200):
                of_one = [number for number in mine if start <= number < start + 20]
                assert of_one == sorted(of_one)

    run(main)


def test_a_waiting_dequeue_many_holds_up_those_behind_it() -> None:
    async def main() -> None:
        queue = numbers()
        many = asyncio.create_task(queue.dequeue_many(3))
        await idle()
        one = asyncio.create_task(queue.dequeue())
        await queue.enqueue_many([[1, 2]])
        await idle()
        assert (many.done(), one.done(), queue.size()) == (False, False, 0)
        with pytest.raises(asyncio.QueueEmpty):
            queue.dequeue_nowait()
        await queue.enqueue_many([[3, 4]])
        assert (await many).tolist() == [1, 2, 3]
        assert await one == 4

    run_virtual(main)


def test_a_batch_may_be_larger_than_the_capacity() -> None:
    async def main() -> None:
        queue = numbers(2)
        bringing = asyncio.create_task(queue.enqueue_many([range(7)]))
        assert (await queue.dequeue_many(7)).tolist() == list(range(7))
        await bringing

    run_virtual(main)


def test_close_waits_for_the_enqueues_before_it() -> None:
    async def main() -> None:
        queue = numbers(1)
        await queue.enqueue(1)
        before = asyncio.create_task(queue.enqueue(2))
        await idle()
        closing = asyncio.create_task(queue.close())
        await idle()
        after = asyncio.create_task(queue.enqueue(3))
        await idle()
        assert not queue.is_closed()
        assert await queue.dequeue() == 1
        await before
        await closing
        assert queue.is_closed()
        with pytest.raises(ClosedError, match="FIFOQueue\\('fifo_queue'\\) is closed"):
            await after
        assert [int(number) async for number in queue] == [2]
        with pytest.raises(ClosedError):
            await queue.close()

    run_virtual(main)


def test_close_may_fail_the_enqueues_that_wait() -> None:
    async def main() -> None:
        queue = numbers(2)
        many = asyncio.create_task(queue.enqueue_many([range(5)]))
        await idle()
        one = asyncio.create_task(queue.enqueue(9))
        await idle()
        await queue.close(cancel_pending_enqueues=True)
        with pytest.raises(ClosedError, match="2 of 5 elements had entered"):
            await many
        with pytest.raises(ClosedError, match="cancel_pending_enqueues"):
            await one
        await queue.close(cancel_pending_enqueues=True)  # again: it does no harm
        assert [int(number) async for number in queue] == [0, 1]

    run_virtual(main)


def test_the_end_says_how_many_were_left_and_leaves_them() -> None:
    async def main() -> None:
        queue = numbers()
        many = asyncio.create_task(queue.dequeue_many(5))
        await queue.enqueue_many([range(3)])
        await idle()
        assert queue.size() == 0
        queue.close_nowait()
        with pytest.raises(OutOfRangeError, match="5 elements wanted, 3 left") as raised:
            await many
        assert isinstance(raised.value, AsyncfeedError)
        assert (await queue.dequeue_up_to(5)).tolist() == [0, 1, 2]
        for again in (queue.dequeue, lambda: queue.dequeue_many(1), lambda: queue.dequeue_up_to(1)):
            with pytest.raises(OutOfRangeError):
                await again()

    run_virtual(main)


def test_a_priority_queue_loses_nothing_at_its_end() -> None:
    async def main() -> None:
        queue = PriorityQueue(10, "int64", [()])
        waiting = asyncio.create_task(queue.dequeue_up_to(5))
        await queue.enqueue_many(([3, 1, 3], [0, 1, 2]))
        await idle()
        await queue.close()
        priorities, values = await waiting
        assert (priorities.tolist(), values.tolist()) == ([1, 3, 3], [1, 0, 2])

    run_virtual(main)


def test_a_batch_that_waits_in_a_priority_queue_holds_up_those_behind_it_although_there_are_elements() -> None:
    async def main() -> None:
        queue = PriorityQueue(10, [], [])
        await queue.enqueue_many(([3, 1],))
        many = asyncio.create_task(queue.dequeue_many(3))
        await idle()
        one = asyncio.create_task(queue.dequeue())
        await idle()
        assert (one.done(), queue.size()) == (False, 2)
        with pytest.raises(asyncio.QueueEmpty):
            queue.dequeue_nowait()
        many.cancel()
        assert await one == 1

    run_virtual(main)


def test_a_shuffle_queue_keeps_its_minimum_while_it_is_open() -> None:
    async def main() -> None:
        queue = RandomShuffleQueue(10, 3, "int64", [()], seed=5)
        await queue.enqueue_many([range(5)])
        taken = [int(await queue.dequeue()) for _ in range(2)]
        third = asyncio.create_task(queue.dequeue())
        await idle()
        assert not third.done()
        queue.close_nowait()
        taken.append(int(await third))
        assert sorted([*taken, *[int(number) async for number in queue]]) == list(range(5))

    run_virtual(main)


def test_nowait_does_all_or_nothing() -> None:
    queue = numbers(3)
    with pytest.raises(asyncio.QueueFull):
        queue.enqueue_many_nowait([range(4)])
    assert queue.size() == 0
    queue.enqueue_many_nowait([range(3)])
    with pytest.raises(asyncio.QueueFull):
        queue.enqueue_nowait(3)
    for take in (queue.dequeue_many_nowait, queue.dequeue_up_to_nowait):
        with pytest.raises(asyncio.QueueEmpty):
            take(4)
    assert queue.dequeue_many_nowait(3).tolist() == [0, 1, 2]
    with pytest.raises(asyncio.QueueEmpty):
        queue.dequeue_nowait()
    queue.close_nowait()
    with pytest.raises(OutOfRangeError):
        queue.dequeue_nowait()
    with pytest.raises(ClosedError):
        queue.enqueue_nowait(1)
    with pytest.raises(ClosedError):
        queue.close_nowait()


def test_nowait_counts_what_those_who_wait_will_take_and_bring() -> None:
    async def main() -> None:
        queue = numbers(2)
        many = asyncio.create_task(queue.dequeue_many(3))
        await idle()
        with pytest.raises(asyncio.QueueFull):
            queue.enqueue_many_nowait([range(6)])
        queue.enqueue_many_nowait([range(5)])
        assert (await many).tolist() == [0, 1, 2]
        bringing = asyncio.create_task(queue.enqueue_many([range(5, 8)]))
        await idle()
        assert queue.dequeue_many_nowait(5).tolist() == [3, 4, 5, 6, 7]
        await bringing

    run_virtual(main)


def test_a_time_out_has_no_effect(seed: int) -> None:
    async def main() -> None:
        queue = numbers(2)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.dequeue(), 1)
        await queue.enqueue_many([[1, 2]])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await queue.enqueue(3)
        before = asyncio.create_task(queue.enqueue(4))
        await idle()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await queue.close()
        before.cancel()
        await idle()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await queue.dequeue_many(3)
        assert not queue.is_closed()
        assert rest(queue) == [1, 2]

    run_virtual(main, seed=seed)


@pytest.mark.parametrize("count", [1, 3])
def test_cancelled_in_the_moment_it_completes_a_dequeue_puts_back_what_it_was_given(count: int) -> None:
    async def main() -> None:
        queue = numbers()
        first = asyncio.create_task(queue.dequeue() if count == 1 else queue.dequeue_many(count))
        await idle()
        second = asyncio.create_task(queue.dequeue())
        await idle()
        queue.enqueue_many_nowait([range(count)])  # completes it
        first.cancel()  # before it has run
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await second == 0
        assert rest(queue) == list(range(1, count))

    run_virtual(main)


def test_cancelled_in_the_moment_it_completes_an_enqueue_leaves_nothing() -> None:
    async def main() -> None:
        queue = numbers(1)
        queue.enqueue_nowait(1)
        first = asyncio.create_task(queue.enqueue(2))
        await idle()
        second = asyncio.create_task(queue.enqueue(3))
        await idle()
        assert queue.dequeue_nowait() == 1
        first.cancel()
        await asyncio.wait([first, second])
        assert first.cancelled()
        assert rest(queue) == [3]

    run_virtual(main)


def test_a_coroutine_that_is_closed_while_it_waits_leaves_the_line() -> None:
    async def main() -> None:
        queue = numbers()
        waiting = queue.dequeue_many(2)
        waiting.send(None)
        queue.enqueue_nowait(1)
        assert queue.size() == 0
        waiting.close()
        assert rest(queue) == [1]

    run_virtual(main)


@pytest.mark.parametrize("operation", ["dequeue", "dequeue_many", "dequeue_up_to"])
def test_cancelled_anywhere_a_consumer_loses_nothing(operation: str, seed: int) -> None:
    """What was received and what is left is what was sent, each once, in order."""
    received: list[int] = []
    queue: QueueBase = numbers()

    async def consume() -> None:
        while True:
            batch = await getattr(queue, operation)(*([] if operation == "dequeue" else [3]))
            received.extend(np.atleast_1d(batch).tolist())

    async def main() -> None:
        nonlocal queue
        queue = numbers(2)
        received.clear()
        consumer = asyncio.create_task(consume())
        try:
            for number in range(0, 12, 2):
                await queue.enqueue(number)
                await queue.enqueue_many([[number + 1]])
        finally:
            consumer.cancel()
            await asyncio.wait([consumer])

    def check(_: int) -> None:
        everything = [*received, *rest(queue)]
        assert everything == list(range(len(everything)))

    assert cancel_everywhere(main, check, seed=seed) > 2


@pytest.mark.parametrize("many", [False, True])
def test_cancelled_anywhere_a_producer_leaves_all_or_nothing_of_an_element(many: bool, seed: int) -> None:
    """Elements arrive in order, without a gap; after those that were confirmed at most those of one call."""
    received: list[int] = []
    confirmed = 0
    queue = numbers()

    async def consume() -> None:
        async for number in queue:
            received.append(int(number))
            await asyncio.sleep(0)

    async def main() -> None:
        nonlocal queue, confirmed
        queue, confirmed = numbers(2), 0
        received.clear()
        consumer = asyncio.create_task(consume())
        try:
            for number in range(0, 12, 3):
                if many:
                    await queue.enqueue_many([range(number, number + 3)])
                else:
                    for each in range(number, number + 3):
                        await queue.enqueue(each)
                        confirmed = each + 1
                confirmed = number + 3
        finally:
            queue.close_nowait(cancel_pending_enqueues=True)
            await asyncio.wait([consumer])

    def check(_: int) -> None:
        assert received == list(range(len(received)))
        assert confirmed <= len(received) <= confirmed + (3 if many else 1)

    assert cancel_everywhere(main, check, seed=seed) > 2


def test_a_task_whose_loop_has_closed_holds_up_nobody() -> None:
    """What it waited for goes to the next."""
    queue = numbers()
    loop = asyncio.new_event_loop()
    waiting = queue.dequeue()
    task = loop.create_task(waiting)
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    task._log_destroy_pending = False  # it is abandoned on purpose
    queue.enqueue_nowait(1)
    assert queue.dequeue_nowait() == 1


def test_blocking_on_an_event_loop_is_refused() -> None:
    async def main() -> None:
        queue = numbers()
        calls = {
            "enqueue": (1,),
            "enqueue_many": ([[1]],),
            "dequeue": (),
            "dequeue_many": (1,),
            "dequeue_up_to": (1,),
            "close": (),
        }
        for method, arguments in calls.items():
            with pytest.raises(RuntimeError, match=f"use `await {method}"):
                getattr(queue, f"{method}_blocking")(*arguments)
        with pytest.raises(RuntimeError, match="use `await dequeue"):
            next(queue)
        queue.close_blocking(cancel_pending_enqueues=True)  # which never waits
        assert queue.is_closed()

    run_virtual(main)
