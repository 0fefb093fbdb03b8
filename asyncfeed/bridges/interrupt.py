"""Ctrl-C while the main thread waits inside TensorFlow.

Python runs its signal handler on the main thread, between two steps of Python code. If the main thread waits in
TensorFlow's C++, it takes no such step. Then Python notes the Ctrl-C, and nothing happens until the wait ends.

When Python notes a signal, it also writes a byte to `signal.set_wakeup_fd`. A thread reads that byte and ends the
wait with an error. Python's own handler then raises `KeyboardInterrupt` before the error reaches any Python code.
This module raises no `KeyboardInterrupt` itself, so each Ctrl-C is raised exactly once.

The main thread may not wait yet when the byte is read. A `tf.function` that loops over a dataset starts runs,
takes items that are ready, and waits later, all within one call. So the Ctrl-C stays pending until the main thread
takes a step of Python code. Until then each run asks `pending()` when it starts and before it waits for data.
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
"""Name of the thread that reads the byte. There is one in a process, from the first dataset on. Its name differs
from the names of a run's threads, because it does not end with a run."""


class Waits(Protocol):
    """An iteration that TensorFlow may be waiting for."""

    def interrupt(self) -> None:
        """End the wait with an error, if there may be one."""


class Interrupts:
    """Ends TensorFlow's waits at Ctrl-C, if Python's own handler is installed. There is one in a process."""

    def __init__(self, waits: Callable[[], Sequence[Waits]]) -> None:
        self._waits = waits
        self._sender: socket.socket | None = None
        self._recovery: Recovery | None = None
        self._unhandled: set[int] = set()
        """Holds SIGINT from the time it is read until the main thread takes a step of Python code."""

    def install(self) -> None:
        """Become the reader of `set_wakeup_fd`, if it has none. Only the main thread can do this.

        An event loop that handles signals on the main thread is the reader itself, and stops being it when it
        closes. So this is called for each dataset.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        if self._sender is None:
            self._sender = self._begin()
        with suppress(ValueError):  # the main thread of another interpreter than the first
            held = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
            if held not in (-1, self._sender.fileno()):
                with suppress(OSError):  # the other reader has closed it, so this one stays
                    signal.set_wakeup_fd(held)

    def _begin(self) -> socket.socket:
        receiver, sender = socket.socketpair()
        sender.setblocking(False)
        self._recovery = Recovery.made()
        # A forked child shares the sockets. Its Ctrl-C must not be taken for one of this process.
        os.register_at_fork(after_in_child=self._forked)
        Pump(THREAD, iter(partial(receiver.recv, 64), b""), self._heard, lambda _: receiver.close())
        return sender

    def pending(self) -> bool:
        """Return whether there is a Ctrl-C that the main thread cannot handle yet, because it is in TensorFlow."""
        return bool(self._unhandled) and _main_is_in_tensorflow()

    def _heard(self, numbers: bytes) -> None:
        # With a handler of the user's, nothing is ended, because that handler may want the run to go on.
        if signal.SIGINT not in numbers or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return
        self._unhandled.add(signal.SIGINT)
        _clear_on_main(self._unhandled)
        if self._recovery is not None:
            self._recovery.expect()
        if not _main_is_in_tensorflow():
            return  # the main thread handles the signal by itself
        for each in self._waits():
            each.interrupt()

    def _forked(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None and threading.current_thread() is threading.main_thread():
            held = signal.set_wakeup_fd(-1)
            if held not in (-1, sender.fileno()):
                signal.set_wakeup_fd(held)


def _clear_on_main(found: set[int]) -> None:
    """Make the main thread clear a set before its next step of Python code. The set must never be freed.

    The main thread handles signals before that. The call is C code alone: inside a Python function a second Ctrl-C
    would be handled, and lost.
    """
    api = ctypes.pythonapi
    clear = ctypes.cast(api.PySet_Clear, ctypes.c_void_p)
    api.Py_AddPendingCall(clear, ctypes.c_void_p(id(found)))


def _main_is_in_tensorflow() -> bool:
    """Return whether the main thread's innermost step is one of TensorFlow's, which may wait in C++."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - the documented way
    return frame is not None and str(frame.f_globals.get("__name__", "")).startswith("tensorflow.")
