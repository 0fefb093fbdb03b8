"""An interrupt that is raised inside the event loop loses the callback that was about to run; no feed waits for it.

`asyncio.run` turns the first Ctrl-C into a cancellation, but only until the main task is done. A second one, one
while it closes, and one without `asyncio.run` are raised wherever the loop is.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

import asyncfeed as af
from asyncfeed.testing import VirtualLoop

GRACE = 5.0


async def later(x: int) -> int:
    await asyncio.sleep(0)
    return x


async def rows() -> AsyncIterator[int]:
    for x in range(6):
        yield await later(x)


PIPELINES: dict[str, Callable[[], af.Pipeline[Any]]] = {
    "async map": lambda: af.items(range(6)).map(later, concurrency=2).batch(2),
    "thread map": lambda: af.items([b"1", b"2", b"3"]).map(int, concurrency=2),
    "generator": lambda: af.items(rows).prefetch(2),
    "flat_map": lambda: af.items(range(2)).flat_map(lambda _: rows(), concurrency=2),
}


async def to_the_end(pipeline: af.Pipeline[Any]) -> None:
    async for _ in pipeline:
        pass


async def broken_off(pipeline: af.Pipeline[Any]) -> None:
    async for _ in pipeline:
        break


async def closed(pipeline: af.Pipeline[Any]) -> None:
    async with pipeline.open(grace=GRACE) as feed:
        await anext(feed)


class Interrupts:
    """Raises one `KeyboardInterrupt` at the n-th callback of a loop: in its place, or after it."""

    def __init__(self, n: int, *, lost: bool) -> None:
        self.n = n
        self.lost = lost
        self.raised = False
        self.main: asyncio.Task[Any] | None = None

    def run(self, handle: asyncio.Handle, run: Callable[[asyncio.Handle], None]) -> None:
        counts = self.main is not None and not self.raised and not self._hangs_python(handle)
        self.n -= counts
        if not counts or self.n:
            run(handle)
            return
        self.raised = True
        if not self.lost:
            run(handle)
        raise KeyboardInterrupt

    def _hangs_python(self, handle: asyncio.Handle) -> bool:
        """Return whether asyncio would wait for ever: for the user's task, or for one that has not begun."""
        callback = handle._callback  # type: ignore[attr-defined]
        task = getattr(callback, "__self__", None)
        if not isinstance(task, asyncio.Task):
            return False
        known = task in asyncio.all_tasks(task.get_loop())
        return task is self.main or (known and inspect.getcoroutinestate(task.get_coro()) == inspect.CORO_CREATED)


def interrupted(
    monkeypatch: pytest.MonkeyPatch, use: Callable[[], Awaitable[None]], n: int, seed: int, *, lost: bool
) -> bool:
    """Interrupt the n-th callback and end the loop as `asyncio.run` does; return whether it came to that."""
    interrupts = Interrupts(n, lost=lost)
    loop = VirtualLoop(seed)
    loop.patience = 0.1  # the clock waits so long for a thread whose report was lost
    run = asyncio.Handle._run  # type: ignore[attr-defined]

    async def main() -> None:
        interrupts.main = asyncio.current_task()
        await use()

    with monkeypatch.context() as patch:
        patch.setattr(asyncio.Handle, "_run", lambda handle: interrupts.run(handle, run))
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(main())
        except KeyboardInterrupt:
            assert interrupts.raised
        except RuntimeError as error:
            # The main task was done: asyncio has told the loop to stop, which it does as soon as it runs again.
            assert "Event loop stopped before" in str(error)
            assert interrupts.raised
            assert interrupts.main is not None
            assert interrupts.main.done()
    assert loop.time() < GRACE + 2
    return interrupts.raised


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("asyncfeed-")]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = threads()
    yield
    gc.collect()
    for thread in threads():
        if thread not in before:
            thread.join(5)
            assert not thread.is_alive(), thread


# asyncio says this of a coroutine of its own.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <coroutine object BaseEventLoop.shutdown:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.quiet
@pytest.mark.parametrize("seed", [0])
@pytest.mark.parametrize("lost", [True, False], ids=["in place of it", "after it"])
@pytest.mark.parametrize("use", [to_the_end, broken_off, closed])
@pytest.mark.parametrize("kind", PIPELINES)
def test_an_interrupt_inside_the_loop_hangs_nothing(
    kind: str, use: Any, lost: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every callback of a run, and wherever it is raised, the loop closes soon after the grace."""
    n = 1
    while interrupted(monkeypatch, lambda: use(PIPELINES[kind]()), n, seed, lost=lost):
        n += 1
    assert n > 10
