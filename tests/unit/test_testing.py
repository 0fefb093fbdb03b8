"""The testing kit: its clock, its schedules, and what its checks find."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import asyncfeed as af
from asyncfeed.testing import (
    Deadlock,
    Leaks,
    VirtualLoop,
    cancel_everywhere,
    memory_growth,
    no_leaks,
    run_virtual,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


def virtual_loop() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


async def interleaving(tasks: int = 4, steps: int = 3) -> list[str]:
    """Return the order in which tasks took their steps."""
    order: list[str] = []

    async def work(name: str) -> None:
        for step in range(steps):
            order.append(f"{name}{step}")
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for i in range(tasks):
            group.create_task(work("abcdefgh"[i]))
    return order


# --- the clock ---------------------------------------------------------------------------------------------


def test_virtual_hours_take_no_real_time() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        times = [loop.time()]
        await asyncio.sleep(7200)
        times.append(loop.time())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1_000_000):  # beyond a day, which is asyncio's longest wait
                await asyncio.Event().wait()
        return [*times, loop.time()]

    # Real hours would meet pytest's own time-out: the values are the test.
    assert run_virtual(main) == [0.0, 7200.0, 1_007_200.0]


def test_timers_fire_in_order_of_time(seed: int) -> None:
    async def main() -> list[float]:
        fired: list[float] = []

        async def wait(delay: float) -> None:
            await asyncio.sleep(delay)
            fired.append(asyncio.get_running_loop().time())

        await asyncio.gather(*(wait(delay) for delay in (3.0, 0.1, 2.0, 0.3)))
        return fired

    assert run_virtual(main, seed=seed) == [0.1, 0.3, 2.0, 3.0]


def test_a_thread_of_an_executor_holds_the_clock(seed: int) -> None:
    async def main() -> tuple[str, float]:
        release = threading.Event()

        def work() -> str:
            release.wait()
            return "done"

        # The thread goes on only when a real timer lets it: a jump to the time-out would come first.
        timer = threading.Timer(0.02, release.set)
        timer.start()
        async with asyncio.timeout(5):
            result = await asyncio.to_thread(work)
        timer.join()
        return result, asyncio.get_running_loop().time()

    assert run_virtual(main, seed=seed) == ("done", 0.0)


def test_a_thread_of_the_engine_holds_the_clock(seed: int) -> None:
    async def main() -> tuple[str, float]:
        release = threading.Event()
        timer = threading.Timer(0.02, release.set)
        timer.start()
        async with af.items([release]).map(lambda event: event.wait()).open() as feed:
            async with asyncio.timeout(5):
                assert await anext(feed)
            await asyncio.sleep(5)  # an idle thread does not hold it
        timer.join()
        return "done", asyncio.get_running_loop().time()

    assert run_virtual(main, seed=seed) == ("done", 5.0)


def test_threads_busy_decides_where_it_is_set() -> None:
    async def main() -> float:
        loop = virtual_loop()
        release, started = threading.Event(), asyncio.Event()

        def work() -> None:
            release.wait()
            loop.call_soon_threadsafe(started.set)

        thread = threading.Thread(target=work)
        thread.start()
        loop.threads_busy = thread.is_alive
        loop.call_soon(release.set)
        async with asyncio.timeout(5):
            await started.wait()
        thread.join()
        return loop.time()

    assert run_virtual(main) == 0.0


def test_a_thread_that_never_returns_holds_the_clock_only_for_so_long() -> None:
    release = threading.Event()

    async def main() -> float:
        virtual_loop().patience = 0.02
        work = asyncio.get_running_loop().run_in_executor(None, release.wait)
        try:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(5):
                    await asyncio.shield(work)
        finally:
            release.set()
            await work
        return asyncio.get_running_loop().time()

    assert run_virtual(main) == 5.0


def test_a_deadlock_is_named() -> None:
    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        virtual_loop().patience = 0.02
        async with asyncio.TaskGroup() as group:
            group.create_task(wait_for_ever(), name="the one who waits")

    with pytest.raises(Deadlock, match=r"the one who waits.*\n.*in .*wait_for_ever\n.*in Event\.wait"):
        run_virtual(main)


# --- the schedule ------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_interleaving(seed: int) -> None:
    assert run_virtual(interleaving, seed=seed) == run_virtual(interleaving, seed=seed)


def test_different_seeds_give_different_interleavings() -> None:
    assert len({tuple(run_virtual(interleaving(6), seed=seed)) for seed in range(50)}) == 50


def test_without_a_seed_tasks_take_turns_as_on_asyncio() -> None:
    assert run_virtual(interleaving) == asyncio.run(interleaving())


def test_a_task_keeps_the_order_of_its_own_steps(seed: int) -> None:
    order = run_virtual(interleaving, seed=seed)
    assert [step for step in order if step[0] == "c"] == ["c0", "c1", "c2"]


def test_callbacks_keep_their_order(seed: int) -> None:
    async def main() -> list[int]:
        called: list[int] = []
        for i in range(20):
            asyncio.get_running_loop().call_soon(called.append, i)
            asyncio.get_running_loop().call_soon_threadsafe(called.append, i)
        await asyncio.sleep(1)
        return called

    assert run_virtual(main, seed=seed) == [i for i in range(20) for _ in range(2)]


def test_an_order_bug_that_fifo_hides_is_found_by_some_seed() -> None:
    async def main() -> bool:
        box: list[int] = []

        async def producer() -> None:
            box.append(1)

        async def consumer() -> bool:
            return bool(box)  # the bug: nothing says that the producer has run

        async with asyncio.TaskGroup() as group:
            group.create_task(producer())
            saw = group.create_task(consumer())
        return saw.result()

    assert run_virtual(main, seed=None)
    found = [seed for seed in range(20) if not run_virtual(main, seed=seed)]
    assert 0 < len(found) < 20


def test_tasks_in_pure_python_are_shuffled_too() -> None:
    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(lambda loop, coro, **kwargs: asyncio.tasks._PyTask(coro, loop=loop, **kwargs))  # type: ignore[attr-defined]
        return await interleaving()

    assert len({tuple(run_virtual(main, seed=seed)) for seed in range(20)}) > 15


def test_a_bounded_queue_works_under_every_seed(run: Callable[..., Any]) -> None:
    async def main() -> list[int]:
        queue: asyncio.Queue[int] = asyncio.Queue(2)

        async def produce() -> None:
            for i in range(50):
                await queue.put(i)

        async with asyncio.TaskGroup() as group:
            group.create_task(produce())
            return [await queue.get() for _ in range(50)]

    assert run(main) == list(range(50))


# --- run_virtual -------------------------------------------------------------------------------------------


def test_it_takes_a_coroutine_or_a_function() -> None:
    assert run_virtual(interleaving(1, 1)) == run_virtual(lambda: interleaving(1, 1)) == ["a0"]


def test_it_raises_what_the_coroutine_raises() -> None:
    async def main() -> None:
        raise LookupError("this one")

    with pytest.raises(LookupError, match="this one"):
        run_virtual(main)


def test_a_task_that_is_left_is_named_and_cancelled() -> None:
    kept: list[asyncio.Task[Any]] = []

    async def main() -> None:
        kept.append(asyncio.create_task(asyncio.sleep(9), name="forgotten"))
        await asyncio.sleep(0)

    with pytest.raises(AssertionError, match=r"1 tasks are left.*\n.*'forgotten'"):
        run_virtual(main)
    assert kept[0].cancelled()


def test_an_error_that_nothing_catches_is_raised() -> None:
    def fail() -> None:
        raise LookupError("in a callback")

    async def main() -> None:
        asyncio.get_running_loop().call_soon(fail)
        await asyncio.sleep(1)

    with pytest.raises(AssertionError, match="in a callback") as caught:
        run_virtual(main)
    assert isinstance(caught.value.__cause__, LookupError)


# --- leaks -------------------------------------------------------------------------------------------------


class Thing:
    pass


def test_a_task_that_is_reported_while_it_is_collected_does_not_live_on() -> None:
    """On Python 3.15 its weak references end after the report, so the report must not keep it."""

    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)
        task = asyncio.create_task(wait_for_nothing())
        await asyncio.sleep(1)
        dropped = weakref.ref(task)
        del task
        gc.collect()
        assert dropped() is None
        report = loop.complaints.pop()
        assert "destroyed" in report["message"]
        assert report["task"].startswith("<Task pending")

    async def wait_for_nothing() -> None:
        await asyncio.get_running_loop().create_future()

    run_virtual(main())


def test_no_leaks_passes_where_there_are_none(seed: int) -> None:
    with no_leaks(types=(Thing,)):
        run_virtual(interleaving, seed=seed)
        Thing()


def test_the_first_feed_of_a_program_is_no_leak() -> None:
    """The loop of the first feed makes what the process keeps, such as a pipe of libuv."""
    code = """
