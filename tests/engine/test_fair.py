"""The limit of the jobs that compute at a time, in all runs of the process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import thread_time

import pytest

import asyncfeed as af
from tests.engine.inside import CapacityLimiter, FairLimiter, Threads, computing, nobody_finds_what_hangs
from tests.engine.outside import until
from tests.engine.processes import run


class Runs:
    """Some runs, each with one stage whose jobs compute."""

    def __init__(self, count: int, width: int) -> None:
        self.fair = FairLimiter(lambda: width)
        self.threads = [Threads(asyncio.get_running_loop()) for _ in range(count)]
        self.stages = [CapacityLimiter() for _ in range(count)]
        for stage in self.stages:
            stage.fair, stage.width = self.fair, 100

    def submit(self, run: int, call: Callable[[], object]) -> asyncio.Future[object]:
        """Queue a job of one of them."""
        return self.threads[run].submit("job", call, limiter=self.stages[run])

    async def close(self) -> None:
        """End all of them."""
        for each in self.threads:
            await each.idle()
            each.close()


@contextmanager
def python_threads(count: int) -> Iterator[None]:
    """Have threads run Python meanwhile."""
    ended = threading.Event()

    def burn() -> None:
        while not ended.is_set():
            sum(range(1000))

    threads = [threading.Thread(target=burn) for _ in range(count)]
    for each in threads:
        each.start()
    yield
    ended.set()
    for each in threads:
        each.join()


def compute(seconds: float) -> None:
    """Use the processor."""
    until = thread_time() + seconds
    while thread_time() < until:
        sum(range(1000))


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("loops", [1, 4])
def test_at_most_so_many_jobs_compute_at_a_time_however_many_runs_and_loops_there_are(
    width: int, loops: int
) -> None:
    lock = threading.Lock()
    inside = peak = called = 0

    def call() -> None:
        nonlocal inside, peak, called
        with lock:
            inside += 1
            called += 1
            peak = max(peak, inside)
        compute(0.0002)
        with lock:
            inside -= 1

    async def main() -> None:
        runs = Runs(5, width)
        for stage in runs.stages:
            stage.fair, stage.width = computing, 2
        await asyncio.gather(*(runs.submit(number, call) for _ in range(30) for number in range(5)))
        await runs.close()

    threads = [threading.Thread(target=asyncio.run, args=(main(),)) for _ in range(loops)]
    af.limits(threads=width)
    try:
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    finally:
        af.limits(threads="default")
    assert called == loops * 150
    assert peak <= width


def test_the_run_that_has_computed_least_comes_next() -> None:
    """So runs get the same time, and not the same number of turns."""

    async def main() -> list[int]:
        runs, order, begun, go_on = Runs(3, 1), list[int](), asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def hold() -> None:
            loop.call_soon_threadsafe(begun.set)
            go_on.wait()

        held = runs.submit(2, hold)
        await begun.wait()
        jobs = [runs.submit(0, lambda: (compute(0.02), order.append(0))) for _ in range(4)]
        jobs += [runs.submit(1, lambda: (compute(0.002), order.append(1))) for _ in range(12)]
        go_on.set()
        await asyncio.gather(held, *jobs)
        await runs.close()
        return order

    order = asyncio.run(main())
    assert sorted(order) == [0] * 4 + [1] * 12
    first = [place for place, run in enumerate(order) if not run]
    assert first[1] - first[0] >= 5  # the other one has about ten turns for one of this


@pytest.mark.parametrize("at_a_time", [1, 100])
def test_a_run_that_was_idle_gets_no_more_than_others_afterwards(at_a_time: int) -> None:
    """Whether the jobs of the other one had turns, or one thread did them all."""

    async def main() -> list[int]:
        runs, order, go_on = Runs(3, 1), list[int](), threading.Event()
        runs.stages[0].width = at_a_time
        await asyncio.gather(*(runs.submit(0, lambda: compute(0.01)) for _ in range(20)))
        runs.stages[0].width = 100
        jobs = [runs.submit(2, go_on.wait)]
        await until(lambda: not runs.fair.waiting)
        for number in 6 * [0, 1]:
            jobs.append(runs.submit(number, lambda number=number: (compute(0.005), order.append(number))))
        go_on.set()
        await asyncio.gather(*jobs)
        await runs.close()
        return order

    order = asyncio.run(main())
    assert 2 <= order[:6].count(0) <= 4


@pytest.mark.parametrize("hanging", [1, 3])
def test_others_begin_beside_jobs_that_hang_and_none_too_many_afterwards(hanging: int) -> None:
    async def main() -> int:
        runs, go_on, lock = Runs(hanging + 2, 1), threading.Event(), threading.Lock()
        inside = peak = 0

        def count() -> None:
            nonlocal inside, peak
            with lock:
                inside += 1
                peak = max(peak, inside)
            compute(0.0005)
            with lock:
                inside -= 1

        hung = [runs.submit(number, go_on.wait) for number in range(hanging)]
        others = [runs.submit(number, count) for number in (-1, -2)]
        await asyncio.gather(*others)
        assert not any(each.done() for each in hung)
        go_on.set()
        await asyncio.gather(*hung)
        await asyncio.gather(*(runs.submit(number, count) for _ in range(20) for number in range(hanging + 2)))
        await runs.close()
        return peak

    assert asyncio.run(main()) == 1


@pytest.mark.parametrize("beside", [0, 4])
def test_a_job_that_computes_or_waits_for_the_gil_does_not_hang(beside: int) -> None:
    async def main() -> bool:
        runs, alone = Runs(2, 1), list[bool]()
        first = runs.submit(0, lambda: (compute(0.2), alone.append(True)))
        second = runs.submit(1, lambda: alone.append(False))
        await asyncio.gather(first, second)
        await runs.close()
        return alone[0]

    with python_threads(beside):
        assert asyncio.run(main())


def test_a_run_ends_at_once_while_its_jobs_wait_behind_those_of_another_one() -> None:
    async def main() -> None:
        runs, go_on = Runs(2, 1), threading.Event()
        held = runs.submit(0, go_on.wait)
        waiting = runs.submit(1, int)
        waiting.cancel()
        await runs.threads[1].idle()  # which would wait for ever
        go_on.set()
        await held
        await runs.close()
        assert (runs.stages[1].busy, len(runs.fair.waiting)) == (0, 0)

    with nobody_finds_what_hangs():
        asyncio.run(main())


def test_a_stage_takes_turns_from_the_moment_on_when_its_jobs_compute() -> None:
    """The thread that did the job before does not go on with the next one, as it did while they waited."""

    async def main() -> None:
        runs, go_on, called = Runs(2, 1), [threading.Event(), threading.Event()], list[int]()
        stage = runs.stages[0]
        stage.fair, stage.width = None, 1
        jobs = [runs.submit(0, go_on[0].wait), runs.submit(0, lambda: called.append(1))]
        held = runs.submit(1, go_on[1].wait)
        await until(lambda: not runs.fair.waiting)
        stage.fair = runs.fair
        go_on[0].set()
        await until(lambda: called or runs.fair.waiting)
        assert not called
        go_on[1].set()
        await asyncio.gather(held, *jobs)
        await runs.close()
        assert called

    with nobody_finds_what_hangs():
        asyncio.run(main())


def test_a_job_is_not_begun_if_the_loop_of_its_run_was_closed_meanwhile() -> None:
    called: list[int] = []

    async def main() -> None:
        runs, go_on = Runs(2, 1), threading.Event()
        held = runs.submit(0, go_on.wait)
        waiting = runs.submit(1, lambda: called.append(1))
        runs.threads[1].close()  # as for a loop that was closed, which waits for nothing
        go_on.set()
        await held
        await waiting
        await runs.close()

    with nobody_finds_what_hangs():
        asyncio.run(main())
    assert not called


def test_a_worker_that_has_a_place_does_the_jobs_for_which_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        runs, go_on = Runs(2, 2), threading.Event()
        held = runs.submit(0, go_on.wait)
        await until(lambda: not runs.fair.waiting)
        monkeypatch.setattr(threading.Thread, "start", refuse)
        waiting = runs.submit(1, int)
        go_on.set()
        assert await asyncio.gather(held, waiting) == [True, 0]
        await runs.close()

    asyncio.run(main())


def test_a_function_may_draw_from_a_feed_of_its_own() -> None:
    """It has a place while it waits for calls that need one."""

    def total(x: int) -> int:
        return sum(af.items(range(x)).map(lambda y: y + 1))

    async def total_on_a_loop(x: int) -> int:
        return sum([y async for y in af.items(range(x)).map(lambda y: y + 1)])

    expected = [x * (x + 1) // 2 for x in range(30)]
    with nobody_finds_what_hangs():
        assert list(af.items(range(30)).map(total)) == expected
        assert list(af.items(range(30)).map(lambda x: asyncio.run(total_on_a_loop(x)))) == expected


@pytest.mark.parametrize("sync", [False, True])
def test_a_feed_goes_on_beside_one_whose_function_hangs(sync: bool) -> None:
    go_on = threading.Event()

    async def main() -> None:
        async with af.items(range(4)).map(lambda _: go_on.wait()).open() as hung:
            drawing = [asyncio.ensure_future(anext(hung))]
            pipeline = af.items(range(200)).map(lambda x: x + 1).batch(10)
            if sync:
                batches = await asyncio.to_thread(list, pipeline)
            else:
                batches = [batch async for batch in pipeline]
            assert [x for batch in batches for x in batch] == list(range(1, 201))
            assert not drawing[0].done()
            go_on.set()
            assert await drawing[0] is True

    asyncio.run(main())


def test_a_fork_has_all_places() -> None:
    ended = run(
        """
import threading
begun, go_on = threading.Event(), threading.Event()
feed = af.items(range(2)).map(lambda x: (begun.set(), go_on.wait(), x)[-1], concurrency=1).open()
threading.Thread(target=lambda: print(*feed, sep="", flush=True)).start()
begun.wait()
pid = os.fork()
if not pid:
    print(*af.items(range(3)).map(lambda x: x), sep="", flush=True)
    os._exit(0)
os.waitpid(pid, 0)
go_on.set()
"""
    )
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == ["012", "01"]


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "many", True])
def test_a_wrong_number_of_threads_is_refused(wrong: object) -> None:
    with pytest.raises(af.PipelineError, match="limits: threads must be a whole number of at least 1"):
        af.limits(memory="5 MB", threads=wrong)  # type: ignore[arg-type]
    assert "5,000,000 bytes" not in af.items([1]).explain()
