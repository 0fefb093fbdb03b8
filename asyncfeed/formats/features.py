"""What `example` looks for in a record: features with a dtype, a shape and a default."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from asyncfeed.errors import PipelineError

Kind = Literal["bytes", "float", "int64"]


class _Required:
    """Stands for no default."""

    def __repr__(self) -> str:
        return "REQUIRED"

    def __reduce__(self) -> str:
        return "REQUIRED"


REQUIRED: Final = _Required()


@dataclass(frozen=True, eq=False)
class Feature:
    """One feature of an `Example`: made by `feature`."""

    kind: Kind
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]
    default: Any

    @property
    def ragged(self) -> bool:
        """Whether the first axis has any length."""
        return bool(self.shape) and self.shape[0] is None

    @property
    def count(self) -> int:
        """Number of values; in one row if the first axis has any length."""
        return prod(each for each in self.shape if each is not None)

    def array(self, values: Any) -> Any:
        """Return values with this dtype and shape; a scalar if the shape is empty. Raise ValueError."""
        if self.kind == "bytes":
            found = np.empty(len(values), object)
            found[:] = values
        else:
            found = as_dtype(values, self.dtype)
        if self.ragged:
            if self.count == 0 or found.size % self.count:
                raise ValueError(f"{found.size} values are no rows of {self.count}")
        elif found.size != self.count:
            raise ValueError(f"it has {found.size} values, and {self.count} are expected")
        shaped = found.reshape([-1 if each is None else each for each in self.shape])
        return shaped if self.shape else shaped[()]

    def missing(self) -> Any:
        """Return the value for a record without this feature. Raise ValueError if there must be one."""
        if self.default is REQUIRED:
            if self.ragged:
                return self.array(())
            raise ValueError("the record does not have it, and there is no default")
        return self.default.copy() if isinstance(self.default, np.ndarray) else self.default


def as_dtype(values: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return numbers in a new array. Raise ValueError if a whole number does not fit."""
    wide = np.asarray(values, "<f4" if dtype.kind == "f" else "<i8")
    found = wide.astype(dtype)
    if dtype.kind in "iub" and dtype.itemsize < wide.itemsize and not np.array_equal(found, wide):
        raise ValueError(f"a value does not fit into {dtype}")
    if dtype.kind == "u" and wide.size and wide.min() < 0:
        raise ValueError(f"a value does not fit into {dtype}")
    return found


def feature(dtype: Any, shape: Any = (), *, default: Any = REQUIRED) -> Feature:
    """Describe a feature of a `tf.train.Example`, for `example`.

    Args:
        dtype: `bytes`, or a dtype. Features of floats are read as any dtype of floats, features of int64 as any
            dtype of whole numbers or bool.
        shape: The shape of the array. () is one value. If the first axis is None, it has any length.
        default: The value for a record without this feature. Without a default such a record is an error; if the
            first axis is None, it gives no values.

    Example:
        >>> feature("float32", (28, 28)).shape, feature("int64", (None,)).ragged, feature(bytes).kind
        ((28, 28), True, 'bytes')
    """
    shape = (shape,) if shape is None or isinstance(shape, int) else tuple(shape)
    for place, each in enumerate(shape):
        whole = isinstance(each, int) and not isinstance(each, bool) and each >= 0
        if not (whole or (each is None and place == 0)):
            raise PipelineError(
                f"feature: the shape must be whole numbers, only the first may be None, not {shape}"
            )
    if shape[:1] == (None,) and 0 in shape:
        raise PipelineError(f"feature: rows of the shape {shape} have no values")
    if dtype is bytes:
        return _checked(Feature("bytes", np.dtype(object), shape, default))
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = np.dtype(object)
    if found.kind not in "fiub" or dtype in (None, object):
        raise PipelineError(
            f"feature: the dtype must be bytes, or one of floats, whole numbers or bool, not {dtype!r}"
        )
    return _checked(Feature("float" if found.kind == "f" else "int64", found, shape, default))


def _checked(made: Feature) -> Feature:
    """Return the feature with its default as an array of its shape."""
    if made.default is REQUIRED:
        return made
    try:
        default = made.array(_flat(made))
    except (ValueError, TypeError) as error:
        raise PipelineError(f"feature: the default {made.default!r} does not fit: {error}") from error
    return Feature(made.kind, made.dtype, made.shape, default)


def _flat(made: Feature) -> Any:
    """Return the values of a default. Raise ValueError."""
    given: Any = made.default
    if made.kind == "bytes":
        given = [given] if isinstance(given, bytes) else list(given)
        right = all(isinstance(each, bytes) for each in given)
    else:
        given = np.asarray(given)
        right = given.dtype.kind in ("fiub" if made.kind == "float" else "iub")
        if not made.ragged:
            given = np.broadcast_to(given, [each for each in made.shape if each is not None])
        given = given.ravel()
    if not right:
        raise ValueError("it is of another type")
    return given