import asyncfeed as af
from asyncfeed.testing import no_leaks
with no_leaks(types=(af.Feed,)):
    with af.items(range(5)).open() as feed:
        next(feed)
    del feed
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_thread_that_is_left_is_named_with_its_stack() -> None:
    release = threading.Event()

    def linger() -> None:
        release.wait()

    thread = threading.Thread(target=linger, name="lingerer")
    try:
        with (
            pytest.raises(AssertionError, match=r"1 leaks:\nthread 'lingerer'(.|\n)*in linger"),
            no_leaks(patience=0.01),
        ):
            thread.start()
    finally:
        release.set()
        thread.join()


def test_a_thread_that_is_just_ending_is_waited_for() -> None:
    with no_leaks():
        threading.Timer(0.02, lambda: None).start()


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="needs a list of open files")  # noqa: PTH112
def test_a_file_that_is_left_open_is_named() -> None:
    opened: list[int] = []
    try:
        with pytest.raises(AssertionError, match=r"1 leaks:\nfile descriptor \d+: .*null"), no_leaks():
            opened.append(os.open(os.devnull, os.O_RDONLY))
    finally:
        os.close(opened[0])


def test_a_task_that_is_left_is_named() -> None:
    async def main() -> None:
        task = None
        try:
            with pytest.raises(AssertionError, match=r"1 leaks:\ntask 'forgotten'"), no_leaks():
                task = asyncio.create_task(asyncio.sleep(9), name="forgotten")
        finally:
            assert task is not None
            task.cancel()
            await asyncio.wait([task])

    run_virtual(main)


