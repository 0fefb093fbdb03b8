"""Files without a header: they hold only the numbers of one array."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncfeed.errors import Corrupt, PipelineError
from asyncfeed.formats.base import Decoder, Header
from asyncfeed.reading.file import Bytes, File

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True, repr=False)
class Raw(Decoder["npt.NDArray[Any]"]):
    """The numbers of an array, one after the other; see `raw`."""

    name = "raw"
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = (-1,)
    probes = True

    def probe(self, head: Bytes, file: File) -> Header:  # the size alone says it
        """Return the array that a file of this size holds. The size must have been listed."""
        if file.size is None:
            raise Corrupt(f"{file.path} was not listed with its size")
        known = math.prod(size for size in self.shape if size != -1) * self.dtype.itemsize
        shape = tuple(file.size // known if each == -1 else each for each in self.shape)
        return Header(shape, self.dtype, False, 0, math.prod(shape) * self.dtype.itemsize)

    def decode(self, buffer: Bytes, file: File) -> npt.NDArray[Any]:
        """Return the array in `buffer`, as a view of it."""
        known = math.prod(size for size in self.shape if size != -1) * self.dtype.itemsize
        size = len(buffer)
        if -1 not in self.shape:
            if size != known:
                raise Corrupt(
                    f"{file.path} has {size} bytes, and shape {self.shape} of {self.dtype} takes {known}"
                )
        elif size % known:
            raise Corrupt(
                f"{file.path} has {size} bytes, which is no multiple of the {known} of one {self._unit()}"
            )
        shape = tuple(size // known if each == -1 else each for each in self.shape)
        return np.ndarray(shape, self.dtype, buffer)

    def _unit(self) -> str:
        return f"{self.dtype}" if self.shape == (-1,) else f"row of shape {self.shape}"


def raw(dtype: npt.DTypeLike, shape: Iterable[int] | None = None) -> Raw:
    """Return a decoder for files that hold the numbers of one array and nothing else.

    Args:
        dtype: The dtype of the numbers. Name the byte order if it is not that of this machine: `raw(">f4")`.
        shape: The shape of the array, in C order. One size may be -1: the size of the file decides it. Without
            `shape` the array has one dimension.

    Returns:
        A decoder. It raises `Corrupt` for a file that does not fit the shape.

    Memory:
        The array is a writable view of the bytes: no copy.

    Example:
        >>> raw("<f4", (-1, 3)).decode(np.zeros(24, np.uint8), File("a.bin")).shape
        (2, 3)
    """
    if isinstance(dtype, (bytes, bytearray, memoryview, np.ndarray, File)):
        raise PipelineError(
            f"raw: the dtype comes first, not the {type(dtype).__name__} to decode: write raw('float32')(data), "
            "or files(...).load(raw('float32'))"
        )
    try:
        kind = np.dtype(dtype)
    except TypeError as error:
        raise PipelineError(f"raw: {dtype!r} is not a dtype; write raw('float32')") from error
    if kind.hasobject or not kind.itemsize:
        raise PipelineError(f"raw: items of dtype {kind} have no bytes of their own; use a plain dtype")
    sizes = (-1,) if shape is None else tuple(shape)
    whole = all(isinstance(size, int) and not isinstance(size, bool) for size in sizes)
    if not whole or any(size < 1 and size != -1 for size in sizes) or sizes.count(-1) > 1:
        raise PipelineError(f"raw: shape must be sizes of at least 1, at most one of them -1, not {sizes!r}")
    return Raw(kind, sizes)
