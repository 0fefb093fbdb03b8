"""Tar archives, for `flat_map`: the members of each sample together, as WebDataset stores them, or each member."""

from __future__ import annotations

import io
import tarfile
import zlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, overload

from asyncfeed.errors import Corrupt
from asyncfeed.formats.base import StreamDecoder
from asyncfeed.formats.lines import Source
from asyncfeed.reading.compression import Compressed
from asyncfeed.reading.stream import ByteStream

BLOCK: Final = 512
EXTENDED_BYTES: Final = 1 << 20
"""Bytes that the headers before one member may have: a long name, and what pax knows of it."""
KEY: Final = "__key__"
"""The name of what the members of a sample have in common."""
REGULAR: Final = (b"0", b"\0", b"7")
EXTENDED: Final = (b"x", b"g", b"X", b"L", b"K")
"""Kinds of headers before the one of a member: those of pax, and GNU's long names."""
PAX: Final = {b"path", b"linkpath", b"mtime", b"atime", b"ctime", b"uid", b"gid", b"uname", b"gname", b"comment"}
"""What pax may say of a file without a change of how it is read. WebDataset's writer says `mtime` of each file."""
ZEROS: Final = bytes(BLOCK)


class TarMember(NamedTuple):
    """One file of an archive."""

    path: str
    data: bytes


@dataclass(frozen=True, repr=False)
class Tar(StreamDecoder[Any]):
    r"""The samples of a tar archive, as WebDataset stores them.

    Use it as `files("*.tar").flat_map(tar)`. Consecutive members whose paths are equal up to the first dot of the
    file name are one sample: a dict with the rest of the name, in lower case, and the bytes of each member.
    `"__key__"` has the common part. So `a/1.jpg` and `a/1.cls` make `{"__key__": "a/1", "jpg": b"...", "cls":
    b"7"}`. Folders are left out, and so are files whose name begins with a dot, or begins and ends with `__`.

    Raises:
        Corrupt: The archive is damaged or cut short. Or a member is a link or a device, has more than `max_bytes`,
            has a path that leads out of the archive, or makes no part of a sample. The message names it.

    Memory:
        One sample at a time, and a block of the file.

    Example:
        >>> import asyncfeed as af, io, tarfile
        >>> with tarfile.open(fileobj=(made := io.BytesIO()), mode="w") as archive:
        ...     for name, data in [("1.cls", b"7"), ("1.txt", b"one"), ("2.cls", b"8")]:
        ...         (member := tarfile.TarInfo(name)).size = len(data)
        ...         archive.addfile(member, io.BytesIO(data))
        >>> list(af.items([made.getvalue()]).flat_map(af.tar))
        [{'__key__': '1', 'cls': b'7', 'txt': b'one'}, {'__key__': '2', 'cls': b'8'}]
        >>> next(iter(af.items([made.getvalue()]).flat_map(af.tar(members=True))))
        TarMember(path='1.cls', data=b'7')
    """

    name = "tar"
    compression: Compressed = "auto"
    members: bool = False
    max_bytes: int = 1 << 30

    @overload
    def __call__(
        self, file: Source, /, *, members: bool | None = ..., max_bytes: int | None = ...,
        compression: Compressed = ...,
    ) -> AsyncGenerator[Any]: ...  # fmt: skip
    @overload
    def __call__(
        self, *, members: bool | None = ..., max_bytes: int | None = ..., compression: Compressed = ...
    ) -> Tar: ...
    def __call__(
        self, *file: Source, members: bool | None = None, max_bytes: int | None = None,
        compression: Compressed = "auto",
    ) -> AsyncGenerator[Any] | Tar:  # fmt: skip
        """Return a decoder with these options; with a file, an async generator of its samples.

        Args:
            *file: An archive, its path, or its bytes.
            members: True yields each file of the archive by itself, as a pair of its path and its bytes.
            max_bytes: Number of bytes that a file of the archive may have.
            compression: As for `lines`.
        """
        decoder = replace(
            self,
            members=self.members if members is None else members,
            max_bytes=self.max_bytes if max_bytes is None else max_bytes,
            compression=compression,
        )
        return super(Tar, decoder).__call__(*file) if file else decoder

    async def groups(self, stream: ByteStream) -> AsyncGenerator[list[Any]]:
        """Yield the samples that end in one block after the other."""
        reading = _Reading(self, stream.file.path)
        ended = False
        while not ended:
            block = await stream.block()
            ended = not block
            found, error = reading.end() if ended else reading.feed(block)
            if found:
                yield found
            if error is not None:
                raise error


