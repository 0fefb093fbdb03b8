"""Handlers of signals that take a state, ask for figures, or close: whatever they interrupt, nothing waits for ever."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncfeed as af
from tests.engine.drawn import failing, pipelines
from tests.engine.drawn_sources import Ledger
from tests.engine.failing import Oops
from tests.engine.inside import called_while_a_state_is_taken, handoff_locked
from tests.engine.model import Case
from tests.searching import SEARCH, SEED, searched

PRESSES = max(100, int(100 * SEARCH))
"""How many signals come, in each way to draw."""

PROGRAM = """
import asyncio, json, os, random, signal, sys, threading, time
import asyncfeed as af

how, what, presses, seed, path = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
pipeline = af.items(range(10**9)).repeat(1).map(abs).shuffle(seed=1, buffer=3).batch(2)
options = {"path": path, "checkpoint_every": 50} if how == "saving" else {}
feed = pipeline.open(**options)
seen = []   # of each state: how many batches the program had, and the state
count = 0
pressed = 0

def handler(number, frame):
    global pressed
    pressed += 1
    if what == "state":
        before = count
        seen.append((before, feed.state_dict()))
    elif what == "stats":
        feed.stats()
        repr(feed)
    elif pressed == presses:
        feed.close()
    else:
        feed.state_dict()

signal.signal(signal.SIGUSR1, handler)

def press():
    chance = random.Random(seed)
    for _ in range(presses):
        time.sleep(chance.random() / 500)
        before = pressed
        os.kill(os.getpid(), signal.SIGUSR1)
        while pressed == before:   # two that come at once are one
            time.sleep(0.0002)
    over.set()

over = threading.Event()
threading.Thread(target=press, daemon=True).start()

def draw():
    global count
    try:
        for _ in feed:
            count += 1
            if what == "state" and count % 7 == 0:
                feed.state_dict()
            if over.is_set():
                break
    except af.ClosedError:
        assert what == "close"

async def draw_async():
    global count
    try:
        async for _ in feed:
            count += 1
            if over.is_set():
                break
        await feed.aclose()
    except af.ClosedError:
        assert what == "close"

if how == "async":
    asyncio.run(draw_async())
else:
    draw()
    feed.close()
