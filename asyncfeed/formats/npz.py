"""The `.npz` format: several arrays in a zip archive."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, BinaryIO, overload
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np

from asyncfeed.errors import Corrupt, PipelineError
from asyncfeed.formats.base import Data, Decoder, Header, Layout
from asyncfeed.formats.npy import npy, parse_header
from asyncfeed.reading.file import Bytes, File

if TYPE_CHECKING:
    import numpy.typing as npt

_BLOCK = 1 << 20
_BROKEN = (BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError, OverflowError)
"""Exceptions of `zipfile` for archives that are broken, encrypted or of an unknown kind."""

Arrays = dict[str, "npt.NDArray[Any]"]


@dataclass(frozen=True, repr=False)
class Npz(Decoder[Arrays]):
    """Named arrays as `numpy.savez` and `numpy.savez_compressed` write them.

    Returns:
        A dict of writable arrays, in the order of the archive or of `keys`; without `keys` all of them.

    Raises:
        Corrupt: The archive claims more than `max_bytes`, which is found before anything is unpacked, or is
            broken.

    Memory:
        The arrays, at most `max_bytes` in all, beside the file. No member is unpacked further than it claims.

    Example:
        >>> npz(keys=["x", "y"])
        npz(keys=('x', 'y'))
    """

    name = "npz"
    tuning = ("max_bytes",)
    lays_out = True
    packs = True
    keys: tuple[str, ...] | None = None
    max_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        keys = self.keys
        if keys is not None and not (keys and all(isinstance(key, str) for key in keys)):
            raise PipelineError(f"npz: keys must be names of arrays, as in keys=('x', 'y'), not {keys!r}")
        if isinstance(self.max_bytes, bool) or not isinstance(self.max_bytes, int) or self.max_bytes < 1:
            raise PipelineError(f"npz: max_bytes must be a whole number of at least 1, not {self.max_bytes!r}")

    @overload
    def __call__(self, data: Data, /) -> Arrays: ...
    @overload
    def __call__(self, *, keys: Iterable[str] | None = ..., max_bytes: int = ...) -> Npz: ...
    def __call__(self, *data: Any, keys: Iterable[str] | None = None, max_bytes: int = 1 << 30) -> Npz | Arrays:
        """Return a decoder with these options; with the bytes of a file, return its arrays.

        Args:
            *data: The bytes of a file, instead of options.
            keys: The names of the arrays to read. None reads all.
            max_bytes: Number of bytes that they may take in all.
        """
        if data:
            return super().__call__(*data)
        if isinstance(keys, str):
            raise PipelineError(f"npz: keys must be several names: write keys=({keys!r},)")
        return Npz(None if keys is None else tuple(keys), max_bytes)

    def layout(self, buffer: Bytes, file: File) -> Layout | None:
        """Return the layout of a file; None if an array is compressed or in Fortran's order."""
        self.decode(buffer, file)  # so it is whole, and its checksums are right
        with ZipFile(BytesIO(buffer.data)) as archive:
            return _layout(buffer, archive.infolist(), self._members(archive, file), file)

    def unpacked(self, opened: BinaryIO, file: File) -> int:
        """Return the directory entries of the arrays to read. They claim at most `max_bytes` together."""
        try:
            with ZipFile(opened) as archive:
                sizes = {each.filename.removesuffix(".npy"): each.file_size for each in archive.infolist()}
        except _BROKEN as error:
            raise Corrupt(f"{file.path} is not a readable .npz file: {error}") from error
        asked = sizes.values() if self.keys is None else [sizes.get(key, 0) for key in self.keys]
        return min(sum(asked), self.max_bytes)

    def decode(self, buffer: Bytes, file: File) -> Arrays:
        """Return the arrays in `buffer` by name."""
        try:
            with ZipFile(BytesIO(buffer.data)) as archive:
                members = self._members(archive, file)
                return {key: _unpack(archive, member, file) for key, member in members.items()}
        except _BROKEN as error:
            raise Corrupt(f"{file.path} is not a readable .npz file: {error}") from error

    def _members(self, archive: ZipFile, file: File) -> dict[str, ZipInfo]:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        if self.keys is not None:
            missing = [key for key in self.keys if key not in members]
            if missing:
                raise Corrupt(f"{file.path} holds no array {missing[0]!r}; it has {', '.join(members) or 'none'}")
            members = {key: members[key] for key in self.keys}
        total = sum(member.file_size for member in members.values())
        if total > self.max_bytes:
            raise Corrupt(
                f"{file.path} unpacks to {total} bytes, more than the {self.max_bytes} allowed: "
                f"read fewer arrays with npz(keys=...), or write npz(max_bytes={total})"
            )
        for key, member in members.items():
            if member.compress_type not in {ZIP_STORED, ZIP_DEFLATED}:  # the others unpack without a bound
                raise Corrupt(f"{file.path} is compressed in a way numpy does not use: save it with numpy.savez")
            if not member.filename.endswith(".npy"):
                raise Corrupt(f"{file.path} holds {key!r}, which is no array: name the arrays with npz(keys=...)")
        return members


