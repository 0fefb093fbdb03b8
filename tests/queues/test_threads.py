"""The queues in threads: blocking twins, time-outs, Ctrl-C, and threads and loops on one queue."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest

from asyncfeed.errors import ClosedError
from asyncfeed.queues import FIFOQueue, OutOfRangeError, PriorityQueue, QueueBase, RandomShuffleQueue
from asyncfeed.queues.attempts import Dequeue

WAITS = 30.0  # seconds, in which only a test that fails ends


def numbers(capacity: int = -1) -> FIFOQueue:
    return FIFOQueue(capacity, "int64", [()])


class Thread(threading.Thread):
    """Keeps what its function returned or raised."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.outcome: Any = None
        self.start()

    def run(self) -> None:
        try:
            self.outcome = self._call()
        except BaseException as error:
            self.outcome = error

    def result(self) -> Any:
        self.join(WAITS)
        assert not self.is_alive()
        return self.outcome


def until_waiting(queue: QueueBase, count: int = 1) -> None:
    """Return when that many attempts wait; the test sees it inside the queue."""
    while len(queue._attempts.enqueues) + len(queue._attempts.dequeues) < count:
        pass


def test_a_dequeue_waits_for_an_element() -> None:
    queue = numbers()
    thread = Thread(queue.dequeue_blocking)
    until_waiting(queue)
    queue.enqueue_blocking(3)
    assert thread.result() == 3


def test_an_enqueue_waits_for_room() -> None:
    queue = numbers(1)
    queue.enqueue_blocking(1)
    thread = Thread(lambda: queue.enqueue_many_blocking([[2, 3]]))
    until_waiting(queue)
    assert [int(queue.dequeue_blocking()) for _ in range(3)] == [1, 2, 3]
    assert thread.result() is None


def test_closing_ends_those_who_wait() -> None:
    queue = numbers(1)
    queue.enqueue_nowait(0)
    enqueue = Thread(lambda: queue.enqueue_blocking(1))
    until_waiting(queue)
    closing = Thread(queue.close_blocking)
    until_waiting(queue, 2)
    queue.close_blocking(cancel_pending_enqueues=True)
    assert isinstance(enqueue.result(), ClosedError)
    assert isinstance(closing.result(), ClosedError)
    assert [int(number) for number in queue] == [0]
    with pytest.raises(OutOfRangeError):
        queue.dequeue_up_to_blocking(3)


def test_a_time_out_takes_nothing_and_leaves_nothing() -> None:
    queue = numbers(2)
    with pytest.raises(TimeoutError, match=r"FIFOQueue\('fifo_queue'\): dequeue was not possible within 0 s"):
        queue.dequeue_blocking(timeout=0)
    queue.enqueue_many_blocking([[1, 2]], timeout=WAITS)
    with pytest.raises(TimeoutError):
        queue.enqueue_blocking(3, timeout=0)
    with pytest.raises(TimeoutError):
        queue.dequeue_many_blocking(3, timeout=0.001)
    assert queue.dequeue_many_blocking(2, timeout=1e300).tolist() == [1, 2]
    with pytest.raises(TimeoutError, match="2 of 3 elements have entered, and stay"):
        queue.enqueue_many_blocking([[4, 5, 6]], timeout=0)
    waiting = Thread(lambda: queue.enqueue_blocking(6))
    until_waiting(queue)
    with pytest.raises(TimeoutError):
        queue.close_blocking(timeout=0)
    assert not queue.is_closed()
    queue.close_blocking(cancel_pending_enqueues=True)
    assert isinstance(waiting.result(), ClosedError)
    assert [int(number) for number in queue] == [4, 5]


def test_what_completes_as_the_time_runs_out_is_returned() -> None:
    """The moment between the two is made here: the wait has ended, and the lock is not yet taken."""
    queue = numbers()
    attempt = Dequeue(1)
    queue._push(attempt)
    queue.enqueue_nowait(1)
    queue._give_up(attempt, 0.0)
    assert attempt.taken == [(1,)]
    assert queue.size() == 0


