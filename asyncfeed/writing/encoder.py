"""What a format of shards is made of: each sample becomes bytes that follow those of the sample before."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, ClassVar, Final

from asyncfeed.errors import PipelineError


class Encoder:
    """Turns samples into the bytes of a shard."""

    suffix: ClassVar[str]
    """The end of the name of a shard."""
    kind: ClassVar[str]
    """The `kind` of the decoder that reads the shards, for their index."""

    def encode(self, sample: Any, number: int) -> bytes:
        """Return the bytes of a sample. `number` is its number among all samples of all shards.

        Raises `TypeError` if the format cannot hold the sample.
        """
        raise NotImplementedError

    def end(self) -> bytes:
        """Return the bytes behind the last sample of a shard."""
        return b""


ENCODERS: Final = {
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
