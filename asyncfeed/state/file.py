"""Saved states in files, which are there whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from asyncfeed.errors import StateError
from asyncfeed.state.envelope import MAX_BYTES, opened
from asyncfeed.writing.whole import remove_unfinished as _remove_unfinished
from asyncfeed.writing.whole import write_whole


def write(path: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Write a state to a file. This blocks.

    The file is on the disk when this returns. If the process or the machine ends before, the file is as it was.

    Args:
        path: The file. It replaces a file that has this name.
        state: What `seal` returned.

    Raises:
        OSError: The file cannot be written. A file that was there stays.
    """
    write_whole(Path(path), json.dumps(state, allow_nan=False).encode(), lasts=True)


def remove_unfinished(path: str | os.PathLike[str]) -> None:
    """Remove what a process has left that was killed while it wrote this file. This blocks.

    Raises:
        OSError: The folder cannot be read, or a part cannot be removed.
    """
    _remove_unfinished(Path(path))


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the state in a file. This blocks. The form and the checksum are right; `unseal` says whose it is.

    Args:
        path: The file.

    Raises:
        StateError: The file is damaged, is no state, or was written by a newer version.
        OSError: The file is not there, or cannot be read.
    """
    place = Path(path)
    with place.open("rb") as source:
        data = source.read(MAX_BYTES + 1)
    try:
        return opened(data)
    except StateError as error:
        raise StateError(f"{place}: {error}") from None
