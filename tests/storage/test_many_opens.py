"""200 runs over an object store, one after the other: nothing of them is left."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import asyncfeed as af
from asyncfeed.testing import no_leaks
from tests.searching import sampled
from tests.servers.faults import Faults
from tests.servers.objects import ObjectServer, serving
from tests.servers.running import open_sockets, wait_for_sockets
from tests.storage.buckets import PATIENT, files, fill

obstore = pytest.importorskip("obstore")

OPENS = 200
KEPT_BLOCKS = 20
"""Blocks of memory that may be left of an open, on average. What a run is made of takes thousands."""
KEPT_BYTES = 100_000
"""Bytes by which the process may grow with an open, on average: 20 MB in all. Stacks of native threads come and go."""


class Left(Exception):
    """What the consumer raises."""


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with serving(Faults(seed=2)) as made:
        fill(made, 40)
        yield made


def read_a_bit(pipeline: af.Pipeline[Any]) -> None:
    with pipeline.open() as feed:
        next(feed)


def read_all(pipeline: af.Pipeline[Any]) -> None:
    assert sum(len(batch) for batch in pipeline) == 40


def leave_by_an_error(pipeline: af.Pipeline[Any]) -> None:
    with pytest.raises(Left):
        for _ in pipeline:
            raise Left


def break_async(pipeline: af.Pipeline[Any]) -> None:
    async def main() -> None:
        async for _ in pipeline:
            break
        await asyncio.sleep(0)

    asyncio.run(main())


def leave_async_by_an_error(pipeline: af.Pipeline[Any]) -> None:
    async def main() -> None:
        with pytest.raises(Left):
            async with pipeline.open() as feed:
                async for _ in feed:
                    raise Left
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def fail(pipeline: af.Pipeline[Any]) -> None:
    with pytest.raises(af.Unavailable):
        for _ in pipeline:
            pass


@sampled(1)
@pytest.mark.parametrize("use", [read_a_bit, leave_by_an_error, leave_async_by_an_error, fail])
def test_nothing_is_left_of_many_opens(server: ObjectServer, use: Callable[[af.Pipeline[Any]], None]) -> None:
    """No task, thread, socket, file or object, whether requests fail or not."""
    listed = files(server)
    if use is fail:
        server.faults.add("500", where=lambda key: key >= "00030")
    else:
        for kind in ("503", "reset", "cut", "wrong length"):
            server.faults.add(kind, rate=0.02)
    retry = af.Retry(attempts=2, first_delay=1e-3) if use is fail else PATIENT
    pipeline = listed.load(af.raw("uint8"), retry=retry).batch(8)
    sockets = open_sockets()
    use(pipeline)
    with no_leaks(types=(af.Feed, asyncio.Task, threading.Thread)):
        for _ in range(OPENS):
            use(pipeline)
        wait_for_sockets(sockets)  # obstore closes them on threads of its own
    assert server.wait_closed()


@pytest.mark.parametrize("use", [read_a_bit, leave_by_an_error, leave_async_by_an_error, fail])
def test_what_obstore_keeps_of_a_request_keeps_no_thread(
    server: ObjectServer, use: Callable[[af.Pipeline[Any]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of obstore without the GIL lets go of the future, its loop and its context when obstore is used again."""
    kept: list[Any] = []

    def keeping(start: Callable[..., Any]) -> Callable[..., Any]:
        def started(*args: Any, **options: Any) -> Any:
            kept.append((start(*args, **options), contextvars.copy_context(), asyncio.get_running_loop()))
            return kept[-1][0]

        return started

    for name in ("get_range_async", "get_async", "head_async"):
        monkeypatch.setattr(obstore, name, keeping(getattr(obstore, name)))
    listed = files(server)
    for kind in ("reset", "cut"):
        server.faults.add(kind, rate=0.1)
    if use is fail:
        server.faults.add("500", where=lambda key: key >= "00030")
    retry = af.Retry(attempts=2, first_delay=1e-3) if use is fail else PATIENT
    pipeline = listed.load(af.raw("uint8"), retry=retry).batch(8)
    sockets = open_sockets()
    with no_leaks(types=(af.Feed, threading.Thread)):
        use(pipeline)
        wait_for_sockets(sockets)
    assert kept


@sampled(1)
@pytest.mark.parametrize("use", [read_all, break_async, fail])
def test_memory_does_not_grow_with_the_number_of_opens(
    server: ObjectServer, use: Callable[[af.Pipeline[Any]], None]
) -> None:
    """In a process of its own: after other tests, one in a hundred runs kept 220 KB an open that were no objects."""
    if use is fail:
        server.faults.add("500", where=lambda key: key >= "00030")
    program = f"from {__name__} import tell_growth, {use.__name__}; tell_growth({server.url!r}, {use.__name__})"
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False
    )
    assert (told.returncode, told.stdout) == (0, "it does not grow\n"), told.stderr + told.stdout


def tell_growth(url: str, use: Callable[[af.Pipeline[Any]], None]) -> None:
    """Open often, and print how Python's blocks of memory and the pages of the process grow.

    What is kept grows each time. What the allocator sets aside does not. `tracemalloc` would tell bytes, but it may
    crash a process whose native threads use Python.
    """
    retry = af.Retry(attempts=2, first_delay=1e-3) if use is fail else PATIENT
    pipeline = files(url).load(af.raw("uint8"), retry=retry).batch(8)

    def opened(times: int) -> tuple[int, int]:
        for _ in range(times):
            use(pipeline)
        gc.collect()
        return sys.getallocatedblocks(), resident()

    opened(OPENS)
    for _ in range(3):
        blocks, nbytes = opened(1)
        more_blocks, more_bytes = opened(OPENS)
        if more_blocks - blocks < KEPT_BLOCKS * OPENS and more_bytes - nbytes < KEPT_BYTES * OPENS:
            print("it does not grow")
            return
        print(f"{(more_blocks - blocks) / OPENS:.1f} blocks, {(more_bytes - nbytes) / OPENS:.0f} bytes an open")


def resident() -> int:
    """Return the bytes of memory that the process has."""
    with open("/proc/self/statm") as told:
        return int(told.read().split()[1]) * 4096
