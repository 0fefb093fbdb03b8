"""What a value of a description is known by: JSON that is equal in every process, on every machine.

The cost does not grow with the data: of a long sequence its length counts, and items at fixed places. The contents
of files, of arrays in files and of datasets are not read. An object that is not known here has its type and its
length, and the words of its `repr` if that shows no address. Words, because a set is shown in another order in
each process. Of an absolute path in it the last part counts: data may be moved.
"""

from __future__ import annotations

import re
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, MethodWrapperType, ModuleType
from typing import Any

import numpy as np

from asyncfeed.functions.resources import Given
from asyncfeed.numbered import is_mapped
from asyncfeed.reading.file import File
from asyncfeed.reading.keys import ObjectList
from asyncfeed.reading.listing import FileList
from asyncfeed.reading.reader import Store
from asyncfeed.state.counted import counted
from asyncfeed.state.functions import LAMBDA, contents

SAMPLED = 1024
"""Number of items of a sequence that count. With more, a change is found more often, and it takes longer: 1 us
for a number, 10 us for a small dict."""
SAMPLED_WITHIN = 32
"""The same for sequences within an item."""
MAX_VALUES = 20_000
"""Number of values that count in one field, so that deep trees take 20 ms at most."""
MAX_DEPTH = 16
"""Containers within containers. What is deeper does not count."""
MAX_CHARACTERS = 4096
"""Length of a text, or a piece of bytes, that counts whole. Of a longer one both ends count."""
_SIMPLE = frozenset({int, float, bool, str, bytes, type(None)})
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,}")
_FOLDERS = re.compile(r"(?<![\w.:/])/(?:[^\s'\"<>()/]+/)*")


class Describer:
    """Describes the values of one field.

    Args:
        inputs: The inputs of a source. They have parts of their own.
    """

    def __init__(self, inputs: Iterable[object] = ()) -> None:
        self._inputs = frozenset(map(id, inputs))
        self._left = MAX_VALUES
        self._depth = 0

    def describe(self, value: Any) -> Any:
        """Return JSON that says what a value is."""
        self._left -= 1
        if self._left < 0 or self._depth > MAX_DEPTH:
            return "..."
        if id(value) in self._inputs:
            return ["input"]
        depth = self._depth
        try:
            return self._known(value)
        except Exception:  # noqa: BLE001 - an object of the user's, which may do anything when it is asked
            return ["object", type(value).__qualname__]
        finally:
            self._depth = depth

    def _known(self, value: Any) -> Any:
        for kinds, leaf in LEAVES:
            if isinstance(value, kinds):
                return leaf(value)
        known_by = next((each for kinds, each in TREES if isinstance(value, kinds)), _object)
        self._depth += 1
        return known_by(self, value)

    def describe_all(self, values: Sequence[Any], *, ordered: bool = True) -> list[Any]:
        """Describe some values. Each may use a share of what is left, so that the last one counts, too.

        If they are `ordered`, a value may also use what those before it have left over.
        """
        found = []
        left, share = self._left, self._left // max(len(values), 1)
        for number, value in enumerate(values):
            self._left = share = left // (len(values) - number) if ordered else share
            found.append(self.describe(value))
            left -= share - max(self._left, 0)
        self._left = left
        return found

    @property
    def most(self) -> int:
        """How many members of the container that is described count."""
        return SAMPLED if self._depth == 1 else SAMPLED_WITHIN


# -- numbers and texts


def _int(value: int) -> Any:
    return int(value) if abs(value) < 2**63 else ["int", hex(value)]


def _scalar(own: Describer, value: np.generic) -> Any:
    number = value.item()
    return str(value) if isinstance(number, np.generic) else own.describe(number)


def _range(value: range) -> Any:
    return ["range", *(_int(each) for each in (value.start, value.stop, value.step))]


