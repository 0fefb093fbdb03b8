"""The local disk: whole files and parts of them, with as few system calls as possible."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import pairwise
from stat import S_ISREG
from typing import BinaryIO, ParamSpec, TypeVar

import numpy as np

from asyncfeed.errors import Corrupt
from asyncfeed.reading.file import Bytes, File, Numbers
from asyncfeed.reading.listing import UNKNOWN, FileSpan
from asyncfeed.reading.opener import FLAGS, HINTS, Opener
from asyncfeed.reading.reader import (
    Buffers,
    Columns,
    Range,
    Reader,
    Waits,
    changed,
    ends_before,
    not_a_file,
    parts_of,
    sizes_of,
    wrong_size,
)
from asyncfeed.reading.sampled import Sampled, blocks_read, waited_for

SMALL_BYTES = 1 << 16
"""Bytes up to which a file is small. A larger one takes so long to copy that its status takes little beside it,
and calls of a thread are as fast as io_uring."""

OPENED = 64
"""Number of small files that are open at a time. They are closed together. Closing each by itself takes 1.1 to 1.2
times as long, because each call gives up the GIL."""

P = ParamSpec("P")
T = TypeVar("T")


class LocalReader(Reader):
    """Reads local files.

    It keeps no descriptor between calls. It remembers whether reads wait for the disk, so all stages of a run
    share one reader.
    """

    def __init__(self) -> None:
        self._opener = Opener()
        self._sampled = Sampled()

    def look(self, files: Sequence[File]) -> list[File | Exception]:
        """Return the files with their sizes and times of change."""
        return [_try(_look, file) for file in files]

    def read(self, files: Sequence[File]) -> list[Bytes | Exception]:
        """Return whole files. A file that one call reads completely takes four system calls."""
        outcomes: list[Bytes | Exception] = []
        for file in files:
            try:
                outcomes.append(_read(file))
            except Exception as error:  # noqa: BLE001 - any exception is an outcome
                outcomes.append(error.with_traceback(None))
        return outcomes

    def read_ranges(self, file: File, ranges: Sequence[Range]) -> list[Bytes | Exception]:
        """Return parts of a file."""
        try:
            fd = os.open(file.path, FLAGS)
        except OSError as error:
            return [error.with_traceback(None)] * len(ranges)
        try:
            check = _try(_status, fd, file)
            if isinstance(check, Exception):
                return [check] * len(ranges)
            return [_try(_read_range, fd, file, each) for each in ranges]
        finally:
            os.close(fd)

    def read_into(self, files: Sequence[File], into: Sequence[Buffers]) -> list[Exception | None]:
        """Read whole files into given memory. If reads wait for the disk, some files are opened ahead."""
        outcomes: list[Exception | None] = []
        files = list(files)  # a span makes its files each time it is asked
        with closing(self._opener.open(files)) as opened:
            for file, fd, buffers in zip(files, opened, into, strict=True):
                if isinstance(fd, OSError):
                    outcomes.append(fd)
                    continue
                try:
                    status = os.fstat(fd)
                    size = sum(map(len, buffers))
                    # Inlined, because a function call here is most of the cost of a small file beside its reads.
                    if (
                        status.st_size == size
                        and (file.version is None or file.version == status.st_mtime_ns)
                        and (file.size is None or file.size == size)
                        and S_ISREG(status.st_mode)
                    ):
                        got = os.readv(fd, buffers)
                        outcomes.append(None if got == size else _fill(fd, file, buffers, got))
                    else:
                        outcomes.append(_why_not(file, status, size))
                except OSError as error:
                    outcomes.append(_named(error, file).with_traceback(None))
        return outcomes

    def read_rows(self, files: Sequence[File], columns: Columns) -> dict[int, Exception]:
        """Read whole files into the rows of arrays. Small files on a plain disk are closed together.

        Its size is always checked. Whether it was written to is checked for the first file and every 64th.
        """
        sizes = sizes_of(columns)
        totals: Numbers = np.sum(sizes, axis=0)
        sampled = self._sampled
        # If their disks are known, the files are looked at afterwards. It is quicker then, see `sound`.
        known = sampled.only_plain
        if totals.max() <= SMALL_BYTES and (known or sampled.sound(files)):
            failed = self._read_small(files, columns, sizes, totals)
            if not known or sampled.sound(files, read=True):
                return failed
        self.waits = Waits.UNKNOWN
        return super().read_rows(files, columns)

    def _read_small(
        self, files: Sequence[File], columns: Columns, sizes: Sequence[Numbers], totals: Numbers
    ) -> dict[int, Exception]:
        """Read small files that should have `totals` bytes, of which `sizes` go into each column."""
        before = blocks_read()
        opener = self._opener
        if opener.waits:
            failed = super().read_rows(files, columns)
        else:
            failed = self._read_again(files, columns, _different(files, columns, totals.tolist()))
        opener.waits = HINTS and waited_for(before, int(totals.sum()))
        self.waits = Waits.UNKNOWN if opener.waits else Waits.NONE
        return failed

    def _read_again(self, files: Sequence[File], columns: Columns, again: list[int]) -> dict[int, Exception]:
        """Read the files at the places `again`, with all checks, and return the errors by place."""
        if not again:
            return {}
        parts = parts_of(columns)
        outcomes = self.read_into([files[at] for at in again], [parts[at] for at in again])
        return {at: error for at, error in zip(again, outcomes, strict=True) if error is not None}

    def open(self, file: File) -> BinaryIO:
        """Return the file, opened. It reads ahead less than a block, and its size and version are not checked."""
        return open(file.path, "rb", buffering=1 << 16)  # noqa: PTH123


def _different(files: Sequence[File], columns: Columns, totals: list[int]) -> list[int]:
    """Read files into rows, and return the places of those that do not have exactly as many bytes as were listed.

    One byte more than expected is asked for, which says whether a file ends where it should. So its status is not
    needed.
    """
    if isinstance(files, FileSpan):
        paths: Sequence[bytes | str] = files.encoded_paths()
        listed = files.sizes()
    else:
        paths = [file.path for file in files]
        listed = [UNKNOWN if file.size is None else file.size for file in files]
    parts = parts_of(columns)
    extra = bytearray(1)
    found: list[int] = []
    for start in range(0, len(paths), OPENED):
        opened: list[int] = []
        try:
            for path in paths[start : start + OPENED]:
                try:
                    opened.append(os.open(path, FLAGS))
                except (OSError, ValueError):
                    opened.append(-1)
            for fd, buffers in zip(opened, parts[start : start + OPENED], strict=True):
                try:
                    found.append(-1 if fd < 0 else os.readv(fd, (*buffers, extra)))
                except OSError:
                    found.append(-1)
        finally:
            _close_all(opened)
    return [
        place
        for place, (got, total, size) in enumerate(zip(found, totals, listed, strict=True))
        if got != total or size not in (got, UNKNOWN)
    ]


def _close_all(fds: list[int]) -> None:
    """Close descriptors with as few calls as possible, and ignore those that are negative.

    Those that follow each other by number are closed together. All of them are ours, so nobody else's is among
    them.
    """
    fds = sorted(fd for fd in fds if fd >= 0)
    ends = [place for place, (fd, following) in enumerate(pairwise(fds), 1) if following != fd + 1]
    for start, end in pairwise([0, *ends, len(fds)]):
        if start < end:
            os.closerange(fds[start], fds[end - 1] + 1)


def _try(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | Exception:
    try:
        return fn(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - any exception is an outcome
        # The frames are internal. With them, the list of outcomes would refer to itself.
        return error.with_traceback(None)


def _look(file: File) -> File:
    status = os.stat(file.path)  # noqa: PTH116 - a Path object per file costs more than the call
    if not S_ISREG(status.st_mode):
        raise not_a_file(file.path, status.st_mode)
    return File(file.path, status.st_size, status.st_mtime_ns)


def _read(file: File) -> Bytes:
    fd = os.open(file.path, FLAGS)
    try:
        status = os.fstat(fd)
        size = status.st_size
        if not S_ISREG(status.st_mode):
            raise not_a_file(file.path, status.st_mode)
        wrong = changed(file, size, status.st_mtime_ns)
        if wrong is not None:
            raise wrong
        buffer = np.empty(size, np.uint8)
        got = os.readv(fd, (buffer.data,)) if size else 0
        return buffer if got == size else _rest(fd, file, buffer, got)
    except OSError as error:
        raise _named(error, file) from None
    finally:
        os.close(fd)


def _status(fd: int, file: File) -> int:
    """Return the size of an open file. Raise if it is no regular file, or differs from what was listed."""
    status = os.fstat(fd)
    if not S_ISREG(status.st_mode):
        raise not_a_file(file.path, status.st_mode)
    wrong = changed(file, status.st_size, status.st_mtime_ns)
    if wrong is not None:
        raise wrong
    return status.st_size


def _rest(fd: int, file: File, buffer: Bytes, got: int) -> Bytes:
    """Read the rest of a file: one call stops at 2 GiB, and on network file systems it may stop anywhere."""
    size = len(buffer)
    while got < size:
        more = os.readv(fd, (buffer.data[got:],))
        if not more:
            raise _cut_short(file, got, size)
        got += more
    return buffer


def _read_range(fd: int, file: File, part: Range) -> Bytes:
    start, stop = part
    buffer = np.empty(stop - start, np.uint8)
    os.lseek(fd, start, os.SEEK_SET)
    got = os.readv(fd, (buffer.data,))
    while got < stop - start:
        more = os.readv(fd, (buffer.data[got:],))
        if not more:
            raise ends_before(file, stop)
        got += more
    return buffer


def _why_not(file: File, status: os.stat_result, size: int) -> Exception:
    """Return the error of an open file that differs from what was listed, or does not fill `size` bytes."""
    if not S_ISREG(status.st_mode):
        return not_a_file(file.path, status.st_mode)
    return changed(file, status.st_size, status.st_mtime_ns) or wrong_size(file, status.st_size, size)


def _fill(fd: int, file: File, buffers: Buffers, got: int) -> Exception | None:
    """Fill the rest of buffers that hold `got` bytes already."""
    size = sum(map(len, buffers))
    while got < size:
        more = os.readv(fd, unfilled(buffers, got))
        if not more:
            return _cut_short(file, got, size)
        got += more
    return None


def unfilled(buffers: Buffers, got: int) -> list[memoryview]:
    """Return the parts of the buffers that are not filled when they hold `got` bytes."""
    left = []
    for buffer in buffers:
        if got < len(buffer):
            left.append(memoryview(buffer)[got:])
        got = max(0, got - len(buffer))
    return left


def _cut_short(file: File, got: int, size: int) -> Corrupt:
    return Corrupt(f"{file.path} was cut short while it was read: {got} of {size} bytes were there")


def _named(error: OSError, file: File) -> OSError:
    """Return the error with the name of the file, which errors of `fstat` and `readv` lack."""
    if error.errno is not None and error.filename is None:
        error.filename = file.path
    return error
