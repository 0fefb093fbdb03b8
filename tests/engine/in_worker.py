"""Functions that tests call in worker processes, which import this module, and helpers to watch those."""

from __future__ import annotations

import dataclasses
import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import numpy as np

import asyncfeed as af
from asyncfeed.formats.base import Decoder, Row


def same(x):
    return x


def grows(x):
    """A small result for the first hundred, then 8 MB each."""
    return np.zeros(1 if x < 100 else 1 << 20)


def large(x):
    """400 KB that tell the number."""
    return np.full(50_000, float(x))


def takes_time(x):
    """A millisecond, so that most kills come in a call."""
    time.sleep(0.001)
    return x


def large_and_slow(x):
    time.sleep(0.001)
    return large(x)


def large_until_killed(x):
    if x == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return large(x)


@dataclasses.dataclass(frozen=True)
class TellsWhere(Decoder[np.ndarray]):
    """Decodes any file into 1.0 if its row is in shared memory, and into 0.0 if it is not."""

    name = "tells_where"

    @property
    def row(self):
        return Row((30_000,), np.dtype("f8"))

    def decode_into(self, buffer, file, row):
        at = row.__array_interface__["data"][0]
        with open("/proc/self/maps") as maps:
            lines = [line.split()[0].split("-") for line in maps if "memfd:asyncfeed" in line]
        row[:] = any(int(low, 16) <= at < int(high, 16) for low, high in lines)

    def decode(self, buffer, file):
        return np.full(30_000, -1.0)


def large_of_many_kinds(x):
    """A tree of small and large arrays, some of which are one array or views of one."""
    base = np.arange(40_000.0) + x
    read_only = base + 1
    read_only.flags.writeable = False
    struct = np.zeros(9000, [("a", "i4"), ("b", "f8", 2)])
    struct["a"] = x
    return {
        "twice": (base, base),
        "views": (base[:20_000], base[10_000:], base[::2], base[::-1]),
        "fortran": np.asfortranarray(base.reshape(4, -1)),
        "transposed": base.reshape(4, -1).T,
        "read_only": read_only,
        "struct": struct,
        "field": struct["b"],
        "objects": np.array([x, None, "x"] * 4000, object),
        "nothing": np.zeros((0, 100_000)),
        "tiny": np.float32(x),
        "big_endian": np.full((50, 400), x, ">f8"),
        "time": np.full(20_000, x, "datetime64[s]"),
        "text": np.full(5000, f"é{x}"),
        "broadcast": np.broadcast_to(base[:100], (300, 100)),
        "bytes": bytes([x % 256]) * 100_000,
        "size": np.full(10_000 + 777 * (x % 9), x),
    }


def square(x):
    return x * x


def pid(_):
    return os.getpid()


def other_pid(_):
    return os.getpid()


def times(x, by):
    return x * by


