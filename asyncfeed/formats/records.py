"""Decoders whose samples can be reached by number, because an index says where each sample is in its file."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np

from asyncfeed.errors import PipelineError
from asyncfeed.formats.base import StreamDecoder

T_co = TypeVar("T_co", covariant=True)
Edges = np.ndarray[tuple[int], np.dtype[np.uint64]]
"""Where the records of a file begin, and where the last one ends. Record n is between edges n and n + 1."""
Scan = Generator[tuple[int, int], memoryview, Edges]
"""Finds the edges of a file. It yields an offset and a number of bytes, and is sent the bytes from there on. These
are at least as many, unless the file ends before. It skips what it needs not see."""


class Found(NamedTuple):
    """The bytes of one record, and where they were found."""

    data: memoryview
    path: str
    number: int
    offset: int


@dataclass(frozen=True, repr=False)
class RecordDecoder(StreamDecoder[T_co]):
    """Turns the bytes of a file into many samples, which follow each other in the file.

    With `indexed=True`, `flat_map` reaches the samples by number, so that `shuffle` and `split` are exact over all
    files. Subclasses define `samples` or `groups` for the stream, and `scan` and `record` for the index.
    """

    indexed: bool | str | os.PathLike[str] = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.indexed, bool | str | os.PathLike):
            raise PipelineError(
                f"{self.name}: indexed must be True, False, or the folder of the index, not {self.indexed!r}"
            )
        if self.indexed is not False and self.compression not in ("auto", None):
            raise PipelineError(
                f"{self.name}: a compressed file has no records by number: leave out compression= or indexed="
            )

    @property
    def kind(self) -> str:
        """What the records are, for an index. An index of another kind is not used."""
        return self.name

    def scan(self, path: str, size: int) -> Scan:
        """Find where the records of a file of this size are. It may raise `Corrupt`, which names the file."""
        raise NotImplementedError

    def record(self, data: memoryview, path: str, number: int, offset: int) -> T_co:
        """Return the sample in the bytes of one record. Raise `Corrupt`, which names the file and the record."""
        raise NotImplementedError

    def records(self, found: Sequence[Found]) -> list[T_co]:
        """Return the samples in the bytes of several records. Raise if one is `Corrupt`.

        Define it if that is faster than one call of `record` for each.
        """
        return [self.record(*each) for each in found]
