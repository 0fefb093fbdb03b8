"""Samples are trees: tuples, lists, dicts, named tuples and dataclasses of leaves.

`optree` walks them. `None` is a leaf, and so is everything that is no container: arrays, numbers, text,
files, tensors. A dataclass becomes known to `optree` when its first instance is seen, in a namespace of our
own, so it stays what it was for everyone else. `optree` is imported when it is first needed: it was a third of
the time that `import asyncfeed` took.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from asyncfeed.weights import OBJECT, any_registered, ask, registered_size

if TYPE_CHECKING:
    import optree

    Spec: TypeAlias = optree.PyTreeSpec
else:
    Spec = Any

NAMESPACE = "asyncfeed"
NUMBERS = frozenset({int, float, bool, type(None)})
LEAVES = NUMBERS | {np.ndarray, str, bytes, complex} | {np.dtype(each).type for each in "?bBhHiIlLqQefdFD"}
"""The most common types of leaves, known without `optree`."""
SMALL_KINDS = LEAVES - {np.ndarray, str, bytes}
"""Types of leaves that are never worth weighing."""

NUMBER = 32
"""Bytes that a Python number is charged with."""
Tree = Any

_nbytes = attrgetter("nbytes")
_dtype = attrgetter("dtype")


@cache
def _optree() -> Any:
    import optree  # noqa: PLC0415 - see above

    return optree


@cache
def leaf_spec() -> Spec:
    """Return the structure of a sample that is a leaf and nothing else."""
    spec: Spec = _optree().treespec_leaf(none_is_leaf=True, namespace=NAMESPACE)
    return spec


def flatten(tree: Tree) -> tuple[list[Any], Spec]:
    """Return the leaves of a tree, and the structure that `unflatten` puts them back into."""
    if type(tree) in LEAVES:
        return [tree], leaf_spec()
    tried: set[type] = set()
    while True:
        leaves, spec = _optree().tree_flatten(tree, none_is_leaf=True, namespace=NAMESPACE)
        if LEAVES.issuperset(map(type, leaves)):
            return leaves, spec
        fresh = set(filter(_is_container, map(type, leaves))) - tried
        if not fresh:
            return leaves, spec
        _register(fresh)
        tried |= fresh  # one that `optree` refuses is a leaf


def unflatten(spec: Spec, leaves: Iterable[Any]) -> Tree:
    """Return the tree of this structure with these leaves."""
    if spec is leaf_spec():
        (leaf,) = leaves
        return leaf
    return _optree().tree_unflatten(spec, leaves)


def map_leaves(fn: Callable[[Any], Any], tree: Tree) -> Tree:
    """Return the tree with each leaf replaced by `fn(leaf)`."""
    kind = type(tree)
    if kind in LEAVES:
        return fn(tree)
    if kind is tuple and LEAVES.issuperset(map(type, tree)):
        return tuple(map(fn, tree))
    leaves, spec = flatten(tree)
    return unflatten(spec, map(fn, leaves))


def leaf_name(spec: Spec, number: int) -> str:
    """Return how the leaf of this number is reached, as in code: `[0]`, `['x']`; empty for a bare leaf."""
    return spec.accessors()[number].codify("")


def size_of(item: Tree) -> int:
    """Return how many bytes an item is charged with: its arrays and texts, and a little for the rest.

    It depends on nothing but the item, so what is charged and what is given back always agree.
    """
    kind = type(item)
    if kind in NUMBERS:
        return NUMBER
    if kind is np.ndarray:
        return _array_size(item)
    if kind is str or kind is bytes or kind is bytearray:
        return len(item)
    if kind is tuple or kind is list:
        return OBJECT + sum(map(size_of, item))
    if any_registered() and (own := registered_size(kind)) is not None:
        return own(item)
    if isinstance(item, dict):
        return OBJECT + sum(map(size_of, item.values()))
    if isinstance(item, np.ndarray):
        return _array_size(item)
    if isinstance(item, (tuple, list, deque)):
        return OBJECT + sum(map(size_of, item))
    if hasattr(kind, "__dataclass_fields__"):
        return OBJECT + sum(size_of(getattr(item, each.name)) for each in fields(item))
    held = ask(item, size_of)
    return OBJECT if held is None else held


def unweighable(item: Tree) -> type | None:
    """Return the type of something in an item whose size nothing tells; None where all is known."""
    if type(item) in LEAVES:
        return None
    for leaf in flatten(item)[0]:
        kind = type(leaf)
        known = kind in LEAVES or registered_size(kind) is not None or ask(leaf, size_of) is not None
        if not known:
            return kind
    return None


def total_size(items: Sequence[Any]) -> int:
    """Return the sum of `size_of` over the items; items of one type are summed without a call for each."""
    kinds = set(map(type, items))
    if kinds <= NUMBERS:
        return NUMBER * len(items)
    if len(kinds) == 1:
        if np.ndarray in kinds and not any(dtype.hasobject for dtype in set(map(_dtype, items))):
            return sum(map(_nbytes, items))
        if tuple in kinds and len(set(map(len, items))) == 1:
            return OBJECT * len(items) + sum(map(total_size, zip(*items, strict=True)))
        if str in kinds or bytes in kinds:
            return sum(map(len, items))
    return sum(map(size_of, items))


def _array_size(array: np.ndarray[Any, Any]) -> int:
    # An array of objects holds pointers; what they point at is what fills the memory.
    return array.nbytes + (sum(map(size_of, array.flat)) if array.dtype.kind == "O" else 0)


def _register(kinds: set[type]) -> None:
    """Make these dataclasses known to `optree`, but for those whose instances only a base of theirs can make."""
    library = _optree()
    for kind in kinds:
        parts = _Parts(kind)
        # optree's registry has a lock of its own; where another thread was faster, it raises ValueError.
        with suppress(ValueError, TypeError):
            object.__new__(kind)
            library.register_pytree_node(
                kind,
                parts.take_apart,
                parts.put_together,
                path_entry_type=library.GetAttrEntry,
                namespace=NAMESPACE,
            )


def _is_container(kind: type) -> bool:
    """Return whether a type is a dataclass whose fields are parts of a sample; one that is an array is a leaf."""
    return hasattr(kind, "__dataclass_fields__") and not hasattr(kind, "__array__")  # zarr's array is both


class _Static:
    """What of a dataclass instance is no part of the tree: the names of its fields, and what it holds beside."""

    __slots__ = ("beside", "names")

    def __init__(self, names: tuple[str, ...], beside: dict[str, Any]) -> None:
        self.names = names
        self.beside = beside

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Static):
            return NotImplemented
        return self.names == other.names and same(self.beside, other.beside)

    def __hash__(self) -> int:
        return hash(self.names)

    def __repr__(self) -> str:
        return f"{self.names} beside {', '.join(self.beside)}" if self.beside else f"{self.names}"


class _Parts:
    """Takes instances of a dataclass apart into the values of their fields, and makes others of new values.

    `__init__` is not called: it may check or change what a sample holds, and a batch holds something else. What is
    no field stays: attributes that were set later, and those of a subclass that is no dataclass itself. Only what
    a `cached_property` remembers is left out: it was computed from other values.
    """

    __slots__ = ("_cached", "_kind", "_known", "_names", "_slots")

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self._names = tuple(each.name for each in fields(kind))
        self._known = frozenset(self._names)
        held = [(base, name) for base in kind.__mro__ for name in _slots_of(base)]
        slots = [f"_{base.__name__.lstrip('_')}{name}" if _is_private(name) else name for base, name in held]
        self._slots = sorted(set(slots) - self._known - {"__dict__", "__weakref__"})
        # By the name of its type, as other libraries have such properties, too.
        defined = [each for base in kind.__mro__ for each in vars(base).items()]
        cached = {name for name, each in defined if type(each).__name__ == "cached_property"}
        self._cached = cached | {"__orig_class__"}  # of `Generic`: the types of other values

    def take_apart(self, item: Tree) -> tuple[tuple[Any, ...], _Static, tuple[str, ...]]:
        """Return the values of the fields, what else there is, and the names."""
        names = self._names
        try:
            values = tuple([getattr(item, name) for name in names])
        except AttributeError:  # a field without a default that `__init__` does not set
            names = tuple(name for name in names if hasattr(item, name))
            values = tuple([getattr(item, name) for name in names])
        held = getattr(item, "__dict__", {})
        beside = {} if held.keys() <= self._known else {key: held[key] for key in held if self._stays(key)}
        for name in self._slots:
            with suppress(AttributeError):
                beside[name] = getattr(item, name)
        return values, _Static(names, beside), names

    def put_together(self, static: _Static, values: Iterable[Any]) -> Tree:
        """Return an instance with these values."""
        item: Any = object.__new__(self._kind)
        for name, value in static.beside.items():
            object.__setattr__(item, name, value)
        for name, value in zip(static.names, values, strict=True):
            object.__setattr__(item, name, value)
        return item

    def _stays(self, name: str) -> bool:
        return name not in self._known and name not in self._cached


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _is_private(name: str) -> bool:
    return name.startswith("__") and not name.endswith("__")


PLAIN = NUMBERS | {str, bytes}


def same(one: Any, another: Any) -> bool:
    """Return whether two objects are equal, in containers too; arrays if dtype, shape and all values are.

    Never raises. Objects whose comparison raises, or returns no bool as that of a tensor, are equal only if they
    are one object.
    """
    if one is another:
        return True
    try:
        if type(one) is not type(another):
            return _is_true(one == another)
        if isinstance(one, np.ndarray):
            if one.dtype != another.dtype or one.shape != another.shape:
                return False
            if one.dtype.hasobject:
                return all(map(same, one.flat, another.flat))
            return bool(np.array_equal(one, another))
        if isinstance(one, (list, tuple, deque)):
            if PLAIN.issuperset(map(type, one)) and PLAIN.issuperset(map(type, another)):
                return bool(one == another)
            return len(one) == len(another) and all(map(same, one, another))
        if isinstance(one, dict):
            return len(one) == len(another) and all(
                key in another and same(value, another[key]) for key, value in one.items()
            )
        return _is_true(one == another)
    except Exception:  # noqa: BLE001 - a comparison is the user's code, and has no other answer than yes or no
        return False


def _is_true(answer: object) -> bool:
    return isinstance(answer, (bool, np.bool_)) and bool(answer)


def find_files(item: Any) -> list[str]:
    """Return the paths of the files in an item; to name it in an error, so it never raises for odd items."""
    if type(item) in LEAVES:
        return []
    leaves = _optree().tree_leaves(item, none_is_leaf=True, namespace=NAMESPACE)
    return [leaf.path for leaf in leaves if type(leaf).__name__ == "File" and hasattr(leaf, "path")]
