"""Audio files as arrays of samples: WAV, FLAC, Ogg and MP3, decoded by libsndfile."""

from __future__ import annotations

from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any, BinaryIO, Literal, overload

import numpy as np

from asyncfeed.errors import Corrupt, PipelineError
from asyncfeed.extras import installed
from asyncfeed.formats.base import Data, Decoder
from asyncfeed.reading.file import Bytes, File

Dtype = Literal["float32", "float64", "int16", "int32"]
_DTYPES = ("float32", "float64", "int16", "int32")
_MP3_RATIO = 24
"""What an MP3 file is taken to unpack to, as a multiple of its size with samples of two bytes. To know it, the
whole file must be read."""
_ENDLESS = (0, 0xFFFFFFFF)
"""Sizes in the header of a WAV file that was written to a pipe."""


@dataclass(frozen=True, repr=False)
class Audio(Decoder[Any]):
    """The samples of an audio file: WAV, FLAC, Ogg (Vorbis, Opus), MP3 and what else libsndfile reads.

    Use it as `files("*.flac").load(audio(sample_rate=16_000, mono=True))`. It needs `asyncfeed[audio]`.

    Returns:
        An array of shape (samples, channels), or (samples,) with `mono`. Floats are between -1 and 1. With
        `with_rate` a pair of the array and the number of samples a second.

    Raises:
        Corrupt: The file is no audio file, or is damaged. A WAV or FLAC file that is cut short is found. The other
            formats do not say how long they are.
        ValueError: The file has another rate than `sample_rate`, or more than `max_bytes` of samples.

    Memory:
        The samples, beside the file.

    Example:
        >>> audio(sample_rate=16_000, mono=True)
        audio(sample_rate=16000, mono=True)
    """

    name = "audio"
    tuning = ("max_bytes",)
    packs = True
    sample_rate: int | None = None
    mono: bool = False
    dtype: Dtype = "float32"
    with_rate: bool = False
    max_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        for name, count in (("sample_rate", self.sample_rate), ("max_bytes", self.max_bytes)):
            if (type(count) is not int or count < 1) and not (name == "sample_rate" and count is None):
                raise PipelineError(f"audio: {name} must be a whole number of at least 1, not {count!r}")
        if self.dtype not in _DTYPES:
            raise PipelineError(f"audio: dtype must be one of {', '.join(_DTYPES)}, not {self.dtype!r}")

    @overload
    def __call__(self, data: Data, /) -> Any: ...
    @overload
    def __call__(
        self,
        *,
        sample_rate: int | None = ...,
        mono: bool = ...,
        dtype: Dtype = ...,
        with_rate: bool = ...,
        max_bytes: int = ...,
    ) -> Audio: ...
    def __call__(
        self,
        *data: Any,
        sample_rate: int | None = None,
        mono: bool = False,
        dtype: Dtype = "float32",
        with_rate: bool = False,
        max_bytes: int = 1 << 30,
    ) -> Any:
        """Return a decoder with these options; with the bytes of a file, return its samples.

        Args:
            *data: The bytes of a file, instead of options.
            sample_rate: Number of samples a second. A file with another rate is an error: nothing is resampled.
                None takes any rate.
            mono: Whether to return the mean of the channels.
            dtype: "float32", "float64", "int16" or "int32".
            with_rate: Whether to return the rate beside the samples.
            max_bytes: Number of bytes that the samples of a file may take.
        """
        if data:
            return super().__call__(*data)
        options = {"sample_rate": sample_rate, "mono": mono, "dtype": dtype, "with_rate": with_rate}
        return replace(Audio(), max_bytes=max_bytes, **options)  # type: ignore[arg-type]

    def unpacked(self, opened: BinaryIO, file: File) -> int:
        """Return the size of the samples by the header. For MP3 it is a guess."""
        width = np.dtype(self.dtype).itemsize
        head = opened.read(3)
        opened.seek(0)
        if head == b"ID3" or (len(head) > 1 and head[0] == 0xFF and head[1] >= 0xE0):
            return min(self.max_bytes, (file.size or 0) * _MP3_RATIO * width // 2)
        library = installed("soundfile", "audio")
        try:
            with library.SoundFile(opened) as sound:
                return min(self.max_bytes, int(sound.frames) * int(sound.channels) * width)
        except library.SoundFileError as error:
            raise Corrupt(f"{file.path} is no audio file, or is damaged") from error

    def decode(self, buffer: Bytes, file: File) -> Any:
        """Return the samples in `buffer`."""
        library = installed("soundfile", "audio")
        _check_whole(buffer.data, file)
        try:
            with library.SoundFile(BytesIO(buffer.data)) as sound:
                rate, count, channels = int(sound.samplerate), int(sound.frames), int(sound.channels)
                self._check(rate, count * channels * np.dtype(self.dtype).itemsize, file)
                samples = sound.read(count, dtype=self.dtype, always_2d=True)
        except library.SoundFileError as error:
            raise Corrupt(f"{file.path} is no audio file, or is damaged: {_said(error)}") from error
        except (ValueError, OverflowError, MemoryError) as error:
            if isinstance(error, UnwantedError):
                raise
            raise Corrupt(f"{file.path} is damaged: its header makes no sense") from error
        if len(samples) < count:
            raise Corrupt(f"{file.path} is cut short: {len(samples)} of {count} samples are there")
        if self.mono:
            samples = samples[:, 0] if channels == 1 else _mean(samples)
        return (samples, rate) if self.with_rate else samples

    def _check(self, rate: int, nbytes: int, file: File) -> None:
        if self.sample_rate is not None and rate != self.sample_rate:
            raise UnwantedError(
                f"{file.path} has {rate} samples a second, not {self.sample_rate}: convert the file, or read it "
                "with audio(with_rate=True) and resample it in .map(), for example with soxr"
            )
        if nbytes > self.max_bytes:
            raise UnwantedError(
                f"{file.path} unpacks to {nbytes} bytes, more than the {self.max_bytes} allowed: "
                f"write audio(max_bytes={nbytes})"
            )


audio = Audio()


class UnwantedError(ValueError):
    """A file that is whole, but has another rate or more samples than was asked for."""


def _mean(samples: Any) -> Any:
    if samples.dtype.kind == "f":
        return samples.mean(axis=1, dtype=samples.dtype)
    return samples.mean(axis=1).round().astype(samples.dtype)


def _said(error: Exception) -> str:
    return str(getattr(error, "error_string", error)).rstrip(".")


def _check_whole(data: memoryview, file: File) -> None:
    """Raise if a WAV file ends before its samples do. libsndfile would return those that are there."""
    if bytes(data[:4]) != b"RIFF" or bytes(data[8:12]) != b"WAVE":
        return
    at = 12
    while at + 8 <= len(data):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        if bytes(data[at : at + 4]) == b"data":
            if size not in _ENDLESS and at + 8 + size > len(data):
                raise Corrupt(
                    f"{file.path} is cut short: {len(data) - at - 8} of {size} bytes of samples are there"
                )
            return
        at += 8 + size + size % 2
    raise Corrupt(f"{file.path} is cut short: it holds no samples")
