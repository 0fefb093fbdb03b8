"""A Ctrl-C that pybind11 would lose on Python 3.11.

If TensorFlow's C++ raises while a Ctrl-C is pending, Python handles the Ctrl-C at the next step of Python code.
This step is inside the constructor of the exception. On Python 3.11 pybind11 then finds another exception than it
made. It raises `RuntimeError: MISMATCH of ... exception types ... REPLACED BY KeyboardInterrupt` in its place.
Later versions of Python construct exceptions before pybind11 checks them.

So the signal is sent once more if it was lost. Python runs a pending call on the main thread after it has handled
signals. This call sees that the `RuntimeError` is being handled, and sends the signal. The `KeyboardInterrupt` is
then raised one step later. If an `except` clause catches the `RuntimeError`, that may be inside its block.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from typing import Self

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
        """Return a recovery if this version of Python needs one, else None."""
        return None if sys.version_info >= (3, 12) else cls()

    def expect(self) -> None:
        """Check for a lost interrupt as soon as the main thread runs Python code. Any thread may call this."""
        self._add(self._look_address, None)

    def _look(self, _: object) -> int:
        error = sys.exc_info()[1]
        if type(error) is RuntimeError and LOST in str(error):
            # An exception raised here would be lost, too. So the signal is sent after this call has ended.
            self._add(self._trip_address, int(signal.SIGINT))
        return 0
