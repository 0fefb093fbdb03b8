"""How worker processes end: with the run, the parent, a signal; and main scripts that they cannot import."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import asyncfeed as af
from asyncfeed.testing import end_kept_processes, no_leaks
from tests.engine import in_worker as fns
from tests.engine.inside import OwnWorkers, finalizers_run_before_a_worker_is_asked
from tests.engine.processes import PRELUDE, run

ROOT = Path(__file__).parents[2]


def endless(fn: Any = fns.same, **options: Any) -> af.Pipeline[Any]:
    return af.items(range(10**9)).map(fn, on="process", concurrency=2, **options)


# -- with the run


def test_nothing_is_left_of_twenty_runs() -> None:
    """No process, descriptor, thread or memory, however they end."""
    before = fns.children()
    with no_leaks():
        for number in range(20):
            feed = af.items(range(10**9)).map(fns.same, on="process", concurrency=1 + number % 2).open()
            assert next(feed) == 0
            if number % 3:
                feed.close()
            else:
                left = fns.children() - before
                assert left
                del feed
                end_kept_processes()
                assert all(map(fns.gone, left))
    assert fns.children() <= before
    assert "memfd:asyncfeed" not in Path("/proc/self/maps").read_text()


def test_no_process_is_started_before_the_first_item() -> None:
    """A run without items needs none, and a description none either."""
    before = fns.children()
    with af.items([]).map(fns.same, on="process").open() as feed:
        assert list(feed) == []
    assert fns.children() <= before


def test_cancelling_in_the_middle_ends_the_workers() -> None:
    """The task that draws is cancelled; `async with` leaves nothing."""

    async def main() -> None:
        async with endless().open() as feed:
            async for x in feed:
                if x == 500:
                    started = fns.children() - before
                    assert started
                    asyncio.current_task().cancel()

    async def outer() -> None:
        task = asyncio.ensure_future(main())
        with pytest.raises(asyncio.CancelledError):
            await task

    before = fns.children()
    asyncio.run(outer())
    end_kept_processes()
    assert fns.children() <= before


def test_a_function_that_hangs_is_killed_after_the_grace(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Unlike a thread it can be; `close` returns when it is gone, and the log says which it was."""
    path = tmp_path / "pid"
    os.mkfifo(path)
    with caplog.at_level(logging.WARNING, "asyncfeed"):
        with af.items([str(path)]).map(fns.tells_and_hangs, on="process").open(grace=0.3):
            pid = int(path.read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert f"its process {pid} did not end when told to, and is killed" in caplog.messages[0]
    assert len(caplog.messages) == 1


def test_what_a_hanging_function_has_started_is_killed_with_it(tmp_path: Path) -> None:
    """A program that it waits for does not live on."""
    path = tmp_path / "pids"
    os.mkfifo(path)
    with af.items([str(path)]).map(fns.starts_child, on="process").open(grace=0.1) as feed:
        feed.__enter__()
        worker, child = map(int, path.read_text().split())
        assert worker in fns.children()
    assert fns.gone(worker)
    assert fns.gone(child)


# -- with the parent


LIVE = """
from tests.engine.in_worker import children, hangs, same
endless = af.items(range(10**9)).map(same, on="process", concurrency=2)
"""


@pytest.mark.parametrize(
    "script",
    [
        "feed = endless.open(); next(feed)",
        """
async def main():
    global feed
    feed = endless.open()
    await anext(feed)
asyncio.run(main())
""",
        """
loop = asyncio.new_event_loop()
feed = endless.open()
loop.run_until_complete(anext(feed))
""",
    ],
)
def test_the_interpreter_exits_with_live_workers(script: str) -> None:
    """At once, with nothing on stderr; none of them goes on."""
    ended = run(LIVE + script + "\nprint(*children())")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out
    assert all(fns.gone(int(pid)) for pid in ended.out)


def test_a_worker_that_is_given_back_at_exit_is_ended_without_a_word() -> None:
    script = """
from tests.engine.inside import run_finalizers_before_a_worker_rests
run_finalizers_before_a_worker_rests()
feed = endless.open()
next(feed)
feed.close()
"""
    ended = run(LIVE + script)
    assert (ended.code, ended.err) == (0, "")


def test_a_thread_that_still_works_at_exit_says_nothing_of_a_worker_that_was_ended() -> None:
    """It may look at an idle worker just after Python has ended that."""
    script = """
import time
from tests.engine.inside import run_finalizers
feed = endless.open()
next(feed)
time.sleep(0.5)  # now the queue is full, and the workers are most probably idle
run_finalizers()
try:
    for _ in range(3000):
        next(feed)
except RuntimeError as error:
    assert "while it worked on this item" in str(error)
"""
    ended = run(LIVE + script)
    assert (ended.code, ended.err) == (0, "")


def test_a_worker_that_python_ended_at_exit_is_let_go_of_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    workers = OwnWorkers(fns.same)
    assert workers.call(1) == 1
    workers.release_idle()
    workers.stop()
    assert not workers.kill()
    assert caplog.messages == []


def test_a_thread_that_finds_a_worker_which_python_ended_at_exit_says_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It starts another one, if Python still lets it."""
    workers = OwnWorkers(fns.same)
    assert workers.call(1) == 1
    workers.release_idle()
    assert workers.call(2) == 2
    workers.stop()
    assert caplog.messages == []


def test_a_thread_that_asks_a_worker_which_python_ended_just_now_asks_another_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    workers = OwnWorkers(fns.same)
    assert workers.call(1) == 1
    with finalizers_run_before_a_worker_is_asked():
        assert workers.call(2) == 2
    workers.stop()
    assert caplog.messages == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("fn", ["same", "hangs"])
def test_workers_end_when_the_parent_dies(how: signal.Signals, fn: str) -> None:
    """By themselves, even in a function that hangs."""
    script = f"""
import asyncfeed as af
from tests.engine.in_worker import children, {fn}
feed = af.items(range(10**9)).map({fn}, on="process", concurrency=2).open()
for _ in range(3):
    next(feed)
print(*children(), flush=True)
input()
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as parent:
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        assert workers
        parent.send_signal(how)
        assert all(map(fns.gone, workers))


def test_ctrl_c_is_the_parents() -> None:
    """The terminal sends it to all in the foreground: workers write nothing, and end with the parent."""
    script = """
from tests.engine.in_worker import hangs as stays
def tell():
    seen = 0
    while seen < 5:
        time.sleep(0.001)
        seen = seen + 1 if main_draws() else 0
    print("asleep", flush=True)
try:
    with af.items(range(9)).map(stays, on="process", concurrency=2).open(grace=0.1) as feed:
        for x, pid in feed:
            print(pid, flush=True)
            if x == 2:
                threading.Thread(target=tell, daemon=True).start()
except KeyboardInterrupt:
    print("interrupted")
"""
    command = [sys.executable, "-c", PRELUDE + script]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, cwd=ROOT, start_new_session=True
    ) as parent:
        found = {int(parent.stdout.readline()) for _ in range(3)}
        assert parent.stdout.readline() == "asleep\n"
        os.killpg(parent.pid, signal.SIGINT)
        out, err = parent.communicate()
    assert out.split() == ["interrupted"]
    assert "Traceback" not in err
    assert all(map(fns.gone, found))


