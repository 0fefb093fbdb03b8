"""The records of files by number: what `flat_map` gives with a decoder that has an index."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from asyncfeed.errors import PipelineError
from asyncfeed.formats.records import Found, RecordDecoder
from asyncfeed.numbered import Numbered
from asyncfeed.reading.copies import on_thread
from asyncfeed.reading.file import File
from asyncfeed.reading.reader import value
from asyncfeed.reading.record_index import edges_of
from asyncfeed.reading.scope import current, reader_of
from asyncfeed.stages.base import Node, Source
from asyncfeed.stages.split import reshuffles
from asyncfeed.stages.steps import Asked, Reading
from asyncfeed.stages.together import fold

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOGETHER: Final = 1 << 20
"""Maximum bytes of records that follow each other and are read together."""
INLINE: Final = 1 << 12
"""Bytes of a record that are decoded on the loop, in at most about 0.1 ms."""


class Records:
    """The records of these files, one file after the other. A record is read when it is asked for."""

    def __init__(self, files: Sequence[File], decoder: RecordDecoder[Any]) -> None:
        self.files = files
        self._decoder = decoder
        self._edges = edges_of(files, decoder)
        self._firsts = [0, *accumulate(len(edges) - 1 for edges in self._edges)]
        self._starts = np.array(self._firsts)

    def __len__(self) -> int:
        return self._firsts[-1]

    @property
    def reads_on_loop(self) -> bool:
        """Whether the store of a file is read on the loop. Then all of them are."""
        return any(file.store is not None and file.store.reads_on_loop for file in self.files)

    def read(self, place: int) -> Any:
        """Return a record. This blocks."""
        file, number, start, stop = self._find(place)
        with reader_of(file) as reader:
            data = value(*reader.read_ranges(file, ((start, stop),)))
        return self._decoder.record(data.data, file.path, number, start)

    def read_many(self, places: Sequence[int]) -> list[Any]:
        """Return records. Those that follow each other in a file are read together. This blocks."""
        wanted = np.asarray(places)
        files = np.searchsorted(self._starts, wanted, side="right") - 1
        found: list[Found] = []
        order: list[int] = []
        for which in np.unique(files).tolist():
            members = np.flatnonzero(files == which)
            members = members[np.argsort(wanted[members], kind="stable")]
            order += members.tolist()
            found += self._read(which, wanted[members] - self._firsts[which])
        samples = self._decoder.records(found)
        if len(places) == 1:
            return samples
        in_order: list[Any] = [None] * len(order)
        for at, sample in zip(order, samples, strict=True):
            in_order[at] = sample
        return in_order

    def _read(self, which: int, numbers: NDArray[np.int64]) -> Iterator[Found]:
        """Yield the bytes of records of one file, which are in the order of the file."""
        file, edges = self.files[which], self._edges[which]
        starts, stops = edges[numbers].tolist(), edges[numbers + 1].tolist()
        runs: list[tuple[int, int]] = []
        runs_of: list[int] = []
        for start, stop in zip(starts, stops, strict=True):
            first, last = runs[-1] if runs else (0, -1)
            if last == start and stop - first <= TOGETHER:
                runs[-1] = first, stop
            elif last != stop:  # a shuffle of repeated data may ask for a record twice
                runs.append((start, stop))
            runs_of.append(len(runs) - 1)
        with reader_of(file) as reader:
            blocks = [value(each).data for each in reader.read_ranges(file, runs)]
        for number, start, stop, run in zip(numbers.tolist(), starts, stops, runs_of, strict=True):
            first = runs[run][0]
            yield Found(blocks[run][start - first : stop - first], file.path, number, start)

    async def __getitem__(self, place: int) -> Any:
        """Return a record."""
        file, number, start, stop = self._find(place)
        scope = current.get()
        assert scope is not None
        reader = await scope.async_reader(file.store)
        data = value(*await reader.read_ranges(file, ((start, stop),)))
        decode = self._decoder.record
        if len(data) <= INLINE:
            return decode(data.data, file.path, number, start)
        return await on_thread(decode, data.data, file.path, number, start)

    def name(self, place: int) -> str:
        """Return the name of a record for errors."""
        file, number, *_ = self._find(place)
        return f"{file.path}, record {number}"

    def by_number(self, reading: Reading) -> Numbered:
        """Return the records for the engine."""
        if reading.awaits:
            return Numbered(
                len(self),
                lambda places: [Asked(self, place) for place in places],
                on_thread=reading,
                name=self.name,
            )
        return Numbered(
            len(self),
            self.read_many,
            on_thread=replace(reading, together=True),
            name=self.name,
            one=self.read,
        )

    def _find(self, place: int) -> tuple[File, int, int, int]:
        which = bisect_right(self._firsts, place) - 1
        number = place - self._firsts[which]
        edges = self._edges[which]
        return self.files[which], number, int(edges[number]), int(edges[number + 1])


def records_of(decoder: RecordDecoder[Any], source: Source, stages: Sequence[Node]) -> Records:
    """Return the records of the files of a description. Raise if they cannot be reached by number. This blocks."""
    indexed, rest = fold(source, stages)
    if rest and indexed is not None:
        raise PipelineError(f"flat_map: indexed= needs files that are known in advance: put .{rest[0]} behind it")
    if indexed is None or indexed.on_thread is not None:
        fix = source.unnumbered or f"put flat_map({decoder.name}(...)) next to files(...)"
        raise PipelineError(
            f"flat_map: indexed= needs files that are known in advance: {fix}, or leave out indexed="
        )
    files = indexed.pick(0, range(len(indexed)))
    if any(not isinstance(file, File) for file in files):
        raise PipelineError("flat_map: indexed= needs files: start with files(...), or leave out indexed=")
    if reshuffles(source, stages) is not None or source.is_random:
        raise PipelineError(
            "flat_map: indexed= reaches the records of all files by number: put shuffle behind flat_map"
        )
    if isinstance(decoder.indexed, bool) and any(file.store is not None for file in files):
        raise PipelineError(
            "flat_map: the index of files in a store is kept in a local folder: give it, as in "
            f"{decoder.name}(indexed='folder')"
        )
    return Records(files, decoder)
