"""Memory that this process shares with a worker process, and what happens to it when this process forks.

A `Mapping` is the memory of a file without a name. Invariants:

* A file has its size before it is mapped, and is never truncated. So no access to a mapping fails.
* A mapping ends when no array shows it any more. Its file is gone when all processes have unmapped it.
* An array that is given out behaves like memory of this process alone. The worker writes the file again only after
  the last array that shows it is gone. That includes the arrays of forked children, which this process cannot see.
  So a file that was shown at a fork is never written again.
* A forked child and its parent do not see what the other one writes. So each mapping that an array shows becomes
  private at a fork, at the same address: the system copies a page when one of the two writes to it.
* Memory comes back in the finalizer of an array, on any thread, also in the middle of a garbage collection. The
  finalizer takes no lock and sends nothing.
* No lock is held while the process forks.

A mapping keeps its file descriptor until it is private, because the system needs it for that. So the number of
mappings is bounded by a part of the descriptors that a process may have.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from collections import deque
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncfeed.engine.constants import BLOCK_DESCRIPTORS_SHARE, BLOCKS_MOST

if TYPE_CHECKING:
    from numpy.typing import NDArray

_READ_WRITE = 3  # PROT_READ | PROT_WRITE
_MOVE_OVER = 3  # MREMAP_MAYMOVE | MREMAP_FIXED
_FAILED = ctypes.c_void_p(-1).value


class Shown:
    """The owner of the memory behind an array. It is no array itself, so each view keeps this object alive."""

    __slots__ = ("__array_interface__", "__weakref__", "_keeps")

    def __init__(self, address: int, size: int, keeps: object = None) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "data": (address, False),
            "shape": (size,),
        }
        self._keeps = keeps


class Mapping:
    """The memory of a file in this process. The file must have this size."""

    __slots__ = ("__weakref__", "_files", "address", "memory", "shown_since")

    def __init__(self, fd: int, size: int) -> None:
        self.address = _map(fd, size, mmap.MAP_SHARED)
        self._files = [fd]
        """The file descriptor, or nothing once the mapping is private. It is taken out before it is closed."""
        owner = Shown(self.address, size)
        weakref.finalize(owner, _unmap, self.address, size, self._files).atexit = False
        mapped.add(self.address)
        self.memory: NDArray[np.uint8] = np.asarray(owner)
        self.shown_since: object = None
        """What `Arrays.now` was when an array began to show this memory. None if that was during a fork."""

    def close_file(self) -> None:
        """Close the file descriptor. The memory stays."""
        _close(self._files)

    def make_private(self) -> None:
        """Let this process and its children see only what each of them writes. Further calls do nothing.

        If the system has no memory for that, the mapping stays as it is.
        """
        if not self._files:
            return
        size = self.memory.size
        try:
            copy = _map(self._files[0], size, mmap.MAP_PRIVATE)
        except OSError:
            return
        if _libc().mremap(copy, size, size, _MOVE_OVER, self.address) != self.address:
            _libc().munmap(copy, size)
            return
        _close(self._files)


class Arrays:
    """The mappings that arrays show. There is one object of this class in a process, `SHOWN`."""

    def __init__(self) -> None:
        self.now = object()
        """It is another object after each fork."""
        self._forks: deque[None] = deque()
        """An element for each fork that is under way."""
        self._shown: set[Mapping] = set()
        self._lock = threading.RLock()

    def show(self, mapping: Mapping, size: int, returned: weakref.ref[deque[Mapping]]) -> NDArray[np.uint8]:
        """Return the first bytes of a mapping as an array. When its last view is gone, the mapping is returned."""
        now = self.now  # this must be read before `_forks`
        mapping.shown_since = None if self._forks else now
        owner = Shown(mapping.address, size, mapping.memory)
        weakref.finalize(owner, _bring_back, self._shown, returned, mapping).atexit = False
        self._shown.add(mapping)
        return np.asarray(owner)

    def seen_by_none(self, mapping: Mapping) -> bool:
        """Return whether no forked child shows a mapping that was returned."""
        return mapping.shown_since is self.now

    def make_private(self, mapping: Mapping) -> None:
        """Make a mapping private. No other thread does so at the same time."""
        with self._lock:
            mapping.make_private()

    def before_fork(self) -> None:
        """Make all mappings private that arrays show."""
        self._forks.append(None)
        self.now = object()
        self._all_private()

    def after_fork(self) -> None:
        """Do the same for what other threads have shown since."""
        self._all_private()
        self.now = object()  # for a thread that is between the first two lines of `show`
        self._forks.pop()

    def in_child(self) -> None:
        """Do the same in the forked child. The threads of its parent do not exist there."""
        self._lock = threading.RLock()
        self._forks.clear()
        self._all_private()

    def _all_private(self) -> None:
        with self._lock:
            for mapping in list(self._shown):
                mapping.make_private()


def _bring_back(shown: set[Mapping], returned: weakref.ref[deque[Mapping]], mapping: Mapping) -> None:
    """Return a mapping whose last array is gone, if its worker still serves the same run. This never waits."""
    shown.discard(mapping)
    place = returned()
    if place is not None:
        place.append(mapping)


def _unmap(address: int, size: int, files: list[int]) -> None:
    _close(files)
    mapped.discard(address)  # before another mapping may get the address
    _libc().munmap(address, size)


def _close(files: list[int]) -> None:
    try:
        fd = files.pop()
    except IndexError:  # it is closed already
        return
    os.close(fd)


def _map(fd: int, size: int, flags: int) -> int:
    address = _libc().mmap(None, size, _READ_WRITE, flags, fd, 0)
    if address == _FAILED:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return int(address)


@cache
def _libc() -> Any:
    # Python's own `mmap` keeps a file descriptor for each map, and cannot make a map private at its address.
    libc = ctypes.CDLL(None, use_errno=True)
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.argtypes = [pointer, size, number, number, number, ctypes.c_long]
    libc.mremap.argtypes = [pointer, size, size, number, pointer]
    libc.munmap.argtypes = [pointer, size]
    libc.mmap.restype = libc.mremap.restype = pointer
    return libc


@cache
def most_mappings() -> int:
    """Return how many mappings this process may have."""
    import resource  # noqa: PLC0415 - not every system has it

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return BLOCKS_MOST if soft < 0 else min(BLOCKS_MOST, soft // BLOCK_DESCRIPTORS_SHARE)


mapped: set[int] = set()
"""The addresses of the mappings of this process."""
SHOWN = Arrays()
"""The mappings of this process that arrays show."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=SHOWN.before_fork, after_in_parent=SHOWN.after_fork, after_in_child=SHOWN.in_child)
