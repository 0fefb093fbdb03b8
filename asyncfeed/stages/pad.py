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
"""The size of axis 0, or a tuple with the size of each axis. None leaves an axis to the longest sample."""


@dataclass(frozen=True)
class Pad(Node):
    """Makes arrays of different shape equal by adding `value` at the end of their axes.

    Right after `batch` or `bucket`, each axis is padded to the longest in the batch. `multiple_of` rounds that
    size up, and `to` gives another size. Anywhere else samples are padded one by one, and `to` is required. A
    number is the size of axis 0, and a tuple has the size of each axis. Sizes of axes that a leaf does not have
    are ignored. Numbers, text and bytes stay as they are. `value` is one number or text, or a tree of them with
    the structure of the sample. Unless it is text, arrays of text are padded with "", and arrays of bytes with
    b"".

    With `lengths=True` the result is a pair. The second part has the structure of the batch. Each leaf is an int64
    array of the sizes of axis 0 before padding, or None if the leaf has no axes.
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
            raise PipelineError("pad: `to` fixes the size, so `multiple_of` has no effect; give only one of them")
        check_values("pad", self.value)

    def steps(self) -> Sequence[Step]:
        """Return the step that pads single samples. It is used if no batch has absorbed this node."""
        if self.to is None or self.to == () or set(_each(self.to)) == {None}:
            raise PipelineError(
                "pad: without a batch there is no longest sample to pad to; "
                "put .pad() right after .batch() or .bucket(), or give the size: .pad(to=512)"
            )
        return [Work(PadSample(self), "thread", placed=True, inline=Fits(self), cost=self.size_of)]

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return the rule that the axes with a size in `to` are fixed."""
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
        for number, (column, value) in enumerate(zip(columns, values_of("pad", self.value, spec), strict=True)):
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
        """Return the arrays of one leaf as one array, padded to one shape."""
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

    def size_of(self, sample: Tree) -> int:
        """Return the total size in bytes of the sample's arrays after padding."""
        arrays = filter(_has_axes, flatten(sample)[0])
        return sum(prod(map(self._size, range(leaf.ndim), leaf.shape)) * leaf.itemsize for leaf in arrays)

    def shape_for(self, shapes: list[Shape], where: Where) -> Shape:
        """Return the shape to which arrays of these shapes are padded."""
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
        """Return the padded size of an axis, given its largest size before padding."""
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
        for number, (leaf, value) in enumerate(zip(leaves, values_of("pad", self.pad.value, spec), strict=True)):
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
        """Return whether the padded sample is small and has no tensor of another library to convert."""
        return self.pad.size_of(sample) <= INLINE and not any(map(is_foreign, flatten(sample)[0]))


def _each(sizes: Sizes) -> tuple[int | None, ...]:
    return sizes if isinstance(sizes, tuple) else (sizes,)


def _of_axis(sizes: Sizes, axis: int) -> int | None:
    each = _each(sizes)
    return each[axis] if axis < len(each) else None


def _has_axes(leaf: object) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.ndim > 0


def check_values(stage: str, value: object) -> None:
    """Raise if a value to fill up with is no number or text, or a tree of them."""
    for each in flatten(value)[0]:
        if np.ndim(each):
            raise PipelineError(f"{stage}: value must be one number or text for each leaf, not {each!r}")


def values_of(stage: str, value: object, spec: Spec) -> list[Any]:
    """Return the value to fill up with for each leaf, for samples of this structure."""
    values, given = flatten(value)
    if given.is_leaf():
        return values * spec.num_leaves
    if given != spec:
        raise ValueError(
            f"{stage}: value is {layout(given)}, but the samples are {layout(spec)}; "
            "give one number for all leaves, or one number for each leaf in the same structure"
        )
    return values


def fill_value(value: object, dtype: np.dtype[Any], where: Where, stage: str = "pad") -> Any:
    """Return the value in this dtype.

    Raise ValueError if a whole number would be rounded or wrapped, or text cut off.
    """
    if not value:
        return np.zeros((), dtype)[()]
    is_text = isinstance(value, (str, bytes))
    if is_text is not (dtype.kind in "US") and not (is_text and dtype.kind in "Mm"):
        raise _no_value(value, str(dtype), where, stage)
    try:
        with np.errstate(all="ignore"):
            fill = np.asarray(value).astype(dtype)[()]
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{stage}: value={value!r} cannot be converted to {dtype}, the dtype of {where.sample(0)} ({error})"
        ) from None
    if dtype.kind in "biuUS" and fill != value:
        raise _no_value(value, str(dtype), where, stage)
    return fill


def _wide_enough(value: object, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a NumPy text dtype as wide as the value needs; return other dtypes as they are."""
    if (dtype.kind == "U" and isinstance(value, str)) or (dtype.kind == "S" and isinstance(value, bytes)):
        return np.result_type(dtype, np.asarray(value))
    return dtype


def _object_value(value: object, column: Column, where: Where) -> Any:
    """Return the padding value for arrays of objects. In arrays of text or bytes, 0 becomes "" or b""."""
    if not isinstance(value, (int, float, complex, np.generic)):
        return value
    kinds = {type(each) for leaf in column for each in leaf.flat}
    text = next((text for text in (str, bytes) if all(issubclass(kind, text) for kind in kinds)), None)
    if text is not None and value:
        raise _no_value(value, text.__name__, where)
    return value if text is None else text()


def _no_value(value: object, kind: str, where: Where, stage: str = "pad") -> ValueError:
    return ValueError(
        f"{stage}: value={value!r} is not {kind}, but {where.sample(0)} is; give a value of that type, "
        "or a tree of values, one for each leaf"
    )