tar = Tar()


class _More(Exception):
    """A member needs more data than was read."""


class _Reading:
    """Turns the blocks of an archive into samples. It does no IO."""

    def __init__(self, options: Tar, path: str) -> None:
        self._options = options
        self._path = path
        self._parts: list[bytes] = []
        """What was read and not used. It begins at a header."""
        self._have = 0
        """Number of bytes in `parts`."""
        self._needed = BLOCK
        """Number of bytes in `parts` with which the next member may be read."""
        self._offset = 0
        """Where `parts` begins in the archive."""
        self._pax = b""
        """The headers that hold for all members that follow."""
        self._sample: dict[str, Any] | None = None
        self._is_over = False
        """Whether the end of the archive was read."""

    def feed(self, block: bytes) -> tuple[list[Any], Corrupt | None]:
        """Return the samples that end in this block, and the error after them."""
        self._parts.append(block)
        self._have += len(block)
        found: list[Any] = []
        if self._have < self._needed:
            return found, None
        data = b"".join(self._parts)
        start = 0
        try:
            while True:
                start = self._member(data, start, found)
        except Corrupt as error:
            return found, error
        except _More as more:
            self._needed = more.args[0] - start
        self._offset += start
        self._parts, self._have = [data[start:]], len(data) - start
        return found, None

    def end(self) -> tuple[list[Any], Corrupt | None]:
        """Return the last sample, or the error of an archive that is cut short."""
        if any(map(any, self._parts)) or not self._is_over:
            where = f"at offset {self._offset + self._have}"
            return [], Corrupt(f"{self._path} is cut short: no end of an archive is there {where}")
        sample, self._sample = self._sample, None
        return ([] if sample is None else [sample]), None

    def _member(self, data: bytes, start: int, found: list[Any]) -> int:
        """Read the member at `start`. Return where the next one begins."""
        at = start
        head = _part(data, at, BLOCK)
        if head == ZEROS:
            self._is_over = True
            return at + BLOCK
        self._is_over = False
        extended, pax, name, is_plain = b"", b"", "", not self._pax
        while (kind := head[156:157]) in EXTENDED:
            size = self._size(head, at)
            if size > EXTENDED_BYTES:
                raise self._corrupt(at, f"a header of {size:,} bytes")
            before = _part(data, at, BLOCK + _padded(size))
            given = _long_name(kind, before[BLOCK : BLOCK + size])
            is_plain = is_plain and given is not None
            name = given or name
            extended += before
            pax += before if kind == b"g" and given != "" else b""
            at += len(before)
            head = _part(data, at, BLOCK)
        size = self._size(head, at)
        if not is_plain or kind == b"S":
            name, size, body, stop = self._unusual(extended, data, at, size)
            self._pax += pax
        else:
            name = name or _name(head)
            self._check_size(name, size, at)
            stop = at + BLOCK + _padded(size)
            body = _part(data, at + BLOCK, stop - at - BLOCK)[:size] if kind in REGULAR else b""
        if kind == b"5" or (kind == b"\0" and name.endswith("/")):
            return at + BLOCK
        if kind not in REGULAR and kind != b"S":
            raise self._corrupt(at, f"{name!r} is a link or a device: write the archive with --hard-dereference")
        self._take(name, body, at, found)
        return stop

    def _unusual(self, extended: bytes, data: bytes, at: int, size: int) -> tuple[str, int, bytes, int]:
        """Read a member with `tarfile`, which knows every header. Return name, size, contents and end."""
        start = at + BLOCK
        if data[at + 156 : at + 157] == b"S" and data[at + 482]:
            while _part(data, start, BLOCK)[504]:
                start += BLOCK
            start += BLOCK
        while True:
            self._check_size(_name(data[at : at + BLOCK]), size, at)
            stop = start + _padded(size)
            _part(data, at, stop - at)
            blob = self._pax + extended + data[at:stop]
            try:
                with tarfile.open(fileobj=io.BytesIO(blob), mode="r:", errorlevel=2) as archive:
                    found = archive.next()
                    if found is None:
                        raise self._corrupt(at, "a header without a file")
                    if found.issparse() or found.size == size or not found.isreg():
                        self._check_size(found.name, found.size, at)
                        opened = archive.extractfile(found) if found.isreg() else None
                        body = b"" if opened is None else opened.read()
                        return found.name, found.size, body, stop
                size = found.size  # pax knows it
            except Corrupt:
                raise
            except Exception as error:
                raise self._corrupt(at, f"a header that cannot be read ({error})") from error

    def _take(self, path: str, body: bytes, at: int, found: list[Any]) -> None:
        """Add a file to its sample, or yield it by itself."""
        if path.startswith("/") or ".." in path.split("/") or "\0" in path:
            raise self._corrupt(at, f"{path!r} leads out of the archive")
        if self._options.members:
            found.append(TarMember(path, body))
            return
        folder, _, file = path.rpartition("/")
        if file.startswith(".") or (not folder and file.startswith("__") and file.endswith("__")):
            return
        key, dot, part = file.partition(".")
        if not dot:
            raise self._corrupt(at, f"{path!r} has no dot, so it is no part of a sample: use tar(members=True)")
        key = f"{folder}/{key}" if folder else key
        part = part.lower()
        sample = self._sample
        if sample is None or sample[KEY] != key:
            if sample is not None:
                found.append(sample)
            self._sample = sample = {KEY: key}
        elif part in sample:
            raise self._corrupt(at, f"a second {part!r} of sample {key!r}")
        sample[part] = body

    def _size(self, head: bytes, at: int) -> int:
        """Return the size of the body in a header whose checksum is right."""
        try:
            written, size = _number(head[148:156]), _number(head[124:136])
        except ValueError:
            raise self._corrupt(at, "no header of a tar archive is there") from None
        # The lower half of Adler-32 is the sum of all bytes and 1, modulo 65,521. The checksum counts itself as
        # spaces.
        total = (zlib.adler32(head) & 0xFFFF) - 1 - sum(head[148:156]) + 8 * 32
        if (total - written) % 65_521:
            raise self._corrupt(at, "a header whose checksum is wrong")
        return size

    def _check_size(self, name: str, size: int, at: int) -> None:
        most = self._options.max_bytes
        if size > most:
            raise self._corrupt(at, f"{name!r} has {size:,} bytes (max_bytes={most:,})")

    def _corrupt(self, at: int, what: str) -> Corrupt:
        return Corrupt(f"{self._path}: {what}, at offset {self._offset + at}")


