"""The signature of a dataset: structure, dtypes and shapes of a batch. It also converts leaves to tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncfeed.axes import Axes, open_shape
from asyncfeed.errors import PipelineError
from asyncfeed.stacking.aligned import ALIGNMENT, aligned_empty
from asyncfeed.stacking.collate import transpose
from asyncfeed.stacking.pool import Pool, shared_pool
from asyncfeed.trees import Spec, Tree, flatten, leaf_name, unflatten

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

SCALARS: dict[type, type] = {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}
"""The dtypes of Python's numbers, the same as in a batch."""
TEXT = (str, bytes)
LARGE = 64 << 10
"""Size in bytes from which a copy into memory of the pool is faster than TensorFlow's own copy."""


def infer(item: Tree, rule: Axes, method: str = "to_tf", *, second: Callable[[], Any] | None = None) -> Any:
    """Return the signature of a pipeline with this first item: a tree of `tf.TensorSpec`.

    `second` returns the second item, or None. It is called if the rule leaves an axis other than the first open.
    As in Keras, an axis in which both items have the same size is then fixed. Errors name `method`.
    """
    import tensorflow as tf

    leaves, spec = flatten(item)
    specs = []
    shapes = [() if isinstance(leaf, TEXT) else open_shape(rule, np.shape(leaf)) for leaf in leaves]
    if second is not None and any(None in shape[1:] for shape in shapes):
        other = second()
        others = leaves if other is None else flatten(other)[0]
        if len(others) == len(leaves):
            shapes = [_alike(*each) for each in zip(shapes, leaves, others, strict=True)]
    for number, leaf in enumerate(leaves):
        if leaf is None:
            specs.append(tf.type_spec_from_value(None))
            continue
        specs.append(tf.TensorSpec(shapes[number], _dtype_of(leaf, leaf_name(spec, number), method)))
    return to_tf_structure(unflatten(spec, specs), method)


def _alike(shape: Sequence[int | None], leaf: Any, other: Any) -> tuple[int | None, ...]:
    """Return a shape that fixes the axes after the first in which two leaves have the same size."""
    sizes, others = np.shape(leaf), np.shape(other)
    if len(sizes) != len(others):
        return tuple(shape)
    alike = [size if size == also else None for size, also in zip(sizes, others, strict=True)]
    return (*shape[:1], *(known or size for known, size in zip(shape[1:], alike[1:], strict=True)))


