"""`image`: JPEG, PNG, WebP and other images as arrays of one shape, or each with its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, get_args, overload

import numpy as np

from asyncfeed.errors import Corrupt, PipelineError
from asyncfeed.formats.base import Data, Decoder, Row
from asyncfeed.formats.image_fit import Resize
from asyncfeed.formats.image_header import kind_of
from asyncfeed.formats.image_pixels import CHANNELS, DamagedError, Image, TooLargeError, opened
from asyncfeed.reading.file import Bytes, File
from asyncfeed.reading.scope import held

if TYPE_CHECKING:
    import numpy.typing as npt

Mode = Literal["RGB", "L", "RGBA"]
DTYPES = ("uint8", "float32")
MAX_PIXELS = 1 << 26
"""Pixels that an image may declare: 8,192 x 8,192. Decoded, this many take 200 MB. If it were larger, a file of
100 KB could take more memory. If it were smaller, large photographs would need an option."""


@dataclass(frozen=True, repr=False)
class ImageDecoder(Decoder["npt.NDArray[Any]"]):
    """Images as arrays of shape (height, width, channels), upright as their EXIF orientation says.

    JPEG is decoded with simplejpeg. PNG, WebP, GIF (its first picture), BMP, TIFF, PPM and AVIF are decoded with
    Pillow, and so are JPEG files of kinds that simplejpeg does not know. `pip install 'asyncfeed[images]'`
    installs both, and a library that resizes four times as fast as Pillow.

    Returns:
        An array of uint8 (0 to 255) or float32 (0 to 1, the same number divided by 255).

    Raises:
        Corrupt: The file is no image, is damaged or cut short, or declares more than `max_pixels`. The last is
            found before memory is taken for the pixels.
        PipelineError: simplejpeg or Pillow is not installed.

    Memory:
        The array. While an image is decoded, its pixels at the size at which it is decoded, too.

    Example:
        >>> image(size=224, dtype="float32")
        image(size=(224, 224), dtype='float32')
    """

    name = "image"
    tuning = ("max_pixels",)
    packs = True
    mode: Mode = "RGB"
    size: tuple[int, int] | None = None
    resize: Resize = "crop"
    dtype: Literal["uint8", "float32"] = "uint8"
    max_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        if self.mode not in CHANNELS:
            raise PipelineError(f"image: mode must be 'RGB', 'L' (gray) or 'RGBA', not {self.mode!r}")
        if self.resize not in get_args(Resize):
            raise PipelineError(
                "image: resize must be 'crop' (fill the size, and cut off what does not fit), 'pad' (show all of "
                f"the image, with black borders) or 'stretch' (change the aspect), not {self.resize!r}"
            )
        if self.dtype not in DTYPES:
            raise PipelineError(
                f"image: dtype must be 'uint8' (0 to 255) or 'float32' (0 to 1), not {self.dtype!r}; "
                "for others write .map(...) after the batch"
            )
        _check_count("max_pixels", self.max_pixels)
        if self.size is None:
            if self.resize != "crop":
                raise PipelineError(f"image: resize={self.resize!r} has no effect without a size")
            return
        for each in self.size:
            _check_count("size", each)
        if self.size[0] * self.size[1] > self.max_pixels:
            raise PipelineError(f"image: size {self.size} has more than max_pixels={self.max_pixels} pixels")

    @overload
    def __call__(self, data: Data, /) -> npt.NDArray[Any]: ...
    @overload
    def __call__(
        self,
        *,
        mode: Mode = ...,
        size: int | tuple[int, int] | None = ...,
        resize: Resize = ...,
        dtype: npt.DTypeLike = ...,
        max_pixels: int = ...,
    ) -> ImageDecoder: ...
    def __call__(
        self,
        *data: Any,
        mode: Any = "RGB",
        size: Any = None,
        resize: Any = "crop",
        dtype: Any = "uint8",
        max_pixels: int = MAX_PIXELS,
    ) -> ImageDecoder | npt.NDArray[Any]:
        """Return a decoder with these options; with the bytes of a file, return its image.

        Args:
            *data: The bytes of a file, instead of options.
            mode: "RGB", "L" (gray, one channel) or "RGBA". Colors are converted, and transparency is dropped if
                the mode has none.
            size: Height and width of every image, or one number for both. None keeps the size of each image. With
                a size, `batch` has images decoded straight into their rows. A JPEG image is decoded at 1/2, 1/4
                or 1/8 of its size if that is not below the size, and then resized with a bilinear filter that
                covers every pixel, as Pillow's does.
            resize: What happens to an image of another aspect. "crop" fills the size and cuts off what does not
                fit on both sides. "pad" shows all of the image in the middle, with black borders. "stretch"
                changes its aspect.
            dtype: "uint8" for 0 to 255, "float32" for 0 to 1.
            max_pixels: Number of pixels that a file may declare. A file that declares more is `Corrupt`.
        """
        if data:
            return super().__call__(*data)
        return ImageDecoder(mode, _size(size), resize, _dtype(dtype), max_pixels)

    @property
    def row(self) -> Row | None:
        """Shape and dtype of every image; None if each has its own."""
        return None if self.size is None else Row((*self.size, CHANNELS[self.mode]), np.dtype(self.dtype))

    def unpacked(self, opened: BinaryIO, file: File) -> int:
        """Return the number of bytes of an image without decoding it."""
        found = self._opened(np.frombuffer(bytearray(opened.read()), np.uint8), file)
        height, width = found.size
        return height * width * CHANNELS[self.mode] * np.dtype(self.dtype).itemsize

    def decode(self, buffer: Bytes, file: File) -> npt.NDArray[Any]:
        """Return the image in `buffer`."""
        found = self._opened(buffer, file)
        out = np.empty((*(self.size or found.size), CHANNELS[self.mode]), self.dtype)
        self._write(found, out, buffer, file)
        return out

    def decode_into(self, buffer: Bytes, file: File, row: npt.NDArray[Any]) -> None:
        """Write the image in `buffer` into its row of a batch."""
        self._write(self._opened(buffer, file), row, buffer, file)

    def _opened(self, buffer: Bytes, file: File) -> Image:
        try:
            return opened(buffer, self.mode, self.max_pixels)
        except DamagedError as error:
            raise _corrupt(buffer, file, error) from error
        except TooLargeError as error:
            height, width = error.size
            raise Corrupt(
                f"{file.path} declares {width} x {height} pixels, more than the {self.max_pixels} allowed: "
                f"if the file is right, write image(max_pixels={width * height})"
            ) from error

    def _write(self, found: Image, out: npt.NDArray[Any], buffer: Bytes, file: File) -> None:
        try:
            with held(found.scratch):
                found.write(out, self.resize)
        except DamagedError as error:
            raise _corrupt(buffer, file, error) from error


def _corrupt(buffer: Bytes, file: File, error: DamagedError) -> Corrupt:
    if not len(buffer):
        return Corrupt(f"{file.path} is empty, where an image was expected")
    kind = kind_of(bytes(buffer[:12]))
    if kind.endswith("image"):
        return Corrupt(f"{file.path} is {kind} that is damaged or cut short: {error}")
    return Corrupt(f"{file.path} is no image that can be read" + (f" but {kind}" if kind else f": {error}"))


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PipelineError(f"image: {name} must be a whole number of at least 1, not {value!r}")


def _size(size: Any) -> tuple[int, int] | None:
    if size is None or isinstance(size, int):
        return None if size is None else (size, size)
    try:
        height, width = size
    except (TypeError, ValueError):
        raise PipelineError(f"image: size must be (height, width) or one number for both, not {size!r}") from None
    return height, width


def _dtype(dtype: Any) -> Any:
    """Return the name of a dtype, or what was given if it is none."""
    try:
        return np.dtype(dtype).name
    except TypeError:
        return dtype


image = ImageDecoder()
