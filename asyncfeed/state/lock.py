"""The lock of a file that a feed writes its state to. One feed writes the file at a time.

A second feed, in this process or another one, would replace the state of the first. So a feed locks a file beside
the state with `flock`, and writes into the lock file who holds it.

* The kernel frees the lock when the process ends, however it ends. So a killed process blocks nobody, and no
  process ids are compared.
* The holder removes the lock file while it is locked. Another process may have opened the file before that. It
  would lock a file that has no name any more, so it looks, and opens the new one.
* A forked process shares the lock. It closes its copy, or else it would keep the lock after its parent was killed.
  It never unlocks, because that would unlock for its parent, too.
* A mount may share no locks between hosts. Then the lock file still says that another host has not closed the
  state. That host may be gone, so this is a warning, and the feed begins.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import sys
import weakref
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from asyncfeed.errors import PipelineError

MAX_OWNER_BYTES = 4096
"""Bytes of a lock file that are read. What a process writes about itself is shorter."""
OTHER_PATH = "Pass another path for each process, such as path=f'feed-{rank}.json'"

log = logging.getLogger("asyncfeed")


class _OpenFile:
    """An open lock file. A forked process closes it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        _open_files.add(self)

    def has_its_name(self) -> bool:
        """Return whether this is still the file of that name."""
        with suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(self.fd), os.stat(self.name, follow_symlinks=False))  # noqa: PTH116
        return False

    def close(self) -> None:
        """Close it. If it was locked, it must be unlocked, because a process that forks just now gets a copy."""
        _open_files.discard(self)
        fd, self.fd = self.fd, -1
        os.close(fd)


_open_files: set[_OpenFile] = set()
"""What a forked process closes."""


def _forked() -> None:
    for each in _open_files:
        with suppress(OSError):
            os.close(each.fd)
        each.fd = -1
    _open_files.clear()


os.register_at_fork(after_in_child=_forked)


class FileLock:
    """The lock of one state. It is free again after `release`, and when the last reference to it goes.

    Args:
        path: The file of the state. The lock file is beside it, and hidden.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._release: weakref.finalize[[_OpenFile], FileLock] | None = None

    def acquire(self, method: str) -> None:
        """Take the lock. This blocks on the disk, and never on another feed.

        Raises:
            PipelineError: Another feed has the lock, or the lock file cannot be opened.
        """
        name = str(self._path.with_name(f".{self._path.name}.lock"))
        while (file := self._locked(method, name)) is None:
            pass  # the holder has just removed the file
        self._release = weakref.finalize(self, _unlock, file)
        last = _owner(file.fd)
        if last and last.get("host") != socket.gethostname():
            log.warning(
                "%s: %s wrote %s last and has not closed it. If it still runs, the two feeds replace each other's "
                "state, because this file system shares no locks between hosts. %s",
                method,
                _text(last),
                self._path,
                OTHER_PATH,
            )
        _write_owner(file.fd)

    def _locked(self, method: str, name: str) -> _OpenFile | None:
        """Return the locked file; None if it has lost its name meanwhile."""
        ours = any(each.name == name for each in [*_open_files])
        try:
            file = _OpenFile(name)
        except OSError as error:
            raise PipelineError(
                f"{method}: the lock file of path cannot be opened: {error}. If no feed writes {self._path}, "
                "remove the lock file, or pass another path"
            ) from None
        try:
            fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = "another feed of this process" if ours else _text(_owner(file.fd))
            file.close()
            raise PipelineError(
                f"{method}: {owner} writes {self._path}. Two feeds that write one file would replace each other's "
                f"state. {'Close that feed first, or pass another path' if ours else OTHER_PATH}"
            ) from None
        except OSError as error:
            log.warning(
                "%s: the file system of %s has no locks (%s), so a second feed that writes it is not noticed. %s",
                method,
                self._path,
                error,
                OTHER_PATH,
            )
        if file.has_its_name():
            return file
        file.close()
        return None

    def release(self) -> None:
        """Let the next feed take the lock. Any thread may call this, any number of times."""
        if self._release is not None:
            self._release()


def _unlock(file: _OpenFile) -> None:
    if file.fd < 0:  # this process is a fork, and the lock is its parent's
        return
    with suppress(OSError):  # the file is a remnant, which the next feed takes over
        if file.has_its_name():
            os.unlink(file.name)  # noqa: PTH108
    with suppress(OSError):  # the file system has no locks
        fcntl.flock(file.fd, fcntl.LOCK_UN)
    file.close()


def _write_owner(fd: int) -> None:
    owner = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "program": Path(sys.argv[0]).name or "python",
        "since": datetime.now().astimezone().isoformat(sep=" ", timespec="seconds"),
    }
    with suppress(OSError):  # the disk is full: the lock holds, and an error names no owner
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(owner).encode(), 0)


def _owner(fd: int) -> dict[str, Any]:
    """Return what the last holder has written about itself; an empty dict if there is nothing."""
    with suppress(OSError, ValueError):
        found = json.loads(os.pread(fd, MAX_OWNER_BYTES, 0))
        return found if isinstance(found, dict) else {}
    return {}


def _text(owner: dict[str, Any]) -> str:
    if not owner:
        return "another process"
    told = [owner.get(each, "unknown") for each in ("pid", "program", "host", "since")]
    return "process {} ({}) on host {}, since {},".format(*told)
