"""Ctrl-C at random moments: what becomes of each, and what is left behind.

::

    python benchmarks/interrupts.py 2000     # this many interrupts, spread over all cases
    python benchmarks/interrupts.py 50 for   # only cases whose names begin so

A timer of the system raises each interrupt, so it comes between any two instructions of the main thread. An
interrupt must reach the program as `KeyboardInterrupt`, and soon after no thread of a feed may be left. The cases
`import` and `exit` take a process for each interrupt.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import gc
import json
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

import asyncfeed as af

PATIENCE = 7.0
"""Seconds after which a thread that is still there counts as left behind, and a process as hanging."""
HANGS = 30.0
"""Seconds after which a case counts as hanging: the program ends with a traceback."""
LARGE = np.zeros(1 << 16)


class Shot:
    """One interrupt."""

    fired = False
    unraisable = ""

    def __init__(self) -> None:
        signal.signal(signal.SIGALRM, self._fire)
        sys.unraisablehook = self._dropped

    def after(self, seconds: float) -> None:
        """Let it come after some seconds."""
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def _fire(self, number, frame) -> None:
        self.fired = True
        handler = signal.getsignal(signal.SIGINT)  # asyncio has one of its own while it runs
        handler(signal.SIGINT, frame)

    def _dropped(self, what) -> None:
        if isinstance(what.exc_value, KeyboardInterrupt):
            self.unraisable = f"{what.err_msg or 'dropped in'}: {what.object!r}"


def numbers() -> Iterator[int]:
    yield from range(200)


async def later(x: int) -> int:
    await asyncio.sleep(0)
    return x


def to_the_end() -> None:
    with af.items(range(400)).map(abs).batch(8).open() as feed:
        for _ in feed:
            pass


def async_stage() -> None:
    for _ in af.items(range(400)).map(later).batch(8):
        pass


def generator() -> None:
    for _ in af.items(numbers).flat_map(lambda x: [x, x]).prefetch(2):
        pass


def large_batches() -> None:
    for _ in af.items([LARGE] * 60).batch(4):
        pass


def broken_off() -> None:
    for _ in range(5):
        for _ in af.items(range(10**9)).map(abs):
            break


def opened_and_closed() -> None:
    for _ in range(5):
        with af.items(range(10**9)).open():
            pass


def a_little_memory() -> None:
    with af.items([LARGE] * 60).map(np.copy).batch(2).open(memory_limit=4 << 20) as feed:
        for _ in feed:
            pass


async def _async_for() -> None:
    async for _ in af.items(range(400)).map(later).batch(8):
        pass


async def _async_with() -> None:
    async with af.items(numbers).map(abs).open() as feed:
        async for x in feed:
            if x == 100:
                break


async def _async_broken_off() -> None:
    for _ in range(5):
        async for _ in af.items(numbers).map(later):
            break


async def _no_feed() -> None:
    async def wait() -> None:
        for _ in range(20):
            await later(0)

    await asyncio.gather(*(wait() for _ in range(20)))


CASES: dict[str, Callable[[], None]] = {
    "for: to the end": to_the_end,
    "for: async stage": async_stage,
    "for: generator": generator,
    "for: large batches": large_batches,
    "for: broken off": broken_off,
    "for: opened and closed": opened_and_closed,
    "for: a little memory": a_little_memory,
    "async for: to the end": lambda: asyncio.run(_async_for()),
    "async for: async with": lambda: asyncio.run(_async_with()),
    "async for: broken off": lambda: asyncio.run(_async_broken_off()),
    "asyncio without a feed": lambda: asyncio.run(_no_feed()),
}


def interrupt(case: Callable[[], None], seconds: float) -> str:
    """Interrupt a case after some seconds; return what became of the interrupt."""
    became = "swallowed"
    # An interrupt at the end of `asyncio.run` may leave the handler of that run, which knows nothing of this one.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.dump_traceback_later(HANGS, exit=True)
    shot = Shot()
    try:
        shot.after(seconds)
        case()
        while not shot.fired:  # it came to its end before
            time.sleep(1e-4)
    except KeyboardInterrupt:
        became = "raised"
    except BaseException as error:  # what it turned into is the finding
        where = traceback.extract_tb(error.__traceback__)[-1]
        became = f"became {type(error).__name__}: {error} in {where.filename}:{where.lineno}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
    if became != "raised" and shot.unraisable:
        became = f"swallowed, {shot.unraisable}"
    if left := left_behind():
        became += f", left {left}"
    return became


def left_behind() -> str:
    """Return the threads of feeds that have not ended after a while."""
    gc.collect()  # where the interrupt made `asyncio.run` close the loop at once, nothing else finds the feed
    until = time.monotonic() + PATIENCE
    threads = [t for t in threading.enumerate() if t.name.startswith("asyncfeed")]
    for thread in threads:
        with contextlib.suppress(RuntimeError):  # it was interrupted before it began: Python lists it all the same
            thread.join(max(0.0, until - time.monotonic()))
    return ", ".join(t.name.rpartition("-")[2] for t in threads if t.is_alive())


def in_one_process(count: int, prefix: str, choose: random.Random) -> dict[str, Counter[str]]:
    """Interrupt each case a number of times, at any moment of the time that it takes."""
    found: dict[str, Counter[str]] = {}
    cases = {name: case for name, case in CASES.items() if name.startswith(prefix)}
    for name, case in cases.items():
        seconds = []
        for _ in range(5):
            started = time.perf_counter()
            case()
            seconds.append(time.perf_counter() - started)
        left_behind()
        whole = sorted(seconds)[2] * 1.1
        found[name] = Counter(interrupt(case, choose.uniform(1e-5, whole)) for _ in range(count))
        print(f"{name}: {dict(found[name])}", flush=True)
    return found


PROGRAM = """
import sys, time
print("go", flush=True)
import asyncfeed as af
import threading
for batch in af.items(range(2000)).map(abs).batch(8):
    kept = batch
feed = af.items(range(10**9)).map(abs).open()
next(feed)
print("drawn", flush=True)
"""


def in_processes(count: int, moment: str, choose: random.Random) -> Counter[str]:
    """Interrupt a program while it imports and starts, or at its exit."""
    found: Counter[str] = Counter()
    for _ in range(count):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        process.stdout.readline()
        if moment == "exit":
            process.stdout.readline()
        time.sleep(choose.uniform(0, 0.6 if moment == "import" else 0.05))
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            found["hung"] += 1
            continue
        if process.returncode in (-signal.SIGINT, 130):
            found["raised"] += 1
        elif process.returncode == 0 and "KeyboardInterrupt" not in errors:
            found["had ended"] += 1
        elif process.returncode == 0:
            # Python itself drops what is raised in its own clean-up, and says so.
            last = [line for line in errors.splitlines() if "ignored" in line][:1]
            found[f"dropped at exit: {last}"] += 1
        else:
            found[f"exit code {process.returncode}: {errors[-200:]}"] += 1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("count", type=int, help="how many interrupts, over all cases")
    parser.add_argument("prefix", nargs="?", default="", help="only cases whose names begin so")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    choose = random.Random(arguments.seed)
    gc.collect()
    names = [name for name in (*CASES, "import", "exit") if name.startswith(arguments.prefix)]
    each = max(1, arguments.count // len(names))
    found = in_one_process(each, arguments.prefix, choose)
    for moment in ("import", "exit"):
        if moment in names:
            found[moment] = in_processes(each, moment, choose)
            print(f"{moment}: {dict(found[moment])}", flush=True)
    print(json.dumps({name: dict(counts) for name, counts in found.items()}))


if __name__ == "__main__":
    main()
