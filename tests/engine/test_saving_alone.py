"""One feed writes a file: a second one gets an error that names the first. Nobody who is gone blocks the next."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import asyncfeed as af
from asyncfeed.state import file
from asyncfeed.state.lock import FileLock
from tests.engine.outside import threads_ended

TRAIN = af.items(range(40)).shuffle(seed=1).batch(3)
BATCHES = [batch.tolist() for batch in TRAIN]
HOLDER = """
import asyncfeed as af, os, sys, time
feed = af.items(range(40)).shuffle(seed=1).batch(3).open(path=sys.argv[1], checkpoint_every=1)
"""
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "feed.json"


def lock_file(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def is_free(path: Path) -> bool:
    """Return whether a feed can be opened, and leave nothing."""
    try:
        TRAIN.open(path=path).close()
    except af.PipelineError:
        return False
    assert not lock_file(path).exists()
    return True


def program(path: Path, source: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore", "-c", HOLDER + source, str(path)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


# -- the second one


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("method", ["open", "epochs"])
def test_a_second_feed_of_a_process_is_refused(path: Path, method: str, begun: bool) -> None:
    with TRAIN.open(path=path) as feed:
        if begun:
            next(feed)
        expected = rf"^{method}: another feed of this process writes .*feed\.json.*Close that feed first"
        source = iter(range(40))
        again = af.items(source).batch(3)
        for _ in range(2):  # the iterator can still be opened: nothing was taken from it
            with pytest.raises(af.PipelineError, match=expected):
                again.open(path=path) if method == "open" else again.epochs(1, path=path)
        assert next(source) == 0
    assert is_free(path)


def test_another_process_is_refused_and_told_who_writes(path: Path) -> None:
    with program(path, "print(next(feed)[0], flush=True); input()") as process:
        assert line_of(process) == str(BATCHES[0][0])
        who = rf"process {process.pid} \(-c\) on host {socket.gethostname()}, since 20\d\d-[^,]*,"
        with pytest.raises(af.PipelineError, match=rf"{who} writes .*Pass another path .*feed-{{rank}}\.json"):
            TRAIN.open(path=path)
        with TRAIN.open(path=path.with_name("feed-1.json")) as feed:
            assert next(feed).tolist() == BATCHES[0]
        process.communicate("\n")
    assert is_free(path)


def test_a_link_and_its_file_are_one_file(path: Path) -> None:
    link = path.with_name("link.json")
    link.symlink_to(path)
    with TRAIN.open(path=link), pytest.raises(af.PipelineError, match="another feed of this process"):
        TRAIN.open(path=path)


def test_a_state_is_read_without_a_lock(path: Path) -> None:
    with TRAIN.open(path=path, checkpoint_every=1000) as feed:
        next(feed)
    with TRAIN.open(path=path) as feed, TRAIN.open(state=path.read_text()) as other:
        assert next(other).tolist() == next(feed).tolist() == BATCHES[1]


def test_of_many_that_take_and_free_a_lock_one_has_it(path: Path) -> None:
    """Also while the holder removes the lock file that others have just opened."""
    inside: list[int] = []
    most = 0

    def take(number: int) -> None:
        nonlocal most
        left = 30
        while left:
            lock = FileLock(path)
            try:
                lock.acquire("open")
            except af.PipelineError:
                continue
            inside.append(number)
            most, left = max(most, len(inside)), left - 1
            inside.remove(number)
            lock.release()

    threads = [threading.Thread(target=take, args=(number,)) for number in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert most == 1
    assert not lock_file(path).exists()


def test_a_lock_file_that_its_holder_removes_meanwhile_is_opened_anew(path: Path) -> None:
    first, second, third = FileLock(path), FileLock(path), FileLock(path)
    first.acquire("open")
    flock = fcntl.flock

    def late(fd: int, how: int) -> None:
        if how & fcntl.LOCK_EX:
            first.release()
        flock(fd, how)

    with mock.patch.object(fcntl, "flock", late):
        second.acquire("open")
    with pytest.raises(af.PipelineError):
        third.acquire("open")
    second.release()
    third.acquire("open")
    third.release()


# -- who frees it


def at_its_end(path: Path) -> object:
    feed = TRAIN.open(path=path)
    return [feed, list(feed)]


def closed_before_it_began(path: Path) -> object:
    feed = TRAIN.open(path=path)
    feed.close()
    return feed


def closed_on_a_loop_before_it_began(path: Path) -> object:
    feed = TRAIN.open(path=path)
    asyncio.run(feed.aclose())
    return feed


def closed_on_a_loop(path: Path) -> object:
    async def main() -> object:
        async with TRAIN.open(path=path) as feed:
            await anext(feed)
        return feed

    return asyncio.run(main())


def dropped_before_it_began(path: Path) -> object:
    return TRAIN.open(path=path) and None


def dropped(path: Path) -> object:
    next(TRAIN.open(path=path))
    return threads_ended()


def failed(path: Path) -> object:
    feed = af.items([0]).map(lambda x: 1 / x).open(path=path)
    with pytest.raises(ZeroDivisionError):
        next(feed)
    return [feed, threads_ended()]


def stopped(path: Path) -> object:
    feed = TRAIN.open(path=path)
    next(feed)
    feed.stop()
    with pytest.raises(af.ClosedError):
        next(feed)
    return [feed, threads_ended()]


def not_opened_because_the_file_is_damaged(path: Path) -> object:
    path.write_text("nonsense")
    with pytest.raises(af.StateError) as raised:
        TRAIN.open(path=path)
    path.unlink()
    return raised


def refused_at_its_first_draw(path: Path) -> object:
    late = af.items(range(4)).map(lambda x: x, ordered=False)
    feed = late.scan(lambda total, x: (total + x, total), 0).open(path=path)
    with pytest.raises(af.StateError, match="scan") as raised:
        next(feed)
    return [feed, raised]


def closed_under_the_run(path: Path) -> object:
    loop = asyncio.new_event_loop()
    feed = TRAIN.open(path=path)
    loop.run_until_complete(anext(feed))
    loop.close()
    feed.stop()
    return feed


def cancelled_before_its_first_step(path: Path) -> object:
    async def main() -> object:
        feed = TRAIN.open(path=path)
        draw = asyncio.ensure_future(anext(feed))
        while len(tasks := asyncio.all_tasks()) < 3:
            await asyncio.sleep(0)
        for each in tasks - {asyncio.current_task()}:
            each.cancel()
        await asyncio.wait([draw])
        return feed

    return asyncio.run(main())


@pytest.mark.parametrize(
    "end",
    [
        at_its_end,
        closed_before_it_began,
        closed_on_a_loop_before_it_began,
        closed_on_a_loop,
        dropped_before_it_began,
        dropped,
        failed,
        stopped,
        not_opened_because_the_file_is_damaged,
        refused_at_its_first_draw,
        closed_under_the_run,
        cancelled_before_its_first_step,
    ],
)
@pytest.mark.filterwarnings("ignore:open. the run in .* has delivered everything")
def test_a_feed_that_is_over_frees_its_file(path: Path, end: Callable[[Path], object]) -> None:
    """What it returns is still alive, so it is not the garbage collector that frees it."""
    kept = end(path)
    assert is_free(path)
    del kept


def test_a_last_write_that_hangs_keeps_others_from_the_file(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The feed has closed after its grace. Its state may still come."""
    hangs = threading.Event()
    with mock.patch.object(file, "write", lambda *_: hangs.wait(60)):
        with TRAIN.open(path=path, checkpoint_every=1000, grace=0.2) as feed:
            next(feed)
        assert "is still in writing" in caplog.text
        assert not is_free(path)
        hangs.set()
        assert threads_ended()
    assert is_free(path)


