"""The elements of a queue: their components, dtypes and shapes, and how elements become a batch.

An element is a tuple of NumPy arrays, one for each dtype. Only `stacked` copies the arrays, when it makes a batch.
A component is also copied if it has to be cast or is not an array.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from asyncfeed.queues.stores import Element

Array: TypeAlias = npt.NDArray[Any]
Shape: TypeAlias = tuple[int | None, ...]

STRING: np.dtype[Any] = np.dtype(object)
# Names that NumPy does not know, or reads as another dtype than TensorFlow.
NAMED = {"float": np.float32, float: np.float32, "string": object, "str": object, "bytes": object}
NAMED |= {str: object, bytes: object}


# -- constructor arguments


def as_dtypes(dtypes: Any) -> list[np.dtype[Any]]:
    """Return one or several dtypes as a list. A dtype may be NumPy's, TensorFlow's, or a name.

    "float" means float32, as in TensorFlow. Strings (`tf.string`, "string", `object`, `bytes`, `str`) become bytes
    in arrays of dtype object.
    """
    several = list(dtypes) if isinstance(dtypes, list | tuple) else [dtypes]
    return [_as_dtype(dtype) for dtype in several]


def _as_dtype(dtype: Any) -> np.dtype[Any]:
    dtype = getattr(dtype, "as_numpy_dtype", dtype)
    if dtype is None:
        raise TypeError('a dtype is None: give each component a dtype, as in dtypes=["float32", "int64"]')
    found = np.dtype(NAMED.get(dtype, dtype) if isinstance(dtype, str | type) else dtype)
    return STRING if found.kind in "SUO" else found


def as_shapes(shapes: Any) -> list[Shape] | None:
    """Return one or several shapes as a list. Return None if there are none.

    A shape is a tuple, a `tf.TensorShape`, or an int for a vector. A size of None varies between elements.
    """
    if shapes is None:
        return None
    if hasattr(shapes, "as_list"):
        return [_as_shape(shapes)]
    if not isinstance(shapes, list | tuple):
        raise TypeError(f"shapes must be a list with a shape for each dtype, not {type(shapes).__name__}")
    if all(size is None or isinstance(size, int) for size in shapes):  # one shape, not a list of shapes
        return [_as_shape(shapes)]
    return [_as_shape(shape) for shape in shapes]


def _as_shape(shape: Any) -> Shape:
    if shape is None or getattr(shape, "rank", 0) is None:
        raise ValueError("a shape is unknown: give it a size or None for each dimension, as in (None, 40)")
    if hasattr(shape, "as_list"):
        shape = shape.as_list()
    if isinstance(shape, int):
        shape = (shape,)
    return tuple(None if size is None else operator.index(size) for size in shape)


# -- elements


class Elements:
    """Converts between the values that users pass and the elements of one queue. It checks every value."""

    def __init__(
        self, dtypes: list[np.dtype[Any]], shapes: list[Shape] | None, names: Any, *, priority: bool = False
    ) -> None:
        self.dtypes = dtypes
        self.shapes = shapes
        self.names: list[str] | None = None
        if not dtypes:
            raise ValueError("a queue needs at least one dtype")
        if shapes is not None and len(shapes) != len(dtypes):
            raise ValueError(f"give a shape for each of the {len(dtypes)} components, not {len(shapes)} shapes")
        if names is not None:
            self.names = [names] if isinstance(names, str) else list(names)
            if len(self.names) != len(dtypes):
                raise ValueError(f"give a name for each of the {len(dtypes)} components, not {self.names}")
        checked: list[Shape | None] = [None] * len(dtypes) if shapes is None else list(shapes)
        if priority:
            checked[0] = ()
        labels = map(str, range(len(dtypes))) if self.names is None else map(repr, self.names)
        self._components = list(zip(labels, dtypes, checked, strict=True))
        # A fast path for the most common case: one array of the right dtype and shape.
        self._single = len(dtypes) == 1 and self.names is None and dtypes[0] is not STRING
        self._dtype, self._shape = dtypes[0], checked[0]

    def one(self, value: Any) -> Element:
        """Return a user's value as an element. Raise `ValueError` or `TypeError` if it does not fit."""
        if (
            self._single
            and type(value) is np.ndarray
            and value.dtype == self._dtype
            and (self._shape is None or value.shape == self._shape)
        ):
            return (value,)
        element = tuple(
            as_array(part, dtype, name)
            for part, (name, dtype, _) in zip(self._parts(value), self._components, strict=True)
        )
        for array, (name, _, shape) in zip(element, self._components, strict=True):
            _check_shape(array.shape, shape, name)
        return element

    def many(self, value: Any) -> list[Element]:
        """Return the elements of a batch: slices of each component along its first axis, as views."""
        arrays = [
            as_array(part, dtype, name)
            for part, (name, dtype, _) in zip(self._parts(value), self._components, strict=True)
        ]
        for array, (name, _, shape) in zip(arrays, self._components, strict=True):
            if not array.ndim:
                raise ValueError(
                    f"component {name} is a scalar: enqueue_many slices along the first axis; use enqueue for one "
                    "element"
                )
            _check_shape(array.shape[1:], shape, name)
        lengths = {len(array) for array in arrays}
        if len(lengths) > 1:
            raise ValueError(
                f"the first axes of the components have the lengths {[len(a) for a in arrays]}; they must be equal"
            )
        return [tuple([array[row, ...] for array in arrays]) for row in range(lengths.pop())]

    def _parts(self, value: Any) -> Sequence[Any]:
        """Return the components of a value. Raise `ValueError` if their number or names are wrong."""
        if self.names is not None:
            if not isinstance(value, Mapping):
                raise ValueError(f"this queue has names: enqueue a dict with the keys {self.names}")
            if set(value) != set(self.names):
                raise ValueError(f"the keys {list(value)} are not the queue's names {self.names}")
            return [value[name] for name in self.names]
        if isinstance(value, Mapping):
            raise ValueError("this queue has no names: enqueue a tuple, or pass `names` to the constructor")
        parts: Sequence[Any] = value if isinstance(value, list | tuple) else [value]
        if len(parts) != len(self.dtypes):
            raise ValueError(
                f"{len(parts)} components were given and {len(self.dtypes)} are needed. A list or tuple is read "
                "as the list of components: to enqueue a list as one component, wrap it in another list"
            )
        return parts

    def shown(self, element: Element) -> Any:
        """Return an element as users get it: a dict if the queue has names, or a bare array for one component."""
        if self.names is not None:
            return dict(zip(self.names, element, strict=True))
        return element[0] if len(element) == 1 else element

    def check_stackable(self) -> None:
        """Raise `ValueError` if the shapes are unknown, so that elements cannot become a batch."""
        if self.shapes is None:
            raise ValueError(
                "dequeue_many and dequeue_up_to need the shapes of the components: "
                "pass `shapes` to the constructor"
            )

    def stacked(self, elements: Sequence[Element]) -> Any:
        """Return elements as one batch, a copy. Axes that vary are padded with zeros (b"" for strings)."""
        assert self.shapes is not None
        columns = zip(*elements, strict=True) if elements else ([] for _ in self.dtypes)
        batch = [_stack(c, d, s) for c, d, s in zip(columns, self.dtypes, self.shapes, strict=True)]
        return self.shown(tuple(batch))