def to_tf_structure(tree: Any, method: str = "to_tf") -> Any:
    """Return a tree with tuples in place of lists, and dicts in place of all mappings.

    tf.data would make one tensor of a list. Raises PipelineError for a container that tf.data does not know.
    """
    if isinstance(tree, Mapping):
        return {key: to_tf_structure(value, method) for key, value in tree.items()}
    if isinstance(tree, (tuple, list)):
        parts = [to_tf_structure(each, method) for each in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    if hasattr(type(tree), "__dataclass_fields__"):
        raise PipelineError(
            f"{method}: tf.data knows no dataclasses; make the {type(tree).__name__} a dict: "
            ".map(dataclasses.asdict), or a tuple, as the last stage"
        )
    return tree


class Layout:
    """The signature of a dataset. It converts items to this signature.

    `tensors` is for the thread that fills the queue, `arranged` for `from_generator`. Both check each item. If an
    item does not fit, they raise ValueError with the name of the leaf and the `method` that was called.
    """

    def __init__(self, signature: Any, method: str = "to_tf") -> None:
        import tensorflow as tf

        self._tf = tf
        self._method = method
        self.signature = to_tf_structure(signature, method)
        none = type(tf.type_spec_from_value(None))
        self.leaves: list[_Leaf | None] = []
        for place, each in enumerate(tf.nest.flatten(self.signature)):
            if isinstance(each, none):
                self.leaves.append(None)
            elif isinstance(each, tf.TensorSpec):
                text = each.dtype == tf.string
                dtype = np.dtype(object) if text else np.dtype(each.dtype.as_numpy_dtype)
                shape = None if each.shape.rank is None else tuple(each.shape.as_list())
                self.leaves.append(_Leaf(method, place, each, dtype, shape))
            else:
                raise PipelineError(f"{method}: output_signature takes tf.TensorSpec, not {each!r}")
        self.specs = [leaf.spec for leaf in self.leaves if leaf is not None]
        if not self.specs:
            raise PipelineError(f"{method}: there is no array, number or text in {self.signature!r}")
        self._pool = shared_pool()
        self._known: Spec | None = None
        self._order: list[int] = []

    def tensors(self, item: Tree) -> list[Any]:
        """Return the leaves of an item as tensors on the host, in TensorFlow's order."""
        tensors = []
        for leaf, value, name in self._pairs(item):
            if leaf is not None:
                leaf.check(value, name)
                tensors.append(_tensor(self._tf, leaf, value, name, self._pool))
        return tensors

    def stacked(self, items: Sequence[Tree]) -> list[Any] | None:
        """Return one tensor for each leaf, with the values of all items along a new first axis: a copy.

        Returns None if the items differ in kind, dtype or shape, or one may not fit. `tensors` then raises the
        right error.
        """
        try:
            self._pairs(items[0])
            columns, spec = transpose(items, str)
            if spec != self._known:
                return None
            found = [(leaf, columns[number]) for leaf, number in zip(self.leaves, self._order, strict=True)]
            if any(leaf is None and set(column) != {None} for leaf, column in found):
                return None
            return [_stacked(self._tf, leaf, column) for leaf, column in found if leaf is not None]
        except (TypeError, ValueError, OverflowError, BufferError, self._tf.errors.OpError):
            return None

    @property
    def nbytes(self) -> int:
        """Size of an item in bytes; 0 if it differs between items."""
        if not all(spec.shape.is_fully_defined() and spec.dtype != self._tf.string for spec in self.specs):
            return 0
        return sum(spec.shape.num_elements() * spec.dtype.size for spec in self.specs)

    def arranged(self, item: Tree) -> Any:
        """Return an item in the structure of the signature."""
        values = []
        for leaf, value, name in self._pairs(item):
            if leaf is not None:
                leaf.check(value, name)
            values.append(value)
        return self._tf.nest.pack_sequence_as(self.signature, values)

    def _pairs(self, item: Tree) -> list[tuple[_Leaf | None, Any, str]]:
        values, spec = flatten(item)
        if spec != self._known:
            self._learn(item, spec)
        pairs = []
        for leaf, number in zip(self.leaves, self._order, strict=True):
            value = values[number]
            if (leaf is None) is not (value is None):
                name = leaf_name(spec, number)
                expected = leaf.text if leaf else None
                raise ValueError(f"{self._method}: {_called(name)} is {_shown(value)}, not {expected}")
            pairs.append((leaf, value, "" if leaf is None else leaf.name))
        return pairs

    def _learn(self, item: Tree, spec: Spec) -> None:
        """Match the leaves of an item with TensorFlow's leaves.

        Both sort the keys of mappings, but of different types of mapping.
        """
        numbers = to_tf_structure(unflatten(spec, range(spec.num_leaves)), self._method)
        try:
            self._tf.nest.assert_same_structure(numbers, self.signature)
        except (TypeError, ValueError):
            raise ValueError(
                f"{self._method}: an item is {_outline(item)}, but the signature is {self.signature!r}: give all "
                f"items one structure with .map(), or give another output_signature"
            ) from None
        self._order = self._tf.nest.flatten(numbers)
        for leaf, number in zip(self.leaves, self._order, strict=True):
            if leaf is not None:
                leaf.name = leaf_name(spec, number)
        self._known = spec


@dataclass(slots=True)
class _Leaf:
    """The dtype and shape that one tensor must have."""

    method: str
    place: int
    spec: Any
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] | None
    name: str = ""
    fitting: set[tuple[Any, tuple[int, ...]]] = field(default_factory=set)
    """Dtypes and shapes that were checked and fit."""

    @property
    def text(self) -> str:
        shape = "any shape" if self.shape is None else f"shape {self.shape}"
        return f"{self.spec.dtype.name} of {shape}"

    def check(self, value: Any, name: str) -> None:
        """Raise if a value does not fit."""
        if type(value) is np.ndarray:
            key = (value.dtype, value.shape)
            if key in self.fitting:
                return
            if self._fits(value.dtype, value.shape):
                if len(self.fitting) < 64:  # ragged data always has new shapes
                    self.fitting.add(key)
                return
        elif isinstance(value, TEXT):
            if self._fits(np.dtype(object), ()):
                return
        elif type(value) in SCALARS:
            if self._fits(None, ()):  # TensorFlow converts a number, or says that it does not fit
                return
        elif self._fits(getattr(value, "dtype", np.dtype(object)), np.shape(value)):
            return
        raise ValueError(
            f"{self.method}: {_called(name)} is {_shown(value)}, but the signature says {self.text}; convert it "
            f"with .map() or pad it, or give an output_signature with None for axes that vary"
        )

    def _fits(self, dtype: Any, shape: tuple[int, ...]) -> bool:
        if dtype is not None:
            dtype = np.dtype(getattr(dtype, "as_numpy_dtype", dtype))
            if self.dtype.kind == "O":
                if dtype.kind not in "OUS":
                    return False
            elif dtype.newbyteorder("=") != self.dtype:
                return False
        if self.shape is None:
            return True
        return len(shape) == len(self.shape) and all(
            size is None or size == given for size, given in zip(self.shape, shape, strict=True)
        )


