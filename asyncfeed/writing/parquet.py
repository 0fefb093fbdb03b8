"""Dicts of values as the rows of a Parquet file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from asyncfeed.formats.columns import pyarrow
from asyncfeed.trees import size_of
from asyncfeed.writing.encoder import Encoder

GROUP_BYTES = 16 << 20
"""Bytes of the rows of a row group. Its reader has one or two in memory, and so has this writer."""


class ParquetEncoder(Encoder):
    """Writes each sample as one row: see `Pipeline.to_shards`."""

    suffix = ".parquet"
    kind = None

    def __init__(self) -> None:
        self._kinds: dict[str, Any] = {}
        """The Arrow type of each column. Empty: no sample was seen."""
        self._rows: list[dict[str, Any]] = []
        """The rows that were not written."""
        self._nbytes = 0
        self._written = _Written()
        self._writer: Any = None

    def encode(self, sample: Any, number: int) -> dict[str, Any]:
        """Return a row, whose columns have the types of the first row."""
        if not isinstance(sample, dict) or not sample or not all(isinstance(name, str) for name in sample):
            raise TypeError(
                f"a Parquet file holds dicts of values by column, not {type(sample).__name__}: write "
                'map(lambda sample: {"x": ..., "label": ...}) before it'
            )
        row = {name: value[()] if isinstance(value, np.ndarray) else value for name, value in sample.items()}
        kinds = {name: _kind(name, value) for name, value in row.items()}
        known = self._kinds = self._kinds or kinds
        if kinds.keys() != known.keys():
            raise TypeError(f"a row has the columns {', '.join(kinds)}, the first one has {', '.join(known)}")
        for name, kind in kinds.items():
            if kind != known[name]:
                raise TypeError(f"column {name!r} is {kind} in this row, and {known[name]} in the first one")
        return row

    def size(self, record: dict[str, Any]) -> int:
        """Return the size of a row before compression."""
        return size_of(record)

    def add(self, record: dict[str, Any]) -> bytes:
        """Return the bytes of a row group if this row ends it."""
        self._rows.append(record)
        self._nbytes += size_of(record)
        return self._group() if self._nbytes >= GROUP_BYTES else b""

    def finish(self) -> tuple[bytes, bytes]:
        """Return the last row group, and the footer."""
        last = self._group() if self._rows or self._writer is None else b""
        self._writer.close()
        self._writer = None
        return b"", last + self._written.taken()

    def resume(self, first: Path) -> None:
        """Take the columns of a shard."""
        schema = pyarrow("pyarrow.parquet").read_schema(first)
        self._kinds = dict(zip(schema.names, schema.types, strict=True))

    def _group(self) -> bytes:
        pa = pyarrow()
        schema = pa.schema(list(self._kinds.items()))
        if self._writer is None:
            self._written = _Written()
            self._writer = pyarrow("pyarrow.parquet").ParquetWriter(
                self._written, schema, compression="zstd", write_page_checksum=True
            )
        columns = [_column([row[name] for row in self._rows], kind) for name, kind in self._kinds.items()]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=schema))
        self._rows, self._nbytes = [], 0
        return self._written.taken()


class _Written(io.RawIOBase):
    """Takes the place of a file: keeps what was written, until it is taken."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        self._size += len(data)
        return len(data)

    def tell(self) -> int:
        return self._size

    def taken(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


def _kind(name: str, value: Any) -> Any:
    """Return the Arrow type of a value. Raise `TypeError` if there is none, or if the value does not fit in it."""
    pa = pyarrow()
    try:
        if isinstance(value, np.ndarray):
            if not value.size or value.dtype.kind not in "biuf":
                raise ValueError(f"an array of {value.dtype} and shape {value.shape}: write array.tolist()")
            return pa.fixed_shape_tensor(pa.from_numpy_dtype(value.dtype.newbyteorder("=")), value.shape)
        kind = (
            pa.from_numpy_dtype(value.dtype) if isinstance(value, np.number | np.bool_) else pa.infer_type([value])
        )
        pa.scalar(value, kind)
    except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
        raise TypeError(f"column {name!r}: {error}") from error
    if pa.types.is_null(kind):
        raise TypeError(f"column {name!r} is None: give a value that stands for a missing one")
    return kind


def _column(values: list[Any], kind: Any) -> Any:
    pa = pyarrow()
    if not isinstance(kind, pa.FixedShapeTensorType):
        return pa.array(values, kind)
    flat = np.concatenate([value.ravel() for value in values])
    native = pa.array(flat.astype(flat.dtype.newbyteorder("=")), kind.value_type)
    return pa.ExtensionArray.from_storage(kind, pa.FixedSizeListArray.from_arrays(native, values[0].size))