def as_array(value: Any, dtype: np.dtype[Any], name: str) -> Array:
    """Return a component as an array of the right dtype. An array of this dtype is returned as it is.

    Other values are cast if they fit: ints to floats, wide floats to narrow floats, and ints to ints of another
    width if no value changes. Raise `ValueError` or `TypeError` for other casts.
    """
    if dtype is STRING:
        return _as_strings(np.asarray(value, object), name)
    array = value if type(value) is np.ndarray else np.asarray(value)
    if array.dtype == dtype:
        return array
    if array.dtype.kind in "iu" and dtype.kind in "iu":
        cast = array.astype(dtype)
        if not np.array_equal(cast, array):
            raise ValueError(
                f"component {name}: {_shown(array)} does not fit {dtype}; use a dtype that can hold it"
            )
        return cast
    if array.size and not np.can_cast(array.dtype, dtype, "same_kind"):
        raise TypeError(
            f"component {name} must be {dtype}, not {array.dtype}: {_shown(array)}. If it is meant, cast it before"
        )
    return array.astype(dtype)


def _as_strings(array: Array, name: str) -> Array:
    strings = np.empty(array.shape, object)
    for place, each in enumerate(array.ravel().tolist()):
        if isinstance(each, str):
            each = each.encode()
        elif not isinstance(each, bytes):
            raise TypeError(f"component {name} must be bytes or str, not {type(each).__name__}: {each!r}")
        strings.flat[place] = each
    return strings


def _shown(array: Array) -> str:
    return str(array) if array.size <= 8 else f"an array of shape {array.shape}"


def _check_shape(found: tuple[int, ...], shape: Shape | None, name: str) -> None:
    if shape is None or found == shape:
        return
    if len(found) != len(shape) or any(b is not None and a != b for a, b in zip(found, shape, strict=True)):
        raise ValueError(f"component {name} must have shape {shape}, not {found}")


def _stack(arrays: Sequence[Array], dtype: np.dtype[Any], shape: Shape) -> Array:
    if None not in shape:
        sizes = [size or 0 for size in shape]
        batch = np.empty((len(arrays), *sizes), dtype)
        if not sizes:
            batch[:] = [array[()] for array in arrays]
        elif arrays:  # np.stack would take three times as long
            np.concatenate(arrays, out=batch.reshape(len(arrays) * sizes[0], *sizes[1:]))
        return batch
    longest = [max((a.shape[i] for a in arrays), default=0) if n is None else n for i, n in enumerate(shape)]
    batch = np.full((len(arrays), *longest), b"" if dtype is STRING else 0, dtype)
    for row, array in zip(batch, arrays, strict=True):
        row[tuple(map(slice, array.shape))] = array
    return batch