def _tensor(tf: Any, leaf: _Leaf, value: Any, name: str, pool: Pool) -> Any:
    """Return a value as a tensor: in place if its memory is aligned for TensorFlow, else as a copy."""
    if type(value) is np.ndarray:
        if shareable(value):
            return tf.experimental.dlpack.from_dlpack(value.__dlpack__())
        if not value.dtype.isnative:
            value = value.astype(value.dtype.newbyteorder("="))
        if value.nbytes >= LARGE and _copyable(value):
            return _filled(tf, pool.empty(value.shape, value.dtype), value.data.cast("B"))
    elif tf.is_tensor(value):
        return tf.convert_to_tensor(value)  # a variable may change
    try:
        return tf.constant(value, leaf.spec.dtype)
    except (TypeError, ValueError, tf.errors.OpError) as error:
        raise ValueError(
            f"{leaf.method}: {_called(name)} is {_shown(value)}, which is not {leaf.spec.dtype.name} ({error}); "
            "convert it with .map()"
        ) from None


def _stacked(tf: Any, leaf: _Leaf, column: Sequence[Any]) -> Any:
    """Return values of one type, dtype and shape as one tensor. Raise ValueError if they differ."""
    first, kind = column[0], type(column[0])
    leaf.check(first, leaf.name)
    if set(map(type, column)) != {kind}:
        raise ValueError("values of several kinds")
    if kind in TEXT:
        return tf.constant(list(column), tf.string)
    if leaf.dtype.isbuiltin != 1:
        raise ValueError("a dtype that QueueEnqueueManyV2 may not take, as int4")
    if kind is not np.ndarray:
        if SCALARS.get(kind, kind) is not leaf.dtype.type:
            raise ValueError("values that TensorFlow has to convert")
        return tf.constant(np.array(column, leaf.dtype))
    dtype, shape = first.dtype, first.shape
    if any(array.dtype != dtype or array.shape != shape for array in column):
        raise ValueError("arrays of several dtypes or shapes")
    if not first.size or not dtype.isnative:
        raise ValueError("arrays of nothing, at which QueueEnqueueManyV2 crashes, or of swapped bytes")
    if not _copyable(first):
        return tf.constant(np.stack(column), leaf.spec.dtype)
    return _filled(tf, aligned_empty((len(column), *shape), dtype), b"".join(column))


def _filled(tf: Any, room: NDArray[Any], content: Any) -> Any:
    """Return aligned memory as a tensor, filled with bytes.

    NumPy does not copy here, because it releases the GIL for a copy. Getting the GIL back takes up to 5 ms if
    another thread computes.
    """
    room.reshape(-1).data.cast("B")[:] = content
    return tf.experimental.dlpack.from_dlpack(room.__dlpack__())


def _copyable(array: np.ndarray[Any, Any]) -> bool:
    """Return whether the bytes of an array can be used as the bytes of a tensor."""
    return array.dtype.kind in "iuf" and array.dtype.isbuiltin == 1 and array.flags.c_contiguous


def shareable(array: np.ndarray[Any, Any]) -> bool:
    """Return whether TensorFlow may use the memory of an array as it is.

    dlpack would accept an array that is not aligned, and the first operation on it would end the process.
    """
    return (
        array.dtype.kind in "iufc"
        and array.dtype.isnative
        and array.dtype.isbuiltin == 1
        and array.nbytes > 0
        and array.flags.c_contiguous
        and array.flags.writeable
        and array.__array_interface__["data"][0] % ALIGNMENT == 0
    )


def _dtype_of(leaf: Any, name: str, method: str) -> Any:
    import tensorflow as tf

    if isinstance(leaf, TEXT):
        return tf.string
    dtype = SCALARS.get(type(leaf), getattr(leaf, "dtype", None))
    if isinstance(dtype, np.dtype) and dtype.kind in "OUS":
        kinds = set(map(type, np.ravel(leaf).tolist()))
        if kinds <= set(TEXT):
            return tf.string
        dtype = None
    try:
        return tf.as_dtype(dtype.newbyteorder("=") if isinstance(dtype, np.dtype) else dtype)
    except TypeError:
        raise PipelineError(
            f"{method}: {_called(name)} is {_shown(leaf)}, and TensorFlow has no tensor for it; "
            "leave it out or convert it with .map() as the last stage"
        ) from None


def _called(name: str) -> str:
    return f"leaf {name}" if name else "an item"


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} of shape {value.shape}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def _outline(item: Tree) -> str:
    """Return the structure of an item as text, a star for each leaf."""
    leaves, spec = flatten(item)
    return repr(unflatten(spec, [_Star()] * len(leaves)))


class _Star:
    def __repr__(self) -> str:
        return "*"
