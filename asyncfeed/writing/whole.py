"""Files that are there whole or not at all: written under another name, and renamed at the end."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE
from typing import Self

PART = ".part"
"""The suffix of a file that is being written. It is hidden, so that no pattern matches it."""

NAMED = 64
"""Characters of the name of a file that the name of its part begins with. File systems allow 255 bytes."""


class WholeFile:
    """A file that gets its name when it is `done`. If the block is left before, nothing stays.

    It may be read by whom the process lets read its files. A file that it replaces hands on who may.

    Args:
        place: The file.
        lasts: Whether it is on the disk when it has its name, so that a power cut leaves the old or the new one.
            That takes some milliseconds.
    """

    def __init__(self, place: Path, *, lasts: bool = False) -> None:
        self.place = place
        self.size = 0
        self._lasts = lasts
        self._name = place.parent / f".{place.name[:NAMED]}.{os.urandom(6).hex()}{PART}"
        self._out = open(self._name, "xb")  # noqa: PTH123, SIM115 - `__exit__` closes it

    def write(self, data: bytes) -> None:
        """Add bytes."""
        self._out.write(data)
        self.size += len(data)

    def replace_start(self, data: bytes) -> None:
        """Replace the first bytes. Nothing is written after that."""
        self._out.seek(0)
        self._out.write(data)
        self.size = max(self.size, len(data))

    def done(self) -> None:
        """Give the file its name. It replaces a file that has it."""
        with suppress(OSError):  # there is none, or it belongs to somebody else
            os.fchmod(self._out.fileno(), S_IMODE(self.place.stat().st_mode))
        if self._lasts:
            self._out.flush()
            os.fsync(self._out.fileno())
        self._out.close()
        self._name.replace(self.place)
        if self._lasts:
            _sync_folder(self.place.parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # closing writes the rest, and fails once more if the disk is full
            self._out.close()
        self._name.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk. Some file systems cannot do that, and do not need it."""
    with suppress(OSError):
        opened = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def remove_unfinished(place: Path) -> None:
    """Remove what earlier processes have left because they ended while they wrote this file.

    No process may be writing it now.
    """
    start = f".{place.name}."
    if len(place.name) > NAMED:
        return  # other files may have the same start
    for each in place.parent.iterdir():
        name = each.name
        if name.startswith(start) and name.endswith(PART) and len(name) == len(start) + 12 + len(PART):
            each.unlink(missing_ok=True)


def write_whole(place: Path, data: bytes, *, lasts: bool = False) -> None:
    """Write a file at once. `lasts` is as for `WholeFile`."""
    with WholeFile(place, lasts=lasts) as out:
        out.write(data)
        out.done()
