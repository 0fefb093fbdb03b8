"""Reading one column of files into the rows of one array; or of several, where a file holds several.

The first file says what the others should be. Whatever is not so raises `Surprise`, and then nothing is known
but that the batch has to be loaded file by file.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from math import prod
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from asyncfeed.formats.base import Decoder, Header, Layout
from asyncfeed.stacking.collate import Where
from asyncfeed.stacking.pool import Pool
from asyncfeed.stages.pad import Pad, fill_value
from asyncfeed.storage.base import Bytes, File
from asyncfeed.storage.local import read_into
from asyncfeed.storage.scatter import Opener, scatter
from asyncfeed.trees import Tree, flatten, unflatten

if TYPE_CHECKING:
    from numpy.typing import NDArray

P = ParamSpec("P")
R = TypeVar("R")

PROBE = 256
"""How many bytes hold a header as `numpy.save` writes it: 128, or 192 for a long list of fields."""
MOST = 256
"""How many arrays a file may hold: one call takes at most 1,024 buffers."""


REMEMBERED = 1024
"""How many headers of a ragged column are known by their bytes."""


DIFFERS = "a file differs from the first in its header or size"
NO_LAYOUT = "the arrays are compressed, pickled, or too many"


class Surprise(Exception):
    """Something is not as the first file of the batch promised; it says what."""


def fitting(check: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call what refuses data that does not fit; the long way refuses it, too, and names the sample."""
    try:
        return check(*args, **kwargs)
    except ValueError:
        raise Surprise("the samples do not fit together") from None


