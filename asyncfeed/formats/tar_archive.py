"""The headers of a tar archive, and the members and samples that they tell of. No code here waits or reads."""

from __future__ import annotations

import io
import tarfile
import zlib
from typing import Any, Final, NamedTuple

from asyncfeed.errors import Corrupt

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


class Head(NamedTuple):
    """What the headers of a member say. The offsets are relative to the first one."""

    path: str
    is_file: bool
    at: int
    """Where its last header begins."""
    size: int
    stop: int
    """Where the next member begins."""
    body: bytes | None
    """The contents, if they had to be read."""


class More(Exception):
    """A member needs more data than was read."""


class Archive:
    """Turns the blocks of an archive into samples. It does no IO."""

    def __init__(self, path: str, *, members: bool, max_bytes: int) -> None:
        self._path = path
        self._members = members
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        """What was read of the next member. It begins at a header."""
        self._have = 0
        """Number of bytes in `parts`."""
        self._needed = BLOCK
        """Number of bytes in `parts` with which the next member may be read."""
        self.offset = 0
        """Where `parts` begins in the archive, or the data that is being read."""
        self.pax = b""
        """The headers that hold for all members that follow."""
        self._sample: dict[str, Any] | None = None
        self.is_over = False
        """Whether the end of the archive was read."""

    def feed(self, block: bytes) -> tuple[list[Any], Corrupt | None]:
        """Return the samples that end in this block, and the error after them."""
        found: list[Any] = []
        try:
            start = self._begun(block, found) if self._have else 0
            if start is not None:
                self._members_of(block, start, found)
        except Corrupt as error:
            return found, error
        return found, None

    def _begun(self, block: bytes, found: list[Any]) -> int | None:
        """Read the member that began before this block. Return where it ends in the block; None if it does not.

        Only the bytes of this member are joined.
        """
        while self._have + len(block) >= self._needed:
            before = self._have
            piece = b"".join((*self._parts, block[: self._needed - before]))
            try:
                stop = self._member(piece, 0, found)
            except More as more:
                self._needed = more.args[0]
                continue
            if stop < before:  # a header that says less than was needed to read it
                self._parts, self._have, self._needed = [piece[stop:before]], before - stop, BLOCK
                self.offset += stop
                continue
            self._parts, self._have, self._needed = [], 0, BLOCK
            self.offset -= before
            return stop - before
        self._parts.append(block)
        self._have += len(block)
        return None

    def _members_of(self, data: bytes, start: int, found: list[Any]) -> None:
        """Read all members that end in `data`, and keep the rest. `offset` is where `data` begins."""
        self._needed = BLOCK
        try:
            while start < len(data):
                start = self._member(data, start, found)
        except More as more:
            self._needed = more.args[0] - start
        self.offset += start
        rest = data[start:]
        self._parts, self._have = [rest] if rest else [], len(rest)

    def end(self) -> tuple[list[Any], Corrupt | None]:
        """Return the last sample, or the error of an archive that is cut short."""
        if any(map(any, self._parts)) or not self.is_over:
            return [], self.cut_short(self.offset + self._have)
        return self.rest(), None

    def rest(self) -> list[Any]:
        """Return the sample that no further member has ended."""
        sample, self._sample = self._sample, None
        return [] if sample is None else [sample]

    def cut_short(self, size: int) -> Corrupt:
        """Return the error of an archive of this size that has no end."""
        return Corrupt(f"{self._path} is cut short: no end of an archive is there at offset {size}")

    def begins_sample(self, head: Head) -> bool:
        """Return whether a member is the first one of a sample, and note it."""
        before, found = self._sample, list[Any]()
        if head.is_file:
            self._take(head.path, b"", head.at, found)
        return bool(found) if self._members else self._sample is not before

    def _member(self, data: bytes, start: int, found: list[Any]) -> int:
        """Read the member at `start`. Return where the next one begins."""
        head = self.head(data, start)
        if head is None:
            return start + BLOCK
        if head.is_file:
            body = head.body
            if body is None:
                if head.stop > len(data):
                    raise More(head.stop)
                body = data[head.at + BLOCK : head.at + BLOCK + head.size]
            self._take(head.path, body, head.at, found)
        return head.stop

    def head(self, data: bytes, start: int) -> Head | None:
        """Return what the headers at `start` say; None at the end of an archive."""
        at = start
        head = _part(data, at, BLOCK)
        self.is_over = head == ZEROS
        if self.is_over:
            return None
        extended, pax, name, is_plain = b"", b"", "", not self.pax
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
        size, body = self._size(head, at), None
        if not is_plain or kind == b"S":
            name, size, body, stop = self._unusual(extended, data, at, size)
            self.pax += pax
        else:
            name = name or _name(head)
            self._check_size(name, size, at)
            stop = at + BLOCK + (_padded(size) if kind in REGULAR else 0)
        if kind == b"5" or (kind == b"\0" and name.endswith("/")):
            return Head(name, False, at, 0, at + BLOCK, None)
        if kind not in REGULAR and kind != b"S":
            raise self._corrupt(at, f"{name!r} is a link or a device: write the archive with --hard-dereference")
        return Head(name, True, at, size, stop, body)

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
            blob = self.pax + extended + data[at:stop]
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
        if self._members:
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
        most = self._max_bytes
        if size > most:
            raise self._corrupt(at, f"{name!r} has {size:,} bytes (max_bytes={most:,})")

    def _corrupt(self, at: int, what: str) -> Corrupt:
        return Corrupt(f"{self._path}: {what}, at offset {self.offset + at}")


def _part(data: bytes, at: int, size: int) -> bytes:
    part = data[at : at + size]
    if len(part) < size:
        raise More(at + size)
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