def test_objects_that_are_left_are_named_and_counted() -> None:
    before = Thing()
    kept: list[Thing] = []
    with (
        pytest.raises(AssertionError, match=r"1 leaks:\n2 of Thing, one is <.*Thing"),
        no_leaks(types=(Thing,)),
    ):
        kept += [Thing(), Thing(), before]


def test_a_cycle_is_no_leak() -> None:
    with no_leaks(types=(Thing,)):
        thing = Thing()
        thing.__dict__["itself"] = thing
        del thing


def test_an_error_inside_is_not_covered_up() -> None:
    kept = []
    with pytest.raises(LookupError), no_leaks(types=(Thing,)):  # noqa: PT012
        kept.append(Thing())
        raise LookupError


def test_threads_can_be_asked_for_by_name() -> None:
    leaks = Leaks(patience=0.01)
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="asyncfeed-3")
    thread.start()
    try:
        assert leaks.threads("other") == []
        assert len(leaks.threads("asyncfeed")) == 1
    finally:
        release.set()
        thread.join()


def test_memory_that_grows_is_measured() -> None:
    kept: list[bytes] = []
    assert 100_000 <= memory_growth(lambda: kept.append(bytes(100_000))) < 110_000
    assert abs(memory_growth(lambda: bytes(100_000))) < 1_000


# --- cancellation ------------------------------------------------------------------------------------------


def test_each_place_is_cancelled_once(seed: int) -> None:
    reached: list[int] = []
    checked: list[int] = []

    async def main() -> None:
        step = 1
        try:
            while step < 6:
                await asyncio.sleep(0)
                step += 1
        finally:
            reached.append(step)

    assert cancel_everywhere(main, checked.append, seed=seed) == 5
    assert checked == [1, 2, 3, 4, 5]
    assert reached == [1, 2, 3, 4, 5, 6]


def test_a_wait_is_cancelled_while_it_lasts_and_when_it_has_just_ended() -> None:
    arrived: list[bool] = []

    async def main() -> None:
        timer = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(1, timer.set_result, "it")
        try:
            await timer
        except asyncio.CancelledError:
            arrived.append(not timer.cancelled())
            raise

    assert cancel_everywhere(main) == 2
    assert arrived == [False, True]


