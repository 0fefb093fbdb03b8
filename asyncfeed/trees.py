"""Samples are trees: tuples, lists, dicts, named tuples and dataclasses of leaves.

`optree` walks the trees. Everything that is not a container is a leaf: arrays, numbers, text, files, tensors, and
`None`. A dataclass is registered with `optree` when its first instance is seen. The namespace "asyncfeed" keeps
this registration from other users of `optree`. `optree` is imported when it is first needed, because its import
took a third of the time of `import asyncfeed`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import cache
from operator import attrgetter, itemgetter
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
"""The most common types of leaves. A tree of these needs no `optree`."""
SMALL_KINDS = LEAVES - {np.ndarray, str, bytes}
"""Types of leaves that are always small, so that computing their size is not worth its time."""

NUMBER = 32
"""Bytes that a Python number is charged with."""
MANY = 16
"""Least number of dicts, or of items of a list, that are weighed together. For fewer a call for each is faster."""
Tree = Any

_nbytes = attrgetter("nbytes")
_dtype = attrgetter("dtype")


@cache
def _optree() -> Any:
    import optree  # noqa: PLC0415 - the module's docstring says why

    return optree


@cache
def leaf_spec() -> Spec:
    """Return the structure of a sample that is a single leaf."""
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
        tried |= fresh  # a type that `optree` refuses stays a leaf


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
    # In lists, because a `StopIteration` of `fn` would end an iterator in silence.
    if kind is tuple and LEAVES.issuperset(map(type, tree)):
        return tuple([fn(leaf) for leaf in tree])
    leaves, spec = flatten(tree)
    return unflatten(spec, [fn(leaf) for leaf in leaves])


def leaf_name(spec: Spec, number: int) -> str:
    """Return the expression that reaches the leaf of this number: `[0]`, `['x']`, or "" for a bare leaf."""
    return spec.accessors()[number].codify("")


def size_of(item: Tree) -> int:
    """Return the bytes that an item is charged with: its arrays and texts, and a little for the rest.

    The result depends on the item only, so the charge and the later release always agree.
    """
    kind = type(item)
    if kind in NUMBERS:
        return NUMBER
    if kind is np.ndarray:
        return _array_size(item)
    if kind is str or kind is bytes or kind is bytearray:
        return len(item)
    if kind is tuple or kind is list:
        return OBJECT + (sum(map(size_of, item)) if len(item) < MANY else total_size(item))
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
    """Return the type of a leaf whose size is unknown. Return None if the sizes of all leaves are known."""
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
        if dict in kinds and len(items) >= MANY and not any_registered() and len(set(map(len, items))) == 1:
            with suppress(KeyError):  # not all have the same keys
                columns = [list(map(itemgetter(key), items)) for key in items[0]]
                return OBJECT * len(items) + sum(map(total_size, columns))
        if str in kinds or bytes in kinds:
            return sum(map(len, items))
    return sum(map(size_of, items))


def _array_size(array: np.ndarray[Any, Any]) -> int:
    # `nbytes` of an array of objects counts only the pointers.
    return array.nbytes + (total_size(array.ravel().tolist()) if array.dtype.kind == "O" else 0)


def _register(kinds: set[type]) -> None:
    """Register these dataclasses with `optree`. A class that `object.__new__` cannot make stays a leaf."""
    library = _optree()
    for kind in kinds:
        parts = _Parts(kind)
        # optree's registry has its own lock. It raises ValueError if another thread has registered the class.
        with suppress(ValueError, TypeError):
            object.__new__(kind)  # raises TypeError if only a base class, such as dict, can make an instance
            library.register_pytree_node(
                kind,
                parts.take_apart,
                parts.put_together,
                path_entry_type=library.GetAttrEntry,
                namespace=NAMESPACE,
            )


def _is_container(kind: type) -> bool:
    """Return whether a type is a dataclass that holds parts of a sample. If it is also an array, it is a leaf."""
    return hasattr(kind, "__dataclass_fields__") and not hasattr(kind, "__array__")  # zarr's array has both


class _Static:
    """The part of a dataclass instance that is not in the tree: its field names, and its other attributes."""

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
    """Takes instances of a dataclass apart into the values of their fields, and makes instances of new values.

    `__init__` is not called, because it may check or change the values of a sample, and the new values may be
    those of a batch. Attributes that are not fields are kept: those that were set later, and those of a subclass
    that is not a dataclass. The value of a `cached_property` is not kept, because it was computed from the old
    values.
    """

    __slots__ = ("_cached", "_kind", "_known", "_names", "_slots")

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self._names = tuple(each.name for each in fields(kind))
        self._known = frozenset(self._names)
        held = [(base, name) for base in kind.__mro__ for name in _slots_of(base)]
        slots = [f"_{base.__name__.lstrip('_')}{name}" if _is_private(name) else name for base, name in held]
        self._slots = sorted(set(slots) - self._known - {"__dict__", "__weakref__"})
        # Compared by the name of the type, because other libraries have their own `cached_property`.
        defined = [each for base in kind.__mro__ for each in vars(base).items()]
        cached = {name for name, each in defined if type(each).__name__ == "cached_property"}
        self._cached = cached | {"__orig_class__"}  # set by `Generic`: it names the types of the old values

    def take_apart(self, item: Tree) -> tuple[tuple[Any, ...], _Static, tuple[str, ...]]:
        """Return the values of the fields, the other attributes, and the names of the fields."""
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
    """Return whether two objects are equal. This never raises.

    Containers are compared member by member. Arrays are equal if their dtype, shape and all values are. If a
    comparison raises or does not return a bool, as for tensors, two objects are equal only if they are identical.
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
    except Exception:  # noqa: BLE001 - a comparison calls the user's code, which may raise anything
        return False


def _is_true(answer: object) -> bool:
    return isinstance(answer, (bool, np.bool_)) and bool(answer)


def find_files(item: Any) -> list[str]:
    """Return the paths of the files in an item. Errors name the item by them, so this never raises."""
    if type(item) in LEAVES:
        return []
    if type(item).__name__ == "FileSpan":
        return [file.path for file in item]
    leaves = _optree().tree_leaves(item, none_is_leaf=True, namespace=NAMESPACE)
    return [leaf.path for leaf in leaves if type(leaf).__name__ == "File" and hasattr(leaf, "path")]
