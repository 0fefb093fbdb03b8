"""`map(fn, on="process")`: the same as on threads, and what only processes can do."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.testing import end_kept_processes
from tests.engine import in_worker as fns
from tests.engine.inside import LeftOut, OwnWorkers, RemoteTraceback
from tests.unit.test_shared import same


def draw(pipeline: af.Pipeline[Any]) -> tuple[list[Any], BaseException | None, af.Failure | None]:
    """Draw to the end; return the items, the error, and what the feed says about it."""
    got: list[Any] = []
    with pipeline.open() as feed:
        try:
            for item in feed:
                got.append(item)
        except BaseException as error:
            return got, error, feed.failure
    return got, None, None


def mapped(fn: Callable[..., Any], count: int = 12, **options: Any) -> af.Pipeline[Any]:
    options.setdefault("concurrency", 2)
    return af.items(range(count)).map(fn, on="process", **options)


# -- the same as on threads


@pytest.mark.parametrize("seed", range(6))
def test_results_are_those_of_threads(seed: int) -> None:
    """Whatever the stage is given and returns, and whatever stands around it."""
    rng = random.Random(seed)
    fn = rng.choice([fns.square, fns.mixed, fns.sample])
    count, size, shuffled = rng.randrange(1, 200), rng.randrange(1, 7), rng.random() < 0.5

    def build(on: str, concurrency: Any) -> af.Pipeline[Any]:
        source = af.items(range(count))
        source = source.shuffle(seed=seed).repeat(2) if shuffled else source
        work = source.map(fn, on=on, concurrency=concurrency)
        return work if fn is not fns.square else work.batch(size).map(fns.double, on=on, concurrency=concurrency)

    threads = list(build("thread", "auto"))
    processes = list(build("process", rng.choice([1, 2, "auto"])))
    if fn is fns.sample:
        threads, processes = ([vars(each) for each in items] for items in (threads, processes))
    assert same(threads, processes)


def test_random_numbers_are_those_of_threads() -> None:
    """They depend on seed, epoch and place; of a batch, on its members' places."""
    for build in (
        lambda on: af.items(range(50)).repeat(2).map(fns.noisy, rng=True, seed=3, on=on),
        lambda on: af.items(range(20)).batch(3).map(fns.noisy, rng=True, on=on),
        lambda on: af.items([2, 3]).flat_map(range).map(fns.noisy, rng=True, on=on),
    ):
        assert same(list(build("thread")), list(build("process")))


def test_unordered_delivers_all() -> None:
    """As they come."""
    assert sorted(mapped(fns.square, 300, ordered=False)) == [x * x for x in range(300)]


def test_several_processes_work_and_none_is_this_one() -> None:
    """As many as `concurrency` says, at most."""
    pids = set(mapped(fns.pid, 400))
    assert 1 <= len(pids) <= 2
    assert os.getpid() not in pids
    assert len(set(mapped(fns.pid, 400, concurrency=1))) == 1


def test_large_arrays_come_back_equal_writable_and_independent() -> None:
    """Each owns its memory; what the parent sent stays as it was, though the function wrote to it."""
    sent = [np.full((300, 1000), x, np.float32) for x in range(9)]
    got = list(af.items(sent).map(fns.in_place, on="process", concurrency=2))
    for x, array in enumerate(got):
        assert array.dtype == np.float32
        assert (array == x + 1).all()
        array[:] = -1
        assert all((other == y + 1).all() for y, other in enumerate(got) if y > x)
    assert all((array == x).all() for x, array in enumerate(sent))


def test_a_function_may_keep_what_it_was_given() -> None:
    """The memory it came through is written anew, and its array is not."""
    sent = [np.full(5000, x) for x in range(9)]
    assert list(af.items(sent).map(fns.remember, on="process", concurrency=1))[-1] == list(range(9))


def test_a_part_of_an_array_comes_without_the_rest() -> None:
    """A crop, which has gaps, is copied into one piece."""
    image = np.arange(300 * 200 * 3, dtype=np.uint8).reshape(300, 200, 3)
    (got,) = af.items([image]).map(fns.crop, on="process")
    assert (got == image[2:-2, 1:-1]).all()
    assert got.flags.c_contiguous


