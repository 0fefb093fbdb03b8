"""A limiter: some of a run's threads for one stage, and the jobs that wait for them."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

import pytest

import asyncfeed as af
from tests.engine.inside import CapacityLimiter, Threads, threads_run_python_at_the_same_time


class Gauge:
    """Counts how many calls are inside at once, and all of them."""

    def __init__(self) -> None:
        self.now = self.peak = self.calls = 0
        self._lock = threading.Lock()

    def call(self, release: threading.Event | None = None) -> None:
        with self._lock:
            self.now += 1
            self.calls += 1
            self.peak = max(self.peak, self.now)
        if release is not None:
            release.wait()
        with self._lock:
            self.now -= 1


@pytest.mark.parametrize("width", [1, 3])
def test_a_lane_has_at_most_so_many_threads(width: int) -> None:
    """However many jobs there are, and whichever thread takes the next."""
    gauge = Gauge()

    async def main() -> int:
        threads, limiter = Threads(asyncio.get_running_loop()), CapacityLimiter()
        limiter.width = width
        await asyncio.gather(*(threads.submit("call", gauge.call, limiter=limiter) for _ in range(200)))
        await asyncio.wait_for(threads.idle(), 1)
        started = sum(each.name.startswith("asyncfeed-worker") for each in threading.enumerate())
        threads.close()
        assert (limiter.busy, len(limiter.waiting)) == (0, 0)
        return started

    assert 1 <= asyncio.run(main()) <= width
    assert (gauge.calls, gauge.peak <= width) == (200, True)


def test_a_job_that_is_cancelled_while_it_waits_is_not_done() -> None:
    gauge, release = Gauge(), threading.Event()

    async def main() -> None:
        threads, limiter = Threads(asyncio.get_running_loop()), CapacityLimiter()
        first = threads.submit("call", gauge.call, release, limiter=limiter)
        second, third = (threads.submit("call", gauge.call, limiter=limiter) for _ in range(2))
        second.cancel()
        release.set()
        await asyncio.gather(first, third)
        assert second.cancelled()
        threads.close()

    asyncio.run(main())
    assert gauge.calls == 2


def test_a_lane_that_becomes_narrow_lets_its_threads_end_their_jobs() -> None:
    """And one that becomes wide takes more with the next job, those that wait first."""
    gauge, release = Gauge(), threading.Event()

    async def main() -> None:
        threads, limiter = Threads(asyncio.get_running_loop()), CapacityLimiter()
        jobs = [threads.submit("call", gauge.call, release, limiter=limiter) for _ in range(3)]
        assert (limiter.busy, len(limiter.waiting)) == (1, 2)
        limiter.width = 3
        jobs.append(threads.submit("call", gauge.call, release, limiter=limiter))
        assert (limiter.busy, len(limiter.waiting)) == (3, 1)
        limiter.width = 1
        release.set()
        await asyncio.gather(*jobs)
        assert limiter.busy <= 1
        await asyncio.wait_for(threads.idle(), 1)
        threads.close()

    asyncio.run(main())
    assert gauge.calls == 4


def test_at_the_end_of_the_interpreter_a_job_waits_for_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread starts any more, and the run is stopped in a moment: that is no error to report."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    async def main() -> None:
        threads, limiter = Threads(asyncio.get_running_loop()), CapacityLimiter()
        limiter.width = 1
        monkeypatch.setattr(threading.Thread, "start", refuse)
        waiting = asyncio.create_task(threads.run("job", int, limiter=limiter))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        with pytest.raises(RuntimeError, match="interpreter shutdown"):  # what closes something must hear of it
            threads.submit("closing", int)
        threads.close()

    asyncio.run(main())


def test_a_thread_that_cannot_be_started_fails_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        threads, limiter = Threads(asyncio.get_running_loop()), CapacityLimiter()
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await threads.run("call", print, limiter=limiter)
        assert limiter.busy == 0
        threads.close()

    asyncio.run(main())


@pytest.mark.parametrize("parallel", [True, False])
def test_quick_items_have_a_thread_for_each_core_where_threads_run_python_at_the_same_time(parallel: bool) -> None:
    """With the GIL they have one thread until calls prove to be slow."""
    both = threading.Barrier(2)

    def meet(x: int) -> bool:
        with suppress(threading.BrokenBarrierError):
            both.wait(10 if parallel else 0.2)
        return both.broken

    with threads_run_python_at_the_same_time(2, yes=parallel):
        assert list(af.items(range(2)).map(meet)) == [not parallel] * 2
