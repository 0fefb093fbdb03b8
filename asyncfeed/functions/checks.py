"""Checks of the options and functions of the stages that call a function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from asyncfeed.attempts.skip import Skip
from asyncfeed.errors import PipelineError


def check_policy(stage: str, concurrency: object, on_error: object, skip_limit: object) -> None:
    """Raise if the options for concurrency and failed calls are not valid."""
    if concurrency != "auto" and not _counts(concurrency):
        raise PipelineError(
            f'{stage}: concurrency must be "auto" or a whole number of at least 1, not {concurrency!r}'
        )
    if on_error != "skip" and skip_limit is not None:
        raise PipelineError(
            f'{stage}: skip_limit has no effect without on_error="skip"; add on_error or leave out skip_limit'
        )
    if on_error == "raise" or isinstance(on_error, Skip):
        return
    if on_error != "skip":
        if not callable(on_error) or isinstance(on_error, type) or is_async(on_error):
            raise PipelineError(
                f'{stage}: on_error must be "raise", "skip", Skip(...), or a sync function that says of a Failure '
                f"whether to leave the item out, not {on_error!r}"
            )
        return
    if skip_limit is None:
        raise PipelineError(
            f'{stage}: on_error="skip" needs a skip_limit: the number of items that may be left out in the whole '
            "run, as in skip_limit=10, or their share of all items, as in skip_limit=0.01"
        )
    if not _counts(skip_limit) and not (isinstance(skip_limit, float) and 0 < skip_limit < 1):
        raise PipelineError(
            f"{stage}: skip_limit must be a whole number of at least 1 or a share between 0 and 1, "
            f"not {skip_limit!r}"
        )


def check_fn(stage: str, fn: object) -> None:
    """Raise if `fn` is not a function of one item that returns one result."""
    if not callable(fn):
        raise PipelineError(f"{stage}: the function must be callable, not {fn!r}")
    yields = getattr(fn, "in_groups", fn)  # a decoder of many samples is a generator function, too
    if _is(inspect.isgeneratorfunction, yields) or _is(inspect.isasyncgenfunction, yields):
        raise PipelineError(f"{stage}: {fn!r} is a generator function; use flat_map(fn) to get what it yields")


def is_async(fn: Callable[..., Any]) -> bool:
    """Return whether a call of `fn` must be awaited, or iterated with `async for`."""
    return _is(inspect.iscoroutinefunction, fn) or _is(inspect.isasyncgenfunction, fn)


def refuse_awaitable(stage: str, result: object) -> None:
    """Raise if a function that is called on a thread returned an awaitable, which would become the item."""
    if not hasattr(type(result), "__await__"):
        return
    if isinstance(result, Coroutine):
        result.close()  # otherwise Python warns that it was never awaited
    raise TypeError(
        f"{stage} returned an awaitable ({type(result).__name__}); declare the function with `async def`, and "
        "await it there"
    )


def _is(test: Callable[[object], bool], fn: object) -> bool:
    """Apply a test to a function. For another callable object, apply it to the `__call__` of its class."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return test(fn) or (not isinstance(fn, type) and test(getattr(type(fn), "__call__", None)))  # noqa: B004


def _counts(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
