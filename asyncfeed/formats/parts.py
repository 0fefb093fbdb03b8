"""Reads a file part by part, and decodes the parts on threads.

Local files are read by the call that decodes them. Of other files, one part is read while the one before it is
decoded.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from asyncfeed.reading.file import Bytes
from asyncfeed.reading.reader import Range, value

if TYPE_CHECKING:
    from asyncfeed.reading.ranges import ByteRanges

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

AHEAD_BYTES = 64 << 20
"""Largest part that is read while the one before it is decoded. Larger ones would take more memory."""
CALL_SECONDS = 0.002
"""Time after which a call on a thread returns what it has decoded. Shorter calls cost more each, longer ones take
more memory and make the consumer wait."""
Part = Sequence[Range]
"""Ranges of a file that are decoded together."""


class PartReader(Protocol[T_co]):
    """Decodes the parts of one file. Its methods are called one after the other."""

    def next_part(self) -> Part | None:
        """Return the part to read next, or None at the end. The part before it was given to `begin`."""
        ...

    def begin(self, part: Part, data: list[Bytes]) -> None:
        """Take the bytes of a part. The loop may call this, so it does little."""
        ...

    def next_sample(self) -> tuple[T_co | None, bool]:
        """Return a sample of the part, or None, and whether it was the last one. This is called on a thread."""
        ...


class Decoded(NamedTuple, Generic[T]):
    """What one call on a thread has decoded."""

    samples: list[T]
    ended: bool
    """Whether the part, or for local files the whole file, is at its end."""
    error: Exception | None = None
    """What went wrong after these samples."""


async def in_parts(ranges: ByteRanges, reader: PartReader[T]) -> AsyncGenerator[list[T]]:
    """Yield lists of the samples of all parts. An error comes after the samples before it."""
    if ranges.blocking is not None:
        ended = False
        calls = _Calls(ranges, reader)
        while not ended:
            samples, ended, error = await ranges.start(calls.read_and_decode)
            ranges.hold(calls.held)
            yield samples
            if error is not None:
                raise error
            del samples
        return
    part = reader.next_part()
    data = await ranges.read(*part) if part is not None else []
    while part is not None:
        reader.begin(part, data)
        held = _size(part)
        ranges.hold(held)
        data = []
        ahead: list[Bytes] | Exception | None = None
        try:
            part = reader.next_part()
        except Exception as failure:  # noqa: BLE001 - it is raised after the samples before it
            ahead = failure
        ended = False
        while not ended:
            decoding = ranges.start(_decode, reader)
            try:
                if ahead is None and part is not None and _size(part) <= AHEAD_BYTES:
                    ahead = await _outcome(ranges, part)
                    ranges.hold(held + _size(part))
                samples, ended, error = await decoding
            finally:
                decoding.cancel()  # if this was cancelled meanwhile, its error would be logged
            yield samples
            if error is not None:
                raise error
            del samples
        if ahead is not None:
            data = value(ahead)
        elif part is not None:
            data = await ranges.read(*part)


def _decode(reader: PartReader[T]) -> Decoded[T]:
    """Return samples of one part: all of them, or as many as are decoded in a short time."""
    samples: list[T] = []
    until = perf_counter() + CALL_SECONDS
    try:
        while True:
            sample, ended = reader.next_sample()
            if sample is not None:
                samples.append(sample)
            if ended or perf_counter() > until:
                return Decoded(samples, ended)
    except Exception as error:  # noqa: BLE001 - it is raised after these samples
        return Decoded(samples, True, error)


class _Calls(Generic[T]):
    """The calls that read and decode a local file."""

    def __init__(self, ranges: ByteRanges, reader: PartReader[T]) -> None:
        self._ranges = ranges
        self._reader = reader
        self._within = False
        """Whether a part was begun and has more samples."""
        self.held = 0
        """Size of the part that has more samples."""

    def read_and_decode(self) -> Decoded[T]:
        """Return samples of one part or of several, as many as are decoded in a short time."""
        samples: list[T] = []
        until = perf_counter() + CALL_SECONDS
        try:
            while perf_counter() < until or not samples:
                if not self._within:
                    part = self._reader.next_part()
                    if part is None:
                        return Decoded(samples, True)
                    self._reader.begin(part, self._ranges.read_now(*part))
                    self.held = _size(part)
                sample, ended = self._reader.next_sample()
                self._within = not ended
                if ended:
                    self.held = 0
                if sample is not None:
                    samples.append(sample)
        except Exception as error:  # noqa: BLE001 - it is raised after these samples
            return Decoded(samples, True, error)
        return Decoded(samples, False)


async def _outcome(ranges: ByteRanges, part: Part) -> list[Bytes] | Exception:
    """Return the bytes of a part, or why they could not be read."""
    try:
        return await ranges.read(*part)
    except Exception as error:  # noqa: BLE001 - it is raised after the samples before it
        return error


def _size(part: Part) -> int:
    return sum(stop - start for start, stop in part)