def test_a_lost_item_is_found(seed: int) -> None:
    """`wait_for` around a `get` loses an item that had come: the bug this sweep exists for."""

    class Box:
        def __init__(self) -> None:
            self.items: list[int] = []
            self.waiter: asyncio.Future[int] | None = None

        def put(self, item: int) -> None:
            if self.waiter is not None and not self.waiter.done():
                self.waiter.set_result(item)  # the bug: the item leaves before it has arrived
            else:
                self.items.append(item)

        async def get(self) -> int:
            self.waiter = asyncio.get_running_loop().create_future()
            return await self.waiter

    boxes: list[Box] = []

    async def main() -> None:
        boxes.append(Box())
        asyncio.get_running_loop().call_later(1, boxes[-1].put, 7)
        boxes[-1].items.append(await boxes[-1].get())

    kept: list[bool] = []

    def check(_: int) -> None:
        kept.append(boxes[-1].waiter is None or boxes[-1].waiter.cancelled() or boxes[-1].items == [7])

    cancel_everywhere(main, check, seed=seed)
    assert kept == [True, False]


@pytest.mark.parametrize("error", [asyncio.CancelledError, BaseException])
def test_a_swallowed_cancellation_is_found(error: type[BaseException], seed: int) -> None:
    async def swallow() -> str:
        await asyncio.sleep(1)
        with suppress(error):
            await asyncio.sleep(1)
        return "went on"

    with pytest.raises(AssertionError, match=r"returned 'went on'.*cancelled at turn \d+, 1\.0 s(.|\n)*swallow"):
        cancel_everywhere(swallow, seed=seed)


def test_a_cancellation_that_becomes_another_error_is_found() -> None:
    async def main() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            raise LookupError("in the clean-up")

    async def correct() -> None:
        with suppress(LookupError):
            await main()

    with pytest.raises(AssertionError, match=r"raised LookupError|returned None"):
        cancel_everywhere(correct)


def test_a_task_that_outlives_the_cancellation_is_found() -> None:
    async def main() -> None:
        child = asyncio.create_task(asyncio.sleep(1), name="orphan")
        await asyncio.sleep(2)
        await child

    with pytest.raises(AssertionError, match=r"1 tasks are left; cancelled at turn 1(.|\n)*'orphan'"):
        cancel_everywhere(main)


def test_a_task_that_is_ending_may_end(seed: int) -> None:
    ended: list[bool] = []

    async def slow_to_end() -> None:
        try:
            await asyncio.sleep(9)
        finally:
            for _ in range(20):
                await asyncio.sleep(0)
            ended.append(True)

    async def main() -> None:
        child = asyncio.create_task(slow_to_end())
        try:
            await asyncio.sleep(1)
            await asyncio.sleep(1)
        finally:
            child.cancel()

    assert cancel_everywhere(main, seed=seed) >= 4
    assert len(ended) >= 3  # where it had begun


def test_an_error_of_the_coroutine_itself_is_raised() -> None:
    async def main() -> None:
        await asyncio.sleep(1)
        raise LookupError("its own")

    with pytest.raises(LookupError, match="its own"):
        cancel_everywhere(main)


@pytest.mark.parametrize("delay", [0, 1])
def test_a_task_that_never_ends_is_named(delay: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncfeed.testing._TURNS_TO_END", 100)
    enough = time.monotonic() + 60

    async def stubborn() -> None:
        while time.monotonic() < enough:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(delay)

    with pytest.raises(Deadlock, match=r"does not end, cancelled at turn 1(.|\n)*stubborn"):
        cancel_everywhere(stubborn)


def test_a_task_that_waits_for_ever_after_is_named() -> None:
    async def main() -> None:
        virtual_loop().patience = 0.02
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(1)
        await asyncio.Event().wait()

    with pytest.raises(Deadlock) as caught:
        cancel_everywhere(main)
    assert "cancelled at turn 1" in "\n".join(caught.value.__notes__)


def test_the_sweep_leaves_nothing_behind() -> None:
    def sweep() -> None:
        cancel_everywhere(interleaving, seed=1)

    with no_leaks():
        sweep()
    gc.collect()


def test_a_task_group_is_cancelled_everywhere(seed: int) -> None:
    def make() -> Coroutine[Any, Any, Any]:
        return interleaving()

    assert cancel_everywhere(make, seed=seed) >= 4
