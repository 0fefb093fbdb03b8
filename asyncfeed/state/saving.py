"""Where and how often a feed writes its own state: the options `path` and `checkpoint_every`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncfeed.errors import PipelineError

if TYPE_CHECKING:
    from asyncfeed.state.lock import FileLock

EVERY = timedelta(seconds=30)
"""Time between two writes. A shorter one repeats less after a crash, and wears out the disk."""


@dataclass(frozen=True)
class Saving:
    """The file of a run's state. It is written after so many items, or after so many seconds."""

    path: Path
    items: int | None
    seconds: float | None
    lock: FileLock

    def read(self) -> dict[str, Any] | None:
        """Return the state in the file; None if there is no file. This blocks.

        Parts that an earlier process was writing when it was killed are removed.
        """
        from asyncfeed.state import file  # noqa: PLC0415 - see engine/ready.py

        try:
            file.remove_unfinished(self.path)
            return file.read(self.path)
        except FileNotFoundError:
            return None


@contextmanager
def alone(method: str, saving: Saving | None) -> Iterator[None]:
    """Take the lock of the file, if there is one. An exception in the block frees it. This blocks.

    Raises:
        PipelineError: Another feed writes the file.
    """
    if saving is None:
        yield
        return
    saving.lock.acquire(method)
    try:
        yield
    except BaseException:
        saving.lock.release()
        raise


def checked(
    method: str, path: str | os.PathLike[str] | None, every: int | timedelta | None, state: object
) -> Saving | None:
    """Return what the options say; None without `path`. Raise `PipelineError` if they are not valid."""
    if path is None:
        if every is not None:
            raise PipelineError(f"{method}: checkpoint_every needs path, the file to write the state to")
        return None
    if state is not None:
        raise PipelineError(f"{method}: state and path both say where to go on: pass one of them")
    from asyncfeed.state.lock import FileLock  # noqa: PLC0415 - few feeds have a file

    place = _checked_path(method, path)
    lock = FileLock(place)
    every = EVERY if every is None else every
    if isinstance(every, timedelta):
        if every <= timedelta(0):
            raise PipelineError(f"{method}: checkpoint_every must be longer than no time, not {every!r}")
        return Saving(place, None, every.total_seconds(), lock)
    try:
        items = index(every)
    except TypeError:
        items = 0
    if items < 1 or isinstance(every, bool):
        raise PipelineError(
            f"{method}: checkpoint_every must be a number of batches, such as 100, or a time, such as "
            f"datetime.timedelta(seconds=30), not {every!r}"
        )
    return Saving(place, items, None, lock)


def _checked_path(method: str, path: str | os.PathLike[str]) -> Path:
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text or "://" in text or "\0" in text:
        raise PipelineError(f"{method}: path must name a local file, not {path!r}")
    # The process may change its folder before it writes. And a link stays a link: the file behind it is replaced.
    place = Path(os.path.realpath(text))
    if place.is_dir():
        raise PipelineError(f"{method}: path must name a file, and {text} is a folder")
    if place.exists() and not place.is_file():
        raise PipelineError(f"{method}: path must name a file, and {text} is a pipe or a device")
    if not place.parent.is_dir():
        raise PipelineError(f"{method}: path must name a file in a folder that is there, not {text}")
    if not os.access(place.parent, os.W_OK | os.X_OK):
        raise PipelineError(f"{method}: this process may not write to the folder of path, {text}")
    return place
