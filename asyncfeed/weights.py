"""The size in bytes of an object that is not an array, text, number or container.

No library is imported for this: an object is recognised by its methods and attributes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import prod
from typing import Any, TypeVar

from asyncfeed.errors import PipelineError

T = TypeVar("T")

OBJECT = 64
"""Bytes charged for a container in addition to its members, and for an object of unknown size."""
DEEP = 4
"""Number of levels of attributes that are searched. Without a limit, an object that refers to itself would be
searched for ever."""

_registered: dict[type, Callable[[Any], int]] = {}
_BUILT_IN = (int, float, complex, bool, str, bytes, bytearray, tuple, list, type(None))


def register_size(kind: type[T], function: Callable[[T], int]) -> None:
    """Register a function that returns the size of objects of a type in bytes, for the memory limit.

    asyncfeed knows arrays and tensors (`nbytes`), text, buffers, containers, dataclasses, images of PIL, frames of
    pandas and polars, and objects with such things as attributes. Any other object counts as 64 bytes, and a
    warning in the log names the stage and the type.

    Args:
        kind: The type. The function applies to all runs of this process, and to subclasses that have no function
            of their own. It overrides every other way to find the size.
        function: A function of an item that returns its size in bytes. It is called a few times for each item, so
            it must be quick and must not block.

    Raises:
        PipelineError: The type is one of Python's own numbers, texts, tuples and lists. Their size is known.

    Example:
        >>> class Clip:
        ...     def __init__(self, path, seconds):
        ...         self.path, self.seconds = path, seconds
        >>> register_size(Clip, lambda clip: clip.seconds * 16_000 * 2)
    """
    if not isinstance(kind, type) or not callable(function):
        raise PipelineError(f"register_size takes a type and a function, not {kind!r} and {function!r}")
    if kind in _BUILT_IN or kind is object:
        raise PipelineError(
            f"register_size: the size of {kind.__name__} is known and cannot be changed; "
            "register a class of your own"
        )
    _registered[kind] = function


def registered_size(kind: type) -> Callable[[Any], int] | None:
    """Return the function that was registered for a type or the nearest of its bases."""
    return next((_registered[each] for each in kind.__mro__ if each in _registered), None)


def any_registered() -> bool:
    """Return whether any type has a function of the user's."""
    return bool(_registered)


def ask(item: Any, size_of: Callable[[Any], int], depth: int = 0) -> int | None:
    """Return the size of an object in bytes, or None if it cannot be found. This never raises.

    `size_of` gives the sizes of the objects that it holds.
    """
    try:
        return _ask(item, size_of, depth)
    except Exception:  # noqa: BLE001 - this calls properties of the user's objects, which may raise anything
        return None


def _ask(item: Any, size_of: Callable[[Any], int], depth: int) -> int | None:
    if isinstance(item, type):
        return OBJECT
    held = getattr(item, "nbytes", None)
    if isinstance(held, int):
        return held
    if isinstance(item, set | frozenset):
        return OBJECT + sum(map(size_of, item))
    kind = type(item)
    if callable(usage := getattr(kind, "memory_usage", None)):  # pandas
        used = usage(item, deep=True)
        return int(used.sum() if hasattr(used, "sum") else used)
    if callable(estimated := getattr(kind, "estimated_size", None)):  # polars
        return int(estimated(item))
    if callable(getattr(kind, "getbands", None)):  # PIL
        width, height = item.size
        return int(width * height * len(item.getbands()) * (4 if item.mode in ("I", "F") else 1))
    shape, dtype = getattr(item, "shape", None), getattr(item, "dtype", None)
    width = getattr(dtype, "itemsize", None) or getattr(dtype, "size", None)
    if shape is not None and isinstance(width, int):
        return prod(map(int, shape)) * width
    try:
        with memoryview(item) as view:
            return view.nbytes
    except TypeError:
        pass
    attributes = list(getattr(item, "__dict__", {}).values())
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        attributes += [
            getattr(item, slot) for slot in slots if isinstance(slots, tuple | list) and hasattr(item, slot)
        ]
    if attributes and depth < DEEP:
        weights = [_member(value, size_of, depth) for value in attributes]
        if None not in weights:
            return OBJECT + sum(each for each in weights if each is not None)
    own = sys.getsizeof(item)
    return max(own, OBJECT) if own > OBJECT or kind.__module__ in sys.stdlib_module_names else None


def _member(value: Any, size_of: Callable[[Any], int], depth: int) -> int | None:
    if hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        return _ask(value, size_of, depth + 1)
    return size_of(value)
