"""`load` and the `batch` after it as one: files are read straight into their rows of the batch.

The first file of a batch says what the others should be. Each is then read with one call, its header aside and
its body into its row. Whatever is not as expected (another shape, an odd header, a file that changed, any error)
makes the whole batch go the long way, `load` for each sample and then stacking, which knows what to say: so the
result is the same, bit by bit, and so is every error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from asyncfeed.errors import AsyncfeedError
from asyncfeed.formats.base import Decoder, Header
from asyncfeed.stages.aligned import aligned_empty
from asyncfeed.stages.base import MemberError, Node, Place, Step, Work
from asyncfeed.stages.batch import Batch, Group
from asyncfeed.stages.collate import Where, collate, stack, transpose
from asyncfeed.stages.pad import Pad, fill_value
from asyncfeed.storage.base import File
from asyncfeed.storage.local import read_into, scatter
from asyncfeed.trees import Spec, Tree, flatten, unflatten

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from asyncfeed.stages.load import Load

PROBE = 256
"""How many bytes hold a header as `numpy.save` writes it: 128, or 192 for a long list of fields."""


@dataclass(frozen=True)
class LoadBatch(Node):
    """What `Load.absorb(batch)` makes."""

    load: Load
    batch: Batch

    method: ClassVar[str] = "load"

    def steps(self) -> Sequence[Step]:
        """Return the grouping of files, and the reading of each group."""
        (each,) = self.load.steps()
        assert isinstance(each, Work)
        assert isinstance(self.load.decoder, Decoder)
        read = ReadBatch(self.load.decoder, each.fn, str(self.load), self.batch.padding)
        work = Work(
            read,
            "thread",
            placed=True,
            concurrency=self.load.concurrency,
            cost=Cost(each.cost, self.batch.padding),
        )
        return [Group(self.batch.size, self.batch.drop_remainder), work]

    def gathers(self) -> int:
        """Return how many samples make a batch."""
        return self.batch.size

    def absorb(self, following: Node) -> LoadBatch | None:
        """Take a pad in, as the batch does."""
        batch = self.batch.absorb(following)
        return None if batch is None else replace(self, batch=batch)

    def length(self, upstream: int) -> int:
        """Return the number of batches."""
        return self.batch.length(upstream)

    def __str__(self) -> str:
        """Return the calls that make these stages."""
        return ".".join(map(str, filter(None, (self.load, self.batch, self.batch.padding))))


@dataclass(frozen=True, slots=True)
class Cost:
    """Says what a batch of files will weigh: padded, at most as if all were as large as the largest."""

    each: Callable[[Any], int] | None
    padding: Pad | None

    def __call__(self, samples: list[Tree]) -> int:
        """Return the number of bytes."""
        assert self.each is not None
        costs = list(map(self.each, samples))
        return sum(costs) if self.padding is None else len(costs) * max(costs)


class Surprise(Exception):
    """Something is not as the first file of the batch promised."""


@dataclass(slots=True)
class ReadBatch:
    """Reads a list of samples whose leaves are files into one tree of arrays."""

    decoder: Decoder[Any]
    long_way: Callable[[Any], Any]
    stage: str
    padding: Pad | None
    _known: dict[int, bytes] = field(default_factory=dict)
    """The header that the column of this number had last: most files of a column have the same."""

    def __call__(self, samples: list[Tree], place: Place) -> Tree:
        """Return the batch."""
        columns = _columns(samples)
        if columns is not None:
            try:
                return self._assemble(*columns, place)
            except (Surprise, OSError, AsyncfeedError, ValueError):
                pass  # the long way finds it, too, and says where
        loaded = []
        for member, sample in enumerate(samples):
            try:
                loaded.append(self.long_way(sample))
            except BaseException as error:  # noqa: BLE001 - it is the consumer's, whatever it is
                raise MemberError(member, self.stage, error) from None
        return collate(loaded, place.name, self.padding)

    def _assemble(self, columns: Sequence[Sequence[Any]], spec: Spec, place: Place) -> Tree:
        batch: list[Any] = []
        lengths: list[Any] = []
        pad = self.padding
        values = [None] * len(columns) if pad is None else pad.values(spec)
        for number, (column, value) in enumerate(zip(columns, values, strict=True)):
            where = Where(spec, number, place.name)
            if type(column[0]) is not File:
                batch.append(stack(column, where))
                lengths.append(None)
            elif pad is None:
                batch.append(self._read(column, number))
            else:
                array, true = self._read_ragged(column, number, pad, value, where)
                batch.append(array)
                lengths.append(true)
        tree = unflatten(spec, batch)
        return (tree, unflatten(spec, lengths)) if pad is not None and pad.lengths else tree

    def _first(self, file: File, number: int) -> tuple[Header, bytes]:
        """Return the header that the files of a column should have."""
        head = self._known.get(number)
        if head is None:
            buffer = read_into(file)
            header = self.decoder.probe(buffer[:PROBE], file)
            if header.offset + header.nbytes != len(buffer):
                raise Surprise  # memory for a batch of what is not there must not be asked for
            head = self._known[number] = buffer[: header.offset].tobytes()
        else:
            header = self.decoder.probe(np.frombuffer(head, np.uint8), file)
        if header.fortran_order and len(header.shape) > 1:
            raise Surprise
        return header, head

    def _read(self, files: Sequence[File], number: int) -> NDArray[Any]:
        """Read files of one shape into the rows of a new array."""
        header, head = self._first(files[0], number)
        out = aligned_empty((len(files), *header.shape), header.dtype)
        size = header.nbytes
        body = out.reshape(-1).view(np.uint8).data if size else memoryview(bytearray())
        found = bytearray(len(head))
        total = len(head) + size
        start = 0
        for file in files:
            parts = (found, body[start : start + size]) if head else (body[start : start + size],)
            if not scatter(file, parts, total) or found != head:
                self._known.pop(number, None)  # other threads may have been here, too
                raise Surprise
            start += size
        return out

    def _read_ragged(
        self, files: Sequence[File], number: int, pad: Pad, value: object, where: Where
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Read files that differ in axis 0 into the rows of a new array, padded."""
        header, _ = self._first(files[0], number)
        if not header.shape:
            raise Surprise
        tail, dtype, offset = header.shape[1:], header.dtype, header.offset
        unit = prod(tail) * dtype.itemsize
        if not unit or any(file.size is None for file in files):
            raise Surprise
        lengths = [((file.size or 0) - offset) // unit for file in files]
        shape = pad.shape_for([(length, *tail) for length in lengths], where)
        if shape[1:] != tail:
            raise Surprise
        fill = fill_value(value, dtype, where)
        out = aligned_empty((len(files), *shape), dtype)
        body = out.reshape(-1).view(np.uint8).data if out.size else memoryview(bytearray())
        found = np.empty(offset, np.uint8)
        row = shape[0] * unit
        for place, (file, length) in enumerate(zip(files, lengths, strict=True)):
            start = place * row
            inside = body[start : start + length * unit]
            if not scatter(file, (found, inside) if offset else (inside,), offset + length * unit):
                raise Surprise
            if self.decoder.probe(found, file)[:4] != ((length, *tail), dtype, False, offset):
                raise Surprise
            out[place, length:] = fill
        return out, np.array(lengths, np.int64)


def _columns(samples: list[Tree]) -> tuple[Sequence[Sequence[Any]], Spec] | None:
    """Return the leaves of the samples column by column, where files and others do not mix in one."""
    first = samples[0]
    kinds = set(map(type, samples))
    if kinds == {File}:
        return [samples], flatten(first)[1]
    try:
        columns, spec = transpose(samples, str)
    except ValueError:
        return None
    uniform = all(len(set(map(type, column))) == 1 or type(column[0]) is not File for column in columns)
    return (columns, spec) if uniform and any(type(column[0]) is File for column in columns) else None
