"""Ctrl-C while the main thread waits in TensorFlow.

Python raises `KeyboardInterrupt` when the main thread comes back to it, and a wait in C++ may never come back. So
a thread hears of the signal too, and ends what is waited for.

That alone would let out a `RuntimeError`: Python raises as soon as the main thread runs any Python, which is while
TensorFlow makes the exception that says how the wait ended, and it cannot make it then. So the main thread is
asked to raise `KeyboardInterrupt` a second time, and does so on its way out of TensorFlow. On a busy machine that
was seen to come late a few times: the `RuntimeError`, which names `KeyboardInterrupt`, comes first.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from asyncfeed.engine.pump import Pump

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType


ask = ctypes.pythonapi.PyThreadState_SetAsyncExc
CTRL_C = "Ctrl-C while the main thread waited in TensorFlow"
LOOK = b"\0"
"""What is no signal's number."""


class Interrupts:
    """Calls `end` at each Ctrl-C that finds the main thread in code of the folder `within`.

    Only where Ctrl-C raises `KeyboardInterrupt` there: a handler of the user's own may want the data to go on. The
    way to hear of signals is one in a process (`signal.set_wakeup_fd`); whoever else has it, an event loop say,
    keeps it. The thread that listens ends when nothing is `wanted` any more.
    """

    def __init__(self, within: str, end: Callable[[], None], wanted: Callable[[], bool]) -> None:
        self._within = os.path.join(within, "")  # noqa: PTH118 - compared with names of files, as text
        self._end = end
        self._wanted = wanted
        self._ear, self._mouth = socket.socketpair()
        self._mouth.setblocking(False)
        self._lock = threading.Lock()
        self._listening = False
        self._asked: FrameType | None = None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def listen(self) -> None:
        """Hear of signals from here on, if this is the main thread, and nobody else does."""
        if threading.current_thread() is not threading.main_thread():
            return
        with self._lock:
            if not self._listening:
                self._listening = True
                self._forget_old()
                Pump("asyncfeed-tf-signals", self._heard(), self._react, lambda _: None)
        with suppress(ValueError):  # a second interpreter has no signals
            before = signal.set_wakeup_fd(self._mouth.fileno(), warn_on_full_buffer=False)
            if before not in (-1, self._mouth.fileno()):
                signal.set_wakeup_fd(before)

    def look(self) -> None:
        """Look again whether anything is wanted; takes no lock, as finalizers must not."""
        with suppress(BlockingIOError):  # full: what it is full of is looked at
            self._mouth.send(LOOK)

    def pending(self) -> bool:
        """Return whether the main thread has yet to come back after Ctrl-C: it must not wait for a new run."""
        if self._asked is not None and self._asked is not _main_frame():
            self._asked = None
        return self._asked is not None

    def _forget_old(self) -> None:
        """Forget the signals that came while nobody listened."""
        self._ear.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                self._ear.recv(4096)
        self._ear.setblocking(True)

    def _heard(self) -> Iterator[int]:
        while True:
            yield from self._ear.recv(64)
            with self._lock:
                if not self._wanted():
                    self._listening = False
                    return

    def _forked(self) -> None:
        """Leave the parent's ear alone."""
        with suppress(ValueError):
            before = signal.set_wakeup_fd(-1)
            if before not in (-1, self._mouth.fileno()):
                signal.set_wakeup_fd(before)

    def _react(self, number: int) -> None:
        # Python knows the second request by its thread alone, so it is only made while that waits in TensorFlow.
        if number == signal.SIGINT and signal.getsignal(number) is signal.default_int_handler and self._ask():
            self._end()

    def _ask(self) -> bool:
        """Ask for `KeyboardInterrupt` where the main thread is in TensorFlow; elsewhere Python needs no help."""
        frame = _main_frame()
        if frame is None or not frame.f_code.co_filename.startswith(self._within):
            return False
        self._asked = frame
        ask(ctypes.c_ulong(threading.main_thread().ident or 0), ctypes.py_object(KeyboardInterrupt))
        return True


def _main_frame() -> FrameType | None:
    """Return where the main thread stands."""
    return sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - documented, for this
