"""MDS, the shards of MosaicML Streaming: written by its `MDSWriter`, read without it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, overload

import numpy as np

from asyncfeed.errors import Corrupt, PipelineError
from asyncfeed.formats.base import StreamDecoder
from asyncfeed.formats.lines import Source
from asyncfeed.formats.shards import Shards, count, plain_name, read_head, read_index, read_samples
from asyncfeed.reading.compression import Compressed
from asyncfeed.reading.stream import ByteStream

Sample = dict[str, Any]
_NUMBERS = {
    **{f"{kind}{bits}": f"<{kind[0]}{bits // 8}" for kind in ("uint", "int") for bits in (8, 16, 32, 64)},
    "float16": "<f2", "float32": "<f4", "float64": "<f8",
}  # fmt: skip
_ARRAY_DTYPES = dict(
    zip(
        (8, 9, 16, 17, 18, 32, 33, 34, 64, 65, 66),
        ("<u1", "<i1", "<u2", "<i2", "<f2", "<u4", "<i4", "<f4", "<u8", "<i8", "<f8"),
        strict=True,
    )
)
"""The dtypes of arrays, by the number that stands before the array."""


@dataclass(frozen=True)
class MdsSample:
    """Decodes the samples of a shard whose columns are known."""

    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int, ...]
    """Bytes of each column; 0 if they differ, and stand before each sample."""

    def __call__(self, data: bytes) -> Sample:
        """Return a sample."""
        at = 4 * self.sizes.count(0)
        varying = iter(np.frombuffer(data, "<u4", at // 4).tolist())
        sample = {}
        for name, encoding, fixed in zip(self.names, self.encodings, self.sizes, strict=True):
            size = fixed or next(varying)
            if at + size > len(data):
                raise ValueError(name)
            sample[name] = _value(encoding, data[at : at + size])
            at += size
        if at != len(data):
            raise ValueError(at)
        return sample


@dataclass(frozen=True, repr=False)
class Mds(StreamDecoder[Sample]):
    """The samples of a shard of MosaicML Streaming (MDS): dicts by column.

    Use it as `files("*.mds*").flat_map(mds)`, also for compressed shards and in object stores. For samples by
    number in a local folder write `items(mds.by_number("data"))`: `shuffle` and `split` are then exact over all
    shards.

    Numbers, text, JSON and arrays become Python numbers, `str`, values and NumPy arrays. Columns of the encodings
    jpeg, png and pil become the bytes that the shard holds. Pickles are refused: a pickle can run any code.

    Raises:
        Corrupt: The shard is damaged or cut short.
        PipelineError: A column has an encoding that is not read.

    Memory:
        The samples of a block of 256 KB, or one larger sample.

    Example:
        >>> import asyncfeed as af
        >>> head = b'{"column_encodings": ["int"], "column_names": ["x"], "column_sizes": [8]}'
        >>> ends = [12 + len(head), 20 + len(head)]
        >>> shard = b"".join(each.to_bytes(4, "little") for each in (1, *ends)) + head + (7).to_bytes(8, "little")
        >>> list(af.items([shard]).flat_map(af.mds))
        [{'x': 7}]
    """

    name = "mds"
    compression: Compressed = "auto"

    @overload
    def __call__(self, file: Source, /, *, compression: Compressed = ...) -> AsyncGenerator[Sample]: ...
    @overload
    def __call__(self, *, compression: Compressed = ...) -> Mds: ...
    def __call__(self, *file: Source, compression: Compressed = "auto") -> AsyncGenerator[Sample] | Mds:
        """Return a decoder with these options; with a file, an async generator of its samples.

        Args:
            *file: A shard, its path, or its bytes.
            compression: As for `lines`.
        """
        decoder = self if compression == "auto" else Mds(compression=compression)
        return super(Mds, decoder).__call__(*file) if file else decoder

    async def groups(self, stream: ByteStream) -> AsyncGenerator[list[Sample]]:
        """Yield the samples of a shard."""
        sizes, head = await read_head(stream)
        try:
            columns = _columns(json.loads(head))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            if isinstance(error, PipelineError):
                raise
            raise Corrupt(f"{stream.file.path} is damaged, or no shard of MDS") from error
        async with aclosing(read_samples(stream, sizes, columns)) as groups:
            async for group in groups:
                yield group

    def by_number(self, path: str | os.PathLike[str]) -> Shards[Sample]:
        """Return the samples of a local folder of shards as a dataset for `items`.

        Args:
            path: The folder that holds `index.json` and the shards.

        Raises:
            PipelineError: The folder has no index, or its shards are compressed.
            Corrupt: The index is damaged.
        """
        place = Path(path, "index.json")
        try:
            shards = read_index(path, "mds")["shards"]
            packed = any(shard.get("zip_data") and not _is_there(path, shard) for shard in shards)
            names = tuple(plain_name(shard["raw_data"]["basename"], place) for shard in shards)
            counts = tuple(count(shard["samples"]) for shard in shards)
            columns = tuple(map(_columns, shards))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, PipelineError):
                raise
            raise Corrupt(f"{place} is damaged, or no index of MDS") from error
        if packed:
            raise PipelineError(f"mds: the shards in {path} are compressed: write files(...).flat_map(mds)")
        return Shards(os.fspath(path), names, counts, columns)


mds = Mds()


def _is_there(folder: str | os.PathLike[str], shard: dict[str, Any]) -> bool:
    return Path(folder, plain_name(shard["raw_data"]["basename"], Path(folder, "index.json"))).exists()


def _columns(head: dict[str, Any]) -> MdsSample:
    """Return the decoder for the columns that a shard or its entry in the index describes."""
    names, encodings, sizes = head["column_names"], head["column_encodings"], head["column_sizes"]
    for each in names, encodings:
        if not all(isinstance(text, str) for text in each):
            raise ValueError(each)
    for name, encoding in zip(names, encodings, strict=True):
        kind = encoding.partition(":")[0]
        if kind == "pkl":
            raise PipelineError(
                f"mds: column {name!r} holds pickles, which are never read: a pickle can run any code"
            )
        if kind not in _VALUES and kind not in _NUMBERS and kind != "ndarray":
            raise PipelineError(f"mds: column {name!r} has the encoding {encoding!r}, which is not read")
    return MdsSample(tuple(names), tuple(encodings), tuple(0 if size is None else count(size) for size in sizes))


_VALUES: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes,
    "str": bytes.decode,
    "int": lambda data: int.from_bytes(_of_size(data, 8), "little", signed=True),
    "str_int": lambda data: int(data.decode()),
    "str_float": lambda data: float(data.decode()),
    "str_decimal": lambda data: Decimal(data.decode()),
    "json": json.loads,
    "jpeg": bytes,
    "png": bytes,
    "pil": bytes,
}


def _value(encoding: str, data: bytes) -> Any:
    kind, _, detail = encoding.partition(":")
    read = _VALUES.get(kind)
    if read is not None:
        return read(data)
    if kind in _NUMBERS:
        return np.frombuffer(_of_size(data, np.dtype(_NUMBERS[kind]).itemsize), _NUMBERS[kind])[0]
    return _array(data, *detail.split(":")) if detail else _array(data)


def _of_size(data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise ValueError(size)
    return data


def _array(data: bytes, dtype: str | None = None, shape: str | None = None) -> np.ndarray[Any, Any]:
    """Return an array: its dtype and its shape stand before it, unless they are known."""
    at = 0
    if dtype is None:
        kind = np.dtype(_ARRAY_DTYPES[data[0]])
        at = 1
    else:
        kind = np.dtype(_NUMBERS[dtype])
    if shape is None:
        count, width = data[at] >> 2, 1 << (data[at] & 3)
        sizes = np.frombuffer(data, f"<u{width}", count, at + 1).tolist()
        at += 1 + count * width
    else:
        sizes = [int(size) for size in shape.split(",")]
    if math.prod(sizes) * kind.itemsize != len(data) - at:
        raise ValueError(sizes)
    return np.frombuffer(data, kind, -1, at).reshape(sizes).copy()
