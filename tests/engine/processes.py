"""Scripts that run in a process of their own."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import NamedTuple

PRELUDE = r"""
import asyncio, builtins, os, signal, sys, threading, time
import asyncfeed as af

signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell runs in the background ignores it
reached = set()

async def waits(x):
    if x == 3:
        reached.add("waits")
        await asyncio.Event().wait()
    return x

def hangs(x):
    reached.add("hangs")
    threading.Event().wait()

async def source():
    reached.add("source")
    try:
        for x in range(10**9):
            await asyncio.sleep(0.001)
            yield x
    finally:
        os.write(1, b"closed\n")

def plain_source():
    try:
        yield from range(10**9)
    finally:
        os.write(1, b"closed\n")

def main_draws():
    frame, names = sys._current_frames()[threading.main_thread().ident], []
    while frame:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    # Python notices a signal in a thread that waits for a lock only once the kernel has put it to sleep.
    with open(f"/proc/self/task/{threading.main_thread().native_id}/stat") as stat:
        asleep = stat.read().rpartition(")")[2].split()[0] == "S"
    return asleep and names[0] == "_wait_and_take"

def interrupt_when(condition):
    def watch():
        seen = 0
        while seen < 5:  # it may have slept for the interpreter's lock
            time.sleep(0.001)
            seen = seen + 1 if condition() else 0
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=watch, daemon=True).start()

def threads_left():
    for thread in threading.enumerate():
        if thread.name.startswith("asyncfeed"):
            thread.join(10)  # it may be just ending
    return sum(thread.name.startswith("asyncfeed") for thread in threading.enumerate())

waiting = af.items(range(9)).map(waits)
"""


class Ended(NamedTuple):
    """How a process ended."""

    code: int
    out: list[str]
    err: str


def run(script: str) -> Ended:
    """Run a script to its end."""
    # From 3.12 on Python warns of every fork beside threads; that is the situation under test.
    quiet = ["-W", "ignore:This process:DeprecationWarning"]
    command = [sys.executable, "-X", "faulthandler", *quiet, "-c", PRELUDE + script]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = process.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # faulthandler says where it hangs
        raise AssertionError("it hangs:\n" + process.communicate()[1]) from None
    return Ended(process.returncode, out.split(), err)
