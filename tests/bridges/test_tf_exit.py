"""The interpreter exits with iterators alive: no hang, no errors on the way out."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

LIVE = """
import asyncio, builtins, os, sys, threading
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
import asyncfeed as af

way = sys.argv[1]
def dataset(): return af.items(range(100)).repeat().batch(4).to_tf(via=way)

async def never(n):
    if n >= 8:
        await asyncio.Event().wait()
    return n

held = iter(dataset())
next(held)
never_used = dataset()
if way == "queue":  # what from_generator cannot do
    builtins.held = iter(dataset())
    next(builtins.held)
    waiting = af.items(range(100)).map(never).to_tf()
    arrived = threading.Semaphore(0)
    def wait():
        for _ in waiting:
            arrived.release()
    threading.Thread(target=wait, daemon=True).start()
    for _ in range(8):
        arrived.acquire()
    failed = iter(af.items([1, 0]).map(lambda n: 1 // n).to_tf())
    next(failed)
print("the end", flush=True)
"""


@pytest.mark.parametrize("via", ["queue", "from_generator"])
def test_the_interpreter_exits_with_live_iterators(via: str) -> None:
    started = time.monotonic()
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", LIVE, via], capture_output=True, text=True, timeout=60, check=False
    )
    seconds = time.monotonic() - started
    assert done.stdout.splitlines()[-1:] == ["the end"], done.stderr
    assert done.returncode == 0, done.stderr
    if via == "queue":
        assert "Error" not in done.stderr
        assert "Exception" not in done.stderr
    assert seconds < 60


ENDING = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
import asyncfeed as af

failing = af.items([1, 0]).map(lambda n: 1 // n).to_tf()
short = af.items(range(2)).to_tf()
for _ in range(50):
    iter(short.prefetch(4))  # is dropped while it starts
assert [int(n) for n in short] == [0, 1]
held = [iter(short.repeat()) for _ in range(3)] + [iter(failing)]
for each in held:
    next(each)
print("the end", flush=True)
"""


def test_the_interpreter_exits_while_iterators_end_fail_and_start() -> None:
    """TensorFlow calls Python at these moments, and waits at exit for threads that Python would not let go on."""
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["the end"], done.stderr
    assert done.returncode == 0, done.stderr
