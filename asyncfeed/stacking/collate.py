"""Collate: a list of samples becomes one tree of arrays with a new first axis.

Nothing is guessed: samples of one structure, one dtype and one shape are stacked, and anything else is an error
that names the two samples and what to do. Tensors of other libraries are stacked as the arrays they offer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from asyncfeed.stacking.aligned import aligned_empty
from asyncfeed.stacking.foreign import to_known
from asyncfeed.trees import LEAVES, Spec, Tree, flatten, leaf_name, unflatten

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from asyncfeed.stacking.aligned import Empty

Name = Callable[[int], str]
"""Returns the name of the sample of this number."""
Column = Sequence[Any]
"""The same leaf of each sample."""

INLINE = 64 * 1024
"""Bytes that the loop itself may copy."""
OBJECT = np.dtype(object)
SCALARS: dict[type, np.dtype[Any]] = {
    bool: np.dtype(np.bool_),
    int: np.dtype(np.int64),
    float: np.dtype(np.float64),
    complex: np.dtype(np.complex128),
}

READY = LEAVES - {type(None)}
"""Types of leaves that are stacked as they are."""

_dtype = attrgetter("dtype")
_shape = attrgetter("shape")


class Padding(Protocol):
    """The node `Pad`, which stacks ragged columns."""

    def stack(self, columns: Sequence[Column], spec: Spec, name: Name, empty: Empty) -> Tree:
        """Return the batch of these columns."""
        ...

    def size_of(self, sample: Tree) -> int:
        """Return how many bytes the arrays of this sample take when they are padded."""
        ...


def collate(
    samples: Sequence[Tree],
    name: Name,
    pad: Padding | None = None,
    empty: Empty = aligned_empty,
    made_by: object = None,
) -> Tree:
    """Return one tree of arrays with these samples along a new first axis.

    Arrays, numpy scalars and the tensors of other libraries keep their dtype; Python's bool, int, float and
    complex become bool, int64, float64 and complex128; text and bytes become an array of objects, and numpy's
    text of several widths one of the widest. A leaf that is None in all samples stays None. The arrays are new,
    writable, and start at a multiple of 64 bytes; `empty` makes them.

    Raises ValueError if the samples differ in structure, dtype or, without `pad`, in shape; if a leaf is None in
    some of them only, or is an object that makes no array; and if a sample is None, as `made_by` returned it.
    """
    columns, spec = transpose(samples, name, made_by)
    if pad is not None:
        return pad.stack(columns, spec, name, empty)
    arrays = [stack(column, Where(spec, number, name), empty) for number, column in enumerate(columns)]
    return unflatten(spec, arrays)


class Where:
    """Which leaf a column holds, for messages."""

    __slots__ = ("_name", "_number", "_spec")

    def __init__(self, spec: Spec, number: int, name: Name) -> None:
        self._spec = spec
        self._number = number
        self._name = name

    def sample(self, member: int) -> str:
        """Return the sample's name, with the path to the leaf if the sample is a tree."""
        path = leaf_name(self._spec, self._number)
        return f"{self._name(member)} at {path}" if path else self._name(member)


def transpose(
    samples: Sequence[Tree], name: Name, made_by: object = None, known: frozenset[object] = LEAVES
) -> tuple[list[Column], Spec]:
    """Return the values of each leaf in all samples, and the common structure of the samples.

    Types that are `known` to be leaves are not looked into.
    """
    first = samples[0]
    kinds = set(map(type, samples))
    if type(None) in kinds:
        raise _no_sample(samples, name, made_by)
    leaves, spec = flatten(first)
    if len(kinds) == 1:
        if type(first) in LEAVES:
            return [samples], spec
        columns = _flat_columns(samples, first)
        if columns is not None and all(known.issuperset(map(type, column)) for column in columns):
            return columns, spec
    rows = [leaves]
    for number, sample in enumerate(samples[1:], 1):
        leaves, other = flatten(sample)
        if other != spec:
            fix = "give them one structure with .map() before the batch"
            if " beside " in layout(other):  # attributes that are no fields: neither stacked nor all kept
                fix += ", and make fields of what differs beside the fields"
            raise ValueError(
                f"samples of different structure cannot make a batch: {name(0)} is {layout(spec)}, "
                f"{name(number)} is {layout(other)}; {fix}"
            )
        rows.append(leaves)
    return list(zip(*rows, strict=True)), spec


def stack(column: Column, where: Where, empty: Empty = aligned_empty) -> NDArray[Any] | None:
    """Return the leaves of one column as one array; None if all of them are None."""
    kinds = set(map(type, column))
    if kinds == {np.ndarray}:
        dtypes, shapes = set(map(_dtype, column)), set(map(_shape, column))
        if len(dtypes) == len(shapes) == 1:
            return join_arrays(column, shapes.pop(), dtypes.pop(), empty)
    elif len(kinds) == 1 and (scalar := SCALARS.get(kinds.pop())):
        return _join_scalars(column, scalar, where)
    column = ready(column, where)
    if column[0] is None:
        return None
    dtype = common_dtype(column, where)
    shape = np.shape(column[0]) if isinstance(column[0], np.ndarray) else ()
    for number, leaf in enumerate(column):
        other = leaf.shape if isinstance(leaf, np.ndarray) else ()
        if other != shape:
            raise ValueError(
                f"samples of different shape cannot make a batch: {where.sample(0)} has {shape}, "
                f"{where.sample(number)} has {other}; add .pad(value=...) after the batch"
            )
    return join_arrays(column, shape, dtype, empty) if shape else _join_scalars(column, dtype, where)


