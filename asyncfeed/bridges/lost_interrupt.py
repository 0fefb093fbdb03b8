"""A Ctrl-C that TensorFlow would lose on Python 3.11.

A Ctrl-C that is pending when TensorFlow's C++ raises is handled at the first step of Python code after that:
inside the constructor of the exception. On Python 3.11 pybind11 then finds another exception than it made, and
raises `RuntimeError: MISMATCH of ... exception types ... REPLACED BY KeyboardInterrupt` in place of it. Later
versions construct exceptions before pybind11 looks. There are two such places, mended in two ways:

* An operation raises TensorFlow's `_NotOkStatusException`. It gets a subclass whose constructor is C code, so that
  the signal is handled after it.
* A function (`fit` runs one) raises a public error. There the signal is sent once more, if it was lost: a pending
  call, which Python makes on the main thread after it has handled signals, sees the `RuntimeError` being handled.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from functools import cached_property
from typing import Any, Self

LOST = "REPLACED BY KeyboardInterrupt"


class Recovery:
    """Raises a `KeyboardInterrupt` that was lost, at the first step of Python code after that."""

    def __init__(self) -> None:
        api = ctypes.pythonapi
        self._add = api.Py_AddPendingCall
        self._add.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        # Both must live as long as Python may call them: as long as the process.
        self._call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._look)
        self._look_address = ctypes.cast(self._call, ctypes.c_void_p)
        self._trip_address = ctypes.cast(api.PyErr_SetInterruptEx, ctypes.c_void_p)

    @classmethod
    def made(cls) -> Self | None:
        """Return one where it is needed, and possible: TensorFlow's part of it is not public."""
        if sys.version_info >= (3, 12) or not _construct_in_c():
            return None
        return cls()

    def expect(self) -> None:
        """Look, as soon as the main thread runs Python code, whether an interrupt was lost; from any thread."""
        self._add(self._look_address, None)

    def _look(self, _: object) -> int:
        error = sys.exc_info()[1]
        if type(error) is RuntimeError and LOST in str(error):
            # Not from here: what is raised here is lost, too. This is done when this call is over.
            self._add(self._trip_address, int(signal.SIGINT))
        return 0


def _construct_in_c() -> bool:
    """Let TensorFlow construct what operations raise without a step of Python code; return whether it can be."""
    try:
        from tensorflow.python import pywrap_tfe
        from tensorflow.python.eager import core

        base: Any = core._NotOkStatusException  # noqa: SLF001 - the class is not public, nor is the next function
        register = pywrap_tfe.TFE_Py_RegisterExceptionClass
    except (ImportError, AttributeError):
        return False

    class NotOkStatus(base):  # type: ignore[misc]
        """An operation's error, constructed of its message, code and payloads."""

        __init__ = Exception.__init__
        # As attributes, TensorFlow sets one; but found only when they are asked for.
        message = cached_property(lambda self: self.args[0])
        code = cached_property(lambda self: self.args[1])
        payloads = cached_property(lambda self: self.args[2])

    register(NotOkStatus)
    return True