def test_an_interrupt_sent_to_a_worker_does_nothing() -> None:
    """Some programs send Ctrl-C to every process they find."""
    before = fns.children()
    with endless().open() as feed:
        next(feed)
        started = fns.children() - before
        assert started
        for pid in started:
            os.kill(pid, signal.SIGINT)
        assert [next(feed) for _ in range(1000)] == list(range(1, 1001))
        assert started <= fns.children()
        assert dict(feed.stats().slow_paths) == {}


# -- the main script

MAIN = """
import asyncfeed as af
class Item:
    def __init__(self, x):
        self.x = x
class Oops(Exception): pass
def f(item):
    if item.x == 3: raise Oops("three")
    return Item(item.x + 1)
def main():
    try:
        for item in af.items([Item(x) for x in range(9)]).map(f, on="process", concurrency=2):
            print(type(item) is Item, item.x)
    except Oops as error:
        print(error)
"""
PRINTED = ["True 1", "True 2", "True 3", "three"]


WITHOUT = "import sys; sys.modules['cloudpickle'] = None\n"


def script(tmp_path: Path, text: str, *how: str, stdin: bool = False) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "script.py"
    path.write_text(text)
    arguments = [] if stdin else list(how) or [str(path)]
    return subprocess.run(
        [sys.executable, *arguments],
        input=text if stdin else "",
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path if how else ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


@pytest.mark.parametrize("how", [(), ("-m", "script")])
@pytest.mark.parametrize("first", ["", WITHOUT])
def test_a_guarded_script_may_hold_functions_items_and_errors(
    tmp_path: Path, how: tuple[str, ...], first: str
) -> None:
    """What is defined in the main script is the same class on both sides."""
    done = script(tmp_path, first + MAIN + 'if __name__ == "__main__": main()', *how)
    assert (done.stdout.splitlines(), done.stderr) == (PRINTED, "")


def test_without_cloudpickle_an_unguarded_script_gets_an_error_that_says_what_to_write(tmp_path: Path) -> None:
    """Neither a hang nor a script that starts itself for ever."""
    done = script(tmp_path, WITHOUT + MAIN + "main()")
    assert done.returncode == 1
    assert done.stdout == ""
    last = done.stderr.rstrip().splitlines()[-1]
    assert last.startswith("asyncfeed.errors.PipelineError: map(f, concurrency=2, on='process')")
    assert 'if __name__ == "__main__":' in last


def test_an_unguarded_script_may_use_functions_of_modules(tmp_path: Path) -> None:
    """It is not imported where nothing in it is needed."""
    text = """
import asyncfeed as af
from tests.engine.in_worker import square
print("once")
print(list(af.items(range(3)).map(square, on="process")))
"""
    done = script(tmp_path, text)
    assert (done.stdout.split("\n"), done.stderr) == (["once", "[0, 1, 4]", ""], "")


def test_without_cloudpickle_a_function_typed_at_a_prompt_is_refused(tmp_path: Path) -> None:
    """A script on stdin is in no file that a worker could import; a function of a module works there, too."""
    done = script(tmp_path, WITHOUT + MAIN + "main()", stdin=True)
    assert done.returncode == 1
    last = done.stderr.rstrip().splitlines()[-1]
    assert "pip install cloudpickle" in last
    assert "put it into a module of its own" in last
    text = "import asyncfeed as af; from tests.engine.in_worker import square\n"
    done = script(tmp_path, text + 'print(list(af.items([3]).map(square, on="process")))', stdin=True)
    assert (done.stdout, done.stderr) == ("[9]\n", "")


# -- what goes by value


@pytest.mark.parametrize("stdin", [False, True])
def test_functions_items_and_errors_of_a_session_go_by_value(tmp_path: Path, stdin: bool) -> None:
    """As in a notebook; and a script needs no guard, as it is not imported."""
    done = script(tmp_path, MAIN + "main()", stdin=stdin)
    assert (done.stdout.splitlines(), done.stderr) == (PRINTED, "")


def test_items_of_a_session_go_by_value_to_a_function_of_a_module(tmp_path: Path) -> None:
    """The class of an item comes back as the one that it was."""
    text = """
import asyncfeed as af
from tests.engine.in_worker import same
class Item:
    def __init__(self): self.number = 1
with af.items([Item()]).map(same, on="process").open() as feed:
    print(type(next(feed)) is Item)
"""
    done = script(tmp_path, text, stdin=True)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_a_function_that_is_defined_anew_in_a_session_is_the_one_that_is_called(tmp_path: Path) -> None:
    """By the workers of the one before: what they have imported stays."""
    text = """
import asyncfeed as af, os
step, found = 1, []
for add in (1, 10):
    def f(x):
        return x + add, os.getpid()
    with af.items([1]).map(f, on="process", concurrency=1).open() as feed:
        found += feed
(one, first), (ten, second) = found
print(one, ten, first == second)
"""
    done = script(tmp_path, text, stdin=True)
    assert (done.stdout, done.stderr) == ("2 11 True\n", "")


def test_a_guarded_script_holds_what_cannot_go_by_value(tmp_path: Path) -> None:
    """It is imported then, as without cloudpickle."""
    text = """
import asyncfeed as af, threading
lock = threading.Lock()
def f(x):
    with lock:
        return x + 1
if __name__ == "__main__":
    print(list(af.items([1]).map(f, on="process")))
"""
    done = script(tmp_path, text)
    assert (done.stdout, done.stderr) == ("[2]\n", "")
