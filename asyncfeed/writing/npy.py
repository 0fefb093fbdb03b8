"""Arrays of one shape and dtype as the rows of a `.npy` file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from asyncfeed.formats.npy import npy
from asyncfeed.reading.file import File
from asyncfeed.writing.encoder import Encoder

HEAD_BYTES = 1 << 12
"""Bytes that hold the header of a file."""


class NpyEncoder(Encoder):
    """Writes each sample as one row of an array: see `Pipeline.to_shards`."""

    suffix = ".npy"
    kind = None
    overhead = 128

    def __init__(self) -> None:
        self._like: tuple[np.dtype[Any], tuple[int, ...]] | None = None
        """The dtype and the shape of all samples. None: no sample was seen."""
        self._count = 0
        """Number of samples in the shard."""

    def encode(self, sample: Any, number: int) -> bytes:
        """Return the bytes of an array."""
        if not isinstance(sample, np.ndarray | np.generic | int | float):
            raise TypeError(
                f"a .npy file holds arrays and numbers, not {type(sample).__name__}: write "
                'map(lambda sample: sample["image"]) before it'
            )
        array = np.asarray(sample)
        like = array.dtype, array.shape
        if self._like is None:
            if array.dtype.hasobject or _read_back(array.dtype) != array.dtype:
                raise TypeError(f"a .npy file cannot hold {array.dtype}")
            self._like = like
        if like != self._like:
            dtype, shape = self._like
            raise TypeError(
                f"the rows of a .npy file have one shape: this sample is {array.dtype} of shape {array.shape}, "
                f"the first one {dtype} of shape {shape}"
            )
        return array.tobytes()

    def add(self, record: bytes) -> bytes:
        """Return the bytes of a row, and before the first one those of a header."""
        self._count += 1
        return self._head(0) + record if self._count == 1 else record

    def finish(self) -> tuple[bytes, bytes]:
        """Return the header. It has the number of rows, which was not known before."""
        count, self._count = self._count, 0
        return self._head(count), b""

    def resume(self, first: Path) -> None:
        """Take the shape and the dtype of a shard."""
        with first.open("rb") as opened:
            head = npy.probe(np.frombuffer(opened.read(HEAD_BYTES), np.uint8), File(str(first)))
        self._like = head.dtype, head.shape[1:]

    def _head(self, count: int) -> bytes:
        dtype, shape = self._like or (np.dtype(np.float64), ())
        out = io.BytesIO()
        known = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count, *shape)}
        np.lib.format.write_array_header_1_0(out, known)  # its size leaves room for any count
        return out.getvalue()


def _read_back(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype that a reader finds. It is another one for dtypes that NumPy does not have."""
    return np.lib.format.descr_to_dtype(np.lib.format.dtype_to_descr(dtype))
