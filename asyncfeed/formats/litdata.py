"""The chunks of LitData: written by its `optimize`, read without it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from asyncfeed.errors import Corrupt, PipelineError
from asyncfeed.extras import installed
from asyncfeed.formats.base import StreamDecoder
from asyncfeed.formats.shards import Shards, count, plain_name, read_head, read_index, read_samples
from asyncfeed.reading.compression import Compressed
from asyncfeed.reading.stream import ByteStream

Tree = Any
# By the number that the format gives them.
_ARRAY_DTYPES = ("i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16", "?")
_TENSOR_DTYPES = (
    *("<f4", "<f4", "<f8", "<f8", "<c8", "<c8", "<c16", "<c16", "<f2", "<f2", "bfloat16"),
    *("u1", "i1", "<i2", "<i2", "<i4", "<i4", "<i8", "<i8", "?", "<u2"),
)
_DICTS = ("builtins.dict", "collections.OrderedDict")


@dataclass(frozen=True)
class LitSample:
    """Decodes the samples of chunks whose index is known."""

    formats: tuple[str, ...]
    """How each leaf of a sample is stored."""
    spec: str
    """The structure of a sample, as JSON."""
    tokens: bool = False
    """Whether a sample is one array and nothing stands before it, so that a chunk is one array of tokens."""

    def __call__(self, data: bytes) -> Tree:
        """Return a sample."""
        if self.tokens:
            return _leaf(self.formats[0], data)
        if self.formats and not data:
            raise PipelineError(
                "litdata: the samples are an Arrow table at the end of the chunk, as new versions of LitData "
                "write dicts of numbers and texts. This is not read: write arrays, or Parquet files"
            )
        at = 4 * len(self.formats)
        leaves = []
        for form, size in zip(self.formats, np.frombuffer(data, "<u4", len(self.formats)).tolist(), strict=True):
            if at + size > len(data):
                raise ValueError(form)
            leaves.append(_leaf(form, data[at : at + size]))
            at += size
        if at != len(data):
            raise ValueError(at)
        return _tree(json.loads(self.spec), iter(leaves))


@dataclass(frozen=True, repr=False)
class LitData(StreamDecoder[Tree]):
    """The samples of chunks of LitData; see `litdata`."""

    name = "litdata"
    decode: LitSample
    path: str | None = None
    """The local folder of the chunks."""
    chunks: tuple[tuple[str, int], ...] = ()
    """The names of the chunks, and how many samples they have."""
    compression: Compressed = field(default="auto", kw_only=True)

    async def groups(self, stream: ByteStream) -> AsyncGenerator[list[Tree]]:
        """Yield the samples of a chunk."""
        sizes, head = await read_head(stream)
        if head:
            raise Corrupt(f"{stream.file.path} is damaged, or no chunk of LitData")
        async with aclosing(read_samples(stream, sizes, self.decode)) as groups:
            async for group in groups:
                yield group

    def by_number(self) -> Shards[Tree]:
        """Return the samples of the local folder as a dataset for `items`, in the order of the index."""
        if self.path is None:
            raise PipelineError("litdata: samples by number need a local folder: write litdata('folder')")
        packed = next((name for name, _ in self.chunks if not name.endswith(".bin") or name.count(".") > 1), None)
        if packed is not None:
            raise PipelineError(f"litdata: {packed} is compressed: write files(...).flat_map(litdata(...))")
        names, counts = zip(*self.chunks, strict=True) if self.chunks else ((), ())
        return Shards(self.path, names, counts, (self.decode,) * len(names))

    def __repr__(self) -> str:
        return f"litdata({'...' if self.path is None else repr(self.path)})"


def litdata(index: str | os.PathLike[str] | Mapping[str, Any], *, compression: Compressed = "auto") -> LitData:
    """Return a decoder for the chunks of LitData that an index describes.

    Use it as `files("data/*.bin").flat_map(litdata("data"))`, also for compressed chunks. For samples by number in
    a local folder write `items(litdata("data").by_number())`: `shuffle` and `split` are then exact over all
    chunks.

    Numbers, text, arrays and tensors become Python numbers, `str` and NumPy arrays. Images, videos and files
    become the bytes that the chunk holds. Pickles are refused: a pickle can run any code.

    Args:
        index: The local folder that holds `index.json`; or the contents of `index.json`, if the folder is in a
            store.
        compression: As for `lines`.

    Returns:
        A decoder of many samples, which have the structure that was written: dicts, lists and tuples.

    Raises:
        PipelineError: There is no index, or a part of the samples has a format that is not read.
        Corrupt: The index is damaged. The decoder raises it for a chunk that is damaged or cut short.

    Memory:
        The samples of a block of 256 KB, or one larger sample.

    Example:
        >>> import asyncfeed as af
        >>> chunk = b"".join(each.to_bytes(4, "little") for each in (1, 12, 24, 8)) + (7).to_bytes(8, "little")
        >>> index = {"chunks": [], "config": {"data_format": ["int"], "data_spec": '[1, {"type": null}]'}}
        >>> list(af.items([chunk]).flat_map(af.litdata(index)))
        [7]
    """
    path = None if isinstance(index, Mapping) else os.fspath(index)
    found: Mapping[str, Any] = index if isinstance(index, Mapping) else read_index(index, "litdata")
    where = Path(path or "", "index.json")
    try:
        config = found["config"]
        formats, spec = tuple(config["data_format"]), config["data_spec"]
        encrypted = config.get("encryption")
        packed = str(config.get("compression") or "").startswith("zstd")
        chunks = tuple(
            (plain_name(each["filename"], where), count(each["chunk_size"])) for each in found["chunks"]
        )
        tokens = len(formats) == 1 and any(each.get("dim") is not None for each in found["chunks"])
        _tree(json.loads(spec), iter(formats))
        kinds = [form.partition(":") for form in formats]
    except (ValueError, LookupError, TypeError, AttributeError, StopIteration, RecursionError) as error:
        if isinstance(error, PipelineError):
            raise
        raise Corrupt(f"{where} is damaged, or no index of LitData") from error
    if encrypted:
        raise PipelineError(f"litdata: the chunks of {where} are encrypted, which is not read")
    if packed and any(".zstd" not in name for name, _ in chunks):
        raise PipelineError(
            f"litdata: the chunks of {where} are compressed in parts, which is not read: write them with "
            'compression_level="chunk"'
        )
    for form, (kind, _, number) in zip(formats, kinds, strict=True):
        if kind == "pickle":
            raise PipelineError(
                "litdata: a part of the samples is a pickle, which is never read: it can run any code"
            )
        if kind not in _VALUES or (number and kind in _PLAIN and not _is_dtype(kind, number)):
            raise PipelineError(f"litdata: a part of the samples has the format {form!r}, which is not read")
    return LitData(LitSample(formats, spec, tokens), path, chunks, compression=compression)


def _tree(spec: Any, leaves: Iterator[Any]) -> Tree:
    """Return the tree that LitData describes, with these leaves: `[1, {"type": ..., "context": ...}]`."""
    found = _node(spec[1], leaves)
    if next(leaves, None) is not None:
        raise ValueError(spec)
    return found


def _node(spec: Mapping[str, Any], leaves: Iterator[Any]) -> Tree:
    kind = spec["type"]
    if kind is None:
        return next(leaves)
    values = [_node(each, leaves) for each in spec["children_spec"]]
    if kind in _DICTS:
        return dict(zip(json.loads(spec["context"]), values, strict=True))
    if kind in ("builtins.list", "builtins.tuple"):
        return values if kind == "builtins.list" else tuple(values)
    raise PipelineError(f"litdata: the samples are of type {kind}, which is not read")


def _leaf(form: str, data: bytes) -> Any:
    kind, _, number = form.partition(":")
    if kind in _PLAIN:
        dtypes = _PLAIN[kind]
        return np.frombuffer(data, _dtype(dtypes[int(number)])).copy()
    return _VALUES[kind](data)


def _array(dtypes: tuple[str, ...], order: str, data: bytes) -> np.ndarray[Any, Any]:
    """Return an array. The number of its dtype, the number of its axes and their sizes stand before it."""
    number, axes = np.frombuffer(data, f"{order}u4", 2).tolist()
    shape = np.frombuffer(data, f"{order}u4", axes, 8).tolist()
    dtype, at = _dtype(dtypes[number]), 8 + 4 * axes
    if math.prod(shape) * dtype.itemsize != len(data) - at:
        raise ValueError(shape)
    return np.frombuffer(data, dtype, -1, at).reshape(shape).copy() if at < len(data) else np.empty(shape, dtype)


def _tensor(data: bytes) -> np.ndarray[Any, Any]:
    try:
        return _array(_TENSOR_DTYPES, ">", data)
    except (ValueError, IndexError):  # older versions wrote it in the other order
        return _array(_TENSOR_DTYPES, "<", data)


def _json(data: bytes) -> Any:
    if data[:1] < b"!":
        raise PipelineError(
            "litdata: lists in the samples are stored in a form of LitData's own, which is not read: store arrays"
        )
    return json.loads(data)


def _dtype(name: str) -> np.dtype[Any]:
    found: np.dtype[Any] = np.dtype(installed("ml_dtypes", "safetensors").bfloat16 if name == "bfloat16" else name)
    return found


def _is_dtype(kind: str, number: str) -> bool:
    return number.isdecimal() and int(number) < len(_PLAIN[kind])


def _scalar(dtype: str, data: bytes) -> Any:
    (found,) = np.frombuffer(data, dtype).tolist()
    return found


_PLAIN = {"no_header_numpy": _ARRAY_DTYPES, "no_header_tensor": _TENSOR_DTYPES}
"""Arrays of one dimension, of which the index has the dtype."""
_VALUES: dict[str, Callable[[bytes], Any]] = {
    "str": bytes.decode,
    "text": bytes.decode,
    "json": _json,
    "bool": partial(_scalar, "?"),
    "int": partial(_scalar, "<i8"),
    "float": partial(_scalar, "<f8"),
    "numpy": partial(_array, _ARRAY_DTYPES, "<"),
    "tensor": _tensor,
    **dict.fromkeys(("bytes", "jpeg", "pil", "tifffile", "file", "video", *_PLAIN), bytes),
}
