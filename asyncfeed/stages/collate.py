"""Collate: a list of samples becomes one tree of arrays with a new first axis.

Nothing is guessed and nothing converted: samples of one structure, one dtype and one shape are stacked, and
anything else is an error that names the two samples and what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from asyncfeed.stages.aligned import aligned_empty
from asyncfeed.stages.base import Place, Work
from asyncfeed.stages.pool import Pool
from asyncfeed.trees import LEAVES, Spec, Tree, flatten, leaf_name, size_of, total_size, unflatten

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from asyncfeed.stages.aligned import Empty

Name = Callable[[int], str]
"""Says what the sample of this number is called."""
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

_dtype = attrgetter("dtype")
_shape = attrgetter("shape")


class Padding(Protocol):
    """What stacks ragged columns: the node `Pad`."""

    def stack(self, columns: Sequence[Column], spec: Spec, name: Name, empty: Empty) -> Tree:
        """Return the batch of these columns."""
        ...

    def size_of(self, sample: Tree) -> int:
        """Return how many bytes the arrays of this sample take when they are padded."""
        ...


def collate(samples: Sequence[Tree], name: Name, pad: Padding | None = None, empty: Empty = aligned_empty) -> Tree:
    """Return one tree of arrays that holds these samples along a new first axis.

    Arrays and numpy scalars keep their dtype; Python's bool, int, float and complex become bool, int64,
    float64 and complex128; text, bytes and any other object become an array of the very objects. The arrays
    are new, writable, and start at a multiple of 64 bytes; `empty` makes them.

    Raises ValueError where the samples differ in structure, dtype or, without `pad`, in shape.
    """
    columns, spec = transpose(samples, name)
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
        """Return the sample's name, with the way to the leaf where the sample is a tree."""
        path = leaf_name(self._spec, self._number)
        return f"{self._name(member)} at {path}" if path else self._name(member)


def transpose(samples: Sequence[Tree], name: Name) -> tuple[list[Column], Spec]:
    """Return, for each leaf, what it is in each sample; and the structure that all samples have."""
    first = samples[0]
    leaves, spec = flatten(first)
    if len(set(map(type, samples))) == 1:
        if type(first) in LEAVES:
            return [samples], spec
        columns = _flat_columns(samples, first)
        if columns is not None and all(LEAVES.issuperset(map(type, column)) for column in columns):
            return columns, spec
    rows = [leaves]
    for number, sample in enumerate(samples[1:], 1):
        leaves, other = flatten(sample)
        if other != spec:
            raise ValueError(
                f"samples of different structure cannot make a batch: {name(0)} is {layout(spec)}, "
                f"{name(number)} is {layout(other)}; give them one structure with .map() before the batch"
            )
        rows.append(leaves)
    return list(zip(*rows, strict=True)), spec


def stack(column: Column, where: Where, empty: Empty = aligned_empty) -> NDArray[Any]:
    """Return the leaves of one column as one array."""
    kinds = set(map(type, column))
    if kinds == {np.ndarray}:
        dtypes, shapes = set(map(_dtype, column)), set(map(_shape, column))
        if len(dtypes) == len(shapes) == 1:
            return join_arrays(column, shapes.pop(), dtypes.pop(), empty)
    elif len(kinds) == 1 and (scalar := SCALARS.get(kinds.pop())):
        return _join_scalars(column, scalar, where)
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


def join_arrays(column: Column, shape: tuple[int, ...], dtype: np.dtype[Any], empty: Empty) -> NDArray[Any]:
    """Return arrays that all have this shape and dtype as one array."""
    out = empty((len(column), *shape), dtype)
    if shape:
        np.concatenate(column, out=out.reshape((len(column) * shape[0], *shape[1:])))
    else:
        for number, leaf in enumerate(column):
            out[number] = leaf[()]
    return out


def common_dtype(column: Column, where: Where) -> np.dtype[Any]:
    """Return the dtype that all leaves of a column have; that of objects for what is no number or array."""
    if set(map(type, column)) == {np.ndarray} and len(set(map(_dtype, column))) == 1:
        dtype: np.dtype[Any] = column[0].dtype
        return dtype
    dtypes = list(map(_dtype_of, column))
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
        return np.fromiter(column, OBJECT, len(column))
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
    """Return the columns of samples of one type, where no walk is needed; in the order of `flatten`."""
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


def _dtype_of(leaf: Any) -> np.dtype[Any]:
    if isinstance(leaf, (str, bytes)):
        return OBJECT
    if isinstance(leaf, (np.ndarray, np.generic)):
        return leaf.dtype
    return SCALARS.get(type(leaf), OBJECT)


def _show(leaf: Any) -> str:
    dtype = _dtype_of(leaf)
    return f"dtype {dtype}" if dtype != OBJECT else f"an object of type {type(leaf).__name__}"


@dataclass(frozen=True, slots=True)
class Collate:
    """Makes a batch of a list of samples, as the function of a `Work`."""

    pad: Padding | None = None
    pool: Pool = field(default_factory=Pool, compare=False)

    def work(self) -> Work:
        """Return the work: on a thread, or on the loop where there is little to copy."""
        return Work(self, "thread", placed=True, inline=self.fits, cost=self.size_of)

    def __call__(self, samples: list[Tree], place: Place) -> Tree:
        """Return the batch; messages name its members as `place` does."""
        return collate(samples, place.name, self.pad, self.pool.empty)

    def size_of(self, samples: list[Tree]) -> int:
        """Return how many bytes the batch needs: about that where it is padded."""
        if self.pad is None:
            return total_size(samples)
        return len(samples) * max(self.pad.size_of(samples[0]), *map(size_of, samples))

    def fits(self, samples: list[Tree]) -> bool:
        """Return whether the loop may do this batch."""
        return self.size_of(samples) <= INLINE