def _part(data: bytes, at: int, size: int) -> bytes:
    part = data[at : at + size]
    if len(part) < size:
        raise _More(at + size)
    return part


def _long_name(kind: bytes, body: bytes) -> str | None:
    """Return the name in a header before that of a member, "" if it has none. None if it says more than a name."""
    if kind == b"K":
        return ""
    if kind == b"L":
        return body.partition(b"\0")[0].decode("utf-8", "surrogateescape")
    name, at = "", 0
    while at < len(body):
        space = body.find(b" ", at, at + 8)
        if space < 0 or not body[at:space].isdigit():
            return None
        stop = at + int(body[at:space])
        key, equals, value = body[space + 1 : stop - 1].partition(b"=")
        if stop <= space or stop > len(body) or not equals or body[stop - 1] != 10 or key not in PAX:
            return None
        if key == b"path":
            if kind == b"g":
                return None
            name = value.decode("utf-8", "surrogateescape")
        at = stop
    return name


def _number(field: bytes) -> int:
    """Return a number of a header: octal digits, or with GNU large numbers as bytes."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    number = int(field.partition(b"\0")[0].strip() or b"0", 8)
    if number < 0:
        raise ValueError
    return number


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _name(head: bytes) -> str:
    name = head[:100].partition(b"\0")[0]
    if head[257:263] == b"ustar\0" and head[345]:
        name = head[345:500].partition(b"\0")[0] + b"/" + name
    return name.decode("utf-8", "surrogateescape")
