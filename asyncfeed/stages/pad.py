"""Pad: ragged samples become arrays of one shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from asyncfeed.axes import Axes, PaddedTo
from asyncfeed.errors import PipelineError
from asyncfeed.stacking.aligned import aligned_empty
from asyncfeed.stacking.collate import INLINE, Column, Name, Where, common_dtype, join_arrays, layout, ready, stack
from asyncfeed.stacking.foreign import is_foreign, to_array
from asyncfeed.stages.base import Node, Source, check_count
from asyncfeed.stages.steps import Place, Step, Work
from asyncfeed.trees import Spec, Tree, flatten, unflatten

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from asyncfeed.stacking.aligned import Empty

Shape = tuple[int, ...]
Sizes = int | tuple[int | None, ...] | None
"""The size of axis 0, or of each axis, None where it is free."""


@dataclass(frozen=True)
class Pad(Node):
    """Makes arrays of different shape equal by adding `value` at the end of their axes.

    Right after `batch` or `bucket`, each axis grows to the longest in the batch. `multiple_of` rounds that size
    up, and `to` gives another size. Anywhere else there is no longest, and `to` is required. A number is for axis
    0, a tuple for one axis after the other. Axes that a leaf does not have are ignored. Numbers, text and bytes
    stay as they are. `value` is one number or text, or a tree of them like the sample. If it is no text, arrays of
    text are padded with "" (b"" if they are bytes).

    With `lengths=True` the result is a pair: the batch, and the same structure with an int64 array of the sizes
    that axis 0 had before, or None for a leaf without axes.
    """

    value: Any = 0
    to: Sizes = None
    multiple_of: Sizes = None
    lengths: bool = False

    method: ClassVar[str] = "pad"
    pads: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name, least in (("to", 0), ("multiple_of", 1)):
            sizes = getattr(self, name)
            if isinstance(sizes, list):
                object.__setattr__(self, name, tuple(sizes))
            for size in sizes if isinstance(sizes, (list, tuple)) else [sizes]:
                if size is not None:
                    check_count("pad", name, size, least)
        if self.to is not None and self.multiple_of is not None:
            raise PipelineError("pad: `to` leaves nothing for `multiple_of` to round; give one of them")
        for value in flatten(self.value)[0]:
            if np.ndim(value):
                raise PipelineError(f"pad: value must be one number or text for each leaf, not {value!r}")

    def steps(self) -> Sequence[Step]:
        """Return the step that pads single samples. It is used if no batch has absorbed this node."""
        if self.to is None or self.to == () or set(_each(self.to)) == {None}:
            raise PipelineError(
                "pad: a sample alone has no longest to be padded to; "
                "put .pad() right after .batch() or .bucket(), or give the size: .pad(to=512)"
            )
        return [Work(PadSample(self), "thread", placed=True, inline=Fits(self), cost=self.size_of)]

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return the axes whose size is given."""
        return PaddedTo(_each(self.to))

    def after(self, source: Source, stages: Sequence[Node]) -> Node:
        """Return this stage. Raise if it follows no batch and has no size to pad to."""
        if not (stages and stages[-1].absorb(self)):
            self.steps()
        return self

    def length(self, upstream: int) -> int:
        """Return `upstream`: as many items come out as go in."""
        return upstream

    def stack(self, columns: Sequence[Column], spec: Spec, name: Name, empty: Empty = aligned_empty) -> Tree:
        """Return the padded batch of these columns, with the true lengths if they are asked for."""
        batch: list[NDArray[Any] | None] = []
        lengths: list[NDArray[np.int64] | None] = []
        for number, (column, value) in enumerate(zip(columns, self.values(spec), strict=True)):
            where = Where(spec, number, name)
            column = ready(column, where)
            if any(map(_has_axes, column)):
                batch.append(self.stack_column(column, value, where, empty))
                lengths.append(np.fromiter(map(len, column), np.int64, len(column)))
            else:
                batch.append(stack(column, where, empty))
                lengths.append(None)
        tree = unflatten(spec, batch)
        return (tree, unflatten(spec, lengths)) if self.lengths else tree

    def stack_column(
        self, column: Column, value: object, where: Where, empty: Empty = aligned_empty
    ) -> NDArray[Any]:
        """Return arrays of the same leaf as one array, padded to one shape."""
        dtype = common_dtype(column, where)
        shapes = list(map(np.shape, column))
        shape = self.shape_for(shapes, where)
        if set(shapes) == {shape}:
            return join_arrays(column, shape, dtype, empty)
        if dtype.kind == "O":
            fill = _object_value(value, column, where)
        else:
            dtype = _wide_enough(value, dtype)
            fill = fill_value(value, dtype, where)
        out = empty((len(column), *shape), dtype)
        for row, leaf in zip(out, column, strict=True):
            if leaf.shape[1:] == shape[1:]:
                row[: len(leaf)] = leaf
                row[len(leaf) :] = fill
            else:
                row[...] = fill
                row[tuple(map(slice, leaf.shape))] = leaf
        return out

    def values(self, spec: Spec) -> list[Any]:
        """Return the value for each leaf of samples of this structure."""
        values, given = flatten(self.value)
        if given.is_leaf():
            return values * spec.num_leaves
        if given != spec:
            raise ValueError(
                f"pad: value is {layout(given)}, but the samples are {layout(spec)}; "
                "give one number for all leaves, or one for each in the same structure"
            )
        return values

    def size_of(self, sample: Tree) -> int:
        """Return how many bytes the arrays of this sample take when they are padded."""
        arrays = filter(_has_axes, flatten(sample)[0])
        return sum(prod(map(self._size, range(leaf.ndim), leaf.shape)) * leaf.itemsize for leaf in arrays)

    def shape_for(self, shapes: list[Shape], where: Where) -> Shape:
        """Return the shape that these are padded to."""
        for member, shape in enumerate(shapes):
            if len(shape) != len(shapes[0]):
                raise ValueError(
                    f"pad: samples must have the same number of axes: {where.sample(0)} has shape "
                    f"{shapes[0]}, {where.sample(member)} has {shape}; reshape one with .map() before"
                )
        longest = tuple(map(max, zip(*shapes, strict=True)))
        target = tuple(map(self._size, range(len(longest)), longest))
        for axis, (size, most) in enumerate(zip(target, longest, strict=True)):
            if most > size:
                member = next(i for i, shape in enumerate(shapes) if shape[axis] > size)
                raise ValueError(
                    f"pad: {where.sample(member)} measures {shapes[member][axis]} along axis {axis}, more "
                    f"than to={self.to}; give a larger `to`, or cut the sample with .map() before"
                )
        return target

    def _size(self, axis: int, longest: int) -> int:
        """Return the padded size of an axis, given the largest size before."""
        fixed, step = _of_axis(self.to, axis), _of_axis(self.multiple_of, axis)
        return fixed if fixed is not None else longest if step is None else -(-longest // step) * step


@dataclass(frozen=True, slots=True)
class PadSample:
    """Pads one sample."""

    pad: Pad

    def __call__(self, sample: Tree, place: Place) -> Tree:
        """Return the sample with each of its arrays padded."""
        leaves, spec = flatten(sample)
        padded: list[Any] = []
        lengths: list[np.int64 | None] = []
        for number, (leaf, value) in enumerate(zip(leaves, self.pad.values(spec), strict=True)):
            where = Where(spec, number, lambda _: place.name())
            if is_foreign(leaf):
                leaf = to_array(leaf, partial(where.sample, 0))
            padded.append(self.pad.stack_column([leaf], value, where)[0] if _has_axes(leaf) else leaf)
            lengths.append(np.int64(len(leaf)) if _has_axes(leaf) else None)
        tree = unflatten(spec, padded)
        if not self.pad.lengths:
            return tree
        return tree, unflatten(spec, lengths)


@dataclass(frozen=True, slots=True)
class Fits:
    """Says whether the loop may pad a sample because it is small."""

    pad: Pad

    def __call__(self, sample: Tree) -> bool:
        """Return whether the padded sample is small, and no tensor of another library has to be converted."""
        return self.pad.size_of(sample) <= INLINE and not any(map(is_foreign, flatten(sample)[0]))


def _each(sizes: Sizes) -> tuple[int | None, ...]:
    return sizes if isinstance(sizes, tuple) else (sizes,)


def _of_axis(sizes: Sizes, axis: int) -> int | None:
    each = _each(sizes)
    return each[axis] if axis < len(each) else None


def _has_axes(leaf: object) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.ndim > 0


def fill_value(value: object, dtype: np.dtype[Any], where: Where) -> Any:
    """Return the value in this dtype. No whole number is rounded or wrapped, and no text is cut off."""
    if not value:
        return np.zeros((), dtype)[()]
    is_text = isinstance(value, (str, bytes))
    if is_text is not (dtype.kind in "US") and not (is_text and dtype.kind in "Mm"):
        raise _no_value(value, str(dtype), where)
    try:
        with np.errstate(all="ignore"):
            fill = np.asarray(value).astype(dtype)[()]
    except (TypeError, ValueError) as error:
        raise ValueError(f"pad: value={value!r} is no {dtype}, as {where.sample(0)} is ({error})") from None
    if dtype.kind in "biuUS" and fill != value:
        raise _no_value(value, str(dtype), where)
    return fill


def _wide_enough(value: object, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a NumPy text dtype as wide as the value needs; return other dtypes as they are."""
    if (dtype.kind == "U" and isinstance(value, str)) or (dtype.kind == "S" and isinstance(value, bytes)):
        return np.result_type(dtype, np.asarray(value))
    return dtype


def _object_value(value: object, column: Column, where: Where) -> Any:
    """Return what arrays of objects are padded with: the value, but no number in text, where 0 means no text."""
    if not isinstance(value, (int, float, complex, np.generic)):
        return value
    kinds = {type(each) for leaf in column for each in leaf.flat}
    text = next((text for text in (str, bytes) if all(issubclass(kind, text) for kind in kinds)), None)
    if text is not None and value:
        raise _no_value(value, text.__name__, where)
    return value if text is None else text()


def _no_value(value: object, kind: str, where: Where) -> ValueError:
    return ValueError(
        f"pad: value={value!r} is no {kind}, as {where.sample(0)} is; give a value of that type, "
        "or a tree of values, one for each leaf"
    )