def test_it_runs_on_the_callers_loop() -> None:
    """`async for` as well as `for`."""

    async def main() -> list[int]:
        return [x async for x in mapped(fns.square, 100)]

    assert asyncio.run(main()) == [x * x for x in range(100)]


def test_a_worker_may_have_workers() -> None:
    """A function may use a pipeline with processes itself."""
    assert list(af.items([3]).map(fns.nested, on="process", concurrency=1)) == [[0, 1, 4]]


# -- errors


@pytest.mark.parametrize(
    ("fn", "kind", "text"),
    [
        (fns.fails, KeyError, "seven"),
        (fns.fails_odd, RuntimeError, "Odd: 7 is odd: why not"),
        (fns.fails_unpicklable, RuntimeError, "Frozen: in here"),
        (fns.returns_lock, TypeError, "lock"),
        (fns.exits, SystemExit, "5"),
        (fns.interrupts, KeyboardInterrupt, ""),
    ],
)
def test_an_error_is_that_of_threads(fn: Any, kind: type[BaseException], text: str) -> None:
    """Its own type, after all before it, with the same account of the item, and its traceback as text."""
    got, error, failure = draw(mapped(fn))
    assert got == list(range(7))
    assert type(error) is kind
    assert text in str(error)
    assert failure is not None
    assert failure.error is error
    assert (failure.key, failure.ordinal, failure.epoch) == ("number 7", 7, 0)
    assert failure.stage.startswith(f"map({fn.__name__}")
    assert failure.note() in error.__notes__
    assert isinstance(error.__cause__, RemoteTraceback)
    if fn is not fns.returns_lock:
        assert f"in {fn.__name__}" in str(error.__cause__)
        _, on_thread, there = draw(af.items(range(12)).map(fn))
        assert there is not None
        assert (there.key, there.ordinal, there.epoch) == (failure.key, failure.ordinal, failure.epoch)
        if kind is not RuntimeError:
            assert (type(on_thread), on_thread.args) == (kind, error.args)  # type: ignore[union-attr]


def test_what_cannot_leave_its_process_is_named() -> None:
    """A result, and an item."""
    _, error, _ = draw(mapped(fns.returns_lock))
    assert "result of type lock" in "\n".join(error.__notes__)
    items = [1, 2, (x for x in ()), 4]
    got, error, failure = draw(af.items(items).map(fns.same, on="process", concurrency=1))
    assert got == [1, 2]
    assert isinstance(error, TypeError)
    assert "item of type generator" in "\n".join(error.__notes__)
    assert failure.ordinal == 2
    left = af.items(items).map(fns.same, on="process", concurrency=1, on_error="skip", skip_limit=1)
    assert list(left) == [1, 2, 4]


def test_what_cannot_be_made_again_fails_its_own_item() -> None:
    """In the worker as an item, here as a result; the others are not concerned."""
    for items in ([1, fns.Unloadable(), 3], [1, 2, 3]):
        fn = fns.same if len(set(map(type, items))) > 1 else fns.returns_unloadable
        with af.items(items).map(fn, on="process", on_error="skip", skip_limit=1).open() as feed:
            assert list(feed) == [1, 3]
            assert [str(each.error) for each in feed.skipped] == ["not here"]


@pytest.mark.parametrize("fn", [fns.coroutine, fns.request])
def test_a_returned_awaitable_is_an_error(fn: Any) -> None:
    """A sync function that returns what only a loop could run."""
    _, error, _ = draw(mapped(fn, 1))
    assert isinstance(error, TypeError)
    assert "async def" in str(error)


@pytest.mark.parametrize("fn", [fns.fails, fns.returns_lock, fns.dies, fns.killed])
@pytest.mark.parametrize("concurrency", [1, 3])
def test_skip_leaves_out_one_item_and_goes_on(fn: Any, concurrency: int) -> None:
    """Also after the death of a worker: a new one takes its place, and what it had not done."""
    pipeline = mapped(fn, 300, concurrency=concurrency, on_error="skip", skip_limit=1)
    with pipeline.open() as feed:
        assert list(feed) == [x for x in range(300) if x != 7]
        assert [each.ordinal for each in feed.skipped] == [7]


