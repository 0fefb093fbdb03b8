"""The queue that tasks and threads use: it runs attempts under a lock, and wakes their owners.

Each operation is an attempt. The operation that makes a waiting attempt possible also finishes it, on its own
thread. Then it wakes the owner of the attempt: a task by a future, a thread by a lock.

An attempt becomes finished only under the queue's lock. So a cancellation, a time-out or Ctrl-C comes before that
or after it. Before it, the attempt is withdrawn and has no effect. After it, a time-out still returns the result.
If the task was cancelled or the thread interrupted after it, the elements that the attempt took go back into the
queue.
"""

from __future__ import annotations

import asyncio
import operator
import threading
from contextlib import suppress
from functools import partial
from typing import Any, Self

import numpy as np

from asyncfeed.queues.attempts import Attempt, Attempts, Close, Dequeue, Enqueue, OutOfRangeError
from asyncfeed.queues.elements import Elements, Shape
from asyncfeed.queues.stores import Element, Store


class QueueBase:
    """The base of the four queues: see `FIFOQueue`.

    Every operation has three forms:

    * for tasks: `await q.enqueue(x)`;
    * for threads: `q.enqueue_blocking(x, timeout=None)`, which raises `TimeoutError`;
    * without waiting: `q.enqueue_nowait(x)`. If it would have to wait, it raises `asyncio.QueueFull` or
      `asyncio.QueueEmpty` and has no effect.

    One queue serves tasks of several loops and threads at the same time. Its methods take a lock. So a signal
    handler or a finalizer must not call them: it may have interrupted a method that holds the lock. Use
    `loop.call_soon_threadsafe(queue.close_nowait)` there.
    """

    def __init__(
        self, elements: Elements, store: Store, *, capacity: int, name: str, keep: int = 0, whole: bool = False
    ) -> None:
        if not operator.index(capacity):
            raise ValueError("a queue of capacity 0 can hold no element; a negative capacity means no bound")
        self._name = name
        self._elements = elements
        self._attempts = Attempts(
            store, name=repr(self), capacity=capacity if capacity > 0 else None, keep=keep, whole=whole
        )
        self._lock = threading.Lock()

    # -- properties

    @property
    def name(self) -> str:
        """The name of the queue in error messages."""
        return self._name

    @property
    def dtypes(self) -> list[np.dtype[Any]]:
        """The dtype of each component."""
        return list(self._elements.dtypes)

    @property
    def shapes(self) -> list[Shape] | None:
        """The shape of each component, with None for sizes that vary. None if the shapes are not known."""
        return None if self._elements.shapes is None else list(self._elements.shapes)

    @property
    def names(self) -> list[str] | None:
        """The name of each component, or None."""
        return None if self._elements.names is None else list(self._elements.names)

    def size(self) -> int:
        """Return how many elements are in the queue, without those that a waiting `dequeue_many` has collected."""
        return len(self._attempts.store)

    __len__ = size

    def __bool__(self) -> bool:
        """Return True: an empty queue is still a queue."""
        return True

    def is_closed(self) -> bool:
        """Return whether the queue is closed. It is still open while a `close` waits for pending enqueues."""
        return self._attempts.closed

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"

    # -- enqueue

    async def enqueue(self, value: Any) -> None:
        """Add one element, after waiting for room.

        A list or tuple holds the components. A queue of one component also takes the bare array. A queue with
        names takes a dict. Arrays of the right dtype are not copied, so do not write into them afterwards.

        If the call is cancelled, the element is not in the queue, unless a consumer took it in that very moment.

        Raises:
            ClosedError: The queue is closed, or it was closed with `cancel_pending_enqueues` during the wait.
            ValueError: The value is not an element of this queue.
            TypeError: The value has another dtype.
        """
        element = self._elements.one(value)
        if not self._put(element):
            await self._wait(Enqueue([element]))

    def enqueue_blocking(self, value: Any, timeout: float | None = None) -> None:
        """Do what `enqueue` does, for a thread. Raise `TimeoutError` after `timeout` seconds."""
        element = self._elements.one(value)
        _refuse_loop("enqueue")
        if not self._put(element):
            self._block(Enqueue([element]), timeout)

    def enqueue_nowait(self, value: Any) -> None:
        """Do what `enqueue` does, without waiting. Raise `asyncio.QueueFull` if there is no room."""
        element = self._elements.one(value)
        if not self._put(element):
            self._now(Enqueue([element]))

    async def enqueue_many(self, values: Any) -> None:
        """Add the elements of a batch: slices of each component along its first axis, in order.

        The elements enter one by one when there is room, so a batch may be larger than the capacity. Elements that
        have entered stay, whatever happens to the rest. The slices are views. An empty batch never waits or fails.
        """
        await self._wait(Enqueue(self._elements.many(values)))

    def enqueue_many_blocking(self, values: Any, timeout: float | None = None) -> None:
        """Do what `enqueue_many` does, for a thread. The `TimeoutError` says how many elements have entered."""
        _refuse_loop("enqueue_many")
        self._block(Enqueue(self._elements.many(values)), timeout)

    def enqueue_many_nowait(self, values: Any) -> None:
        """Add the whole batch now.

        If there is not room for all of it, add nothing and raise `asyncio.QueueFull`.
        """
        self._now(Enqueue(self._elements.many(values)))

    # -- dequeue

    async def dequeue(self) -> Any:
        """Remove one element and return it, after waiting for one.

        If the call is cancelled, it takes nothing.

        Returns:
            A tuple of arrays, one for each component. The bare array if there is one component. A dict if the
            queue has names.

        Raises:
            OutOfRangeError: The queue is closed and empty.
        """
        element = self._take()
        if element is None:
            element = (await self._wait(Dequeue(1)))[0]
        return self._elements.shown(element)

    def dequeue_blocking(self, timeout: float | None = None) -> Any:
        """Do what `dequeue` does, for a thread. Raise `TimeoutError` after `timeout` seconds."""
        _refuse_loop("dequeue")
        element = self._take()
        if element is None:
            element = self._block(Dequeue(1), timeout)[0]
        return self._elements.shown(element)

    def dequeue_nowait(self) -> Any:
        """Do what `dequeue` does, without waiting. Raise `asyncio.QueueEmpty` if there is no element."""
        element = self._take()
        if element is None:
            element = self._now(Dequeue(1))[0]
        return self._elements.shown(element)

    async def dequeue_many(self, n: int) -> Any:
        """Remove `n` elements and return them as a batch, stacked along a new first axis.

        It collects the elements as they arrive. Later dequeues wait until it has finished. `n` = 0 gives an empty
        batch at once. The shapes of the components must be known.

        Raises:
            OutOfRangeError: The queue is closed and has fewer elements left. Those that were collected go back
                into the queue.
        """
        return self._elements.stacked(await self._wait(self._several(n, up_to=False)))

    def dequeue_many_blocking(self, n: int, timeout: float | None = None) -> Any:
        """Do what `dequeue_many` does, for a thread. Raise `TimeoutError` after `timeout` seconds."""
        _refuse_loop("dequeue_many")
        return self._elements.stacked(self._block(self._several(n, up_to=False), timeout))

    def dequeue_many_nowait(self, n: int) -> Any:
        """Do what `dequeue_many` does, without waiting. If there are fewer, take none and raise `QueueEmpty`."""
        return self._elements.stacked(self._now(self._several(n, up_to=False)))

    async def dequeue_up_to(self, n: int) -> Any:
        """Do what `dequeue_many` does. If the queue is closed and has fewer elements left, return those.

        Raises:
            OutOfRangeError: The queue is closed and empty.
        """
        return self._elements.stacked(await self._wait(self._several(n, up_to=True)))

    def dequeue_up_to_blocking(self, n: int, timeout: float | None = None) -> Any:
        """Do what `dequeue_up_to` does, for a thread. Raise `TimeoutError` after `timeout` seconds."""
        _refuse_loop("dequeue_up_to")
        return self._elements.stacked(self._block(self._several(n, up_to=True), timeout))

    def dequeue_up_to_nowait(self, n: int) -> Any:
        """Do what `dequeue_up_to` does, without waiting. If it had to wait, take none and raise `QueueEmpty`."""
        return self._elements.stacked(self._now(self._several(n, up_to=True)))

    def __aiter__(self) -> Self:
        """Return the queue itself: iterating dequeues until it is closed and empty."""
        return self

    async def __anext__(self) -> Any:
        """Return the next element."""
        try:
            return await self.dequeue()
        except OutOfRangeError:
            raise StopAsyncIteration from None

    def __iter__(self) -> Self:
        """Return the queue itself: iterating dequeues until it is closed and empty. This blocks the thread."""
        return self

    def __next__(self) -> Any:
        """Return the next element. This blocks the thread until there is one."""
        try:
            return self.dequeue_blocking()
        except OutOfRangeError:
            raise StopIteration from None

    # -- close

    async def close(self, cancel_pending_enqueues: bool = False) -> None:
        """Close the queue: no element enters any more, and the elements in it can still be taken.

        Enqueues that wait already enter first, and the queue stays open until they have. With
        `cancel_pending_enqueues` they fail with `ClosedError` instead, and the queue closes at once. Closing a
        closed queue raises `ClosedError`, but never with `cancel_pending_enqueues`.
        """
        if cancel_pending_enqueues:
            self._cut()
        else:
            await self._wait(Close())

    def close_blocking(self, cancel_pending_enqueues: bool = False, timeout: float | None = None) -> None:
        """Do what `close` does, for a thread.

        After `timeout` seconds raise `TimeoutError`; the queue stays open.
        """
        if cancel_pending_enqueues:
            self._cut()
        else:
            _refuse_loop("close")
            self._block(Close(), timeout)

    def close_nowait(self, cancel_pending_enqueues: bool = False) -> None:
        """Do what `close` does, without waiting. The queue closes when the pending enqueues have entered."""
        if cancel_pending_enqueues:
            self._cut()
        else:
            attempt = Close()
            self._push(attempt)
            if attempt.error is not None:
                raise attempt.error

    def _cut(self) -> None:
        with self._lock:
            finished = self._attempts.cut()
        self._wake(finished)

    # -- attempts

    def _several(self, n: int, *, up_to: bool) -> Dequeue:
        self._elements.check_stackable()
        if (n := operator.index(n)) < 0:
            raise ValueError(f"the number of elements must be at least 0, not {n}")
        return Dequeue(n, up_to=up_to)

    def _put(self, element: Element) -> bool:
        attempts = self._attempts
        with self._lock:
            if not attempts.put(element):
                return False
            if not attempts.dequeues:
                return True
            finished = attempts.flush()
        self._wake(finished)
        return True

    def _take(self) -> Element | None:
        attempts = self._attempts
        with self._lock:
            element = attempts.take()
            if element is None or not attempts.enqueues:
                return element
            finished = attempts.flush()
        self._wake(finished)
        return element

    def _push(self, attempt: Attempt) -> None:
        with self._lock:
            finished = self._attempts.push(attempt)
        self._wake(finished)

    def _withdraw(self, attempt: Attempt) -> None:
        with self._lock:
            finished = self._attempts.withdraw(attempt)
        self._wake(finished)

    def _wake(self, finished: list[Attempt]) -> None:
        for attempt in finished:
            if attempt.wake() is False:  # its loop is closed, so its elements go back into the queue
                self._withdraw(attempt)

    def _now(self, attempt: Attempt) -> list[Element]:
        with self._lock:
            if not self._attempts.would_finish(attempt):
                raise asyncio.QueueEmpty if isinstance(attempt, Dequeue) else asyncio.QueueFull
            finished = self._attempts.push(attempt)
        self._wake(finished)
        return _outcome(attempt)

    async def _wait(self, attempt: Attempt) -> list[Element]:
        """Push an attempt, and wait in a task until it has finished."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        attempt.wake = partial(_wake_task, loop, future)
        try:
            self._push(attempt)
            await future
        except BaseException:  # cancelled, or the coroutine was closed
            self._withdraw(attempt)
            raise
        return _outcome(attempt)

    def _block(self, attempt: Attempt, timeout: float | None) -> list[Element]:
        """Push an attempt, and wait in a thread until it has finished."""
        done = threading.Lock()
        done.acquire()
        attempt.wake = done.release
        seconds = -1.0 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX)
        try:
            self._push(attempt)
            in_time = done.acquire(timeout=seconds)
        except BaseException:  # Ctrl-C
            self._withdraw(attempt)
            raise
        if not in_time:
            self._give_up(attempt, seconds)
        return _outcome(attempt)

    def _give_up(self, attempt: Attempt, seconds: float) -> None:
        """Withdraw an attempt after its time-out, unless it has just finished."""
        with self._lock:
            if attempt.finished:
                return
            finished = self._attempts.withdraw(attempt)
        self._wake(finished)
        entered = ""
        if isinstance(attempt, Enqueue) and len(attempt.elements) > 1:
            entered = f"; {attempt.entered} of {len(attempt.elements)} elements have entered, and stay"
        raise TimeoutError(
            f"{self!r}: {type(attempt).__name__.lower()} was not possible within {seconds:g} s{entered}"
        )


def _outcome(attempt: Attempt) -> list[Element]:
    if attempt.error is not None:
        raise attempt.error
    return attempt.taken if isinstance(attempt, Dequeue) else []


def _refuse_loop(method: str) -> None:
    if asyncio._get_running_loop() is not None:  # noqa: SLF001 - the public function raises, which is slower
        raise RuntimeError(f"{method}_blocking would block this thread's event loop: use `await {method}(...)`")


def _wake_task(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> bool:
    """Resolve a task's future on its loop. Any thread may call this. Return False if the loop is closed."""
    if asyncio._get_running_loop() is loop:  # noqa: SLF001 - the public function raises if no loop runs
        _resolve(future)
        return True
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(_resolve, future)
        return True
    return False


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():  # it is done if it was cancelled and its task has not run since
        future.set_result(None)
