"""Shards that begin with the offsets of their samples: the chunks of MosaicML's MDS and of LitData.

A shard is the number of its samples (uint32), their offsets and its end (uint32), in MDS a description of the
columns, and the samples.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from asyncfeed.errors import AsyncfeedError, Corrupt, PipelineError
from asyncfeed.reading.copies import on_thread
from asyncfeed.reading.file import Bytes, File
from asyncfeed.reading.reader import value
from asyncfeed.reading.scope import reader_of
from asyncfeed.reading.stream import ByteStream

T_co = TypeVar("T_co", covariant=True)

GROUP_BYTES = 1 << 18
"""Bytes of samples that are decoded by one call on a thread. A call takes about 0.05 ms."""
INLINE_BYTES = 1 << 12
"""Bytes that are decoded on the loop."""


class DecodeSample(Protocol[T_co]):
    """Turns the bytes of one sample into the sample. It raises any exception if they are damaged."""

    def __call__(self, data: bytes) -> T_co:
        """Return the sample."""
        ...


async def read_head(stream: ByteStream) -> tuple[list[int], bytes]:
    """Return the sizes of the samples of a shard, and what is between their offsets and the first sample."""
    path = stream.file.path
    count = int.from_bytes(await _exactly(stream, 4), "little")
    ends = np.frombuffer(await _exactly(stream, 4 * (count + 1)), "<u4").astype(np.int64)
    before = int(ends[0]) - 4 * (count + 2)
    sizes = np.diff(ends)
    if before < 0 or (sizes < 0).any():
        raise Corrupt(f"{path} has offsets that do not follow each other: it is damaged, or no shard")
    return sizes.tolist(), await _exactly(stream, before)


async def read_samples(
    stream: ByteStream, sizes: Sequence[int], decode: DecodeSample[T_co]
) -> AsyncGenerator[list[T_co]]:
    """Yield the samples of a shard in groups, from the first one on."""
    path, first, parts, nbytes = stream.file.path, 0, [], 0
    failed: Exception | None = None
    for number, size in enumerate(sizes):
        try:
            parts.append(await _exactly(stream, size))
        except Exception as cut:  # noqa: BLE001 - it is raised after the samples before it
            failed = cut
        nbytes += size
        if nbytes >= GROUP_BYTES or number + 1 == len(sizes) or failed is not None:
            if nbytes > INLINE_BYTES:
                samples, damaged = await on_thread(_decoded, parts, decode, path, first)
            else:
                samples, damaged = _decoded(parts, decode, path, first)
            if samples:
                yield samples
            if (error := damaged or failed) is not None:
                raise error
            first, parts, nbytes = number + 1, [], 0


async def _exactly(stream: ByteStream, size: int) -> bytes:
    data = await stream.read(size) if size else b""
    if len(data) < size:
        raise Corrupt(f"{stream.file.path} is cut short: {size} bytes are missing at offset {stream.offset}")
    return data


def _decoded(
    parts: list[bytes], decode: DecodeSample[T_co], path: str, first: int
) -> tuple[list[T_co], Exception | None]:
    samples: list[T_co] = []
    try:
        for number, part in enumerate(parts, first):
            samples.append(decode_one(part, decode, path, number))
    except Exception as error:  # noqa: BLE001 - it is raised after the samples before it
        return samples, error
    return samples, None


def decode_one(data: bytes, decode: DecodeSample[T_co], path: str, number: int) -> T_co:
    """Return a sample. If it is damaged, raise `Corrupt`, which names the file and the sample."""
    try:
        return decode(data)
    except AsyncfeedError:
        raise
    except Exception as error:
        raise Corrupt(f"{path}: sample {number} is damaged ({type(error).__name__})") from error


def read_index(folder: str | os.PathLike[str], method: str) -> dict[str, Any]:
    """Return the contents of the `index.json` of a folder."""
    place = Path(folder, "index.json")
    try:
        found = json.loads(place.read_bytes())
    except FileNotFoundError:
        raise PipelineError(f"{method}: {place} is not there: give the folder that holds index.json") from None
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{place} is not JSON") from error
    if not isinstance(found, dict):
        raise Corrupt(f"{place} is no index")
    return found


def count(found: object) -> int:
    """Return a number of samples or bytes that an index gives. Raise ValueError if it is none."""
    if type(found) is not int or found < 0:
        raise ValueError(found)
    return found


def plain_name(name: object, place: Path) -> str:
    """Return the name of a shard. Raise `Corrupt` if it leads out of the folder of its index."""
    if not isinstance(name, str) or not name or Path(name).is_absolute() or ".." in Path(name).parts:
        raise Corrupt(f"{place} names the shard {name!r}, which is no file of its folder")
    return name


@dataclass(frozen=True)
class Shards(Generic[T_co]):
    """The samples of the shards in a local folder, by number: a dataset for `items`.

    A sample takes two reads: one for its offset, one for itself. Those of several samples are made together.
    """

    folder: str
    names: tuple[str, ...]
    counts: tuple[int, ...]
    """Number of samples in each shard."""
    decoders: tuple[DecodeSample[T_co], ...] = field(repr=False)
    """What turns bytes into samples, for each shard."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_firsts", [0, *accumulate(self.counts)])

    @property
    def _ends(self) -> list[int]:
        ends: list[int] = vars(self)["_firsts"]
        return ends

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, place: int) -> T_co:
        return self.__getitems__((place,))[0]

    def __getitems__(self, places: Sequence[int]) -> list[T_co]:
        """Return several samples. Each shard is asked once for all offsets, and once for all samples."""
        by_shard: dict[int, list[int]] = {}
        for at, place in enumerate(places):
            if not 0 <= place < len(self):
                raise IndexError(place)
            by_shard.setdefault(bisect_right(self._ends, place) - 1, []).append(at)
        samples: list[Any] = [None] * len(places)
        for shard, members in by_shard.items():
            numbers = [places[at] - self._ends[shard] for at in members]
            file = File(os.path.join(self.folder, self.names[shard]))  # noqa: PTH118 - faster than a Path
            with reader_of(file) as reader:
                heads = reader.read_ranges(file, [(4 * (each + 1), 4 * (each + 3)) for each in numbers])
                ranges = [_between(value(head), file) for head in heads]
                parts = reader.read_ranges(file, ranges)
            for at, number, part in zip(members, numbers, parts, strict=True):
                samples[at] = decode_one(value(part).tobytes(), self.decoders[shard], file.path, number)
        return samples


def _between(offsets: Bytes, file: File) -> tuple[int, int]:
    start, stop = offsets.view("<u4").tolist()
    if stop < start:
        raise Corrupt(f"{file.path} has offsets that do not follow each other: it is damaged, or no shard")
    return start, stop
