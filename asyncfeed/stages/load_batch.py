"""`load` and the `batch` after it as one step: files are read straight into their rows of the batch.

The first file of a batch decides what the others should be. Then one call reads each file: its header into a
buffer aside, its body into its row. If a file is not as expected (another shape, another header, a file that
changed, any error), the whole batch takes the slow path: `load` for each sample, then stacking. That path finds
and reports every error. So the result is the same, bit by bit, and so is every error.

If the decoder tells the shape of every sample, each file is decoded straight into its row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from asyncfeed.attempts.retry import Wanted
from asyncfeed.formats.base import Decoder
from asyncfeed.reading.file import File
from asyncfeed.reading.leaves import KNOWN
from asyncfeed.reading.listing import FileSpan
from asyncfeed.reading.reader import Reader, Waits
from asyncfeed.reading.scope import reader_of
from asyncfeed.stacking.collate import Where, collate, stack, transpose
from asyncfeed.stacking.pool import Pool, shared_pool
from asyncfeed.stages.loading import Contents, ContentsReader
from asyncfeed.stages.pad import Pad, values_of
from asyncfeed.stages.read_archives import LaidOutRows
from asyncfeed.stages.read_rows import DecodedRows, HeadedRows, LayoutMismatch, Unread, fitting
from asyncfeed.stages.steps import MakesArrays, MemberError, Place, Work
from asyncfeed.stats import SlowPaths
from asyncfeed.trees import Spec, Tree, leaf_spec, unflatten

if TYPE_CHECKING:
    from asyncfeed.stages.batch import Batch
    from asyncfeed.stages.load import Load


Rows = HeadedRows | LaidOutRows | DecodedRows


def batches_of(load: Load, batch: Batch, each: Work) -> Work:
    """Return the step that reads lists of files into batches. `each` is how `load` reads one file."""
    assert isinstance(load.decoder, Decoder)
    slow_paths = SlowPaths()
    read = ReadBatch(load.decoder, each.fn, str(load), load.wanted, batch.padding, slow_paths)
    here = load.on == "thread"
    cost = Cost(each.cost, batch.padding, read.file_bytes)
    return Work(
        read,
        load.on,
        waits=read.waits if here else None,
        many=read.many if here and read.reads_together else None,
        placed=True,
        concurrency=each.concurrency,
        cost=cost,
        measure=None if each.measure is None else Measure(each.measure, batch.padding, cost),
        packed=each.packed,
        slow_paths=slow_paths,
    )


@dataclass(frozen=True, slots=True)
class Cost:
    """Computes the size of a batch of files. Padded, it counts each file with the size of the largest one."""

    each: Callable[[Any], int | None] | None
    padding: Pad | None
    learned: Callable[[], int | None]
    """Returns the size that the files of the last batch had; None if that says nothing about the next ones. It
    counts if files were listed without their sizes."""

    def __call__(self, samples: Sequence[Tree]) -> int | None:
        """Return the number of bytes; None if the size of a sample is not known."""
        assert self.each is not None
        if isinstance(samples, FileSpan):
            if not samples.files.sized:
                return self.of_learned(samples)
            costs = samples.sizes()
        else:
            costs = [cost for cost in map(self.each, samples) if cost is not None]
            if len(costs) < len(samples):
                return None
        return sum(costs) if self.padding is None else len(costs) * max(costs)

    def of_learned(self, samples: Sequence[Tree]) -> int | None:
        """Return the number of bytes if each file has the size that was learned; None if none was."""
        size = self.learned()
        return None if size is None else size * len(samples)


@dataclass(frozen=True, slots=True)
class Measure:
    """Computes the size of a batch of files whose sizes must be looked up."""

    each: Callable[[Any], int] | None
    padding: Pad | None
    cost: Cost

    def __call__(self, samples: Sequence[Tree]) -> int:
        """Return the number of bytes. This blocks."""
        assert self.each is not None
        if isinstance(samples, FileSpan) and not samples.files.sized:
            learned = self.cost.of_learned(samples)  # a batch may have been read since it was asked for
            if learned is not None:
                return learned
        costs = list(map(self.each, samples))
        return sum(costs) if self.padding is None else len(costs) * max(costs)


@dataclass(slots=True)
class ReadBatch(MakesArrays):
    """Reads a list of samples whose leaves are files into one tree of arrays."""

    decoder: Decoder[Any]
    load_each: Callable[[Any], Any]
    stage: str
    wanted: Wanted
    padding: Pad | None
    slow_paths: SlowPaths = field(default_factory=SlowPaths)
    """Counts the batches whose files were loaded one by one, by reason."""
    _rows: dict[int, Rows] = field(default_factory=dict)
    """The reader of the files of each column, by the number of the column."""
    _pool: Pool = field(default_factory=shared_pool)
    _waits: Waits = Waits.UNKNOWN

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it for another process, which has memory of its own."""
        return ReadBatch, (self.decoder, self.load_each, self.stage, self.wanted, self.padding)

    def make_in(self, pool: Pool) -> None:
        """Make all batches in the memory of this pool. It must be called before the first batch."""
        self._pool = pool

    def __call__(self, samples: Sequence[Tree], place: Place) -> Tree:
        """Return the batch."""
        try:
            return self._assemble(*_columns(samples), place)
        except LayoutMismatch as surprise:
            reason = str(surprise)
        except Unread as unread:
            if not isinstance(samples[0], File):  # a file of an earlier sample may be in another column
                reason = "the store did not answer"
            else:
                raise MemberError(unread.member, self.stage, unread.error) from None
        except OSError as error:  # the slow path meets it, too, and says at which sample
            reason = f"{type(error).__name__} while a file was read"
        self.slow_paths.note(f"{self.stage}, one by one: {reason}")
        loaded = []
        for member, sample in enumerate(samples):
            try:
                loaded.append(self.load_each(sample))
            except BaseException as error:  # noqa: BLE001 - the consumer gets any exception
                raise MemberError(member, self.stage, error) from None
        return collate(loaded, place.name, self.padding, self._pool.empty, self.stage)

    def many(self, groups: Sequence[Sequence[Tree]]) -> list[Tree]:
        """Return the batches of several lists of files, read together.

        If one of them is not as expected, this raises `LayoutMismatch`. Then each is read alone.
        """
        if not all(isinstance(samples, FileSpan) for samples in groups):
            if any(type(each) is not File for samples in groups for each in samples):
                raise LayoutMismatch("samples that hold several files are read batch by batch")
            if len({id(each.store) for samples in groups for each in samples}) > 1:
                raise LayoutMismatch("the files are in several stores")
        rows = self._rows_of(0)
        assert not isinstance(rows, DecodedRows)
        pad = self.padding
        with _reader_of(groups[0][0], self.wanted) as reader:
            if pad is None:
                batches: list[Tree] = list(rows.read_many(reader, groups))
            else:
                spec = leaf_spec()
                (value,) = fitting(values_of, "pad", pad.value, spec)
                ragged = rows.read_ragged(reader, groups, pad, value, Where(spec, 0, str))
                batches = list(ragged) if pad.lengths else [array for array, _ in ragged]
            self._waits = reader.waits
            return batches

    @property
    def reads_together(self) -> bool:
        """Whether the files of several batches can be read with one call."""
        decoder = self.decoder
        return decoder.row is None and (decoder.probes or (decoder.lays_out and self.padding is None))

    def file_bytes(self) -> int | None:
        """Return the size of each file, if the files that were read last were alike. Return None otherwise."""
        rows = self._rows.get(0)
        if self.padding is not None or not isinstance(rows, HeadedRows | LaidOutRows):
            return None
        return rows.file_bytes

    def waits(self) -> Waits:
        """Return what the last call waited for."""
        return self._waits

    def _assemble(self, columns: Sequence[Sequence[Any]], spec: Spec, place: Place) -> Tree:
        batch: list[Any] = []
        lengths: list[Any] = []
        pad = self.padding
        values = [None] * len(columns) if pad is None else fitting(values_of, "pad", pad.value, spec)
        for number, (column, value) in enumerate(zip(columns, values, strict=True)):
            where = Where(spec, number, place.name)
            true = None
            if not isinstance(column[0], File):
                array = fitting(stack, column, where, self._pool.empty)
            else:
                if not isinstance(column, FileSpan) and len(set(map(_store, column))) > 1:
                    raise LayoutMismatch("the files are in several stores")
                with _reader_of(column[0], self.wanted) as reader:
                    rows = self._rows_of(number)
                    if pad is None:
                        array = rows.read(reader, column)
                    else:
                        ((array, true),) = rows.read_ragged(reader, [column], pad, value, where)
                    self._waits = reader.waits
            batch.append(array)
            lengths.append(true)
        tree = unflatten(spec, batch)
        return (tree, unflatten(spec, lengths)) if pad is not None and pad.lengths else tree

    def _rows_of(self, number: int) -> Rows:
        rows = self._rows.get(number)
        if rows is None:  # if two threads do this at once, one of the two objects is dropped
            decoder = self.decoder
            kind: type[Rows] = DecodedRows if decoder.row else HeadedRows if decoder.probes else LaidOutRows
            rows = self._rows[number] = kind(decoder, self._pool)
        return rows


_store = attrgetter("store")


def _reader_of(file: File, wanted: Wanted) -> AbstractContextManager[Reader]:
    return nullcontext(ContentsReader()) if type(file) is Contents else reader_of(file, wanted)


def _columns(samples: Sequence[Tree]) -> tuple[Sequence[Sequence[Any]], Spec]:
    """Return the leaves of the samples by column.

    Raise `LayoutMismatch` if a column mixes files and other leaves.
    """
    kinds = {File} if isinstance(samples, FileSpan) else set(map(type, samples))
    if kinds in ({File}, {Contents}):
        return [samples], leaf_spec()
    columns, spec = fitting(transpose, list(samples), str, None, KNOWN)
    if not all(len(set(map(type, column))) == 1 or not isinstance(column[0], File) for column in columns):
        raise LayoutMismatch("a leaf is a file in some samples and not in others")
    if not any(isinstance(column[0], File) for column in columns):
        raise LayoutMismatch("the first sample holds no file")
    return columns, spec
