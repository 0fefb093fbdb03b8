"""What a format of shards is made of: samples become records, and the records of a shard become its bytes."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final

from asyncfeed.errors import PipelineError


class Encoder:
    """Turns samples into the bytes of a shard."""

    suffix: ClassVar[str]
    """The end of the name of a shard."""
    kind: ClassVar[str | None]
    """The `kind` of the decoder that reads the shards, for their index. None: they have no index."""
    overhead: ClassVar[int] = 0
    """Bytes of a shard beside its records."""

    def encode(self, sample: Any, number: int) -> Any:
        """Return the record of a sample. `number` is its number among all samples of all shards.

        Raises `TypeError` if the format cannot hold the sample.
        """
        raise NotImplementedError

    def size(self, record: Any) -> int:
        """Return the bytes that a record adds to its shard."""
        return len(record)

    def add(self, record: Any) -> bytes:
        """Take the next record of a shard. Return the bytes to write: by default those of the record."""
        added: bytes = record
        return added

    def finish(self) -> tuple[bytes, bytes]:
        """End a shard. Return the bytes that replace its first ones, and those behind its last record."""
        return b"", b""

    def resume(self, first: Path) -> None:
        """Take over from an earlier conversion, which has written the shard `first` and maybe more."""


ENCODERS: Final = {
    "npy": "asyncfeed.writing.npy:NpyEncoder",
    "parquet": "asyncfeed.writing.parquet:ParquetEncoder",
    "tar": "asyncfeed.writing.tar:TarEncoder",
    "tfrecord": "asyncfeed.writing.tfrecord:TFRecordEncoder",
}
"""Where the encoder of each format is."""


def encoder_of(name: object) -> Encoder:
    """Return the encoder of a format."""
    place = ENCODERS.get(name) if isinstance(name, str) else None
    if place is None:
        known = ", ".join(map(repr, ENCODERS))
        raise PipelineError(f"to_shards: format must be {known}, not {name!r}")
    module, _, made = place.partition(":")
    encoder: Callable[[], Encoder] = getattr(import_module(module), made)
    return encoder()
