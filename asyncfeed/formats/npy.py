"""The `.npy` format: one array behind a header of about 128 bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib import format as npy_format

from asyncfeed.errors import Corrupt
from asyncfeed.formats.base import Decoder, Header
from asyncfeed.reading.file import Bytes, File

if TYPE_CHECKING:
    import numpy.typing as npt

_MAGIC = b"\x93NUMPY"
_OTHERS = {
    b"PK\3\4": "a zip archive: for .npz files write load(npz)",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"\x89HDF": "an HDF5 file",
    b"\x1f\x8b": "compressed with gzip",
    b"\x80": "a pickle, which is never read: save arrays with numpy.save",
    b"<!DOCT": "a web page",
    b"<html": "a web page",
}
"""The first bytes of files that users take for .npy files, and the kind of such a file."""
_LONGEST = 10_000
"""NumPy's own limit for the length of the header's text, which NumPy evaluates."""


@dataclass(frozen=True, repr=False)
class Npy(Decoder["npt.NDArray[Any]"]):
    """Arrays as `numpy.save` writes them.

    Returns:
        An array. Shape, byte order and memory order are kept.

    Raises:
        Corrupt: The file is no .npy file, or holds an array of objects. Those are pickles, and a pickle can run
            any code.

    Memory:
        The array is a writable view of the buffer: no copy.

    Example:
        >>> npy.decode(np.frombuffer(b"...", np.uint8), File("a.npy"))
        Traceback (most recent call last):
            ...
        asyncfeed.errors.Corrupt: a.npy is not an .npy file
    """

    name = "npy"
    probes = True

    def probe(self, head: Bytes, file: File) -> Header:
        """Return the header."""
        return parse_header(head, file)

    def decode(self, buffer: Bytes, file: File) -> npt.NDArray[Any]:
        """Return the array in `buffer`, as a view of it."""
        header = parse_header(buffer, file)
        held = len(buffer) - header.offset
        if held != header.nbytes:
            raise _wrong_size(header, held, file)
        try:
            if header.fortran_order:
                return np.ndarray(header.shape, header.dtype, buffer, header.offset, order="F")
            return np.ndarray(header.shape, header.dtype, buffer, header.offset)
        except (ValueError, OverflowError) as error:  # more dimensions than numpy can have, or longer ones
            raise Corrupt(f"{file.path} has a header that makes no array: shape {header.shape}") from error


npy = Npy()


def parse_header(buffer: Bytes, file: File) -> Header:
    """Return the header at the start of `buffer`, which holds the file's first bytes or all of them.

    The last 1,024 headers are remembered by their bytes, because NumPy takes 50 us to parse one. Raises `Corrupt`
    if the bytes are no header, are cut short, or describe objects.

    >>> from io import BytesIO
    >>> np.save(saved := BytesIO(), np.zeros((2, 3), "f4"))
    >>> parse_header(np.frombuffer(saved.getvalue(), np.uint8), File("a.npy")).shape
    (2, 3)
    """
    view = buffer.data
    if len(view) < 12:
        raise _not_npy(bytes(view), file)
    # The length of the text is two bytes in version 1 and four in the later ones; both start at byte 8.
    end = 10 + view[8] + (view[9] << 8) if view[6] == 1 else 12 + int.from_bytes(view[8:12], "little")
    if end > _LONGEST:
        start = bytes(view[:6])
        raise _bad(file, f"{end} bytes long") if start == _MAGIC else _not_npy(start, file)
    if end > len(view):
        raise _not_npy(bytes(view), file)
    try:
        return _parse(bytes(view[:end]))
    except _HeaderError as error:
        raise Corrupt(f"{file.path} {error}") from error.__cause__


class _HeaderError(Exception):
    """The error of a header. It does not name the file, which is not known here."""


@lru_cache(maxsize=1024)
def _parse(head: bytes) -> Header:
    if not head.startswith(_MAGIC):
        raise _HeaderError(f"is not an .npy file{_kind(head)}")
    version = head[6], head[7]
    if version not in {(1, 0), (2, 0), (3, 0)}:
        raise _HeaderError(f"is an .npy file of version {version[0]}.{version[1]}, which is not known")
    try:
        shape, fortran_order, dtype = _read(head)
    except Exception as error:  # noqa: BLE001 - NumPy evaluates the text, so a broken one may raise anything
        # NumPy shows the header after the colon. It may hold a secret, so the cause is left out, too.
        raise _HeaderError(f"has a broken .npy header: {str(error).partition(':')[0]}") from None
    if dtype.hasobject:
        raise _HeaderError(
            f"holds Python objects ({dtype}), which are never unpickled: save it with a plain dtype, "
            "as in numpy.save(path, array.astype('float32'), allow_pickle=False)"
        )
    if any(size < 0 for size in shape):
        raise _HeaderError(f"has a broken .npy header: shape {shape}")
    return Header(shape, dtype, fortran_order, len(head), math.prod(shape) * dtype.itemsize)


def _read(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    if head[6] == 1:
        return npy_format.read_array_header_1_0(BytesIO(head[8:]))
    if head[6] == 3:
        # Version 3 is version 2 in UTF-8. Escaped, its text is the same literal in ASCII, and numpy has no
        # public function for version 3.
        text = head[12:].decode("utf-8").encode("ascii", "backslashreplace")
        head = head[:8] + len(text).to_bytes(4, "little") + text
    return npy_format.read_array_header_2_0(BytesIO(head[8:]))


def _wrong_size(header: Header, held: int, file: File) -> Corrupt:
    asked = f"{header.nbytes} bytes for shape {header.shape} of {header.dtype}, and {held} follow it"
    fix = "the file is cut short" if held < header.nbytes else "save one array per file"
    return Corrupt(f"{file.path} does not fit its header, which asks for {asked}: {fix}")


def _not_npy(start: bytes, file: File) -> Corrupt:
    if not start:
        return Corrupt(f"{file.path} is empty, where an .npy file was expected")
    if start[:6] == _MAGIC[: len(start)]:
        return Corrupt(f"{file.path} is cut short: it ends within its .npy header, after {len(start)} bytes")
    return Corrupt(f"{file.path} is not an .npy file{_kind(start)}")


def _kind(start: bytes) -> str:
    """Return the kind of a file by its first bytes. The bytes themselves may be a secret."""
    return next((f" but {kind}" for magic, kind in _OTHERS.items() if start.startswith(magic)), "")


def _bad(file: File, what: str) -> Corrupt:
    return Corrupt(f"{file.path} has an .npy header {what}, and numpy reads at most {_LONGEST}")
