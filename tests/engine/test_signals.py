"""Handlers of signals that take a state, ask for figures, or close: whatever they interrupt, nothing waits for ever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import asyncfeed as af
from tests.engine.inside import called_while_a_state_is_taken, handoff_locked
from tests.searching import SEARCH, SEED

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
