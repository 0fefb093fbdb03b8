"""Trees of arrays as trees of torch tensors.

A tensor shares the memory of its array, and keeps the array alive. So the pool of batch memory does not give that
memory out again while the tensor exists. Arrays that torch cannot take as they are, or may not write to, are
copied. Arrays of text become lists. Everything that is no array stays as it is, as in torch's `default_convert`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncfeed.errors import PipelineError
from asyncfeed.stacking.foreign import is_foreign, to_array
from asyncfeed.trees import flatten, leaf_name, map_leaves

if TYPE_CHECKING:
    from numpy.typing import NDArray

PLAIN = frozenset({int, float, bool, complex, str, bytes, type(None)})
TEXT_KINDS = "SUT"
REGISTERED = 2
"""`isbuiltin` of the dtypes that another library has added to NumPy, such as bfloat16 of `ml_dtypes`."""
FIXES = {
    "M": "add .map() with array.astype('int64') before it",
    "m": "add .map() with array.astype('int64') before it",
    "f": "add .map() with array.astype('float64') before it",
    "c": "add .map() with array.astype('complex128') before it",
    "O": "make arrays of numbers or lists of text of them with .map()",
    "V": "add .map() with a dict of its fields, or with array.astype('float32')",
}
"""What to write instead of an array that has no tensor, by the kind of its dtype."""


class NoArray(Exception):
    """The message says what a leaf is, and what to write instead. The name of the leaf is not in it."""


def to_leaf(leaf: Any) -> Any:
    """Return an array, or a leaf that stays as it is: an array of text as a list, and anything that is no array.

    The array has native byte order. Raises `NoArray` for arrays that are not made of numbers.
    """
    if type(leaf) in PLAIN:
        return leaf
    if isinstance(leaf, np.ma.MaskedArray):
        raise NoArray(
            "is a masked array, which would lose its mask: add .map() with array.filled(value), or make a tuple "
            "of array.data and array.mask"
        )
    if isinstance(leaf, np.str_ | np.bytes_):
        return leaf.item()
    if isinstance(leaf, np.ndarray | np.generic):
        array: NDArray[Any] = np.asarray(leaf)
    elif is_foreign(leaf):
        array = to_array(leaf, "a leaf".__str__)
    else:
        return leaf
    if array.dtype.kind in TEXT_KINDS:
        return array.tolist()
    if array.dtype.kind == "O" and _is_text(array):
        return _plain(array.tolist())
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _is_text(array: NDArray[Any]) -> bool:
    return all(isinstance(each, str | bytes) for each in array.flat)


def _plain(texts: Any) -> Any:
    """Return nested lists of text without the types of NumPy."""
    if isinstance(texts, list):
        return list(map(_plain, texts))
    return texts.item() if isinstance(texts, np.generic) else texts


def naming(method: str, fn: Any, tree: Any) -> Any:
    """Return the tree with each leaf replaced by `fn(leaf)`. An error about a leaf names the leaf."""
    try:
        return map_leaves(fn, tree)
    except NoArray as error:
        leaves, spec = flatten(tree)
        name = next((leaf_name(spec, place) for place, leaf in enumerate(leaves) if _refuses(fn, leaf)), "")
        raise PipelineError(f"{method}: {f'the leaf {name}' if name else 'the item'} {error}") from None


def _refuses(fn: Any, leaf: Any) -> bool:
    try:
        fn(leaf)
    except NoArray:
        return True
    return False


@dataclass(frozen=True)
class ToTensors:
    """Makes tensors of the arrays of a batch.

    `dtype` is the dtype of floating-point tensors. With `pin`, the tensors are copied into pinned memory, from
    which a GPU reads without waiting.
    """

    dtype: Any = None
    pin: bool = False

    def __call__(self, batch: Any) -> Any:
        """Return the batch with tensors."""
        return naming("to_torch", self.leaf, batch)

    def leaf(self, leaf: Any) -> Any:
        """Return the tensor of a leaf, or the leaf if it is no array."""
        import torch

        tensor = leaf if isinstance(leaf, torch.Tensor) else tensor_of(to_leaf(leaf), torch)
        if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu":
            return tensor
        tensor = cast(tensor, self.dtype)
        return tensor.pin_memory() if self.pin else tensor


def cast(tensor: Any, dtype: Any) -> Any:
    """Return a tensor with this dtype, if it has floating-point numbers."""
    return tensor if dtype is None or not tensor.is_floating_point() else tensor.to(dtype)


def check_dtype(method: str, torch: Any, dtype: Any) -> None:
    """Raise if this is not a dtype of floating-point tensors, or None."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise PipelineError(
            f"{method}: dtype must be a floating-point dtype such as torch.float32, not {dtype!r}; it applies to "
            "floating-point tensors only, as in Module.to"
        )


def tensor_of(leaf: Any, torch: Any) -> Any:
    """Return the tensor of an array. Anything else is returned as it is."""
    if not isinstance(leaf, np.ndarray):
        return leaf
    array = leaf if _is_sound(leaf) else leaf.copy()
    dtype = array.dtype
    if dtype.isbuiltin == REGISTERED:
        short = getattr(torch, dtype.name, None)
        whole = {1: np.uint8, 2: np.int16}.get(dtype.itemsize)
        if isinstance(short, torch.dtype) and short.is_floating_point and whole is not None:
            return torch.from_numpy(array.view(whole)).view(short)
    try:
        return torch.from_numpy(array)
    except TypeError:
        raise NoArray(
            f"is an array of {dtype}, which torch does not have: {FIXES.get(dtype.kind, FIXES['O'])}"
        ) from None


def _is_sound(array: NDArray[Any]) -> bool:
    """Return whether torch can show the array: it may write to tensors, and has no strides that are negative."""
    flags = array.flags
    if not (flags.writeable and flags.aligned):
        return False
    width = array.itemsize
    return flags.c_contiguous or all(stride >= 0 and stride % width == 0 for stride in array.strides)