print(json.dumps([pressed, seen[:: max(1, len(seen) // 10)]]))
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("what", ["state", "stats", "close"])
@pytest.mark.parametrize("how", ["threads", "async", "saving"])
def test_a_handler_may_look_save_and_close_at_any_moment(how: str, what: str, tmp_path: Path) -> None:
    """Also while the feed starts, and in the middle of a draw."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how, what, str(PRESSES), str(SEED), str(tmp_path / "state.json")],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    pressed, states = json.loads(done.stdout)
    assert pressed == PRESSES
    for count, state in states:
        assert_goes_on(count, state)


PIPELINE = af.items(range(10**9)).repeat(1).map(abs).shuffle(seed=1, buffer=3).batch(2)


def assert_goes_on(count: int, state: Any) -> None:
    """A state that was taken in a handler is of the batches that the program had, or of one more: the one it drew."""
    with PIPELINE.open(state=state) as feed:
        first = next(feed).tolist()
    with PIPELINE.open() as feed:
        wanted = [next(feed).tolist() for _ in range(count + 2)]
    assert first in wanted[count:]


def test_whoever_is_inside_the_queue_may_look_and_close() -> None:
    """As a handler that interrupts a draw: its thread has the lock of the queue."""
    with PIPELINE.open() as feed:
        next(feed)
        with handoff_locked(feed):
            state = feed.state_dict()
            assert feed.stats().batches == 1
            feed.close()  # it does not wait: the run may need the queue to end
        assert_goes_on(1, state)
        with pytest.raises(af.ClosedError):
            next(feed)


def test_a_handler_may_take_a_state_while_its_thread_takes_one() -> None:
    states: list[Any] = []
    feed = PIPELINE.open()
    pressed = threading.Event()

    def handler(number: int, frame: Any) -> None:
        states.append(feed.state_dict())

    def press() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        pressed.set()

    old = signal.signal(signal.SIGUSR1, handler)
    try:
        with feed:
            next(feed)
            with called_while_a_state_is_taken(feed, press):
                states.append(feed.state_dict())
            assert pressed.is_set()
            next(feed)
    finally:
        signal.signal(signal.SIGUSR1, old)
    assert len(states) == 2
    for each in states:
        assert_goes_on(1, each)


# -- whatever the pipeline


class Press(NamedTuple):
    """When a signal comes: so many seconds behind this number of items."""

    count: int
    seconds: float


presses = st.builds(Press, st.integers(0, 5) | st.integers(0, 60), st.just(0.0) | st.floats(0, 0.003))


class Pressed:
    """A run that ends when a signal comes: its handler takes a state and closes."""

    def __init__(self, pipeline: af.Pipeline[Any], state: Any, limit: int | None, press: Press | None) -> None:
        self.items: list[Any] = []
        self.bad: int | None = None
        self.saved: tuple[int, Any] | None = None
        """How many items the program had when the state was taken, and the state."""
        self._feed = pipeline.open(state=state, memory_limit=limit)
        self._press = press
        self._reached = threading.Event()

    def run(self, *, wait: bool) -> None:
        """Draw until the end, a failure or the signal. The signal comes behind the end, if the end comes first."""
        old = signal.signal(signal.SIGUSR1, self._handle)
        presser = threading.Thread(target=self._send)
        presser.start()
        try:
            self._look()
            if wait:
                asyncio.run(self._draw_later())
            else:
                self._draw()
        except af.ClosedError:
            assert self.saved is not None
        except Oops as error:
            self.bad = error.args[0]
        finally:
            self._reached.set()
            presser.join()
            signal.signal(signal.SIGUSR1, old)

    def _handle(self, number: int, frame: Any) -> None:
        self.saved = len(self.items), json.loads(json.dumps(self._feed.state_dict()))
        self._feed.close()

    def _send(self) -> None:
        self._reached.wait()
        if self._press is not None:
            time.sleep(self._press.seconds)
            os.kill(os.getpid(), signal.SIGUSR1)

    def _look(self) -> None:
        if self._press is not None and len(self.items) == self._press.count:
            self._reached.set()

    def _draw(self) -> None:
        with self._feed:
            for item in self._feed:
                self.items.append(item)
                self._look()

    async def _draw_later(self) -> None:
        async with self._feed:
            async for item in self._feed:
                self.items.append(item)
                self._look()


@searched(25)
@given(
    case=pipelines() | failing(),
    pressed=st.lists(presses, min_size=1, max_size=4),
    limit=st.sampled_from([None, 1, 1000, 100_000]),
    wait=st.booleans(),
)
def test_a_job_that_saves_and_closes_in_a_handler_goes_on_whatever_it_runs(
    case: Case, pressed: list[Press], limit: int | None, wait: bool
) -> None:
    """Nothing is lost or repeated: the state is of the items that the program had, or of one more, which it drew."""
    expected = case.run()[0]
    values, bad = expected.values, expected.bad and expected.bad.number
    state: Any = None
    begun = {0}  # where the run may have begun
    for press in [*pressed, None]:
        Ledger.begin()
        run = Pressed(case.pipeline, state, limit, press)
        run.run(wait=wait)
        assert Ledger.settled()
        begun = {start for start in begun if values[start : start + len(run.items)] == run.items}
        assert begun
        if run.bad is not None:
            assert run.bad == bad and any(start + len(run.items) == len(values) for start in begun)
        if run.saved is not None:
            count, state = run.saved
            begun = {start + count + more for start in begun for more in (0, 1)}
    assert run.bad == bad
    assert any(start + len(run.items) == len(values) for start in begun)