CTRL_C = """
import os, signal, threading
from asyncfeed.queues import FIFOQueue

queue = FIFOQueue(5, "int64", [()])
queue.enqueue_nowait(1)
noticed = threading.Event()

def once(*_):
    if not noticed.is_set():
        noticed.set()
        raise KeyboardInterrupt

def interrupt():
    while not queue._attempts.dequeues:
        pass
    while not noticed.wait(0.01):
        os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, once)
threading.Thread(target=interrupt).start()
try:
    queue.dequeue_many_blocking(2)
except KeyboardInterrupt:
    print(queue.dequeue_nowait(), len(queue._attempts.dequeues))
"""


def test_ctrl_c_withdraws_what_waits() -> None:
    """On the main thread of a process of its own; what a `dequeue_many` had collected goes back.

    Ctrl-C is pressed until it is noticed. Python looks for signals between two calls, and then again when a signal
    wakes the call that waits. One that comes between the look and the wait, while another thread has the GIL, is
    noticed only with the next; a program can do nothing about that.
    """
    done = subprocess.run([sys.executable, "-c", CTRL_C], capture_output=True, text=True, timeout=WAITS)
    assert done.stdout.split() == ["1", "0"], done.stderr


@pytest.mark.parametrize("kind", ["fifo", "shuffle", "priority"])
def test_threads_and_loops_share_a_queue_and_lose_nothing(kind: str) -> None:
    """Three producers and three consumers, of which two have a loop each; batches, time-outs and cancelled waits."""
    queue: QueueBase = {
        "fifo": lambda: FIFOQueue(5, "int64", [()]),
        "shuffle": lambda: RandomShuffleQueue(7, 2, "int64", [()], seed=1),
        "priority": lambda: PriorityQueue(5, [], []),
    }[kind]()
    each = 400

    def produce() -> None:
        for number in range(each):
            try:
                queue.enqueue_blocking([number], timeout=0)
            except TimeoutError:
                queue.enqueue_blocking([number])

    async def produce_async() -> None:
        for number in range(each, 3 * each, 2):
            await queue.enqueue_many([[number, number + 1]])

    def consume(seen: list[int]) -> None:
        while True:
            with suppress(TimeoutError):
                try:
                    seen.extend(np.atleast_1d(queue.dequeue_up_to_blocking(3, timeout=0.0001)).tolist())
                except OutOfRangeError:
                    return

    async def consume_async(seen: list[int]) -> None:
        for turn in itertools.count():
            task = asyncio.create_task(queue.dequeue())
            await asyncio.sleep(0)
            if turn % 2:
                task.cancel()
            with suppress(asyncio.CancelledError):
                try:
                    seen.append(int(await task))
                except OutOfRangeError:
                    return

    seen: tuple[list[int], ...] = ([], [], [])
    consumers = [Thread(partial(consume, mine)) for mine in seen[:2]]
    consumers.append(Thread(lambda: asyncio.run(consume_async(seen[2]))))
    for producer in [Thread(produce), Thread(lambda: asyncio.run(produce_async()))]:
        assert producer.result() is None
    queue.close_blocking()
    for consumer in consumers:
        assert consumer.result() is None
    assert sorted(itertools.chain(*seen)) == list(range(3 * each))


def test_a_task_is_woken_by_a_thread_and_a_thread_by_a_task() -> None:
    there, back = numbers(1), FIFOQueue(1, "int64", [()])

    def answer() -> None:
        for number in there:
            back.enqueue_blocking(number * 2)

    async def main() -> list[int]:
        found = []
        for number in range(100):
            await there.enqueue(number)
            found.append(int(await back.dequeue()))
        await there.close()
        return found

    thread = Thread(answer)
    assert asyncio.run(main()) == list(range(0, 200, 2))
    assert thread.result() is None


def test_batches_of_two_threads_are_not_mixed() -> None:
    """Each `enqueue_many` is one attempt: nobody's elements come between those of a batch."""
    queue = numbers(3)
    threads = [
        Thread(lambda start=start: queue.enqueue_many_blocking([range(start, start + 50)])) for start in (0, 50)
    ]
    drawn = queue.dequeue_many_blocking(100)
    for thread in threads:
        thread.result()
    assert np.array_equal(drawn, np.arange(100)) or np.array_equal(drawn, np.roll(np.arange(100), 50))
