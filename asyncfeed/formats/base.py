"""What a decoder is: the bytes of one file in, one sample out."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np

from asyncfeed.storage.base import Bytes, File

T_co = TypeVar("T_co", covariant=True)


class Header(NamedTuple):
    """What the first bytes of a file say about the array that follows."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran_order: bool
    offset: int
    """Where the array starts, in bytes from the start of the file."""
    nbytes: int
    """How many bytes the array takes."""


@dataclass(frozen=True)
class Decoder(Generic[T_co]):
    """Turns the bytes of a file into a sample.

    Subclasses are frozen dataclasses, equal when they are configured equally, and can be pickled. `decode`
    runs on many threads at once and keeps nothing between calls. It owns the buffer it is given, so an array
    may be a view of it. Whatever the bytes are, it allocates no more than they justify, runs no code found
    in them, and raises `Corrupt` naming the file where they are not what the format asks for.

    A decoder that can say from the first bytes of a file what array follows overrides `probe`: such files are
    read straight into their place in a batch, and the sample never exists on its own.
    """

    name: ClassVar[str]
    probes: ClassVar[bool] = False
    """Whether `probe` is there."""

    def probe(self, head: Bytes, file: File) -> Header:
        """Return what follows the first bytes of a file; `head` is as much as a header may take, or less."""
        raise NotImplementedError

    def decode(self, buffer: Bytes, file: File) -> T_co:
        """Return the sample in `buffer`, the whole contents of `file`."""
        raise NotImplementedError

    def __repr__(self) -> str:
        words = [
            f"{each.name}={getattr(self, each.name)!r}"
            for each in fields(self)
            if getattr(self, each.name) != each.default
        ]
        return f"{self.name}({', '.join(words)})" if words else self.name