def _text(value: str) -> Any:
    if len(value) <= MAX_CHARACTERS:
        return str(value)
    ends = value[: MAX_CHARACTERS // 2] + value[-MAX_CHARACTERS // 2 :]
    return ["text", len(value), digest(ends.encode("utf-8", "surrogatepass"))]


def _bytes(value: bytes | bytearray | memoryview) -> Any:
    held = memoryview(value).cast("B") if memoryview(value).contiguous else memoryview(bytes(value))
    ends = held if len(held) <= MAX_CHARACTERS else [*held[: MAX_CHARACTERS // 2], *held[-MAX_CHARACTERS // 2 :]]
    return ["bytes", len(held), digest(bytes(ends))]


# -- containers


def _sequence(own: Describer, value: Sequence[Any]) -> Any:
    picked = [value[place] for place in sampled(len(value), own.most)]
    return ["list", len(value), own.describe_all(picked)]


def _view(own: Describer, value: Any) -> Any:
    return _sequence(own, list(value))


def _buffer(own: Describer, value: array[Any]) -> Any:
    return _array(own, np.asarray(value))


def _set(own: Describer, value: Iterable[Any]) -> Any:
    members = list(value)
    if len(members) > own.most or not all(type(each) in _SIMPLE for each in members):
        return ["set", len(members)]  # its members come in another order in each process
    return ["set", len(members), sorted(map(repr, members))]


def _mapping(own: Describer, value: Mapping[Any, Any]) -> Any:
    pairs = list(islice(value.items(), own.most))
    return ["dict", len(value), sorted(own.describe_all(pairs, ordered=False), key=repr)]


def _array(own: Describer, value: np.ndarray[Any, Any]) -> Any:
    dtype = value.dtype
    found = ["array", list(value.shape), dtype.descr if dtype.names else dtype.str]
    if is_mapped(value) or not value.size:  # the disk would be read here, by the thread of a loop
        return found
    picked = value[np.unravel_index(sampled(value.size, SAMPLED), value.shape)] if value.ndim else value.copy()
    if dtype.hasobject:
        return [*found, own.describe(picked.tolist())]
    return [*found, digest(picked.tobytes())]


def _files(value: FileList | ObjectList) -> Any:
    return ["files", len(value), value.digest()]


def _file(value: File) -> Any:
    return ["file", value.path.rpartition("/")[2], value.size, value.etag]


def _path(value: PurePath) -> Any:
    return ["path", value.name if value.is_absolute() else value.as_posix()]


# -- functions


def _given(own: Describer, value: Given) -> Any:
    return own.describe(value.fn)


def _function(own: Describer, value: FunctionType) -> Any:
    if value.__name__ != LAMBDA:
        return ["function", value.__qualname__]
    defaults = [list(value.__defaults__ or ()), value.__kwdefaults__ or {}]
    return ["lambda", contents(value.__code__), own.describe(defaults)]


def _method(own: Describer, value: Any) -> Any:
    owner = value.__self__
    if owner is None or isinstance(owner, ModuleType):
        return ["function", value.__qualname__]
    return ["method", value.__qualname__, own.describe(owner)]


def _partial(own: Describer, value: partial[Any]) -> Any:
    return ["partial", *(own.describe(each) for each in (value.func, value.args, value.keywords))]


# -- objects


def _type(value: type) -> Any:
    return ["type", value.__qualname__]


def _enum(value: Enum) -> Any:
    return ["enum", type(value).__qualname__, value.name]


def _dtype(value: np.dtype[Any]) -> Any:
    return ["dtype", value.descr if value.names else value.str]


def _object(own: Describer, value: Any) -> Any:
    kind = type(value)
    if hasattr(kind, "only_tunes"):  # a stage, as a part of another one
        return ["stage", value.method, own.describe(value.deciding())]
    if hasattr(kind, "__dataclass_fields__"):
        return ["object", kind.__qualname__, own.describe(counted(value))]
    with suppress(Exception):  # a tensor, or an array in a file
        return ["array", [int(size) for size in value.shape], str(value.dtype)]
    name = _ask(lambda: value.__qualname__)  # of generators, and of what wraps a function
    if isinstance(name, str):
        inner = _ask(lambda: value.__wrapped__)
        return ["function", own.describe(inner) if name.endswith(LAMBDA) else name]
    return ["object", kind.__qualname__, _ask(lambda: len(value)), _words(value)]


def _ask(question: Callable[[], Any]) -> Any:
    """Return the answer of an object of the user's. Return None if it raises."""
    with suppress(Exception):
        return question()
    return None


def _words(value: Any) -> Any:
    """Return the words of an object's repr, sorted. Return None if it differs from process to process."""
    if getattr(type(value), "__repr__", None) is object.__repr__:
        return None
    text = _ask(lambda: repr(value))
    if type(text) is not str or len(text) > 1 << 16 or _ADDRESS.search(text):
        return None
    return digest("\0".join(sorted(re.findall(r"[\w.+-]+", _FOLDERS.sub("", text)))).encode("utf-8", "replace"))


def sampled(count: int, most: int) -> Sequence[int]:
    """Return at most this many of `count` places: the first, the last, and some at equal distances.

    >>> sampled(3, 5), sampled(100, 5)
    (range(0, 3), [0, 24, 49, 74, 99])
    """
    return range(count) if count <= most else [number * (count - 1) // (most - 1) for number in range(most)]


def digest(data: bytes) -> str:
    """Return 16 hexadecimal digits that stand for some bytes."""
    return sha256(data).hexdigest()[:16]


LEAVES: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    ((bool, type(None)), lambda value: value),
    (Enum, _enum),
    (int, _int),
    (float, float),
    (str, _text),
    ((bytes, bytearray, memoryview), _bytes),
    (range, _range),
    (type, _type),
    (File, _file),
    ((FileList, ObjectList), _files),
    (Store, lambda _: ["store"]),  # data may be moved to another one
    (PurePath, _path),
    (np.dtype, _dtype),
)
"""How values without members are described. The first kind that fits counts."""
TREES: tuple[tuple[Any, Callable[[Describer, Any], Any]], ...] = (
    ((list, tuple), _sequence),
    (np.ndarray, _array),
    (Mapping, _mapping),
    (array, _buffer),
    (np.generic, _scalar),
    ((deque, type({}.items()), type({}.values()), type({}.keys())), _view),
    ((set, frozenset), _set),
    (FunctionType, _function),
    ((MethodType, BuiltinFunctionType, MethodWrapperType), _method),
    (partial, _partial),
    (Given, _given),
)
"""How other values are described. What is of none of these kinds is an object."""