# -- who is gone


def test_a_killed_process_does_not_block_the_next(path: Path) -> None:
    with program(path, "print(next(feed)[0], flush=True); next(feed); input()") as process:
        line_of(process)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert lock_file(path).exists()
        with TRAIN.open(path=path) as feed:
            assert next(feed).tolist() in BATCHES[:3]
    assert not lock_file(path).exists()


@needs_fork
def test_a_fork_neither_keeps_the_lock_of_its_killed_parent_nor_frees_that_of_a_living_one(path: Path) -> None:
    source = (
        "next(feed)\n"
        "if os.fork(): time.sleep(600)\n"
        "try: af.items(range(40)).shuffle(seed=1).batch(3).open(path=sys.argv[1])\n"
        "except af.PipelineError as error: print('refused', f'process {os.getppid()} ' in str(error), flush=True)\n"
        "feed.close(); del feed\n"
        "print('closed', flush=True)\n"
        "input(); print('alive', flush=True)\n"
    )
    with program(path, source) as process:
        assert line_of(process) == "refused True"
        assert line_of(process) == "closed"
        assert not is_free(path)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert is_free(path)
        assert process.communicate("\n")[0].strip() == "alive"


@needs_fork
def test_a_fork_that_exits_leaves_the_lock_to_its_parent(path: Path) -> None:
    source = (
        "next(feed)\nchild = os.fork()\nif child: os.waitpid(child, 0); print('exited', flush=True); input()\n"
    )
    with program(path, source) as process:
        assert line_of(process) == "exited"
        assert not is_free(path)
        process.communicate("\n")
    assert is_free(path)


OTHER = {"host": "another-host", "pid": os.getpid(), "program": "train.py", "since": "2026-05-01 12:00:00+00:00"}


@pytest.mark.parametrize(
    "remnant",
    ["", "nonsense", "[]", "{}", json.dumps(OTHER)[:-9], json.dumps({**OTHER, "host": socket.gethostname()})],
    ids=["empty", "nonsense", "list", "nothing", "cut off", "of this host"],
)
def test_what_a_power_cut_left_does_not_block(path: Path, remnant: str, caplog: pytest.LogCaptureFixture) -> None:
    """Also if the number of that process is that of a living one now."""
    lock_file(path).write_text(remnant)
    assert is_free(path)
    assert caplog.text == ""


def test_another_host_that_has_not_closed_the_file_is_named_in_a_warning(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be a container that was killed, or one that still runs on a mount that shares no locks."""
    lock_file(path).write_text(json.dumps(OTHER))
    assert is_free(path)
    assert f"process {os.getpid()} (train.py) on host another-host, since 2026-05-01 12:00:00" in caplog.text
    caplog.clear()
    assert is_free(path)
    assert caplog.text == ""


def test_a_file_system_without_locks_is_named_in_a_warning(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def flock(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with mock.patch.object(fcntl, "flock", flock):
        assert is_free(path)
    assert f"the file system of {path} has no locks" in caplog.text


def test_a_lock_file_that_cannot_be_opened_is_an_error_that_names_it(path: Path) -> None:
    lock_file(path).mkdir()
    with pytest.raises(af.PipelineError, match=r"^open: the lock file .*\.feed\.json\.lock.*remove the lock file"):
        TRAIN.open(path=path)
