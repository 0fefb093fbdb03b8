"""Worker processes are kept between runs: used again, clean, bounded, and ended when nobody needs them."""

from __future__ import annotations

import logging
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.testing import end_kept_processes, no_leaks
from tests.engine import in_worker as fns
from tests.engine.inside import REST, START, KeptWorkers, OwnWorkers, Worker, kept, workers_exit_within
from tests.engine.processes import run


def drawn(fn: Any, items: Any = range(40), **options: Any) -> list[Any]:
    """Run to the end, and until the run has closed everything."""
    options.setdefault("concurrency", 1)
    with af.items(items).map(fn, on="process", **options).open() as feed:
        return list(feed)


def pids(**options: Any) -> set[int]:
    return set(drawn(fns.pid, **options))


@pytest.fixture
def own() -> Any:
    """Keep workers apart from those of the process, and end them."""
    made = []

    def make(**options: Any) -> KeptWorkers:
        made.append(KeptWorkers(**options))
        return made[-1]

    yield make
    for each in made:
        each.end_all()


def used(pool: KeptWorkers, fn: Any = fns.pid) -> int:
    """Run a worker of a pool, and return its number."""
    workers = OwnWorkers(fn, pool)
    pid = workers.call(0)
    workers.stop()
    assert not workers.kill()
    return int(pid)


# -- used again


def test_the_next_run_of_a_function_uses_the_same_workers() -> None:
    """Starting them takes seconds where the function's module imports a framework."""
    first = pids()
    assert pids() == first
    assert pids(on_error="skip", skip_limit=1) == first


def test_two_runs_at_a_time_share_no_worker() -> None:
    """A worker is with one run or kept."""
    build = af.items(range(40)).repeat().map(fns.pid, on="process", concurrency=1)
    for _ in range(2):
        with build.open() as one, build.open() as other:
            assert not {next(one) for _ in range(40)} & {next(other) for _ in range(40)}


def test_another_function_gets_other_workers() -> None:
    """What one has done to its process, another does not see."""
    first = pids()
    assert set(drawn(fns.other_pid)) != first
    assert set(drawn(partial(fns.pid), rng=False)) == first


