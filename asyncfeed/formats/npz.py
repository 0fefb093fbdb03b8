"""The `.npz` format: several arrays in a zip archive."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np

from asyncfeed.errors import Corrupt, PipelineError
from asyncfeed.formats.base import Decoder
from asyncfeed.formats.npy import npy
from asyncfeed.storage.base import Bytes, File

_BLOCK = 1 << 20
_BROKEN = (BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError, OverflowError)
"""What `zipfile` raises for archives that are broken, encrypted or of an unknown kind."""

Arrays = dict[str, np.ndarray[Any, np.dtype[Any]]]


@dataclass(frozen=True, repr=False)
class Npz(Decoder[Arrays]):
    """Named arrays as `numpy.savez` and `numpy.savez_compressed` write them.

    A sample is a dict of writable arrays, in the order of the archive or of `keys`; without `keys` it holds
    all of them. Memory: the arrays, at most `max_bytes` in all, beside the file. An archive that claims more
    is `Corrupt` before anything is unpacked, and no member is unpacked further than it claims.

    >>> npz(keys=["x", "y"])
    npz(keys=('x', 'y'))
    """

    name = "npz"
    keys: tuple[str, ...] | None = None
    max_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        keys = self.keys
        if keys is not None and not (keys and all(isinstance(key, str) for key in keys)):
            raise PipelineError(f"npz: keys must be names of arrays, as in keys=('x', 'y'), not {keys!r}")
        if isinstance(self.max_bytes, bool) or not isinstance(self.max_bytes, int) or self.max_bytes < 1:
            raise PipelineError(f"npz: max_bytes must be a whole number of at least 1, not {self.max_bytes!r}")

    def __call__(self, *, keys: Iterable[str] | None = None, max_bytes: int = 1 << 30) -> Npz:
        """Return a decoder that reads only the arrays named `keys`, and at most `max_bytes` of them."""
        if isinstance(keys, str):
            raise PipelineError(f"npz: keys must be several names: write keys=({keys!r},)")
        return Npz(None if keys is None else tuple(keys), max_bytes)

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


def _unpack(archive: ZipFile, member: ZipInfo, file: File) -> np.ndarray[Any, np.dtype[Any]]:
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