def ready(column: Column, where: Where) -> Column:
    """Return the leaves of one column as numbers, text and arrays, or all as None.

    Raises ValueError for objects that make no array, and if some leaves are None and others are not.
    """
    kinds = set(map(type, column))
    if kinds <= READY or kinds == {type(None)}:
        return column
    if type(None) in kinds:
        without = next(number for number, leaf in enumerate(column) if leaf is None)
        other = next(number for number, leaf in enumerate(column) if leaf is not None)
        raise ValueError(
            f"samples with None and without cannot make a batch: {where.sample(without)} is None, "
            f"{where.sample(other)} has {_show(column[other])}; put a value in its place with .map() before"
        )
    return [
        leaf if type(leaf) in READY else to_known(leaf, partial(where.sample, number))
        for number, leaf in enumerate(column)
    ]


def join_arrays(column: Column, shape: tuple[int, ...], dtype: np.dtype[Any], empty: Empty) -> NDArray[Any]:
    """Return arrays that all have this shape and dtype as one array."""
    out = empty((len(column), *shape), dtype)
    if shape:
        np.concatenate(column, out=out.reshape((len(column) * shape[0], *shape[1:])))
    else:
        for number, leaf in enumerate(column):
            out[number : number + 1] = leaf  # as bytes: as an object of Python it might not exist
    return out


def common_dtype(column: Column, where: Where) -> np.dtype[Any]:
    """Return the dtype that all leaves of a column have: that of objects for text, the widest of numpy's text."""
    if set(map(type, column)) == {np.ndarray} and len(set(map(_dtype, column))) == 1:
        dtype: np.dtype[Any] = column[0].dtype
        return dtype
    dtypes = list(map(_dtype_of, column))
    if {dtype.kind for dtype in dtypes} in ({"U"}, {"S"}):
        return np.result_type(*set(dtypes))
    for number, other in enumerate(dtypes):
        if other != dtypes[0]:
            raise ValueError(
                f"samples of different type cannot make a batch: {where.sample(0)} has {_show(column[0])}, "
                f"{where.sample(number)} has {_show(column[number])}; convert one with .map() before"
            )
    return dtypes[0]


def _join_scalars(column: Column, dtype: np.dtype[Any], where: Where) -> NDArray[Any]:
    if dtype == OBJECT:
        # An assignment would look into objects that have a length.
        bare = (leaf[()] if isinstance(leaf, np.ndarray) else leaf for leaf in column)
        return np.fromiter(bare, OBJECT, len(column))
    out = aligned_empty((len(column),), dtype)
    try:
        out[:] = list(column)
    except OverflowError:
        number = next(i for i, leaf in enumerate(column) if not -(2**63) <= leaf < 2**63)
        raise ValueError(
            f"{where.sample(number)} is {column[number]}, more than int64 holds; "
            "make it a numpy scalar of a wider dtype, or a str, with .map() before the batch"
        ) from None
    return out


def _flat_columns(samples: Sequence[Tree], first: Tree) -> list[Column] | None:
    """Return the columns of samples of one simple type without a tree walk, in the order of `flatten`."""
    kind = type(first)
    if (kind is not tuple and kind is not dict) or len(set(map(len, samples))) > 1:
        return None
    if kind is tuple:
        return list(zip(*samples, strict=True))
    if len(first) < 2 or any(sample.keys() != first.keys() for sample in samples):
        return None
    keys = flatten(first)[1].entries()
    return list(zip(*map(itemgetter(*keys), samples), strict=True))


def layout(spec: Spec) -> str:
    """Return a structure as text: `(*, *)`, where each leaf is a star."""
    return "a single value" if spec.is_leaf() else str(spec)[len("PyTreeSpec(") :].split(", NoneIsLeaf")[0]


def _no_sample(samples: Sequence[Tree], name: Name, made_by: object) -> ValueError:
    number = next(number for number, sample in enumerate(samples) if sample is None)
    other = next((f" ({name(at)} is not)" for at, sample in enumerate(samples) if sample is not None), "")
    cause = "of which no batch can be made" if made_by is None else f"as {made_by} returned it"
    hint = "" if made_by is None else "if its function lacks a `return`, add it; "
    return ValueError(
        f"{name(number)} is None{other}, {cause}: {hint}to leave such items out, add "
        ".filter(lambda item: item is not None) before the batch"
    )


def _dtype_of(leaf: Any) -> np.dtype[Any]:
    if isinstance(leaf, (str, bytes)):
        return OBJECT
    if isinstance(leaf, (np.ndarray, np.generic)):
        return leaf.dtype
    # A subclass of a number, as an `IntEnum`, is that number. A bool is an int, too, but comes first.
    return next((dtype for kind, dtype in SCALARS.items() if isinstance(leaf, kind)), OBJECT)


def _show(leaf: Any) -> str:
    dtype = _dtype_of(leaf)
    return f"dtype {dtype}" if dtype != OBJECT else f"an object of type {type(leaf).__name__}"
