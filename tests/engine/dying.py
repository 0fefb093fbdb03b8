"""Functions and items that tests call in worker processes, and that kill those."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import signal
from functools import partial

import numpy as np

from asyncfeed.formats.base import Decoder, Row
from tests.engine.in_worker import children, gone


def _crash():
    ctypes.string_at(0)


def _kill():
    os.kill(os.getpid(), signal.SIGKILL)


WAYS_TO_DIE = {"exit": partial(os._exit, 0), "kill": _kill, "crash": _crash}


def die_once(place, how):
    """Die, unless a process has died at this place before. A file tells that."""
    try:
        os.close(os.open(place, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    WAYS_TO_DIE[how]()


@dataclasses.dataclass
class Deadly:
    """A number, and where the first worker dies that has it: while it is loaded, called, or its answer written."""

    number: int
    place: str = ""
    phase: str = ""
    how: str = "kill"

    def reach(self, phase):
        if phase == self.phase:
            die_once(self.place, self.how)

    def __setstate__(self, state):
        vars(self).update(state)
        self.reach("load")


class Answer:
    """Comes as the number and an array, unless a worker dies while it writes them."""

    def __init__(self, item, array):
        self.item, self.array = item, array

    def __reduce__(self):
        self.item.reach("answer")
        return tuple, ((self.item.number, self.array),)


def outlives(item, rng=None):
    item.reach("call")
    drawn = 0.0 if rng is None else rng.random()
    return Answer(item, np.full(20_000 if item.number % 3 else 10, item.number + drawn))


def outlives_alone(item):
    item.reach("call")
    return item.number


class DiesWhenStacked:
    """A sample of which no batch can be made: the worker dies when it asks for its array."""

    def __array__(self, dtype=None, copy=None):
        os._exit(3)


def dies_when_stacked(item):
    return DiesWhenStacked() if item == 5 else np.zeros(3)


def outlives_batch(items):
    for each in items:
        each.reach("call")
    return [each.number for each in items]


class DiesLoadingOnce:
    """The first worker that loads it dies."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return _load_at_second_try, (self.place,)

    def __call__(self, x):
        return x


def _load_at_second_try(place):
    die_once(place, "exit")
    return DiesLoadingOnce(place)


class KillsWhenSent:
    """Kills workers while the parent writes it: those of the parent that are not spared.

    They have not begun it, and get no order.
    """

    def __init__(self, number, spared, times=1):
        self.number, self.spared, self.times = number, spared, times

    def __reduce__(self):
        if self.times:
            self.times -= 1
            for pid in children() - self.spared:
                os.kill(pid, signal.SIGKILL)
                assert gone(pid)
        return int, (self.number,)


def needs_name_then_dies(item, place):
    """Ask for the name of 2, and die in the call for 4."""
    if item == 2:
        place.name()
    if item == 4:
        os._exit(3)
    return item


@dataclasses.dataclass(frozen=True)
class DiesAt(Decoder[np.ndarray]):
    """Decodes any file, and kills the worker at one of this name."""

    file: str
    name = "dies_at"

    @property
    def row(self):
        return Row((9,), np.dtype("i8"))

    def decode_into(self, buffer, file, row):
        row[:] = self.decode(buffer, file)

    def decode(self, buffer, file):
        if file.path.endswith(self.file):
            os._exit(3)
        return np.zeros(9, "i8")