@pytest.mark.parametrize("what", ["environment", "folder", "path", "stdout"])
def test_a_process_that_was_started_elsewhere_is_not_used(
    what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It would have another environment, folder, search path or terminal than one that is started now."""
    first = pids()
    if what == "environment":
        monkeypatch.setenv("ASYNCFEED_TEST", "1")
    elif what == "folder":
        monkeypatch.chdir(tmp_path)
    elif what == "path":
        monkeypatch.syspath_prepend(str(tmp_path))
    saved = os.dup(1)
    try:
        if what == "stdout":
            with (tmp_path / "out").open("w") as file:
                os.dup2(file.fileno(), 1)
        assert pids() != first
    finally:
        os.dup2(saved, 1)
        os.close(saved)


def test_a_changed_module_is_imported_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in the first run: what counts is the file as it is when the run begins."""
    monkeypatch.syspath_prepend(str(tmp_path))
    path, helper = tmp_path / "changing_af.py", tmp_path / "helper_af.py"
    path.write_text("def fn(x):\n    import helper_af\n    return x + helper_af.step")
    helper.write_text("step = 1")
    import changing_af

    try:
        assert drawn(changing_af.fn, [1]) == [2]
        helper.write_text("step = 10")
        assert drawn(changing_af.fn, [1]) == [11]
    finally:
        del sys.modules["changing_af"]


# -- clean


def test_a_function_is_brought_anew_for_each_run() -> None:
    """An object that counts its calls begins again, as it does on threads when it is made anew."""
    for _ in range(2):
        assert drawn(fns.Counter()) == list(range(1, 41))
    for size in (1, 2):
        assert drawn(partial(fns.times, by=size), [3]) == [3 * size]


def test_what_a_run_has_left_is_no_other_runs() -> None:
    """Runs that are left at any point, with errors and without: the next is as if it were the first."""
    for left in (0, 1, 7, 39):
        with af.items(range(1000)).map(fns.fails, on="process", concurrency=2).open() as feed:
            for _ in range(min(left, 7)):
                next(feed)
        with af.items(range(1000)).map(fns.same, on="process", concurrency=2).open() as feed:
            for _ in range(left):
                next(feed)
        assert drawn(fns.same, range(100, 300)) == list(range(100, 300))


def test_a_worker_that_hangs_is_not_given_on(tmp_path: Path) -> None:
    """It is killed after the grace, and the next run has another."""
    path = tmp_path / "pid"
    os.mkfifo(path)
    with af.items([str(path)]).map(fns.tells_and_hangs, on="process", concurrency=1).open(grace=0.1) as feed:
        feed.__enter__()
        pid = int(path.read_text())
    assert fns.gone(pid)
    assert len(kept) == 0


def test_a_worker_in_the_middle_of_a_call_is_kept_once_it_has_answered(tmp_path: Path) -> None:
    """What it answers is nobody's any more; what it is asked then is."""
    began, goes_on = tmp_path / "began", tmp_path / "goes_on"
    os.mkfifo(began)
    os.mkfifo(goes_on)
    paths = [(str(began), str(goes_on))]
    with af.items(paths).map(fns.tells_and_waits, on="process", concurrency=1).open() as feed:
        feed.__enter__()
        pid = int(began.read_text())
        feed.stop()
        goes_on.write_text("now")
    assert len(kept) == 1
    assert drawn(fns.tells_and_waits, [None]) == [pid]


def test_a_worker_whose_conversation_broke_off_is_not_given_on(own: Any) -> None:
    """Where this side fails between a question and its answer, the answer would be the next run's."""
    pool = own()
    workers = OwnWorkers(fns.pid, pool)
    pid = workers.call(0)
    with workers.breaks_off(), pytest.raises(MemoryError):
        workers.call(0)
    assert fns.gone(pid)
    workers.stop()
    assert len(pool) == 0


def test_a_worker_that_died_while_it_was_kept_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    """No item was lost with it; the log says how it ended."""
    (first,) = pids()
    os.kill(first, signal.SIGKILL)
    assert fns.gone(first)
    with caplog.at_level(logging.WARNING, "asyncfeed"):
        assert pids() != {first}
    assert "was killed by SIGKILL while it had nothing to do" in caplog.text


def test_a_kept_worker_that_cannot_load_the_function_is_replaced(own: Any) -> None:
    """A new one may: the fault may be in what was left in the old one."""
    pool = own()
    first, second = used(pool, fns.LoadsOnce()), used(pool, fns.LoadsOnce())
    assert first != second
    assert fns.gone(first)


def test_it_holds_no_memory_of_the_run(own: Any) -> None:
    """What items and results went through is given back."""
    pool = own()
    workers = OwnWorkers(fns.double, pool)
    large = np.zeros(3 * START, np.uint8)
    assert workers.call(large).nbytes == large.nbytes
    workers.stop()
    worker = workers.take_kept()
    sizes = [os.fstat(each.fileno()).st_size for each in (worker.items, worker.results)]
    assert sizes == [START, START]
    worker.finish()
    worker.end()


# -- bounded, and ended


def test_a_worker_ends_when_it_was_idle_for_long(own: Any) -> None:
    """By itself, without another run."""
    assert fns.gone(used(own(idle_seconds=0.01)))


def test_a_worker_lives_until_its_time_has_come(own: Any) -> None:
    """Each has a time of its own, which begins anew with each run."""
    now = [0.0]
    pool = own(idle_seconds=10, clock=lambda: now[0])
    first = used(pool)
    now[0] = 6.0
    assert used(pool) == first
    other = used(pool, fns.other_pid)
    now[0] = 12.0
    pool.look()
    assert used(pool) == first
    now[0] = 17.0
    pool.look()
    assert fns.gone(other)
    assert used(pool) == first
    now[0] = 100.0
    pool.look()
    assert fns.gone(first)


def test_no_more_are_kept_than_may_be(own: Any) -> None:
    """The one kept longest goes."""
    pool = own(most=1)
    first = used(pool)
    second = used(pool, fns.other_pid)
    assert fns.gone(first)
    assert len(pool) == 1
    assert used(pool, fns.other_pid) == second


def test_what_does_not_end_when_told_to_is_killed(own: Any) -> None:
    """A function may have started a thread that Python waits for."""
    pool = own()
    pid = used(pool, fns.starts_thread)
    with workers_exit_within(0.1):
        pool.end_all()
    assert fns.gone(pid)


def test_nothing_is_left_when_they_are_ended() -> None:
    """No process, descriptor or thread; a run that has begun before keeps none after."""
    before = fns.children()
    with no_leaks():
        feed = af.items(range(10**9)).map(fns.same, on="process", concurrency=2).open()
        next(feed)
        for _ in range(5):
            drawn(fns.square, concurrency=2)
        end_kept_processes()
        feed.close()
        assert len(kept) == 0
    assert fns.children() <= before


def test_no_worker_is_kept_when_no_thread_can_be_started(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the end of the interpreter: nobody would end it."""

    def fails(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    pool = own()
    with monkeypatch.context() as patched:
        patched.setattr("threading.Thread.start", fails)
        pid = used(pool)
    assert fns.gone(pid)
    assert len(pool) == 0


def test_they_end_with_the_interpreter() -> None:
    """With what they print at exit, and with the exit status of the program."""
    ended = run(
        """
from tests.engine.in_worker import pid
with af.items(range(40)).map(pid, on="process", concurrency=1).open() as feed:
    print(*set(feed))
sys.exit(7)
"""
    )
    assert (ended.code, ended.err) == (7, "")
    assert all(fns.gone(int(pid)) for pid in ended.out)


def test_a_fork_has_none_and_leaves_the_parents_alone() -> None:
    """The child starts its own, and does not hold the parent's sockets open."""
    ended = run(
        """
from tests.engine.in_worker import pid as fn
def pids():
    with af.items(range(40)).map(fn, on="process", concurrency=1).open() as feed:
        return set(feed)
first = pids()
if not (child := os.fork()):
    from tests.engine.inside import kept
    print(len(kept), pids().isdisjoint(first), flush=True)
    sys.exit(0)
print(os.waitpid(child, 0)[1], pids() == first)
"""
    )
    assert ended == (0, ["0", "True", "0", "True"], "")


def test_a_worker_ends_with_the_parent_though_a_fork_of_it_lives() -> None:
    """The fork has closed its copy of the socket, which is the worker's lifeline."""
    ended = run(
        """
from tests.engine.in_worker import pid as fn
with af.items(range(40)).map(fn, on="process", concurrency=1).open() as feed:
    (worker,) = set(feed)
reading, writing = os.pipe()
if not (child := os.fork()):
    os.close(writing)
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    os.dup2(1, 2)
    os.read(reading, 1)
    os._exit(0)
print(worker, child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    worker = int(ended.out[0])
    assert fns.gone(worker)


def test_a_worker_can_be_started_without_the_flags_of_the_interpreter(
    own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come from a private function of `subprocess`, which may go."""
    monkeypatch.delattr("subprocess._args_from_interpreter_flags")
    assert fns.gone(used(own(idle_seconds=0.0)))


@pytest.mark.parametrize("missing", [("waitid",), ("waitid", "pidfd_open", "memfd_create", "sched_getaffinity")])
def test_a_worker_needs_only_what_every_posix_system_has(
    own: Any, monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...]
) -> None:
    """As macOS, which lacks these."""
    pool = own()
    with monkeypatch.context() as patched:
        for name in missing:
            patched.delattr(f"os.{name}")
        pid = used(pool)
        assert used(pool) == pid
        pool.end_all()
    assert fns.gone(pid)


def test_an_order_to_a_dead_worker_is_answered_by_nothing() -> None:
    """And it is known to be dead."""
    worker = Worker(1)
    worker.kill()
    assert worker.ask(REST) == b""
    assert not worker.alive
    worker.end()
