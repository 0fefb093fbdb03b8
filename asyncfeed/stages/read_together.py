"""Reads the files of several items with one call, for the functions of a chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from asyncfeed.attempts.retry import Wanted
from asyncfeed.formats.base import Decoder
from asyncfeed.reading.file import File
from asyncfeed.reading.leaves import KNOWN
from asyncfeed.reading.listing import UNKNOWN, FileSpan
from asyncfeed.reading.reader import Rows, Waits
from asyncfeed.reading.scope import reader_of
from asyncfeed.stacking.collate import transpose
from asyncfeed.stacking.pool import shared_pool
from asyncfeed.stages.loading import Contents
from asyncfeed.stages.read_archives import LaidOutRows
from asyncfeed.stages.read_rows import HeadedRows, LayoutMismatch
from asyncfeed.trees import flatten, unflatten

MOST_BYTES = 1 << 20
"""Bytes of files that are read with one call: 256 files of 4 KB. With more, files take memory long before they are
needed. With fewer, there are more calls."""


@dataclass(slots=True)
class ReadTogether:
    """Returns the samples of files that hold arrays of one shape, and the contents of other files.

    It is the `Read` of a `Chain`. It raises if it cannot read some items together. Then each is read alone.
    """

    decoder: Decoder[Any] | None
    """None if a function of the user's decodes."""
    wanted: Wanted
    _rows: dict[int, HeadedRows | LaidOutRows] = field(default_factory=dict)
    """The reader of the files of each column, by the number of the column."""
    _differ: bool = False
    """Whether files were found that do not hold arrays of one shape."""
    _waits: Waits = Waits.UNKNOWN

    def __reduce__(self) -> tuple[Any, ...]:
        return ReadTogether, (self.decoder, self.wanted)

    def waits(self) -> Waits:
        """Return what the last call waited for."""
        return self._waits

    def __call__(self, items: Sequence[Any]) -> tuple[Sequence[Any], int]:
        """Return what the first of these items become, and the number of the next function to call."""
        rows = not self._differ and self.decoder is not None and (self.decoder.probes or self.decoder.lays_out)
        if isinstance(items, FileSpan) or all(type(item) is File for item in items):
            return self._column(0, items, rows=rows), int(rows)
        if type(items[0]) is Contents:
            return items, 0  # the loop has read them
        columns, spec = transpose(items, str, known=KNOWN)
        first = len(items)
        read: list[Sequence[Any]] = []
        for number, column in enumerate(columns):
            files = type(column[0]) is File
            if files and any(type(leaf) is not File for leaf in column):
                raise LayoutMismatch("a leaf is a file in some samples and not in others")
            read.append(self._column(number, column[:first], rows=rows) if files else column)
            first = min(first, len(read[-1]))
        kind = type(items[0])
        if kind is tuple and spec.num_children == len(columns):
            return [tuple(leaves) for leaves in zip(*(column[:first] for column in read), strict=True)], int(rows)
        cut = [column[:first] for column in read]
        return [unflatten(spec, leaves) for leaves in zip(*cut, strict=True)], int(rows)

    def _column(self, number: int, files: Sequence[File], *, rows: bool) -> Sequence[Any]:
        """Read the first of some files, each of which becomes its sample if `rows`, and its contents otherwise."""
        if not isinstance(files, FileSpan) and len({id(file.store) for file in files}) > 1:
            raise LayoutMismatch("the files are in several stores")
        with reader_of(files[0], self.wanted) as reader:
            try:
                return self._samples(reader, number, files) if rows else self._contents(reader, files)
            except LayoutMismatch:
                self._differ = self._differ or rows
                raise
            finally:
                self._waits = reader.waits

    def _samples(self, reader: Any, number: int, files: Sequence[File]) -> Sequence[Any]:
        """Read files of one shape into the rows of one array. Each sample is a view of its row."""
        assert self.decoder is not None
        kept = self._rows.get(number)
        if kept is None:  # if two threads do this at once, one of the two objects is dropped
            kind = HeadedRows if self.decoder.probes else LaidOutRows
            kept = self._rows[number] = kind(self.decoder, shared_pool())
        size = kept.file_bytes
        count = 1 if size is None else max(1, MOST_BYTES // max(1, size))
        block = kept.read(reader, files if len(files) <= count else files[:count])
        leaves, spec = flatten(block)
        if spec.is_leaf():
            return [block[at, ...] for at in range(len(block))]
        return [unflatten(spec, [leaf[at, ...] for leaf in leaves]) for at in range(len(leaves[0]))]

    def _contents(self, reader: Any, files: Sequence[File]) -> Sequence[Any]:
        """Read whole files into one piece of memory."""
        sizes = files.sizes() if isinstance(files, FileSpan) else [file.size for file in files]
        if None in sizes or UNKNOWN in sizes:
            raise LayoutMismatch("the sizes of the files are not known")
        ends: Any = np.cumsum(np.array(sizes))
        count = max(1, int(np.searchsorted(ends, MOST_BYTES, side="right")))
        ends, some = ends[:count], list(files[:count])
        starts = ends - np.array(sizes[:count])
        memory = np.empty(int(ends[-1]), np.uint8)
        failed = reader.read_rows(some, [[Rows(memory, starts, np.array(sizes[:count]))]])
        if failed:
            raise LayoutMismatch("a file could not be read") from failed[min(failed)]
        view = memory.data
        return [
            Contents(file, view[start:end])
            for file, start, end in zip(some, starts.tolist(), ends.tolist(), strict=True)
        ]