class HeadedRows:
    """Reads files that hold a header, or none, and one array. Any number of threads may call it."""

    def __init__(self, decoder: Decoder[Any], pool: Pool, opener: Opener) -> None:
        self._decoder = decoder
        self._pool = pool
        self._opener = opener
        self._known: tuple[Header, bytes, dict[bytes, int]] | None = None
        """The header that the last batch had, and its bytes: most files of a column have the same. And the lengths
        that other headers say, by their bytes, which otherwise are as that one."""

    def read(self, files: Sequence[File]) -> NDArray[Any]:
        """Read files of one shape into the rows of one array."""
        header, head, _ = self._first(files[0])
        out = self._pool.empty((len(files), *header.shape), header.dtype)
        body = _bytes(out)
        size = header.nbytes
        found = bytearray(len(head))
        total = len(head) + size
        start = 0
        with closing(self._opener.open(files)) as opened:
            for file, fd in zip(files, opened, strict=True):
                parts = (found, body[start : start + size]) if head else (body[start : start + size],)
                if not scatter(fd, file, parts, total) or found != head:
                    self._known = None
                    raise Surprise(DIFFERS)
                start += size
        return out

    def read_ragged(
        self, files: Sequence[File], pad: Pad, value: object, where: Where
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Read files that differ in axis 0 into the rows of one array, padded; return it with the lengths."""
        header, _, known = self._first(files[0])
        if not header.shape:
            raise Surprise("a sample without axes cannot be padded")
        tail, dtype, offset = header.shape[1:], header.dtype, header.offset
        unit = prod(tail) * dtype.itemsize
        if not unit or any(file.size is None for file in files):
            raise Surprise("files without data, or of unknown size")
        lengths = [((file.size or 0) - offset) // unit for file in files]
        shape = fitting(pad.shape_for, [(length, *tail) for length in lengths], where)
        if shape[1:] != tail:
            raise Surprise("pad changes more than the first axis")
        fill = fitting(fill_value, value, dtype, where)
        out = self._pool.empty((len(files), *shape), dtype)
        body = _bytes(out)
        found = bytearray(offset)
        row = shape[0] * unit
        with closing(self._opener.open(files)) as opened:
            for place, (file, fd, length) in enumerate(zip(files, opened, lengths, strict=True)):
                start = place * row
                inside = body[start : start + length * unit]
                if not scatter(fd, file, (found, inside) if offset else (inside,), offset + length * unit):
                    raise Surprise(DIFFERS)
                text = bytes(found)
                if known.get(text) != length:
                    said = self._decoder.probe(np.frombuffer(text, np.uint8), file)
                    if said[:4] != ((length, *tail), dtype, False, offset):
                        raise Surprise(DIFFERS)
                    if len(known) < REMEMBERED:
                        known[text] = length
                if length < shape[0]:
                    out[place, length:] = fill
        return out, np.array(lengths, np.int64)

    def _first(self, file: File) -> tuple[Header, bytes, dict[bytes, int]]:
        """Return the header that the files should have, its bytes, and the lengths that others may say."""
        known = self._known
        if known is not None:
            return known
        buffer = read_into(file)
        header = self._decoder.probe(buffer[:PROBE], file)
        if header.offset + header.nbytes != len(buffer):
            # Memory for a batch of what is not there must not be asked for.
            raise Surprise("a file is not as long as its header says")
        if header.fortran_order and len(header.shape) > 1:
            raise Surprise("an array is in Fortran order")
        self._known = known = header, buffer[: header.offset].tobytes(), {}
        return known


class LaidOutRows:
    """Reads files that hold several arrays. Any number of threads may call it."""

    def __init__(self, decoder: Decoder[Any], pool: Pool, opener: Opener) -> None:
        self._decoder = decoder
        self._pool = pool
        self._opener = opener
        self._template: _Template | None = None
        self._hopeless = False

    def read(self, files: Sequence[File]) -> Tree:
        """Read files that are laid out alike, each array into its row of one; return them as a sample."""
        template = self._template or self._learn(files[0])
        made = [self._pool.empty((len(files), *each.shape), each.dtype) for each in template.headers]
        bodies = [(_bytes(out), each.nbytes) for out, each in zip(made, template.headers, strict=True)]
        found = bytearray(len(template.aside))
        parts: list[Any] = [b""] * (2 * len(bodies) + 1)
        parts[::2] = [memoryview(found)[start:stop] for start, stop in template.gaps]
        with closing(self._opener.open(files)) as opened:
            for place, (file, fd) in enumerate(zip(files, opened, strict=True)):
                rows = parts[1::2] = [body[place * size : (place + 1) * size] for body, size in bodies]
                if not scatter(fd, file, parts, template.size) or not template.fits(found, rows):
                    self._template = None
                    raise Surprise(DIFFERS)
        return template.sample(made)

    def read_ragged(self, files: Sequence[File], pad: Pad, value: object, where: Where) -> tuple[Tree, Any]:
        """Do nothing: such files are padded when they are samples."""
        raise Surprise("files with several arrays are padded after they are loaded")

    def _learn(self, file: File) -> _Template:
        if self._hopeless:
            raise Surprise(NO_LAYOUT)
        buffer = read_into(file)
        layout = self._decoder.layout(buffer, file)
        if layout is None or len(layout.headers) > MOST:
            self._hopeless = True  # compressed, say: the others will be, too, and a look at each is not free
            raise Surprise(NO_LAYOUT)
        template = self._template = _Template(buffer, layout)
        return template


class _Template:
    """A layout, prepared for reading: the arrays in the order of the file, and all between them as one text."""

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
        sums = dict(zip(layout.headers, layout.sums, strict=True))
        self._sums = [(self._place(sums[key][0]), sums[key][1]) for key in keys]
        self.aside = self._blank(aside)

    def _place(self, at: int) -> int:
        """Return where a place in the file is when the arrays are taken out of it."""
        return at - sum(header.nbytes for header in self.headers if header.offset < at)

    def _blank(self, text: bytearray) -> bytearray:
        for at, zeros in self._loose:
            text[at : at + len(zeros)] = zeros
        return text

    def fits(self, found: bytearray, rows: Sequence[Any]) -> bool:
        """Return whether a file with this between its arrays, and these in them, is sound; blanks `found`."""
        for row, (at, before) in zip(rows, self._sums, strict=True):
            if zlib.crc32(row, before) != int.from_bytes(found[at : at + 4], "little"):
                return False
        return self._blank(found) == self.aside

    def sample(self, arrays: Sequence[NDArray[Any]]) -> Tree:
        """Return the arrays by name, in the order that a batch of samples has."""
        return unflatten(self._spec, [arrays[number] for number in self._order])


def _bytes(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(bytearray())
