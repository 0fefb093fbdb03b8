"""The requests of one reader: how many are under way, and how they all end.

A client such as obstore starts a request when it is called, and returns a future. The request goes on if the
future is dropped, and ends if it is cancelled. So every future is remembered here until it is done.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from asyncfeed.attempts.alarms import Alarms
from asyncfeed.attempts.hedging import Hedging
from asyncfeed.attempts.retry import Policy
from asyncfeed.reading.guarded import Guarded
from asyncfeed.stats import SlowPaths

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

Pending = asyncio.Future[Any]


class Sink(Protocol[T_contra]):
    """Takes the outcomes of requests."""

    def take(self, item: T_contra, outcome: Any) -> None:
        """Take what a request returned, or the exception it raised. Items come in their order."""
        ...

    def pause(self) -> None:
        """Do what can be done now, because nothing is to be taken for a while."""
        ...


class Guard:
    """Guards the requests of one reader, with one timer for all of them."""

    def __init__(self, policy: Policy, track: Callable[[Pending], None], again: SlowPaths) -> None:
        self._policy = policy
        self._track = track
        self._again = again
        self._alarms = Alarms(asyncio.get_running_loop())
        self._hedging = None if policy.hedge is None else Hedging(policy.hedge)

    def guarded(self, first: Pending, item: T, start: Callable[[T], Pending]) -> Pending:
        """Return a future for a request that was started."""
        policy = self._policy
        hedging = self._hedging if policy.hedges(item) else None
        seconds = policy.seconds(item)
        return Guarded(
            self._alarms, seconds, hedging, first, partial(start, item), self._track, self._count
        ).future

    def _count(self) -> None:
        self._again.note("second request beside a slow one")

    def drop(self) -> None:
        """End the timer."""
        self._alarms.drop()


class Requests:
    """The requests of a reader. At most `limit` are under way."""

    def __init__(self, limit: int) -> None:
        self._guard: Guard | None = None
        self._free = limit
        self._waiting: deque[asyncio.Future[None]] = deque()
        """What waits for a free place, in the order of its arrival."""
        self._under_way: set[Pending] = set()
        """Each request, until it is done."""

    async def run(self, items: Sequence[T], start: Callable[[T], Pending], sink: Sink[T]) -> None:
        """Start a request for each item, and hand the outcomes to the sink in the order of the items.

        If this is cancelled, all its requests have ended when it ends.
        """
        begun: deque[tuple[T, Pending | Exception]] = deque()
        try:
            for item in items:
                if not self._free or self._waiting:
                    sink.pause()
                    await self._place()
                begun.append((item, self._start(start, item)))
                while begun and (isinstance(begun[0][1], Exception) or begun[0][1].done()):
                    await self._finish(begun, sink)
            while begun:
                await self._finish(begun, sink)
        except GeneratorExit:  # nothing can be awaited any more
            cancel(_futures(begun))
            begun.clear()
            raise
        finally:
            if begun:
                await end(_futures(begun))

    async def one(self, start: Callable[[T], Pending], item: T) -> Any:
        """Make one request, and return what comes of it."""
        if not self._free or self._waiting:
            await self._place()
        begun = self._start(start, item)
        if isinstance(begun, Exception):
            raise begun
        try:
            return await begun
        except GeneratorExit:
            cancel([begun])
            raise
        except asyncio.CancelledError:
            await end([begun])
            raise

    def start(self, start: Callable[[T], Pending], item: T) -> Pending | None:
        """Start a request if there is a place for it. The caller awaits it, or ends it."""
        if not self._free or self._waiting:
            return None
        begun = self._start(start, item)
        return None if isinstance(begun, Exception) else begun

    def follow(self, policy: Policy, again: SlowPaths) -> None:
        """Limit the time of each request, and make slow ones a second time, as a policy says.

        Called on the loop. `policy.cost` is asked for the bytes of an item. `again` counts second requests.
        """
        if policy.timeout is not None or policy.hedge is not None:
            self._guard = Guard(policy, self.track, again)

    def track(self, future: Pending) -> None:
        """Remember a part of a request that is under way."""
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)

    async def close(self) -> None:
        """End all requests."""
        if self._guard is not None:
            self._guard.drop()
        await end(list(self._under_way))

    def abandon(self) -> None:
        """Let no request report to the loop, which is closed."""
        if self._guard is not None:
            self._guard.drop()
        cancel(list(self._under_way))

    def _start(self, start: Callable[[T], Pending], item: T) -> Pending | Exception:
        try:
            future = start(item)
            if self._guard is not None:
                future = self._guard.guarded(future, item, start)
        except Exception as error:  # noqa: BLE001 - any exception is an outcome
            self._wake()
            return error
        self._free -= 1
        self._under_way.add(future)
        future.add_done_callback(self._ended)
        return future

    async def _finish(self, begun: deque[tuple[T, Pending | Exception]], sink: Sink[T]) -> None:
        item, future = begun[0]
        outcome: Any = future
        if not isinstance(future, Exception):
            if not future.done():
                sink.pause()
            try:
                outcome = await future
            except Exception as error:  # noqa: BLE001 - any exception is an outcome
                outcome = error.with_traceback(None)  # its frames would hold it
        begun.popleft()
        sink.take(item, outcome)

    def _ended(self, future: Pending) -> None:
        self._under_way.discard(future)
        self._free += 1
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self._free:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self._free -= 1  # it is kept for the one that is woken
                waiter.set_result(None)
                return

    async def _place(self) -> None:
        """Wait for a free place."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._free += 1
                self._wake()
            raise
        self._free += 1


def _futures(begun: Iterable[tuple[Any, Pending | Exception]]) -> list[Pending]:
    return [each for _, each in begun if not isinstance(each, Exception)]


def cancel(futures: Iterable[Pending]) -> None:
    """Cancel futures, also if their loop is closed: a client that sees that does not call the loop."""
    for each in futures:
        try:
            each.cancel()
        except RuntimeError:  # the loop is closed, but the future is cancelled by now
            continue


async def end(futures: Sequence[Pending]) -> None:
    """Cancel futures, and return when their clients have heard of it. Without a running loop do not wait."""
    cancel(futures)
    if futures and loop_runs():
        await asyncio.wait(futures)
        for each in futures:
            if not each.cancelled():
                each.exception()  # or else asyncio says that nobody has asked for it


def loop_runs() -> bool:
    """Return whether something can be awaited: a coroutine may also be ended when its loop is closed."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
