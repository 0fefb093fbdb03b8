"""A run that is stopped while requests are under way closes every socket, as its server sees."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

import asyncfeed as af
from asyncfeed.reading.objects import ObjectStore
from tests.servers.objects import ObjectServer, serving

pytest.importorskip("obstore")

RAW = af.raw("uint8")
BIG = 256 << 20
PARTS = 32


class Shape(NamedTuple):
    """A pipeline, and the fault in which its requests are held."""

    fault: str
    make: Callable[[ObjectStore, int], af.Pipeline[Any]]
    most: int = 1000
    """Most requests that it has under way."""
    idle: bool = False
    """Whether its requests have been answered, and it waits for something else."""


def small(store: ObjectStore, count: int) -> af.Pipeline[af.File]:
    return af.items([store.file(f"{number}", 1000) for number in range(4 * count)])


PATIENT: dict[str, Any] = {"timeout": None, "hedge": None}
LATER = af.Retry(first_delay=1e5, max_delay=1e5, seconds=1e6)
SHAPES = {
    "samples": Shape("stall", lambda store, count: small(store, count).load(RAW, concurrency=count, **PATIENT)),
    "batches": Shape("stall", lambda store, count: small(store, count).load(RAW, **PATIENT).batch(count)),
    "streams": Shape("stall", lambda store, count: small(store, count).flat_map(af.lines, concurrency=count), 64),
    "bodies": Shape(
        "stall in the body", lambda store, count: small(store, count).load(RAW, concurrency=count, **PATIENT)
    ),
    "parts of one object": Shape(
        "stall", lambda store, _: af.items([store.file("big", BIG)]).load(RAW, **PATIENT), PARTS
    ),
    "waits for the next attempt": Shape(
        "500",
        lambda store, count: small(store, count).load(RAW, concurrency=count, retry=LATER, hedge=None),
        idle=True,
    ),
    "second requests": Shape(
        "stall", lambda store, count: small(store, count).load(RAW, concurrency=count, timeout=None, hedge=0.01)
    ),
}


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with serving() as made:
        for number in range(800):
            made.put("bucket", f"{number}", bytes(1000))
        yield made


class Held:
    """A pipeline whose requests are all held by the server."""

    def __init__(self, server: ObjectServer, name: str, count: int) -> None:
        self.shape = SHAPES[name]
        self.server = server
        self.count = min(count, self.shape.most)
        store = ObjectStore("s3://bucket", endpoint=server.url, anonymous=True, max_requests=count)
        self.pipeline = self.shape.make(store, count)
        server.faults.rules.clear()
        server.faulty.clear()
        # A batch is laid out as its first file is, and the files of the first batch are answered.
        first = count if name == "batches" else 0
        server.faults.add(self.shape.fault, where=lambda key: key == "big" or int(key) >= first)

    def wait(self) -> None:
        server, shape = self.server, self.shape
        assert server.wait_until(
            lambda: server.faulty[shape.fault] >= self.count and (shape.idle or len(server.sockets) >= self.count)
        )
        assert server.sockets


def stop_by_close(held: Held) -> float:
    """Return when the run was told to stop."""
    feed = held.pipeline.open()
    reading = threading.Thread(target=lambda: pytest.raises(af.ClosedError, list, feed), daemon=True)
    reading.start()
    held.wait()
    at = time.monotonic()
    feed.close()
    reading.join(10)
    return at


def stop_by_cancelling(held: Held) -> float:
    async def consume() -> None:
        async for _ in held.pipeline:
            pass

    async def main() -> float:
        task = asyncio.create_task(consume())
        await asyncio.to_thread(held.wait)
        at = time.monotonic()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        return at

    return asyncio.run(main())


def stop_by_leaving_a_block(held: Held) -> float:
    async def main() -> float:
        async with held.pipeline.open() as feed:
            reading = asyncio.create_task(anext(feed))
            await asyncio.to_thread(held.wait)
            reading.cancel()
            await asyncio.wait([reading])
            return time.monotonic()

    return asyncio.run(main())


def stop_by_an_interrupt(held: Held) -> float:
    at = 0.0

    def interrupt() -> None:
        nonlocal at
        held.wait()
        at = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    sending = threading.Thread(target=interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            sending.start()
            for _ in held.pipeline:
                pass
    finally:
        signal.signal(signal.SIGINT, before)
        sending.join(10)
    return at


STOPS = [stop_by_close, stop_by_cancelling, stop_by_leaving_a_block, stop_by_an_interrupt]


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("name", [name for name in SHAPES if name != "batches"])
def test_every_socket_is_closed(server: ObjectServer, name: str, stop: Callable[[Held], float]) -> None:
    stop(Held(server, name, 20))
    assert server.wait_closed()


@pytest.mark.parametrize("how", ["break", "error", "async break", "dropped"])
def test_every_socket_is_closed_behind_a_loop_that_is_left(server: ObjectServer, how: str) -> None:
    """The first batch has come, and the requests of the next one are under way."""
    held = Held(server, "batches", 20)

    async def left() -> None:
        async for batch in held.pipeline:
            assert len(batch) == 20
            await asyncio.to_thread(held.wait)
            break

    if how == "async break":
        asyncio.run(left())
    elif how == "dropped":
        feed = held.pipeline.open()
        next(feed)
        held.wait()
        del feed
    else:
        with pytest.raises(ZeroDivisionError):
            for batch in held.pipeline:
                assert len(batch) == 20
                held.wait()
                if how == "break":
                    break
                raise ZeroDivisionError
            raise ZeroDivisionError
    assert server.wait_closed()


SECONDS = {50: 0.05, 200: 0.1}
RUNS = 10


@pytest.mark.quiet
@pytest.mark.parametrize("stop", [stop_by_close, stop_by_cancelling])
@pytest.mark.parametrize("count", [50, 200])
@pytest.mark.parametrize("name", SHAPES)
def test_sockets_are_closed_soon(
    server: ObjectServer, name: str, count: int, stop: Callable[[Held], float]
) -> None:
    """From the stop to the last socket that the server sees closed, the usual run of several."""
    took = []
    for _ in range(RUNS):
        at = stop(Held(server, name, count))
        assert server.wait_closed()
        took.append(server.closed_at - at)
    told = f"{statistics.median(took) * 1e3:.1f} ms, at most {max(took) * 1e3:.1f} ms"
    print(f"{name}, {count} requests, {stop.__name__}: {told}")  # shown by `pytest -rP`
    assert statistics.median(took) < SECONDS[count], told
