"""Ctrl-C while the main thread waits inside TensorFlow.

Python runs its handler on the main thread, between two steps of Python code. A main thread that waits in
TensorFlow's C++ takes none, so a Ctrl-C is noted, and nothing happens until the wait ends. But as it is noted,
Python also writes a byte to `signal.set_wakeup_fd`. A thread that reads it ends the wait, with an error; Python's
own handler then raises `KeyboardInterrupt`, before the error is anybody's. Nothing here raises one of its own, so
each Ctrl-C is still exactly one.

The main thread need not wait yet when the byte is read. A `tf.function` that loops over a dataset starts runs,
takes what is ready, and waits later, all within one call. So the Ctrl-C stays pending until the main thread takes
a step of Python code. Until then each run asks `pending()` as it starts and before it waits for data.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

from asyncfeed.bridges.lost_interrupt import Recovery
from asyncfeed.engine.pump import Pump

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

THREAD = "ctrl-c-of-asyncfeed"
"""One in a process, from the first dataset on; not named as the threads of a run are, which end with it."""


class Waits(Protocol):
    """What TensorFlow may be waiting in."""

    def interrupt(self) -> None:
        """End the wait with an error, if there may be one."""


class Interrupts:
    """Ends TensorFlow's waits at Ctrl-C, where Python's own handler is in charge; one in a process."""

    def __init__(self, waits: Callable[[], Sequence[Waits]]) -> None:
        self._waits = waits
        self._sender: socket.socket | None = None
        self._recovery: Recovery | None = None
        self._unhandled: set[int] = set()
        """SIGINT, from when it is heard until the main thread takes a step of Python code."""

    def install(self) -> None:
        """Listen, where nobody else does; does nothing on any thread but the main one.

        An event loop that takes signals on the main thread listens there itself, and gives the place up as it
        closes. So this is called for each dataset.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        if self._sender is None:
            self._sender = self._begin()
        with suppress(ValueError):  # a main thread, but of another interpreter than the first
            held = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
            if held not in (-1, self._sender.fileno()):
                with suppress(OSError):  # whoever had it has closed it: then it stays ours
                    signal.set_wakeup_fd(held)

    def _begin(self) -> socket.socket:
        receiver, sender = socket.socketpair()
        sender.setblocking(False)
        self._recovery = Recovery.made()
        # A child that is forked shares the sockets: its Ctrl-C must not be taken for one of ours.
        os.register_at_fork(after_in_child=self._forked)
        Pump(THREAD, iter(partial(receiver.recv, 64), b""), self._heard, lambda _: receiver.close())
        return sender

    def pending(self) -> bool:
        """Return whether the main thread is in TensorFlow and cannot handle a Ctrl-C before it is out."""
        return bool(self._unhandled) and _main_is_in_tensorflow()

    def _heard(self, numbers: bytes) -> None:
        # A handler of the user's may let everything go on, so nothing is broken for it.
        if signal.SIGINT not in numbers or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return
        self._unhandled.add(signal.SIGINT)
        _clear_on_main(self._unhandled)
        if self._recovery is not None:
            self._recovery.expect()
        if not _main_is_in_tensorflow():
            return  # it sees the signal by itself
        for each in self._waits():
            each.interrupt()

    def _forked(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None and threading.current_thread() is threading.main_thread():
            held = signal.set_wakeup_fd(-1)
            if held not in (-1, sender.fileno()):
                signal.set_wakeup_fd(held)


def _clear_on_main(found: set[int]) -> None:
    """Have the main thread clear a set, which is never let go, before its next step of Python code.

    It handles signals before that. What it calls is C code alone: in a Python function a second Ctrl-C would be
    handled, and lost.
    """
    api = ctypes.pythonapi
    clear = ctypes.cast(api.PySet_Clear, ctypes.c_void_p)
    api.Py_AddPendingCall(clear, ctypes.c_void_p(id(found)))


def _main_is_in_tensorflow() -> bool:
    """Return whether the main thread's innermost step is one of TensorFlow's, which may wait in C++."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - the documented way
    return frame is not None and str(frame.f_globals.get("__name__", "")).startswith("tensorflow.")
