"""Checks of the argument of `items`. If it is not a source of items, the error says what to write instead."""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncIterable, Awaitable, Coroutine, Iterable, Mapping
from typing import Any

from asyncfeed.errors import PipelineError, note
from asyncfeed.numbered import is_sequence

ONE = (str, bytes, bytearray, os.PathLike)
"""Types whose objects are one item each: text and bytes, which could be iterated, and paths."""


def check_source(data: Any) -> None:
    """Raise `PipelineError` if `data` is not a source of items."""
    fix = _refused(data)
    if fix is None and callable(data) and not isinstance(data, Iterable | AsyncIterable):
        fix = _uncallable(data)
    if fix is None and not (is_sequence(data) or callable(data) or isinstance(data, Iterable | AsyncIterable)):
        fix = f"needs an iterable, an async iterable, or a function returning one, not {data!r}{_missing(data)}"
    if fix is not None:
        raise PipelineError(f"items: {fix}")


def _refused(data: Any) -> str | None:
    """Return the error text for an object that only looks like a source; None for every other object."""
    name = type(data).__name__
    if isinstance(data, ONE):
        paths = isinstance(data, str | os.PathLike)
        more = "; files(...) reads the files that a path or a pattern names" if paths else ""
        return f"{name} is one object, not many; wrap it in a list{more}"
    if isinstance(data, Mapping):
        return "a mapping has keys, values and pairs; say which: items(data.items())"
    if hasattr(data, "iloc"):
        return (
            f"{name} of pandas finds rows by label: write items(frame.to_dict('records')) or "
            "items(series.to_numpy())"
        )
    if isinstance(data, Awaitable) and not isinstance(data, AsyncIterable):
        if isinstance(data, Coroutine):
            data.close()  # otherwise Python warns that it was never awaited
        made = data if isinstance(data, Coroutine) else getattr(data, "get_coro", lambda: None)()
        function = getattr(made, "__name__", "function")
        return (
            f"{name} is one awaitable result; give the async function itself: items({function}), or "
            f"items(lambda: {function}(...))"
        )
    if getattr(data, "shape", None) == ():
        return "an array without axes is one sample: items([array])"
    if isinstance(data, type) and hasattr(data, "__getitem__") and not hasattr(data, "__iter__"):
        return f"{data.__name__} is a class: give one of its objects, items({data.__name__}(...))"
    return None


def _uncallable(fn: Any) -> str | None:
    """Return the error text for a function that cannot be called without arguments; None for other functions."""
    if hasattr(fn, "__signature__"):
        return None  # it is the signature of another function, and `fn` may pass arguments of its own to it
    try:
        signature = inspect.signature(fn, follow_wrapped=False)
    except (ValueError, TypeError):
        return None  # a function in C without a signature
    try:
        signature.bind()
    except TypeError as error:
        name = getattr(fn, "__name__", "function")
        name = "function" if name == "<lambda>" else name
        return f"{name} is called without arguments ({error}): write items(lambda: {name}(...))"
    return None


def _missing(data: object) -> str:
    """Return what an object lacks to be a source, as the end of the error text."""
    kind = type(data)
    name = kind.__name__
    if isinstance(data, int):
        return f": items(range({data})) counts"
    if hasattr(kind, "__getitem__"):
        return f": {name} has [number] but no length: give it a __len__{_failing_length(data)}"
    for step, start, a in (("__next__", "__iter__", "a"), ("__anext__", "__aiter__", "an")):
        if hasattr(kind, step):
            return f": {name} has {a} {step} but no {start}: add {start}, which may return self"
    return ""


def _failing_length(data: Any) -> str:
    if not hasattr(data, "__len__"):
        return ""
    try:
        len(data)
    except (TypeError, NotImplementedError) as error:
        return f" (its own __len__ raised {type(error).__name__}: {error})"
    return ""


def explain_missing(error: BaseException, data: Any, number: int) -> None:
    """Add a note with the likely cause to an error of `data[number]`, for a number below the length."""
    name = type(data).__name__
    if isinstance(error, IndexError):
        note(
            error,
            f"asyncfeed: len() says that this {name} has {len(data)} items, so an IndexError is a failure and not "
            "the end",
        )
    elif isinstance(error, KeyError) and error.args == (number,) and callable(getattr(data, "keys", None)):
        note(
            error,
            f"asyncfeed: this {name} has a length, so it was asked for [0], [1] and so on; if its items are found "
            "by key, write items(data.items()) or items(data.values())",
        )
