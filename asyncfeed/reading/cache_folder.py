"""A folder of cached files on the local disk, shared by any number of processes.

::

    folder/
        ab/cdef...   an entry: its header, then the bytes
        new/         entries that are being written
        size         how many bytes the processes took of the limit

Invariants:

* An entry appears complete, by a rename. A process that is killed leaves a file in `new`, or nothing.
* The bytes of an entry are used only if its size and its checksum are right. The checksum is computed when a
  process first reads the entry, again if the file has changed since, and again some hours later. So nothing is
  synced to the disk: the next process finds the damage of a power cut.
* A process takes bytes of the limit before it writes them, and takes many at a time. A process that is killed does
  not give back the rest. So the count may be too high. It is too low by no more than other processes have taken
  and not written when the entries are counted.
* If the folder is full, nothing is written, and no entry that is in use is removed. Entries that no process used
  for two days are removed then, and the others are counted.
* No lock is held while an entry is read or written.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import os
import sys
import threading
import time
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from stat import S_ISDIR

from asyncfeed.reading.reader import Buffers

MAGIC = b"asyncfd1"
HEADER = 32
"""Bytes before those of the file: the magic number, the CRC-32 of all that follows, zeros, and the name."""
BLOCK = 4096
"""An entry is charged with a whole number of these, as the disk has it."""
MOST_TAKEN = 16 << 20
"""Bytes that a process takes of the limit at a time. With fewer, it locks the count more often. With more, a
process that is killed makes the cache smaller, until the entries are counted."""
TAKEN_SHARE = 64
"""It takes no more than this share of the limit at a time, or a small cache would seem full too early."""
FREE_SHARE = 20
"""One part in this number of the disk stays free, for everything else that is written there."""
STALE_SECONDS = 2 * 86_400
"""Entries that were not used for this time may be removed. If it were shorter, a long epoch could lose some."""
USED_AGAIN_SECONDS = 6 * 3600
"""A process notes after this time that it still uses an entry, and computes its checksum again."""
SWEPT_AGAIN_SECONDS = 600
"""All entries are looked at at most this often, because a million of them take seconds."""
LEFT_SECONDS = 600
"""A file in `new` of this age was left by a process that was killed: writing takes seconds."""
READ_AT_A_TIME = 1 << 20

_OWN = os.urandom(6).hex()
"""A part of the names of files in `new`: processes in two containers may have one number."""
_numbers = count()


class CacheFolder:
    """A folder of cached files, as one process sees it. Any number of threads may call it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._checked = False
        self._ready = False
        """Whether it can be written to, as far as is known: the folders are there."""
        self._off = False
        """Whether nothing is written until the next run, because it failed."""
        self._taken = 0
        """Bytes that were taken of the limit, and not used yet."""
        self._writing = 0
        """Bytes of the entries that are being written."""
        self._swept = False
        """Whether this run has looked for room already."""
        self._sound: set[int] = set()
        """The files whose checksum was right: a hash of path, inode and time of the last write."""
        self._sound_since = time.monotonic()

    def begin(self) -> None:
        """Note that a run begins. It tries again what failed before."""
        with self._lock:
            self._checked = self._ready = self._off = self._swept = False

    def check(self) -> None:
        """Raise `PermissionError` if another user could put files into the folder. Make it if it is not there."""
        if self._checked:
            return
        with suppress(OSError):  # writing fails with the same error, and reports it
            os.makedirs(self.path, 0o700, exist_ok=True)  # noqa: PTH103
        try:
            status = os.stat(self.path)  # noqa: PTH116
        except FileNotFoundError:
            return
        if not S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self.path)
        if status.st_uid not in (os.geteuid(), 0) or status.st_mode & 0o022:
            raise PermissionError(
                errno.EPERM,
                "another user could write to this cache: use a folder of your own that only you can write to "
                "(chmod go-w)",
                self.path,
            )
        self._checked = True

    # -- reading

    def entry(self, name: str) -> str:
        """Return the path of the entry with a name of 32 hexadecimal digits."""
        return f"{self.path}/{name[:2]}/{name[2:]}"

    def begin_reads(self) -> None:
        """Forget from time to time which entries were right. Call it before some are read."""
        if time.monotonic() - self._sound_since > USED_AGAIN_SECONDS:
            self._sound_since = time.monotonic()
            self._sound.clear()

    def is_sound(
        self, path: str, fd: int, status: os.stat_result, header: bytes | bytearray, parts: Buffers
    ) -> bool:
        """Return whether the bytes that were read from an entry are those that were written.

        `header` has its first bytes, `parts` have the others. No `parts`: all of them are read here.
        """
        if hash((path, status.st_ino, status.st_mtime_ns)) in self._sound:
            return True
        name = bytes.fromhex(path[-33:-31] + path[-30:])
        summed = sum_of(name, parts or _blocks(fd, status.st_size))
        if header != _header(name, summed):
            return False
        if time.time() - status.st_mtime > USED_AGAIN_SECONDS:
            with suppress(OSError):  # a folder that cannot be written to needs no note
                os.utime(path)  # by path: a descriptor that was opened for reading will not do on all systems
                status = os.fstat(fd)
        self._sound.add(hash((path, status.st_ino, status.st_mtime_ns)))
        return True

    def remove(self, path: str) -> None:
        """Remove an entry that is damaged."""
        with suppress(OSError):
            size = os.stat(path).st_size  # noqa: PTH116
            os.unlink(path)  # noqa: PTH108
            with self._counted() as counted:
                counted.change(-_charge(size))

    # -- writing

    def keep(self, name: str, parts: Buffers, limit: int) -> bool:
        """Write an entry, and return whether it was written. A failure turns writing off until the next run."""
        if self._off:
            return False
        charge = _charge(HEADER + sum(map(len, parts)))
        try:
            self._prepare()
            if not self._room(charge, limit):
                return False
            try:
                self._write(name, parts)
            finally:
                with self._lock:
                    self._writing -= charge
        except OSError as error:
            self._turn_off(error)
            return False
        return True

    def _write(self, name: str, parts: Buffers) -> None:
        digest, path = bytes.fromhex(name), self.entry(name)
        temporary = f"{self.path}/new/{_OWN}-{os.getpid()}-{next(_numbers)}"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            try:
                write_all(fd, [_header(digest, sum_of(digest, parts)), *parts])
                status = os.fstat(fd)
            finally:
                os.close(fd)
            try:
                os.replace(temporary, path)  # noqa: PTH105
            except FileNotFoundError:
                with suppress(FileExistsError):
                    os.mkdir(os.path.dirname(path), 0o700)  # noqa: PTH102, PTH120
                os.replace(temporary, path)  # noqa: PTH105
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)  # noqa: PTH108
            raise
        self._sound.add(hash((path, status.st_ino, status.st_mtime_ns)))

    def _prepare(self) -> None:
        """Make the folders, and remove what killed processes left. Done once."""
        if self._ready:
            return
        os.makedirs(f"{self.path}/new", 0o700, exist_ok=True)  # noqa: PTH103
        with os.scandir(f"{self.path}/new") as left:
            for each in left:
                with suppress(OSError):
                    if time.time() - each.stat(follow_symlinks=False).st_mtime > LEFT_SECONDS:
                        os.unlink(each.path)  # noqa: PTH108
        self._ready = True

    def _turn_off(self, error: OSError) -> None:
        with self._lock:
            told, self._off, self._ready = self._off, True, False
        if not told:
            warnings.warn(
                f"the cache {self.path} is read and not written to until the next run: {error.strerror or error}",
                RuntimeWarning,
                stacklevel=2,
            )

    # -- how much there is

    def _room(self, nbytes: int, limit: int) -> bool:
        """Take bytes for an entry. Return False if there is no room for it."""
        if self._take(nbytes, limit):
            return True
        with self._lock:
            swept, self._swept = self._swept, True
        return not swept and self._sweep() and self._take(nbytes, limit)

    def _take(self, nbytes: int, limit: int) -> bool:
        disk = os.statvfs(self.path)
        if (disk.f_bavail - disk.f_blocks // FREE_SHARE) * disk.f_frsize < nbytes:
            return False
        with self._lock:
            if self._taken < nbytes:
                with self._counted() as counted:
                    used = counted.read()
                    if used is None:
                        used = sum(size for _, size in self._entries())
                    wanted = max(nbytes, min(MOST_TAKEN, limit // TAKEN_SHARE)) - self._taken
                    if used + wanted > limit:
                        wanted = nbytes - self._taken
                    if used + wanted > limit:
                        return False
                    counted.write(used + wanted)
                self._taken += wanted
            self._taken -= nbytes
            self._writing += nbytes
        return True

    def give_back(self) -> None:
        """Give back what was taken of the limit and not used."""
        with self._lock:
            if self._taken:
                with suppress(OSError), self._counted() as counted:
                    counted.change(-self._taken)
                self._taken = 0

    def _sweep(self) -> bool:
        """Remove entries that were not used for long, and count the others. Return False if it was done lately."""
        mark = f"{self.path}/swept"
        try:
            if 0 <= time.time() - os.stat(mark).st_mtime < SWEPT_AGAIN_SECONDS:  # noqa: PTH116
                return False
        except FileNotFoundError:
            pass
        os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        os.utime(mark)
        with self._lock, self._counted() as counted:
            before = counted.read() or 0
            unseen = self._taken + self._writing
        stale = time.time() - STALE_SECONDS
        used = 0
        for entry, size in self._entries():
            with suppress(OSError):
                if entry.stat(follow_symlinks=False).st_mtime < stale:
                    os.unlink(entry.path)  # noqa: PTH108
                    continue
            used += size
        with self._counted() as counted:
            # Also what this process had not written before, and what was taken since.
            counted.write(used + unseen + max(0, (counted.read() or 0) - before))
        return True

    def _entries(self) -> Iterator[tuple[os.DirEntry[str], int]]:
        """Yield each entry, and the bytes that it is charged with."""
        with os.scandir(self.path) as found:
            for folder in found:
                if len(folder.name) != 2:
                    continue
                with suppress(OSError), os.scandir(folder.path) as entries:
                    for entry in entries:
                        with suppress(FileNotFoundError):
                            yield entry, _charge(entry.stat(follow_symlinks=False).st_size)

    @contextmanager
    def _counted(self) -> Iterator[_Count]:
        """Lock the count of bytes for all processes. It is held for some microseconds."""
        fd = os.open(f"{self.path}/size", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield _Count(fd)
        finally:
            os.close(fd)  # this unlocks it, and so does the end of the process


class _Count:
    """The number of bytes in the folder, in a locked file."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self) -> int | None:
        """Return the number; None if the file does not hold one."""
        text = os.pread(self._fd, 64, 0)
        return int(text) if len(text) == 20 and text.isdigit() else None

    def write(self, nbytes: int) -> None:
        os.pwrite(self._fd, b"%020d" % max(0, nbytes), 0)

    def change(self, nbytes: int) -> None:
        used = self.read()
        if used is not None:
            self.write(used + nbytes)


folders: dict[tuple[int, str], CacheFolder] = {}
"""The folders that processes have used, by the number of the process and the path."""


def folder_at(path: str) -> CacheFolder:
    """Return the folder at an absolute path. All readers of a process share it."""
    return folders.setdefault((os.getpid(), path), CacheFolder(path))  # a forked process has locks of its own


@atexit.register
def _give_back() -> None:
    for (process, _), folder in folders.items():
        if process == os.getpid():
            folder.give_back()


def write_all(fd: int, parts: Sequence[memoryview | bytearray | bytes]) -> None:
    """Write buffers to a file. One call stops at 2 GiB, and takes 1,024 buffers at most."""
    left = [memoryview(each) for each in parts if len(each)]
    while left:
        written = os.writev(fd, left[:1024])
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if written:
            left[0] = left[0][written:]


def sum_of(name: bytes, parts: Iterator[bytes] | Buffers) -> int:
    """Return the checksum of an entry."""
    summed = zlib.crc32(name)
    for part in parts:
        summed = zlib.crc32(part, summed)
    return summed


def _header(name: bytes, summed: int) -> bytes:
    return MAGIC + summed.to_bytes(8, "little") + name


def _blocks(fd: int, size: int) -> Iterator[bytes]:
    """Yield the bytes of an entry after its header."""
    for at in range(HEADER, size, READ_AT_A_TIME):
        yield os.pread(fd, min(READ_AT_A_TIME, size - at), at)


def _charge(size: int) -> int:
    return (size + BLOCK - 1) // BLOCK * BLOCK


NO_LIMIT = sys.maxsize
"""The limit of a cache that may fill the disk, but for the part that stays free."""
