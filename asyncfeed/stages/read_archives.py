"""Reads one column of files that hold several arrays each, such as `.npz`, into the rows of as many arrays."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncfeed.formats.base import Decoder, Layout
from asyncfeed.reading.file import Bytes, File
from asyncfeed.reading.reader import Columns, Reader, Rows, parts_of, value
from asyncfeed.stacking.collate import Where
from asyncfeed.stacking.pool import Pool
from asyncfeed.stages.pad import Pad
from asyncfeed.stages.read_rows import DIFFERS, LayoutMismatch, bytes_of, calls_of, check_read, rows_of
from asyncfeed.trees import Tree, flatten, unflatten

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST = 256
"""Number of arrays that a file may hold. One call takes at most 1,024 buffers."""
NO_LAYOUT = "the arrays are compressed, pickled, or too many"


class LaidOutRows:
    """Reads files that hold several arrays. Any number of threads may call it."""

    def __init__(self, decoder: Decoder[Any], pool: Pool) -> None:
        self._decoder = decoder
        self._pool = pool
        self._template: _Template | None = None
        self._unsupported = False

    def read(self, reader: Reader, files: Sequence[File]) -> Tree:
        """Read files that are laid out alike, each array into its row of one; return them as a sample."""
        return self.read_many(reader, [files])[0]

    def read_many(self, reader: Reader, groups: Sequence[Sequence[File]]) -> list[Tree]:
        """Read groups of files, all laid out alike; return each group as a sample of arrays."""
        template = self._template or self._learn(reader, groups[0][0])
        samples = []
        arrays = []
        for files in groups:
            made = [self._pool.empty((len(files), *each.shape), each.dtype) for each in template.headers]
            arrays.append([rows_of(out, len(files), len(bytes_of(out)) // len(files)) for out in made])
            samples.append(template.sample(made))
        try:
            for files, some, places in calls_of(groups, list(zip(*arrays, strict=True)), len(template.aside)):
                asides = np.empty((len(files), len(template.aside)), np.uint8)
                columns = template.columns(asides, some)
                check_read(reader.read_rows(files, columns), places)
                rows = parts_of(columns[1::2])
                if not all(map(template.fits, map(bytearray, asides), rows)):
                    raise LayoutMismatch(DIFFERS)
        except LayoutMismatch:
            self._template = None
            raise
        return samples

    def read_ragged(
        self, reader: Reader, groups: Sequence[Sequence[File]], pad: Pad, value: object, where: Where
    ) -> list[tuple[Tree, Any]]:
        """Raise `LayoutMismatch`: such files are padded after they are loaded."""
        raise LayoutMismatch("files with several arrays are padded after they are loaded")

    def _learn(self, reader: Reader, file: File) -> _Template:
        if self._unsupported:
            raise LayoutMismatch(NO_LAYOUT)
        buffer = value(*reader.read((file,)))
        layout = self._decoder.layout(buffer, file)
        if layout is None or len(layout.headers) > MOST:
            self._unsupported = (
                True  # compressed, for example. The other files will be, too, and a check costs time
            )
            raise LayoutMismatch(NO_LAYOUT)
        template = self._template = _Template(buffer, layout)
        return template

    @property
    def file_bytes(self) -> int | None:
        """The size of the files of the last batch. None before the first one, and if they differ in layout."""
        template = self._template
        return None if template is None else template.size


class _Template:
    """A layout prepared for reading: the arrays in the order of the file, and all other bytes joined."""

    def __init__(self, buffer: Bytes, layout: Layout) -> None:
        arrays = sorted(layout.headers.items(), key=lambda each: each[1].offset)
        keys = [key for key, _ in arrays]
        self.headers = [header for _, header in arrays]
        self.size = len(buffer)
        self._order, self._spec = flatten({key: keys.index(key) for key in layout.headers})
        ends = [0, *(header.offset + header.nbytes for header in self.headers)]
        starts = [*(header.offset for header in self.headers), self.size]
        aside = bytearray().join(buffer.data[stop:start] for stop, start in zip(ends, starts, strict=True))
        self.gaps = [(self._place(stop), self._place(start)) for stop, start in zip(ends, starts, strict=True)]
        self._loose = [(self._place(start), bytes(stop - start)) for start, stop in layout.loose]
        sums = dict(zip(layout.headers, layout.sums, strict=False))
        self._sums = [(self._place(sums[key][0]), sums[key][1]) for key in keys if key in sums]
        self.aside = self._blank(aside)

    def _place(self, at: int) -> int:
        """Convert a position in the file to a position in the bytes that are outside of the arrays."""
        return at - sum(header.nbytes for header in self.headers if header.offset < at)

    def _blank(self, text: bytearray) -> bytearray:
        for at, zeros in self._loose:
            text[at : at + len(zeros)] = zeros
        return text

    def columns(self, asides: Bytes, arrays: Columns) -> list[Sequence[Rows]]:
        """Return where files are read to: `asides` takes the bytes outside of their arrays."""
        count, width = asides.shape
        tops = np.arange(count) * width
        memory = asides.reshape(-1)
        columns: list[Sequence[Rows]] = [
            [Rows(memory, tops + start, np.full(count, stop - start))] for start, stop in self.gaps
        ]
        for at, rows in enumerate(arrays):
            columns.insert(2 * at + 1, rows)
        return columns

    def fits(self, found: bytearray, rows: Sequence[Any]) -> bool:
        """Return whether a file is sound: `found` has its bytes outside of the arrays, `rows` has its arrays.

        Bytes of `found` that may differ between files are set to zero.
        """
        for row, (at, before) in zip(rows, self._sums, strict=False):
            if zlib.crc32(row, before) != int.from_bytes(found[at : at + 4], "little"):
                return False
        return self._blank(found) == self.aside

    def sample(self, arrays: Sequence[NDArray[Any]]) -> Tree:
        """Return the arrays by name, in the order that a batch of samples has."""
        return unflatten(self._spec, [arrays[number] for number in self._order])
