"""A lane: some of a run's threads for one stage, and the jobs that wait for them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.engine.inside import Lane, Threads


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
        threads, lane = Threads(asyncio.get_running_loop(), "asyncfeed-test"), Lane()
        lane.width = width
        await asyncio.gather(*(threads.submit("call", gauge.call, lane=lane) for _ in range(200)))
        await asyncio.wait_for(threads.idle(), 1)
        started = sum(each.name.startswith("asyncfeed-test") for each in threading.enumerate())
        threads.close()
        assert (lane.busy, len(lane.waiting)) == (0, 0)
        return started

    assert 1 <= asyncio.run(main()) <= width
    assert (gauge.calls, gauge.peak <= width) == (200, True)


def test_a_job_that_is_cancelled_while_it_waits_is_not_done() -> None:
    gauge, release = Gauge(), threading.Event()

    async def main() -> None:
        threads, lane = Threads(asyncio.get_running_loop(), "asyncfeed-test"), Lane()
        first = threads.submit("call", gauge.call, release, lane=lane)
        second, third = (threads.submit("call", gauge.call, lane=lane) for _ in range(2))
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
        threads, lane = Threads(asyncio.get_running_loop(), "asyncfeed-test"), Lane()
        jobs = [threads.submit("call", gauge.call, release, lane=lane) for _ in range(3)]
        assert (lane.busy, len(lane.waiting)) == (1, 2)
        lane.width = 3
        jobs.append(threads.submit("call", gauge.call, release, lane=lane))
        assert (lane.busy, len(lane.waiting)) == (3, 1)
        lane.width = 1
        release.set()
        await asyncio.gather(*jobs)
        assert lane.busy <= 1
        await asyncio.wait_for(threads.idle(), 1)
        threads.close()

    asyncio.run(main())
    assert gauge.calls == 4


def test_a_thread_that_cannot_be_started_fails_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        threads, lane = Threads(asyncio.get_running_loop(), "asyncfeed-test"), Lane()
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await threads.run("call", print, lane=lane)
        assert lane.busy == 0

    asyncio.run(main())
