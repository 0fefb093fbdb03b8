"""What only a process of its own can show: Ctrl-C, the interpreter's exit, and fork."""

from __future__ import annotations

import os
import signal

import pytest

from tests.engine.processes import run

# -- Ctrl-C


def test_ctrl_c_interrupts_a_plain_for_that_waits() -> None:
    """It comes out of the `for`, and the feed is closed on the way."""
    ended = run(
        """
interrupt_when(main_draws)
try:
    with waiting.open() as feed:
        for x in feed:
            print(x, flush=True)
except KeyboardInterrupt:
    print("interrupted", threads_left())
"""
    )
    assert (ended.code, ended.err) == (0, "")
    assert ended.out[-2:] == ["interrupted", "0"]


def test_ctrl_c_nobody_catches_ends_the_process() -> None:
    """As any program that waits: the traceback, and the signal's exit status."""
    ended = run("interrupt_when(main_draws)\nfor x in waiting: pass")
    assert ended.code in (-signal.SIGINT, 130)
    assert ended.err.rstrip().endswith("KeyboardInterrupt")


def test_ctrl_c_interrupts_asyncio_run() -> None:
    """`asyncio.run` cancels the consumer; sources are closed before it raises."""
    ended = run(
        """
async def main():
    async for pair in af.zip(waiting, af.items(source)):
        pass
interrupt_when(lambda: reached == {"waits", "source"})
try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted", threads_left())
"""
    )
    assert (ended.code, ended.err) == (0, "")
    assert ended.out[-3:] == ["closed", "interrupted", "0"]


def test_stop_may_be_called_in_a_signal_handler() -> None:
    """Even one that interrupts the very thread that draws."""
    ended = run(
        """
interrupt_when(main_draws)
feed = waiting.open()
signal.signal(signal.SIGINT, lambda *_: feed.stop("told to"))
try:
    for x in feed: pass
except af.ClosedError as error:
    print(str(error).replace(" ", "_"))
"""
    )
    assert ended == (0, ["the_feed_was_stopped:_told_to"], "")


# -- the end of the interpreter


LIVE = {
    "on a thread": "feed = waiting.open(); next(feed)",
    "in builtins": "builtins.feed = waiting.open(); next(builtins.feed)",
    "with a full queue": "feed = af.items(range(10**9)).map(lambda x: x).open(); next(feed)",
    "in a cycle": "feed = waiting.open(); next(feed); cycle = [feed]; cycle.append(cycle); del feed, cycle",
    "in asyncio.run": """
async def main():
    global feed
    feed = waiting.open()
    await anext(feed)
asyncio.run(main())
""",
}


@pytest.mark.parametrize("held", LIVE)
def test_the_interpreter_exits_with_a_live_feed(held: str) -> None:
    """At once, with nothing on stderr."""
    ended = run(LIVE[held])
    assert (ended.code, ended.err) == (0, "")


def test_sources_are_closed_when_the_interpreter_exits() -> None:
    """Both kinds: what they hold open (a file, a lock, a connection) is given back."""
    ended = run("feed = af.zip(af.items(source), af.items(plain_source)).open(); next(feed)")
    assert ended == (0, ["closed", "closed"], "")


def test_the_interpreter_exits_with_a_loop_left_in_the_middle() -> None:
    """A loop that nobody runs any more can close nothing; it must not hold the process, either."""
    ended = run(
        """
loop = asyncio.new_event_loop()
feed = af.items(range(9)).map(hangs, concurrency=1).open()
async def main():
    draw = asyncio.ensure_future(anext(feed))
    while "hangs" not in reached:
        await asyncio.sleep(0)
loop.run_until_complete(main())
"""
    )
    assert ended.code == 0


def test_the_interpreter_exits_with_a_waiting_consumer() -> None:
    """A daemon thread that waits for data holds nothing up."""
    ended = run(
        """
feed = waiting.open()
def consume():
    try:
        for x in feed: pass
    except af.ClosedError: pass
thread = threading.Thread(target=consume, daemon=True)
thread.start()
while feed.stats().batches < 3: time.sleep(0)
"""
    )
    assert (ended.code, ended.err) == (0, "")


def test_the_interpreter_exits_with_a_function_that_hangs() -> None:
    """After the grace, and it says where the function stands."""
    ended = run(
        """
import logging; logging.basicConfig()
feed = af.items(range(9)).map(hangs, concurrency=1).open(grace=0.05)
feed.__enter__()
while "hangs" not in reached: time.sleep(0)
"""
    )
    assert ended.code == 0
    assert "in hangs" in ended.err


def test_sys_exit_in_the_consumer_keeps_its_status() -> None:
    """In either kind of loop."""
    assert run("for x in waiting: sys.exit(7)").code == 7
    assert (
        run(
            """
async def main():
    async for x in waiting: sys.exit(7)
asyncio.run(main())
"""
        ).code
        == 7
    )


def test_an_exit_in_a_stage_is_the_consumers() -> None:
    """`sys.exit()` in a function ends the program that draws, with its status."""
    ended = run("for x in af.items([1]).map(lambda x: sys.exit(5)): pass")
    assert (ended.code, ended.err) == (5, "")


def test_an_error_at_exit_is_reported_and_holds_nothing_up() -> None:
    """A source that fails when it is closed."""
    ended = run(
        """
async def bad():
    try:
        while True:
            await asyncio.sleep(0.001)
            yield 1
    finally:
        raise OSError("closing went wrong")
feed = af.items(bad).open()
next(feed)
"""
    )
    assert ended.code == 0
    assert "closing went wrong" in ended.err


# -- fork


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.parametrize("how", ["thread", "async"])
def test_a_fork_gets_an_error_and_the_parent_goes_on(how: str) -> None:
    """At the first use in the child, which can close the feed, and open one of its own."""
    start = "next(feed)" if how == "thread" else "loop.run_until_complete(anext(feed))"
    ended = run(
        f"""
loop = asyncio.new_event_loop()
feed = af.items(range(1000)).map(lambda x: x).open()
first = {start}
pid = os.fork()
if not pid:
    for use in (lambda: next(feed), lambda: asyncio.run(anext_of(feed))):
        async def anext_of(feed):
            return await anext(feed)
        try:
            use()
        except af.ClosedError as error:
            print("fork" in str(error), flush=True)
    feed.stop()
    feed.close()
    print(len(list(af.items(range(10)).map(lambda x: x))), flush=True)
    del feed
    sys.exit(0)
print(os.waitpid(pid, 0)[1], flush=True)
rest = 0
if {how == "thread"}:
    rest = sum(1 for _ in feed)
else:
    async def drain():
        return [x async for x in feed]
    rest = len(loop.run_until_complete(drain()))
    loop.run_until_complete(feed.aclose())
    loop.close()
print(rest)
"""
    )
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == ["True", "True", "10", "0", "999"]
