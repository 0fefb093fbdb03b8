"""The requests of one reader: how many are under way, and how they all end.

A client such as obstore starts a request when it is called, and returns a future. The request goes on if the
future is dropped, and ends if it is cancelled. So every future is remembered here until it is done.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from asyncfeed.attempts.alarms import Alarms
from asyncfeed.attempts.hedging import Hedging
from asyncfeed.attempts.retry import Policy
from asyncfeed.reading.request import Pending, Request
from asyncfeed.reading.traffic import Traffic
from asyncfeed.reading.window import Window
from asyncfeed.stats import SlowPaths

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Sink(Protocol[T_contra]):
    """Takes the outcomes of requests."""

    def take(self, item: T_contra, outcome: Any) -> None:
        """Take what a request returned, or the exception it raised. Items come in their order."""
        ...

    def pause(self) -> None:
        """Do what can be done now, because nothing is to be taken for a while."""
        ...


class Requests:
    """The requests of a reader. At most `limit` are under way, and few at first if that is not `known` to suit.

    `cost` returns about how many bytes an item has. `throttled` returns whether an error says that the store gets
    too many requests. `traffic` is what readers of one store share.
    """

    def __init__(
        self,
        limit: int,
        cost: Callable[[Any], int] = lambda _: 0,
        throttled: Callable[[BaseException], bool] = lambda _: False,
        *,
        known: bool = False,
        traffic: Traffic | None = None,
    ) -> None:
        self.window = Window(limit)
        self._is_known = known
        self._traffic = traffic or Traffic()
        self._cost = cost
        self._throttled = throttled
        self._policy = Policy()
        self._hedging: Hedging | None = None
        self._again = SlowPaths()
        self._alarms: Alarms | None = None
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        """What waits for a free place, in the order of its arrival, with its bytes."""
        self._slot = False
        """Whether the first of these may begin, as far as the pace of the store is concerned."""
        self._slot_timer: asyncio.TimerHandle | None = None
        """Set while it waits for that."""
        self._under_way: set[Request] = set()
        """Each request, until it has ended."""
        self._parts: set[Pending] = set()
        """The steps of requests that take several."""

    async def run(self, items: Sequence[T], start: Callable[[T], Pending], sink: Sink[T]) -> None:
        """Start a request for each item, and hand the outcomes to the sink in the order of the items.

        If this is cancelled, all its requests have ended when it ends.
        """
        begun: deque[tuple[T, Request | Exception]] = deque()
        try:
            for item in items:
                nbytes = self._cost(item)
                if self._must_wait:
                    sink.pause()
                    await self._place(nbytes)
                else:
                    self.window.begin(nbytes)
                begun.append((item, self._begin(start, item, nbytes)))
                while begun and (isinstance(begun[0][1], Exception) or begun[0][1].has_ended):
                    _take(begun, sink)
            while begun:
                request = begun[0][1]
                if not isinstance(request, Exception) and not request.has_ended:
                    sink.pause()
                    await request.wait()
                _take(begun, sink)
        except GeneratorExit:  # nothing can be awaited any more
            cancel(_requests(begun))
            begun.clear()
            raise
        finally:
            if begun:
                await end(_requests(begun))

    async def one(self, start: Callable[[T], Pending], item: T) -> Any:
        """Make one request, and return what comes of it."""
        nbytes = self._cost(item)
        if self._must_wait:
            await self._place(nbytes)
        else:
            self.window.begin(nbytes)
        begun = self._begin(start, item, nbytes)
        if isinstance(begun, Exception):
            raise begun
        try:
            return await begun.result()
        except GeneratorExit:
            cancel([begun])
            raise
        except asyncio.CancelledError:
            await end([begun])
            raise

    def start(self, start: Callable[[T], Pending], item: T) -> Request | None:
        """Start a request if there is a place for it. The caller waits for it, or ends it."""
        if self._must_wait:
            return None
        nbytes = self._cost(item)
        self.window.begin(nbytes)
        begun = self._begin(start, item, nbytes)
        return None if isinstance(begun, Exception) else begun

    def follow(self, policy: Policy, again: SlowPaths) -> None:
        """Limit the time of each request, and make slow ones once more, as a policy says.

        `again` counts these.
        """
        self._policy, self._again = policy, again
        self._hedging = None if policy.hedge is None else Hedging(policy.hedge)

    def track(self, future: Pending) -> None:
        """Remember a step of a request that is under way."""
        self._parts.add(future)
        future.add_done_callback(self._parts.discard)

    async def close(self) -> None:
        """End all requests."""
        self._drop_timers()
        await end(list(self._under_way))
        await end_futures(list(self._parts))

    def abandon(self) -> None:
        """Let no request report to the loop, which is closed."""
        self._drop_timers()
        self._waiting.clear()
        cancel(list(self._under_way))
        _cancel(self._parts)

    def _drop_timers(self) -> None:
        self._traffic.leave(self.window)
        if self._alarms is not None:
            self._alarms.drop()
        if self._slot_timer is not None:
            self._slot_timer.cancel()

    def _begin(self, start: Callable[[T], Pending], item: T, nbytes: int) -> Request | Exception:
        if self._alarms is None:
            self._alarms = Alarms(asyncio.get_running_loop())
            self._traffic.join(self.window, known=self._is_known)
        policy = self._policy
        hedging = self._hedging if nbytes <= policy.hedged_bytes else None
        try:
            request = Request(item, nbytes, start, self)
        except Exception as error:  # noqa: BLE001 - any exception is an outcome
            self._free(nbytes)
            return error
        request.watch(self._alarms, policy.seconds(nbytes), hedging)
        self._traffic.pace.note_begin(request.began)
        self._under_way.add(request)
        return request

    def allows_beside(self) -> bool:
        """Return whether a slow request may be made once more."""
        return not self._traffic.pace.holds

    def note_beside(self, beside: Pending) -> None:
        """Count a request beside a slow one, and remember it."""
        self.track(beside)
        self._again.note("request beside a slow one")

    def note_end(self, request: Request) -> None:
        """Note that a request has ended."""
        self._under_way.discard(request)
        outcome = request.outcome
        if not isinstance(outcome, BaseException):
            self._traffic.note_answer(request.began)
        elif self._throttled(outcome):
            self._traffic.pace.note_refusal(request.began, self._now())
        self._free(request.nbytes)

    def _free(self, nbytes: int) -> None:
        """Free the place of a request. Give free places to what waits."""
        self.window.end(nbytes)
        self._serve()

    @property
    def _must_wait(self) -> bool:
        """Whether one more request must wait for a place, or for its time."""
        traffic = self._traffic
        return bool(
            self._waiting or not self.window.is_open or traffic.pace.holds or not traffic.has_room(self.window)
        )

    async def _place(self, nbytes: int) -> None:
        """Wait for a free place, and take it."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((waiter, nbytes))
        self._serve()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._free(nbytes)
            raise

    def _serve(self) -> None:
        """Give free places to what waits."""
        while self._waiting:
            waiter, nbytes = self._waiting[0]
            if not waiter.done():
                if not (self.window.is_open and self._traffic.has_room(self.window) and self._has_slot()):
                    return
                self._slot = False
                self.window.begin(nbytes)
                waiter.set_result(None)
            self._waiting.popleft()

    def _has_slot(self) -> bool:
        """Return whether a request may begin, as far as the pace is concerned. If not, one will."""
        if self._slot_timer is None and not self._slot:
            seconds, ticket = self._traffic.pace.ask(self._now())
            if seconds:
                later = asyncio.get_running_loop().call_later
                self._slot_timer = later(seconds, self._slot_came, ticket)
                self._again.note("request held back: the store refuses some")
            self._slot = not seconds
        return self._slot

    def _slot_came(self, ticket: int) -> None:
        self._slot_timer = None
        self._slot = self._traffic.pace.admits(ticket)
        self._serve()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _take(begun: deque[tuple[T, Request | Exception]], sink: Sink[T]) -> None:
    item, request = begun[0]
    outcome = request if isinstance(request, Exception) else request.outcome
    if isinstance(outcome, asyncio.CancelledError):
        raise outcome
    begun.popleft()
    sink.take(item, outcome)


def _requests(begun: Iterable[tuple[Any, Request | Exception]]) -> list[Request]:
    return [each for _, each in begun if not isinstance(each, Exception)]


def cancel(requests: Iterable[Request]) -> None:
    """End requests, also if their loop is closed: a client that sees that does not call the loop."""
    for each in requests:
        _cancel(each.futures())
        try:
            each.end(asyncio.CancelledError())
        except RuntimeError:  # the loop is closed: nothing waits for the request any more
            continue


def _cancel(futures: Iterable[Pending]) -> None:
    for each in list(futures):
        try:
            each.cancel()
        except RuntimeError:  # the loop is closed, but the future is cancelled by now
            continue


async def end(requests: Sequence[Request]) -> None:
    """End requests, and return when their clients have heard of it. Without a running loop do not wait."""
    cancel(requests)
    # Also those that were cancelled before: a loop that ends now would not let their clients know.
    futures = [future for each in requests for future in each.futures()]
    await end_futures(futures)


async def end_futures(futures: Sequence[Pending]) -> None:
    """Cancel futures, and return when their clients have heard of it. Without a running loop do not wait."""
    _cancel(futures)
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
