"""The `.safetensors` format: named arrays behind a header of JSON."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from asyncfeed.errors import Corrupt, PipelineError
from asyncfeed.extras import installed
from asyncfeed.formats.base import Data, Decoder, Header, Layout
from asyncfeed.reading.file import Bytes, File

if TYPE_CHECKING:
    import numpy.typing as npt

Arrays = dict[str, "npt.NDArray[Any]"]

_DTYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "F16": "<f2", "U32": "<u4", "I32": "<i4",
    "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8", "C64": "<c8",
}  # fmt: skip
_ML_DTYPES = {
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}
"""The names of `ml_dtypes` for the dtypes that NumPy does not have."""
_LENGTH = 8
_FIELDS = {"dtype", "shape", "data_offsets"}


@dataclass(frozen=True, repr=False)
class Safetensors(Decoder[Arrays]):
    """Named arrays as the library safetensors writes them.

    Use it as `files("*.safetensors").load(safetensors)`. With a `batch` after it, files that are laid out alike
    are read straight into the batch. bfloat16 and float8 need `asyncfeed[safetensors]`, which is `ml_dtypes`.

    Returns:
        A dict of writable arrays, in the order of the header or of `keys`; without `keys` all of them.

    Raises:
        Corrupt: The file is no safetensors file, is cut short, or its header does not fit its data. The format has
            no checksums: damaged numbers are other numbers.

    Memory:
        The arrays are views of the bytes of the file: no copy.

    Example:
        >>> safetensors(keys=["x", "y"])
        safetensors(keys=('x', 'y'))
    """

    name = "safetensors"
    lays_out = True
    keys: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        keys = self.keys
        if keys is not None and not (keys and all(isinstance(key, str) for key in keys)):
            raise PipelineError(f"safetensors: keys must be names of arrays, as in keys=('x', 'y'), not {keys!r}")

    @overload
    def __call__(self, data: Data, /) -> Arrays: ...
    @overload
    def __call__(self, *, keys: Iterable[str] | None = ...) -> Safetensors: ...
    def __call__(self, *data: Any, keys: Iterable[str] | None = None) -> Safetensors | Arrays:
        """Return a decoder with these options; with the bytes of a file, return its arrays.

        Args:
            *data: The bytes of a file, instead of options.
            keys: The names of the arrays to return. None returns all.
        """
        if data:
            return super().__call__(*data)
        if isinstance(keys, str):
            raise PipelineError(f"safetensors: keys must be several names: write keys=({keys!r},)")
        return Safetensors(None if keys is None else tuple(keys))

    def layout(self, buffer: Bytes, file: File) -> Layout:
        """Return the layout of a file."""
        headers = parse(buffer, file)
        wanted = self._wanted(headers, file)
        others = [each for key, each in headers.items() if key not in wanted]
        return Layout(wanted, tuple(sorted((each.offset, each.offset + each.nbytes) for each in others)), ())

    def decode(self, buffer: Bytes, file: File) -> Arrays:
        """Return the arrays in `buffer` by name, as views of it."""
        headers = self._wanted(parse(buffer, file), file)
        return {key: np.ndarray(each.shape, each.dtype, buffer, each.offset) for key, each in headers.items()}

    def _wanted(self, headers: dict[str, Header], file: File) -> dict[str, Header]:
        if self.keys is None:
            return headers
        for key in self.keys:
            if key not in headers:
                raise Corrupt(f"{file.path} holds no array {key!r}; it has {', '.join(headers) or 'none'}")
        return {key: headers[key] for key in self.keys}


safetensors = Safetensors()


def parse(buffer: Bytes, file: File) -> dict[str, Header]:
    """Return the arrays of a file. Together they fill all bytes behind the header, without gaps or overlaps."""
    size = len(buffer)
    length = int.from_bytes(buffer[:_LENGTH].tobytes(), "little")
    if size < _LENGTH or buffer[_LENGTH : _LENGTH + 1].tobytes() not in (b"{", b""):
        raise Corrupt(f"{file.path} is not a safetensors file")
    if length > size - _LENGTH:
        raise Corrupt(
            f"{file.path} has a header of {length} bytes, and {size - _LENGTH} follow: it is cut short, or not a "
            "safetensors file"
        )
    start = _LENGTH + length
    try:
        header = json.loads(buffer[_LENGTH:start].tobytes(), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{file.path} has a header that is not JSON, or that names an array twice") from error
    if not isinstance(header, dict):
        raise Corrupt(f"{file.path} is not a safetensors file")
    header.pop("__metadata__", None)
    found = {key: _array(key, each, start, file) for key, each in header.items()}
    end = start
    for key, each in sorted(found.items(), key=lambda pair: (pair[1].offset, pair[1].nbytes)):
        if each.offset != end:
            raise Corrupt(f"{file.path} has the array {key!r} at byte {each.offset}, and {end} is the next one")
        end += each.nbytes
    if end != size:
        kind = "the file is cut short" if end > size else "the file is longer"
        raise Corrupt(f"{file.path} has arrays up to byte {end}, and {size} bytes: {kind}")
    return found


def _array(key: str, entry: Any, start: int, file: File) -> Header:
    if not isinstance(entry, dict) or set(entry) != _FIELDS:
        raise Corrupt(f"{file.path} does not describe the array {key!r} by {', '.join(sorted(_FIELDS))}")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _counts(shape) or not _counts(offsets) or len(offsets) != 2 or len(shape) > 32:
        raise Corrupt(f"{file.path} describes the array {key!r} with shape {shape!r} at {offsets!r}")
    dtype = _dtype(entry["dtype"], key, file)
    first, stop = offsets
    nbytes = math.prod(shape) * dtype.itemsize
    if stop - first != nbytes:
        raise Corrupt(f"{file.path} has {stop - first} bytes for the array {key!r}, which takes {nbytes}")
    if math.prod(max(1, size) for size in shape) * dtype.itemsize > sys.maxsize:  # NumPy refuses it, beside a 0
        raise Corrupt(f"{file.path} describes the array {key!r} with shape {shape!r}")
    return Header(tuple(shape), dtype, False, start + first, nbytes)


def _dtype(name: object, key: str, file: File) -> np.dtype[Any]:
    if not isinstance(name, str) or (name not in _DTYPES and name not in _ML_DTYPES):
        raise Corrupt(f"{file.path} has the array {key!r} of dtype {name!r}, which NumPy does not have")
    if name in _DTYPES:
        return np.dtype(_DTYPES[name])
    kind = getattr(installed("ml_dtypes", "safetensors"), _ML_DTYPES[name], None)
    if kind is None:
        raise PipelineError(f"{file.path} has the array {key!r} of dtype {name}: install a newer ml_dtypes")
    found: np.dtype[Any] = np.dtype(kind)
    return found


def _counts(found: object) -> bool:
    return isinstance(found, list) and all(type(each) is int and each >= 0 for each in found)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name comes twice")
    return found
