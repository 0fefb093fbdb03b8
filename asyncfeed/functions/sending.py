"""Sends a function to another process: by its name, or by value.

A function of a module goes by its name, and the other process imports the module. A function that has no name
there, or is defined in a notebook or the main script, goes by value if `cloudpickle` is installed.
"""

from __future__ import annotations

import functools
import io
import pickle
import sys
from collections.abc import Callable
from importlib.util import find_spec
from types import FunctionType, MethodType
from typing import Any, Literal, NamedTuple

from asyncfeed.errors import PipelineError
from asyncfeed.functions.checks import is_async
from asyncfeed.functions.resources import refuse_in_process

On = Literal["thread", "process"]
"""Where the sync function of a stage is called."""


class Packed(NamedTuple):
    """A function as bytes."""

    data: bytes
    by_value: bool
    """Whether items and results need cloudpickle, too: their classes may have no name in the other process."""


def check_on(stage: str, on: object, fn: Callable[..., Any], sent: Callable[..., Any]) -> None:
    """Raise if `on` is wrong, or the user's `fn` cannot be called there. `sent` is what is sent to a process."""
    if on not in ("thread", "process"):
        raise PipelineError(f'{stage}: on must be "thread" or "process", not {on!r}')
    if on == "thread":
        return
    refuse_in_process(stage, fn)
    if is_async(fn):
        raise PipelineError(
            f'{stage}: {fn!r} is async and runs on the event loop; leave out on="process", which is for functions '
            "that compute"
        )
    if sys.platform == "win32":
        raise PipelineError(f'{stage}: on="process" needs a POSIX system; leave it out here')
    pack(sent, stage)


def pack(fn: Callable[..., Any], stage: str = "map") -> Packed:
    """Return `fn` as bytes that another process can load; raises `PipelineError` if it cannot be sent."""
    file = io.BytesIO()
    pickler = _ByName(file, 5)
    failed: Exception | None = None
    try:
        pickler.dump(fn)
    except Exception as error:  # noqa: BLE001 - any error means that the function cannot be sent by its name
        failed = error
    if failed is None and not pickler.of_main:
        return Packed(file.getvalue(), by_value=False)
    try:
        import cloudpickle  # type: ignore[import-untyped,import-not-found,unused-ignore]  # noqa: PLC0415
    except ImportError:
        if failed is None:
            return Packed(file.getvalue(), by_value=False)  # the other process imports the main script
        raise PipelineError(
            f"{stage}: {fn!r} cannot be sent to another process ({failed}): `pip install cloudpickle`, which "
            'sends it by value, define it at the top level of a module, or leave out on="process"'
        ) from failed
    try:
        return Packed(cloudpickle.dumps(fn, 5), by_value=True)
    except Exception as error:
        if failed is None:
            return Packed(file.getvalue(), by_value=False)
        raise PipelineError(
            f"{stage}: {fn!r} cannot be sent to another process ({error}); define it at the top level of a "
            'module, or leave out on="process"'
        ) from error


def can_send_by_value() -> bool:
    """Return whether cloudpickle is installed."""
    return find_spec("cloudpickle") is not None


def called(fn: Callable[..., Any]) -> tuple[str, str]:
    """Return the module and the name of the function that `fn` calls in the end."""
    while True:
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif isinstance(fn, MethodType):
            fn = fn.__func__
        elif type(fn).__module__.startswith("asyncfeed.") and hasattr(fn, "fn"):
            fn = fn.fn  # it draws random numbers, and calls the user's function with them
        else:
            break
    named: Any = fn if hasattr(fn, "__qualname__") else type(fn)
    return str(named.__module__), str(named.__qualname__)


class _ByName(pickle.Pickler):
    """Pickles as usual, and notes whether the function uses anything that is defined in the main script."""

    of_main = False

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, FunctionType | type) and value.__module__ == "__main__":
            self.of_main = True
        return NotImplemented