npz = Npz()


def _unpack(archive: ZipFile, member: ZipInfo, file: File) -> npt.NDArray[Any]:
    buffer = np.empty(member.file_size, np.uint8)
    got = 0
    with archive.open(member) as stream:
        while got < len(buffer):
            block = stream.read(min(_BLOCK, len(buffer) - got))
            if not block:
                raise Corrupt(f"{file.path} is cut short in {member.filename!r}: {got} of {len(buffer)} bytes")
            buffer[got : got + len(block)] = np.frombuffer(block, np.uint8)
            got += len(block)
        stream.read(1)  # at the end, so that the checksum is compared
    return npy.decode(buffer, File(f"{file.path}[{member.filename}]"))


# The records of a zip archive, as far as they are needed here: APPNOTE.TXT 4.3, "General Format of a .ZIP file".
_END = struct.Struct("<4s8xL4xH")
_LOCAL, _CENTRAL = 30, 46
"""Sizes of the record before a member and of the record in the directory, without name and extra field."""
_LOCAL_LOOSE, _CENTRAL_LOOSE = (10, 18), (12, 20)
"""Time, date and checksum. `zipfile` compares with the directory's checksum and reads none of the others."""
_CENTRAL_SUM = 16


def _layout(buffer: Bytes, entries: list[ZipInfo], members: dict[str, ZipInfo], file: File) -> Layout | None:
    """Return the layout of a valid archive, if it is as plain as NumPy writes it."""
    data = buffer.data
    end = len(data) - _END.size
    magic, size, comment = _END.unpack_from(data, end)
    more = data[end - 20 : end - 16].tobytes() == b"PK\6\7"  # than 4 GiB
    start = end - size
    if magic != b"PK\5\6" or comment or more or start < 0 or not members:
        return None
    sums: dict[int, int] = {}
    fixed = []
    at = start
    for entry in entries:
        if data[at : at + 4].tobytes() != b"PK\1\2":
            return None
        sums[id(entry)] = at + _CENTRAL_SUM
        fixed += [(at, at + _CENTRAL_LOOSE[0]), (at + _CENTRAL_LOOSE[1], at := at + _record(data, at, _CENTRAL))]
    if at != end:
        return None
    fixed.append((end, len(data)))
    headers: dict[str, Header] = {}
    before = []
    if any(member.compress_type != ZIP_STORED for member in members.values()):
        return None
    for key, member in members.items():
        at = member.header_offset
        first = at + _record(data, at, _LOCAL)
        header = parse_header(buffer[first : first + member.file_size], file)
        body = first + header.offset
        if header.fortran_order and len(header.shape) > 1:
            return None
        if header.dtype.hasobject or body + header.nbytes > start:
            return None
        fixed += [(at, at + _LOCAL_LOOSE[0]), (at + _LOCAL_LOOSE[1], body)]
        headers[key] = header._replace(offset=body)
        before.append((sums[id(member)], zlib.crc32(data[first:body])))
    known = fixed + [(each.offset, each.offset + each.nbytes) for each in headers.values()]
    loose = _between(known, len(data))
    return None if loose is None else Layout(headers, loose, tuple(before))


def _record(data: memoryview, at: int, length: int) -> int:
    """Return the size of a record with everything after its fixed part."""
    fields = (26, 28) if length == _LOCAL else (28, 30, 32)
    return length + sum(int.from_bytes(data[at + field : at + field + 2], "little") for field in fields)


def _between(known: list[tuple[int, int]], size: int) -> tuple[tuple[int, int], ...] | None:
    """Return the ranges of a file between these ranges; None if two of them overlap."""
    loose = []
    last = 0
    for start, stop in sorted(known):
        if start < last:
            return None
        if start > last:
            loose.append((last, start))
        last = stop
    return None if last != size else tuple(loose)
