"""Samples as bytes: arrays, numbers, text and bytes, in tuples, lists and dicts, without pickle.

::

    8 bytes     the length of the text
    the text    JSON: what the sample is made of, and where its arrays are
    the arrays  each from a multiple of 64 bytes on, as they lie in memory
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from asyncfeed.reading.file import Bytes

ALIGNED = 64
"""Arrays begin at a multiple of this number of bytes, so that they can be used where they are."""
PLAIN = frozenset({type(None), bool, int, float, str})
KINDS = frozenset("biufcmMSUV")
"""The kinds of dtypes whose bytes are the values."""


def pack(sample: object) -> list[memoryview]:
    """Return the bytes of a sample, in parts.

    Raises `TypeError` if the sample holds something else.

    >>> unpack(np.frombuffer(b"".join(pack({"x": (1, np.arange(2)), "y": "text"})), np.uint8))
    {'x': (1, array([0, 1])), 'y': 'text'}
    """
    parts: list[memoryview] = []
    text = json.dumps(_Packer(parts).describe(sample)).encode()
    head = len(text).to_bytes(8, "little") + text
    return [memoryview(head + bytes(-len(head) % ALIGNED)), *parts]


def unpack(data: Bytes) -> Any:
    """Return the sample. Its arrays are views of `data`. Raises `ValueError` if the bytes are not right."""
    start = 8 + int.from_bytes(data[:8].tobytes(), "little")
    try:
        return _Unpacker(data[start + -start % ALIGNED :]).make(json.loads(data[8:start].tobytes().decode()))
    except (
        TypeError,
        KeyError,
        IndexError,
        OverflowError,
        SystemError,
    ) as error:  # the last: no Unicode character
        raise ValueError(str(error)) from None


class Unkept(Exception):
    """A thing cannot be described now, and this is no error."""


def described(item: object, other: Callable[[Any], list[Any] | None]) -> tuple[str, list[memoryview]]:
    """Return a text and bytes that only an equal item has.

    `other` describes things that cannot be kept, such as files. It returns None for what it does not know.
    """
    parts: list[memoryview] = []
    return json.dumps(_Packer(parts, other).describe(item)), parts


class _Packer:
    def __init__(self, parts: list[memoryview], other: Callable[[Any], list[Any] | None] | None = None) -> None:
        self._parts = parts
        self._at = 0
        self._other = other

    def describe(self, thing: Any) -> list[Any]:
        """Return what a thing is made of, as JSON, and add its bytes to the parts."""
        kind = type(thing)
        if kind in PLAIN:
            return ["plain", thing]
        if kind is tuple or kind is list:
            return [kind.__name__, list(map(self.describe, thing))]
        if kind is dict and PLAIN.issuperset(map(type, thing)):
            return ["dict", list(thing), list(map(self.describe, thing.values()))]
        if kind is bytes:
            return ["bytes", len(thing), self._add(thing)]
        if (kind is np.ndarray or isinstance(thing, np.generic)) and _is_kept(thing.dtype):
            array = np.asarray(thing)
            order: Literal["C", "F"] = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
            flat = array.reshape(-1, order=order)
            what = "array" if kind is np.ndarray else "scalar"
            dtype = np.lib.format.dtype_to_descr(array.dtype)
            return [what, dtype, array.shape, order, self._add(flat.view(np.uint8).data if flat.nbytes else b"")]
        if self._other is not None:
            known = self._other(thing)
            if known is None:
                raise TypeError(f"This one has a {kind.__name__}")
            return known
        raise TypeError(
            f"cache keeps arrays, numbers, text and bytes, in tuples, lists and dicts, and not {kind.__name__}: "
            "let the function before it return those, or put cache before load, where it keeps files"
        )

    def _add(self, data: memoryview | bytes) -> int:
        """Add bytes, and return where they begin."""
        start, gap = self._at, -len(data) % ALIGNED
        self._parts += [memoryview(data), memoryview(bytes(gap))]
        self._at += len(data) + gap
        return start


class _Unpacker:
    def __init__(self, data: Bytes) -> None:
        self._data = data

    def make(self, described: list[Any]) -> Any:
        """Return what `describe` was given."""
        match described:
            case ["plain", thing]:
                return thing
            case ["tuple", things]:
                return tuple(map(self.make, things))
            case ["list", things]:
                return list(map(self.make, things))
            case ["dict", keys, things]:
                return dict(zip(keys, map(self.make, things), strict=True))
            case ["bytes", size, at]:
                return self._data[at : at + size].tobytes()
            case ["array" | "scalar" as what, dtype, shape, order, at]:
                made: np.ndarray[Any, Any] = np.ndarray(
                    shape, np.lib.format.descr_to_dtype(_as_tuples(dtype)), self._data.data, at, order=order
                )
                return made if what == "array" else made[()]
        raise ValueError(f"a sample holds no {described!r:.40}")


def _is_kept(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in KINDS and not dtype.hasobject


def _as_tuples(descr: Any) -> Any:
    """Return the description of a dtype with the tuples that JSON has made lists of."""
    return descr if isinstance(descr, str) else [tuple(map(_inner, each)) for each in descr]


def _inner(part: Any) -> Any:
    """Return one part of the description of a field: its name, its dtype, or its shape."""
    if not isinstance(part, list) or (part and isinstance(part[0], list)):
        return part if not isinstance(part, list) else _as_tuples(part)
    return tuple(part)
