"""Samples as records of a TFRecord file, as TensorFlow stores them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from asyncfeed.extras import installed
from asyncfeed.formats.tfrecord import framed
from asyncfeed.formats.wire import as_varints, message
from asyncfeed.writing.encoder import Encoder


class TFRecordEncoder(Encoder):
    """Writes each sample as one record: see `Pipeline.to_shards`."""

    suffix = ".tfrecord"
    kind = "tfrecord"

    def __init__(self) -> None:
        self._checksum = installed("google_crc32c", "tfrecord").value

    def encode(self, sample: Any, number: int) -> bytes:
        """Return the record of a sample: its bytes, or its features as a `tf.train.Example`."""
        if isinstance(sample, bytes | bytearray | memoryview):
            return framed(bytes(sample), self._checksum)
        if not isinstance(sample, dict) or not all(isinstance(name, str) for name in sample):
            raise TypeError(
                f"a TFRecord file holds bytes, or dicts of features by name, not {type(sample).__name__}: write "
                'map(lambda sample: {"image": ..., "label": ...}) before it'
            )
        features = b"".join(_entry(name, value) for name, value in sample.items())
        return framed(message(1, features), self._checksum)


def _entry(name: str, value: Any) -> bytes:
    try:
        feature = _feature(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"feature {name!r}: {error}") from error
    return message(1, message(1, name.encode()) + message(2, feature))


def _feature(value: Any) -> bytes:
    """Return the list of values of a feature: of bytes, floats or whole numbers."""
    if isinstance(value, bytes | bytearray | memoryview | str):
        return message(1, message(1, _encoded(value)))
    if isinstance(value, list | tuple) and value and all(isinstance(each, bytes | str) for each in value):
        return message(1, b"".join(message(1, _encoded(each)) for each in value))
    if isinstance(value, list | tuple) and not value:
        return b""  # an empty list has no kind
    given = np.asarray(value)
    if given.dtype.kind in "US" or given.dtype == object:
        return message(1, b"".join(message(1, _encoded(each)) for each in given.ravel().tolist()))
    if given.dtype.kind == "f":
        return message(2, message(1, _floats(given, exact=isinstance(value, np.ndarray | np.generic)).tobytes()))
    if given.dtype.kind in "iub":
        if given.dtype.kind == "u" and given.size and int(given.max()) >> 63:
            raise ValueError("a value does not fit into int64")
        return message(3, message(1, as_varints(given.ravel().tolist())))
    raise TypeError(f"an Example has bytes, floats and whole numbers, not {given.dtype}")


def _floats(given: npt.NDArray[Any], *, exact: bool) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):
        made = given.ravel().astype("<f4")
    if exact and given.dtype.itemsize > made.itemsize and not np.array_equal(made, given.ravel(), equal_nan=True):
        raise ValueError(f"an Example has floats of 32 bits: write array.astype('float32') of this {given.dtype}")
    return made


def _encoded(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"a list of bytes or texts has no {type(value).__name__}")
