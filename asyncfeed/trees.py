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

if TYPE_CHECKING:
    import optree

    Spec: TypeAlias = optree.PyTreeSpec
else:
    Spec = Any

NAMESPACE = "asyncfeed"
NUMBERS = frozenset({int, float, bool, type(None)})
LEAVES = NUMBERS | {np.ndarray, str, bytes, complex} | {np.dtype(each).type for each in "?bBhHiIlLqQefdFD"}
"""The commonest leaves, known without asking `optree`."""
SMALL_KINDS = LEAVES - {np.ndarray, str, bytes}
"""Those that are never worth weighing."""

NUMBER = 32
"""What a Python number is charged with, in bytes."""
OBJECT = 64
"""What a container is charged with beside its members, and an object that does not tell its size."""

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
    while True:
        leaves, spec = _optree().tree_flatten(tree, none_is_leaf=True, namespace=NAMESPACE)
        if LEAVES.issuperset(map(type, leaves)) or not _register(set(map(type, leaves))):
            return leaves, spec


def unflatten(spec: Spec, leaves: Iterable[Any]) -> Tree:
    """Return the tree of this structure with these leaves."""
    if spec is leaf_spec():
        (leaf,) = leaves
        return leaf
    return _optree().tree_unflatten(spec, leaves)


def map_leaves(fn: Callable[[Any], Any], tree: Tree) -> Tree:
    """Return the tree with `fn(leaf)` in the place of each leaf."""
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
    if isinstance(item, dict):
        return OBJECT + sum(map(size_of, item.values()))
    if isinstance(item, np.ndarray):
        return _array_size(item)
    if isinstance(item, (tuple, list, deque)):
        return OBJECT + sum(map(size_of, item))
    if hasattr(kind, "__dataclass_fields__"):
        return OBJECT + sum(size_of(getattr(item, each.name)) for each in fields(item))
    held = getattr(item, "nbytes", None)
    return held if isinstance(held, int) else OBJECT


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


def _register(kinds: set[type]) -> bool:
    """Make the dataclasses among these types known to `optree`; return whether there were any."""
    library = _optree()
    # One that is an array itself (zarr's is) is a leaf.
    fresh = [kind for kind in kinds if hasattr(kind, "__dataclass_fields__") and not hasattr(kind, "__array__")]
    for kind in fresh:
        # optree's registry has a lock of its own; where another thread was faster, it raises ValueError.
        with suppress(ValueError):
            library.register_pytree_node(
                kind,
                _take_apart,
                _Rebuild(kind),
                path_entry_type=library.GetAttrEntry,
                namespace=NAMESPACE,
            )
    return bool(fresh)


def _take_apart(item: Tree) -> tuple[tuple[Any, ...], tuple[str, ...], tuple[str, ...]]:
    names = tuple(each.name for each in fields(item))
    return tuple(getattr(item, name) for name in names), names, names


class _Rebuild:
    """Makes an instance of a dataclass from the values of its fields.

    `__init__` is not called: it may check or change what a sample holds, and a batch holds something else.
    """

    __slots__ = ("kind",)

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def __call__(self, names: Any, values: Iterable[Any]) -> Tree:
        item: Any = object.__new__(self.kind)
        for name, value in zip(names, values, strict=True):
            object.__setattr__(item, name, value)
        return item


def find_files(item: Any) -> list[str]:
    """Return the paths of the files in an item; to name it in an error, so it never raises for odd items."""
    if type(item) in LEAVES:
        return []
    leaves = _optree().tree_leaves(item, none_is_leaf=True, namespace=NAMESPACE)
    return [leaf.path for leaf in leaves if type(leaf).__name__ == "File" and hasattr(leaf, "path")]
