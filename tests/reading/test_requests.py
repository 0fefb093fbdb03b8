"""The requests of a reader: how many are under way, in which order they are taken, and that all of them end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncfeed.attempts.retry import Policy
from asyncfeed.reading.copies import Copies
from asyncfeed.reading.request import Request
from asyncfeed.reading.requests import Requests
from asyncfeed.stats import SlowPaths
from asyncfeed.testing import run_virtual
from tests.conftest import Run


class Taken:
    """Notes what it is handed."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[int, Any]] = []

    def take(self, item: int, outcome: Any) -> None:
        self.outcomes.append((item, outcome))

    def pause(self) -> None:
        pass


class Client:
    """Answers each request after a time that its number decides. It counts what is under way."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.now = self.most = self.cancelled = 0

    def start(self, number: int) -> asyncio.Future[int]:
        if number == 13:
            raise ValueError("no such name")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()
        self.begun.append(number)
        self.now += 1
        self.most = max(self.most, self.now)
        future.add_done_callback(self._ended)
        loop.call_later(number * 7919 % 11 / 1000, self._answer, future, number)
        return future

    def _answer(self, future: asyncio.Future[int], number: int) -> None:
        if not future.done():
            if number == 5:
                future.set_exception(OSError("five"))
            else:
                future.set_result(number)

    def _ended(self, future: asyncio.Future[int]) -> None:
        self.now -= 1
        self.cancelled += future.cancelled()


def test_outcomes_come_in_order_and_the_limit_holds_for_all_calls_together(run: Run) -> None:
    async def main() -> None:
        client, requests = Client(), Requests(4)
        taken = [Taken() for _ in range(3)]
        async with asyncio.TaskGroup() as group:
            for each in taken:
                group.create_task(requests.run(range(20), client.start, each))
        assert client.most == 4
        assert client.now == 0
        for each in taken:
            assert [item for item, _ in each.outcomes] == list(range(20))
            assert [outcome for item, outcome in each.outcomes if item not in {5, 13}] == [
                number for number in range(20) if number not in {5, 13}
            ]
            assert [type(each.outcomes[at][1]) for at in (5, 13)] == [OSError, ValueError]

    run(main)


def test_a_call_that_is_cancelled_gives_its_places_back(run: Run) -> None:
    """Wherever it is: while its requests are under way, or while it waits for a place."""

    async def main() -> None:
        for turns in range(12):
            client, requests = Client(), Requests(2)
            calls = [asyncio.ensure_future(requests.run(range(8), client.start, Taken())) for _ in range(3)]
            for _ in range(turns):
                await asyncio.sleep(0)
            for call in calls[: turns % 4]:
                call.cancel()
            done = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(each) for each in done[: turns % 4]] == [asyncio.CancelledError] * min(3, turns % 4)
            assert client.now == 0
            last = Taken()
            await requests.run(range(8), client.start, last)
            assert [item for item, _ in last.outcomes] == list(range(8))
            assert client.most <= 2

    run(main)


def test_one_request_waits_for_a_place_and_a_request_ahead_takes_only_a_free_one(run: Run) -> None:
    async def main() -> None:
        client, requests = Client(), Requests(1)
        first = requests.start(client.start, 3)
        assert first is not None
        assert requests.start(client.start, 4) is None
        assert await requests.one(client.start, 6) == 6
        assert first.has_ended
        with pytest.raises(OSError, match="five"):
            await requests.one(client.start, 5)
        with pytest.raises(ValueError, match="no such name"):
            await requests.one(client.start, 13)
        waiting = asyncio.ensure_future(requests.one(client.start, 9))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert (client.now, waiting.cancelled()) == (0, True)
        last = requests.start(client.start, 8)
        assert last is not None
        await requests.close()
        assert isinstance(last.outcome, asyncio.CancelledError)

    run(main)


class Refusing(Client):
    """Refuses the first requests."""

    def __init__(self, refused: int) -> None:
        super().__init__()
        self.refused = refused

    def start(self, number: int) -> asyncio.Future[int]:
        self.refused -= 1
        future = super().start(number)
        if self.refused >= 0:
            future.set_exception(Refused())
        return future


class Refused(Exception):
    """The store gets too many requests."""


def held_back() -> tuple[Requests, SlowPaths]:
    """Return the requests of a store that has refused some, and what counts those that wait for their time."""
    requests, again = Requests(8, throttled=lambda error: isinstance(error, Refused)), SlowPaths()
    requests.follow(Policy(), again)
    return requests, again


def test_requests_to_a_store_that_refused_some_wait_for_their_times() -> None:
    async def main() -> None:
        client, taken = Refusing(3), Taken()
        requests, again = held_back()
        await requests.run(range(20, 23), client.start, taken)
        assert [type(outcome) for _, outcome in taken.outcomes] == [Refused] * 3
        assert requests.start(client.start, 99) is None, "nothing is read ahead of what waits"
        await asyncio.gather(*(requests.one(client.start, number) for number in range(30, 40)))
        assert client.begun[3:] == list(range(30, 40))
        assert dict(again.counts())["request held back: the store refuses some"] > 0
        await requests.close()

    run_virtual(main)


@pytest.mark.parametrize(("refused", "times"), [(0, 4), (20, 1)])
def test_nothing_is_asked_beside_slow_requests_of_a_store_that_refuses_some(refused: int, times: int) -> None:
    """More requests are what it refuses."""

    async def main() -> None:
        client = Refusing(refused)
        requests, _ = held_back()
        requests.follow(Policy(hedge=0.0001), SlowPaths())
        for number in range(100, 200):  # so that some may be asked beside others
            if number % 11:
                await asyncio.gather(requests.one(client.start, 11 * number), return_exceptions=True)
        before = len(client.begun)
        await requests.one(client.start, 7)
        assert len(client.begun) - before == times
        await requests.close()

    run_virtual(main)


@pytest.mark.parametrize("ends", ["cancelled", "closed", "dropped"])
def test_a_request_that_waits_for_its_time_ends_with_its_caller(ends: str) -> None:
    async def main() -> None:
        client = Refusing(8)
        requests, _ = held_back()
        await requests.run(range(20, 28), client.start, Taken())
        waiting = [asyncio.ensure_future(requests.one(client.start, number)) for number in range(30, 34)]
        await asyncio.sleep(0)
        begun = len(client.begun)
        for each in waiting if ends == "cancelled" else waiting[:3]:
            each.cancel()
        await asyncio.wait(waiting[:3])
        if ends == "cancelled":
            assert await requests.one(client.start, 40) == 40, "their places and their time are free"
            assert client.begun[begun:] == [40]
        if ends == "dropped":
            requests.abandon()
        else:
            await requests.close()
        waiting[3].cancel()
        await asyncio.wait(waiting[3:])
        await asyncio.sleep(60)
        assert len(client.begun) - begun <= 1
        assert requests.window.under_way == 0

    run_virtual(main)


def test_requests_are_dropped_without_their_loop() -> None:
    client, requests = Client(), Requests(3)
    loop = asyncio.new_event_loop()

    async def main() -> list[Request | None]:
        return [requests.start(client.start, number) for number in (1, 2, 3)]

    begun = loop.run_until_complete(main())
    loop.close()
    requests.abandon()
    assert all(each is not None and each.futures()[0].cancelled() for each in begun)


@pytest.mark.parametrize("method", ["run", "one"])
def test_a_coroutine_that_is_closed_cancels_its_requests_and_waits_for_nothing(run: Run, method: str) -> None:
    """It may be closed by the garbage collector, which cannot wait."""

    async def main() -> None:
        client, requests = Client(), Requests(2)
        call = (
            requests.run(range(1, 8), client.start, Taken()) if method == "run" else requests.one(client.start, 1)
        )
        call.send(None)
        assert client.now > 0
        call.close()
        await asyncio.sleep(0)
        assert client.now == 0
        assert client.cancelled > 0

    run(main)


def test_what_is_copied_on_threads_is_there_when_it_is_settled(run: Run) -> None:
    async def main() -> None:
        sizes = [10, 70_000, 1_500_000, 65_537, 65_536, 0]
        sources = [bytes([at + 1]) * size for at, size in enumerate(sizes)]
        rooms = [bytearray(size) for size in sizes]
        copies = Copies()
        for source, room in zip(sources, rooms, strict=True):
            half = len(room) // 2
            copies.add(memoryview(source), (memoryview(room)[:half], memoryview(room)[half:]))
        copies.flush()
        await copies.settle()
        assert rooms == sources

    run(main)


@pytest.mark.parametrize("second", [False, True], ids=["a request", "and one beside it"])
def test_closing_waits_until_the_client_has_heard_of_what_was_cancelled_just_before(
    run: Run, second: bool
) -> None:
    """A client that does not hear of it goes on with the request, and keeps its socket."""

    async def main() -> None:
        client, requests = Client(), Requests(8)
        requests.follow(Policy(hedge=0.002), SlowPaths())
        await requests.run([10] * 20, client.start, Taken())  # now one may have another beside it
        call = requests.run([1], client.start, Taken())
        call.send(None)
        if second:
            await client.start(4)  # 6 ms pass
        assert client.now == 1 + second
        call.close()  # as the garbage collector does it, without a turn of the loop
        assert client.now > 0
        await requests.close()
        assert client.now == 0

    run_virtual(main)


def test_closing_waits_until_the_client_has_heard_that_the_request_beside_another_is_not_needed() -> None:
    async def main() -> None:
        client, requests = Client(), Requests(8)
        requests.follow(Policy(hedge=0.002), SlowPaths())
        await requests.run([10] * 20, client.start, Taken())
        await requests.one(client.start, 1)
        assert len(client.begun) == 22
        await requests.close()
        assert client.now == 0

    run_virtual(main)
