"""The files among the leaves of an item."""

from __future__ import annotations

from typing import Any

from asyncfeed.reading.file import File
from asyncfeed.trees import map_leaves


def files_in(item: Any) -> list[File]:
    """Return the files among the leaves of an item."""
    if isinstance(item, File):
        return [item]
    if isinstance(item, str | int | float | None):
        return []
    files: list[File] = []
    map_leaves(lambda leaf: files.append(leaf) if isinstance(leaf, File) else None, item)
    return files


def reads_on_loop(item: Any) -> bool:
    """Return whether an item has files of a store that is read on the loop."""
    return any(file.store is not None and file.store.reads_on_loop for file in files_in(item))