class Counter:
    """Counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return self.calls


LOADED = []


class LoadsOnce:
    """Can be made again once in a process."""

    def __reduce__(self):
        return _load_once, ()

    def __call__(self, x):
        return os.getpid()


def _load_once():
    if LOADED:
        raise ValueError("loaded already")
    LOADED.append(1)
    return LoadsOnce()


def tells_and_waits(paths):
    """Write into a pipe that this is where it waits, and go on when there is something in the other."""
    if paths is not None:
        began, goes_on = paths
        with open(began, "w") as file:
            file.write(f"{os.getpid()}")
        with open(goes_on) as file:
            file.read()
    return os.getpid()


def starts_thread(_):
    threading.Thread(target=threading.Event().wait).start()
    return os.getpid()


def double(array):
    return array * 2


def in_place(array):
    array += 1
    return array


def crop(image):
    return image[2:-2, 1:-1]


KEPT: list[np.ndarray] = []


def remember(array):
    """Return what the items before this one were: a function may keep what it was given."""
    KEPT.append(array)
    return [int(each[0]) for each in KEPT]


def noisy(x, rng):
    return x, rng.random(), int(rng.integers(100))


@dataclasses.dataclass
class Sample:
    x: int
    image: np.ndarray
    words: list[str]


def sample(x):
    return Sample(x, np.full((x + 1, 700), x, np.float32), ["a"] * x)


def mixed(item):
    """Something small and something large, of every kind, made of a number."""
    x = int(item)
    return {
        "square": x * x,
        "text": "é" * x,
        "bytes": bytes([x % 256]) * 10_000,
        "array": np.arange(x, dtype=np.int16),
        "large": np.full((50, 100), x, ">f8"),
        "fortran": np.asfortranarray(np.arange(6000.0 + 2 * (x % 2)).reshape(2, -1)),
        "time": np.array([x] * 2000, "datetime64[s]"),
        "objects": np.array([x, "x", None], object),
        "struct": np.zeros(600, [("a", "i4"), ("b", "f8")]),
        "scalar": np.float32(x),
        "nested": ([x, (x,)], None),
    }


class Odd(Exception):
    """Takes more than it gives to `Exception`, so pickle cannot make it again."""

    def __init__(self, number, *, reason):
        super().__init__(f"{number} is odd: {reason}")


class Frozen(Exception):
    def __reduce__(self):
        raise TypeError("not to be pickled")


def fails(x):
    if x == 7:
        raise KeyError("seven", x)
    return x


def fails_odd(x):
    if x == 7:
        raise Odd(x, reason="why not")
    return x


def fails_unpicklable(x):
    if x == 7:
        raise Frozen("in here")
    return x


def returns_lock(x):
    return threading.Lock() if x == 7 else x


def exits(x):
    if x == 7:
        sys.exit(5)
    return x


def interrupts(x):
    if x == 7:
        raise KeyboardInterrupt
    return x


def coroutine(x):
    async def wait():
        return x

    return wait()


class Request:
    def __await__(self):
        yield


def request(x):
    return Request()


def dies(x):
    if x == 7:
        os._exit(3)
    return x


def killed(x):
    if x == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return x


def crashes(x):
    if x == 7:
        os.kill(os.getpid(), signal.SIGSEGV)
    return x


def dies_with_child(x):
    """Die, and leave a child that still holds all that this process had open."""
    if x == 7:
        if not os.fork():
            threading.Event().wait()
        os._exit(3)
    return x


def hangs(x):
    if x == 3:
        threading.Event().wait()
    return x, os.getpid()


def tells_and_hangs(x):
    """Write into the pipe that this is where it hangs."""
    with open(x, "w") as file:
        file.write(f"{os.getpid()}")
    threading.Event().wait()


def starts_child(x):
    """Wait for a program that never ends."""
    child = subprocess.Popen(["sleep", "1000"])
    with open(x, "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    child.wait()


class Unloadable:
    """Can be pickled, and not made again."""

    def __reduce__(self):
        return _refuse, ()

    def __call__(self, x):
        return x


def _refuse():
    raise ValueError("not here")


class DiesLoading(Unloadable):
    """Kills each worker that loads it, and counts them in a file."""

    def __init__(self, place=os.devnull):
        self.place = place

    def __reduce__(self):
        return _die_loading, (self.place,)


def _die_loading(place):
    with open(place, "a") as file:
        file.write("x")
    os._exit(4)


def nested(x):
    """Open a pipeline with processes of its own."""
    return list(af.items(range(x)).map(square, on="process", concurrency=1))


def gone(pid: int, seconds: float = 10.0) -> bool:
    """Wait for the end of a process, which need not be a child of this one; return whether it came."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], seconds)[0])
    finally:
        os.close(fd)


def children() -> set[int]:
    """Return the processes that this one has started."""
    found = set()
    for thread in os.listdir("/proc/self/task"):
        with suppress(FileNotFoundError), open(f"/proc/self/task/{thread}/children") as file:
            found.update(map(int, file.read().split()))
    return found


def returns_unloadable(x):
    return Unloadable() if x == 2 else x


def shout(data):
    """Decode a file, as text in capitals."""
    return data.decode().upper()


async def awaited(data):
    return data


def slow_note(path):
    """2 ms, and one more byte in the file."""
    with open(path, "ab") as file:
        file.write(b".")
    time.sleep(0.002)
    return 1


def number_and_noise(number, rng):
    return number + rng.random()