@pytest.mark.parametrize(
    ("fn", "how"),
    [
        (fns.dies, "exited with status 3"),
        (fns.killed, "was killed by SIGKILL"),
        (fns.crashes, "was killed by SIGSEGV"),
        (fns.dies_with_child, "exited with status 3"),
    ],
)
def test_a_dead_worker_is_an_error_that_names_the_item(fn: Any, how: str, capfd: Any) -> None:
    """And its end, after all items before it, while others work; what it has started is gone, too."""
    before = fns.children()
    got, error, failure = draw(mapped(fn, 300))
    assert got == list(range(7))
    assert isinstance(error, RuntimeError)
    assert how in str(error)
    assert "while it worked on this item" in str(error)
    assert failure.ordinal == 7
    end_kept_processes()
    assert fns.children() <= before
    stderr = capfd.readouterr().err
    assert ("in crashes" in stderr) if fn is fns.crashes else not stderr


def test_a_worker_that_dies_while_idle_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    """No item was lost with it, so there is no error; the log has it."""
    workers = OwnWorkers(fns.pid)
    first = workers.call(0)
    os.kill(first, signal.SIGKILL)
    assert fns.gone(first)
    second = workers.call(0)
    assert second != first
    assert "was killed by SIGKILL while it had nothing to do" in caplog.text
    workers.stop(with_threads=False)
    assert fns.gone(second)
    assert not workers.kill()
    with pytest.raises(LeftOut):
        workers.call(0)


def test_lambdas_and_closures_go_by_value() -> None:
    """With what they hold, anew for each run."""
    for sent in (np.full(5000, 1), np.full(5000, 2)):
        assert same(list(af.items([3, 4]).map(holds(sent), on="process", concurrency=1)), [(3, sent), (4, sent)])
    (crop,) = af.items([np.ones((300, 300))]).map(lambda x: x[1:-1, 1:-1], on="process", concurrency=1)
    assert crop.shape == (298, 298)


def test_an_error_of_a_class_that_has_no_name_comes_by_value() -> None:
    """It is the very class that the function raises."""

    class Local(Exception):
        pass

    def raises(x: int) -> int:
        raise Local("here")

    with pytest.raises(Local, match="here"):
        list(af.items([1]).map(raises, on="process"))


# -- what cannot run in another process


def local() -> Callable[[Any], Any]:
    def inner(x: Any) -> Any:
        return x

    return inner


async def waits(x: Any) -> Any:
    return x


def holds(value: Any) -> Callable[[Any], Any]:
    return lambda x: (x, value)


@pytest.mark.parametrize(
    ("fn", "cloudpickle", "text"),
    [
        (lambda x: x, False, "pip install cloudpickle.*at the top level of a module"),
        (local(), False, "pip install cloudpickle.*at the top level of a module"),
        (holds(threading.Lock()), True, "cannot pickle '_thread.lock'.*at the top level of a module"),
        (waits, True, 'leave out on="process"'),
    ],
)
def test_a_function_that_cannot_be_sent_is_refused_at_once(
    fn: Any, cloudpickle: bool, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the line that wrote it, which says what to do."""
    if not cloudpickle:
        monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(af.PipelineError, match=text):
        af.items([1]).map(fn, on="process")
    with pytest.raises(af.PipelineError, match='"thread" or "process"'):
        af.items([1]).map(fns.same, on="gpu")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("fn", "text"), [(fns.Unloadable(), "ValueError: not here"), (fns.DiesLoading(), "exited with status 4")]
)
def test_a_function_that_no_worker_can_load_ends_the_run(fn: Any, text: str) -> None:
    """It is no item's fault, so none is skipped for it."""
    for options in ({}, {"on_error": "skip", "skip_limit": 100}):
        with pytest.raises(af.PipelineError, match=text):
            list(mapped(fn, 1000, **options))


def test_a_group_of_results_that_turn_out_large_is_cut() -> None:
    """Small results make large groups. One that would be 200 MB comes a few results at a time."""
    pipeline = af.items(range(128)).map(fns.grows, on="process", concurrency=1)
    with pipeline.open(memory_limit="16MB") as feed:
        assert [len(each) for each in feed] == [1] * 100 + [1 << 20] * 28
        peak = feed.stats().memory_peak
    assert peak < 30e6
