"""Files that are there whole or not at all: written under another name, and renamed at the end."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Self

PART = ".part"
"""The suffix of a file that is being written. It is hidden, so that no pattern matches it."""


class WholeFile:
    """A file that gets its name when it is `done`. If the block is left before, nothing stays."""

    def __init__(self, place: Path) -> None:
        self.place = place
        handle, self._name = tempfile.mkstemp(dir=place.parent, prefix=".", suffix=PART)
        self._out = os.fdopen(handle, "wb")
        self.size = 0

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
        self._out.close()
        Path(self._name).replace(self.place)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._out.close()
        Path(self._name).unlink(missing_ok=True)


def write_whole(place: Path, data: bytes) -> None:
    """Write a file at once."""
    with WholeFile(place) as out:
        out.write(data)
        out.done()
