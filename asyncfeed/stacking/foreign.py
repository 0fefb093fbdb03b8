"""Converts leaves of a sample that are no NumPy arrays, numbers or text to arrays, or refuses them.

Tensors of torch, JAX and TensorFlow, images of PIL and everything else that offers `__array__` or `__dlpack__`
become numpy arrays of the same dtype. No framework is imported: a tensor can only exist if its framework has
been imported already. All other objects raise ValueError with the line to write.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncfeed.reading.file import File

if TYPE_CHECKING:
    from numpy.typing import NDArray

KNOWN = (str, bytes, int, float, complex, np.ndarray, np.generic)
"""Text, numbers and arrays: what a batch is made of."""
PROTOCOLS = ("__array__", "__array_interface__", "__array_struct__", "__dlpack__")
"""Attributes of objects that NumPy can convert to an array."""

Called = Callable[[], str]
"""Returns the name of a leaf in a message."""


def to_known(leaf: Any, called: Called) -> Any:
    """Return a leaf as an array, or as it is if it is a number, text or an array already.

    Raises ValueError, with the line to write, for an object that numpy can make no array of.
    """
    if isinstance(leaf, np.ma.MaskedArray):
        raise ValueError(
            f"{called()} is a masked array, and a batch would lose the mask: add .map() with array.filled(value), "
            "or make a tuple of array.data and array.mask, before the batch"
        )
    if isinstance(leaf, KNOWN):
        return leaf
    if is_foreign(leaf):
        return to_array(leaf, called)
    if isinstance(leaf, File):
        raise ValueError(
            f"{called()} is a file that was not read: add .load(npy), or the decoder of its format, before the "
            "batch, or leave the file out with .map()"
        )
    raise ValueError(
        f"{called()} is a {_kind(leaf)}, which makes no array: convert it with .map() before the batch, or say "
        "how a list of samples becomes a batch with .batch(..., collate=function)"
    )


def is_foreign(leaf: Any) -> bool:
    """Return whether NumPy can convert an object that is no array."""
    # The class is asked: an instance that answers to every name, as a mock does, has no arrays in it.
    kind = type(leaf)
    return not isinstance(leaf, KNOWN) and any(hasattr(kind, each) for each in PROTOCOLS)


def to_array(leaf: Any, called: Called) -> NDArray[Any]:
    """Return the array of an object that offers one. It may be a view of the object's memory.

    Raises ValueError, with the line to write, if the object refuses, as a tensor that needs its gradient does.
    """
    torch: Any = sys.modules.get("torch")
    try:
        if isinstance(leaf, getattr(torch, "Tensor", ())):
            return _of_torch(leaf, torch, called)
        return np.from_dlpack(leaf) if _only_dlpack(leaf) else np.asarray(leaf)
    except _Refused as refused:
        raise ValueError(str(refused)) from None
    except Exception as error:  # whatever a framework raises: it is the cause
        raise ValueError(
            f"{called()} is a {_kind(leaf)}, which does not become an array ({type(error).__name__}: {error}): "
            "convert it with .map() before the batch"
        ) from error


class _Refused(Exception):
    """The message is complete."""


def _of_torch(tensor: Any, torch: Any, called: Called) -> NDArray[Any]:
    steps = [
        (tensor.requires_grad, "needs its gradient", "detach"),
        (tensor.layout is not torch.strided, "is sparse", "to_dense"),
        (tensor.is_quantized, "is quantized", "dequantize"),
        (tensor.device.type not in {"cpu", "meta"}, f"lives on {tensor.device}", "cpu"),
    ]
    needed = [(why, call) for needs, why, call in steps if needs]
    if needed:
        reasons = " and ".join(why for why, _ in needed)
        calls = "".join(f".{call}()" for _, call in needed)
        raise _Refused(f"{called()} is a tensor that {reasons}: add .map() with tensor{calls} before the batch")
    tensor = tensor.resolve_conj().resolve_neg()
    try:
        array: NDArray[Any] = tensor.numpy()
    except TypeError:
        name = str(tensor.dtype).removeprefix("torch.")
        if hasattr(np, name):
            raise
        return _of_short_floats(tensor, name, torch, called)
    return array


def _of_short_floats(tensor: Any, name: str, torch: Any, called: Called) -> NDArray[Any]:
    """Return the array of a tensor whose dtype NumPy has only with `ml_dtypes`: bfloat16, floats of 8 bits."""
    whole = {1: torch.uint8, 2: torch.int16}.get(tensor.element_size())
    try:
        dtype = np.dtype(getattr(import_module("ml_dtypes"), name))  # it may not be installed
    except (ImportError, AttributeError):
        dtype = None
    if dtype is None or whole is None:
        raise _Refused(
            f"{called()} is a tensor of {name}, which numpy does not have: install ml_dtypes, or add .map() with "
            "tensor.float() before the batch"
        )
    array: NDArray[Any] = tensor.view(whole).numpy().view(dtype)
    return array


def _only_dlpack(leaf: Any) -> bool:
    return not any(hasattr(type(leaf), each) for each in PROTOCOLS[:-1])


def _kind(leaf: Any) -> str:
    kind = type(leaf)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
