"""The files among the leaves of an item."""

from __future__ import annotations

from typing import Any

from asyncfeed.reading.file import File
from asyncfeed.trees import LEAVES, map_leaves

KNOWN = LEAVES | {File}
"""The most common types of leaves of items with files."""


def files_in(item: Any) -> list[File]:
    """Return the files among the leaves of an item."""
    if isinstance(item, File):
        return [item]
    if isinstance(item, str | int | float | None):
        return []
    kind = type(item)
    if kind is tuple or kind is dict:  # the rows of a table, which need no walk through a tree
        values = item if kind is tuple else item.values()
        if KNOWN.issuperset(map(type, values)):
            files = [leaf for leaf in values if type(leaf) is File]
            if kind is tuple or len(files) < 2:  # the walk sorts the keys of a dictionary
                return files
    files = []
    map_leaves(lambda leaf: files.append(leaf) if isinstance(leaf, File) else None, item)
    return files


def reads_on_loop(item: Any) -> bool:
    """Return whether an item has files of a store that is read on the loop."""
    return any(file.store is not None and file.store.reads_on_loop for file in files_in(item))
