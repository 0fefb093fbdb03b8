"""Decodes one image into an array: JPEG with simplejpeg, every other format with Pillow.

Nothing here reads options or names files: `formats/image.py` does. What a library raises for damaged bytes is
passed on as `Damaged`.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncfeed.extras import installed
from asyncfeed.formats.image_fit import Fit, Resize, Size, as_stored, turned
from asyncfeed.formats.image_header import (
    JPEG,
    ORIENTATION,
    UPRIGHT,
    jpeg_orientation,
    webp_size,
)
from asyncfeed.formats.image_resize import resized

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from asyncfeed.reading.file import Bytes

CHANNELS = {"RGB": 3, "L": 1, "RGBA": 4}
"""The number of channels of each mode."""
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "AVIF", "MPO")
"""What Pillow may read. Some of its other formats start programs (EPS), or have no bound on their memory."""
SCALES = (1, 2, 4)
"""Eighths of its size at which a JPEG image is decoded if that is enough. libjpeg takes longer for any other scale
than for the next larger one of these: 8.3 ms at 3/8 and 8.1 ms at 4/8 for 2000 x 1500 pixels, 11.2 ms at 5/8 and
9.1 ms at full size."""
_COLORS = {"RGB": "RGB", "L": "GRAY", "RGBA": "RGBA"}
_PNG_END = b"IEND\xaeB`\x82"
_DAMAGE = (
    "premature end", "bad huffman", "bad arithmetic", "instead of rst", "inconsistent progression",
)  # fmt: skip
"""What libjpeg says of files that lack pixels, or have wrong ones. Pillow would return the image without a word.
Files of which libjpeg says something else are left to Pillow: many programs write a few bytes too many between two
segments."""


class DamagedError(Exception):
    """The bytes are no image, or a damaged one. The message says why."""


class TooLargeError(Exception):
    """The image declares more pixels than allowed."""

    def __init__(self, size: Size) -> None:
        super().__init__(size)
        self.size = size


class Image:
    """An image whose header was read, and whose pixels were not."""

    size: Size
    """Height and width, upright."""
    scratch = 0
    """Bytes of memory that `write` needs beside `out`, if they are many."""

    def write(self, out: NDArray[Any], resize: Resize) -> None:
        """Decode it into `out`, of shape (height, width, channels). If `out` has another size, resize it."""
        raise NotImplementedError


def opened(data: Bytes, mode: str, max_pixels: int) -> Image:
    """Return the image in the contents of a file. No memory is taken for its pixels.

    Raises:
        DamagedError: There is no image.
        TooLargeError: It declares more than `max_pixels`.
    """
    if bytes(data[:3]) == JPEG:
        found = _jpeg(data, mode, max_pixels)
        if found is not None:
            return found
    return _Other(data, mode, max_pixels)


def _check(size: Size, max_pixels: int) -> Size:
    if size[0] * size[1] > max_pixels:
        raise TooLargeError(size)
    return size


# -- JPEG


def _jpeg(data: Bytes, mode: str, max_pixels: int) -> _Jpeg | None:
    """Return a JPEG image, or None if only Pillow can tell what is in it."""
    library = _simplejpeg()
    try:
        height, width, colors, _ = library.decode_jpeg_header(data, strict=False)
    except (ValueError, KeyError):  # damaged, or of a kind that it does not know
        return None
    size = _check((height, width), max_pixels)
    return None if colors in ("CMYK", "YCCK") else _Jpeg(data, mode, max_pixels, size)


class _Jpeg(Image):
    def __init__(self, data: Bytes, mode: str, max_pixels: int, stored: Size) -> None:
        self._data = data
        self._mode = mode
        self._max_pixels = max_pixels
        self._stored = stored
        self._orientation = jpeg_orientation(data.data)
        self.size = turned(stored, self._orientation)

    def write(self, out: NDArray[Any], resize: Resize) -> None:
        try:
            self._write(out, resize)
        except ValueError as error:
            text = str(error).lower()
            if any(word in text for word in _DAMAGE):
                raise DamagedError(str(error)) from error
            _Other(self._data, self._mode, self._max_pixels).write(out, resize)

    def _write(self, out: NDArray[Any], resize: Resize) -> None:
        decode = _simplejpeg().decode_jpeg
        if out.shape[:2] == self.size:
            if self._orientation == UPRIGHT and out.dtype == np.uint8 and out.flags.c_contiguous:
                decode(self._data, _COLORS[self._mode], buffer=out)
            else:
                _put(decode(self._data, _COLORS[self._mode]), out, self._orientation)
            return
        fit, place = _placed(self.size, out, resize)
        stored = fit if self._orientation < 5 else fit.turned()
        least = _scaled(self._stored, stored.least(self._stored))
        pixels = decode(self._data, _COLORS[self._mode], min_height=least[0], min_width=least[1])
        box = stored.box(self._stored, pixels.shape[:2])
        _put(resized(pixels, self._mode, box, stored.size), place, self._orientation)


def _scaled(size: Size, least: Size) -> Size:
    """Return the smallest size at which to decode an image that is not below `least`."""
    for eighths in SCALES:
        height, width = (-(-whole * eighths // 8) for whole in size)
        if height >= least[0] and width >= least[1]:
            return height, width
    return size


# -- every other format


class _Other(Image):
    def __init__(self, data: Bytes, mode: str, max_pixels: int) -> None:
        declared = webp_size(data[:30].data)
        if declared is not None:
            _check(declared, max_pixels)
        self._data = data
        self._mode = mode
        library = _pillow()
        try:
            self._image = library.open(BytesIO(data.data), formats=FORMATS)
        except Exception as error:
            raise DamagedError(_message(error)) from error
        stored = _check((self._image.height, self._image.width), max_pixels)
        # Pillow itself turns TIFF images when it decodes them, and gives the size that they then have.
        self._orientation = UPRIGHT if self._image.format == "TIFF" else _orientation(self._image)
        self.size = turned(stored, self._orientation)
        self.scratch = 2 * stored[0] * stored[1] * CHANNELS[mode]  # Pillow's pixels, and those of the array

    def write(self, out: NDArray[Any], resize: Resize) -> None:
        pixels = _array(self._converted(), self._mode)
        stored = pixels.shape[:2]
        if turned(stored, self._orientation) != self.size:
            raise DamagedError("its pixels have another size than its header says")
        if out.shape[:2] == self.size:
            _put(pixels, out, self._orientation)
            return
        fit, place = _placed(self.size, out, resize)
        fit = fit if self._orientation < 5 else fit.turned()
        _put(resized(pixels, self._mode, fit.box(stored, stored), fit.size), place, self._orientation)

    def _converted(self) -> Any:
        """Return the decoded image with the channels of the mode."""
        image = self._image
        try:
            image.load()
            # Pillow accepts a file that ends behind its last pixel, and has not checked it then.
            if image.format == "PNG" and _PNG_END not in self._data.tobytes():
                raise DamagedError("its end is missing")
            if image.mode.startswith("I;16"):
                image = _pillow().fromarray((np.asarray(image) >> 8).astype(np.uint8))
            if image.mode in ("I", "F"):
                raise DamagedError(f"its pixels have Pillow's mode {image.mode}, which has no range from 0 to 255")
            if image.mode in ("P", "PA") and self._mode != "RGBA" and "transparency" in image.info:
                image = image.convert("RGBA")  # else Pillow warns
            return image if image.mode == self._mode else image.convert(self._mode)
        except DamagedError:
            raise
        except Exception as error:
            raise DamagedError(_message(error)) from error


def _orientation(image: Any) -> int:
    try:
        found = image.getexif().get(ORIENTATION, UPRIGHT)
    except Exception:  # noqa: BLE001 - damaged EXIF: the pixels may be whole
        return UPRIGHT
    return found if type(found) is int and 1 <= found <= 8 else UPRIGHT


def _message(error: Exception) -> str:
    """Return what Pillow says, without the object that it names by its address."""
    name = type(error).__name__
    return "it is no image that Pillow reads" if name == "UnidentifiedImageError" else f"{error}" or name


# -- both


def _placed(size: Size, out: NDArray[Any], resize: Resize) -> tuple[Fit, NDArray[Any]]:
    """Return how an image of this size fits into `out`, and the part of `out` that it fills. Clear the rest."""
    fit = Fit.of(size, out.shape[:2], resize)
    (top, left), (rows, columns) = fit.offset, fit.size
    if fit.size != out.shape[:2]:
        out[...] = 0
    return fit, out[top : top + rows, left : left + columns]


def _array(image: Any, mode: str) -> NDArray[np.uint8]:
    """Return the pixels of a Pillow image, with an axis of channels."""
    flat = np.frombuffer(image.tobytes("raw", mode), np.uint8)
    return flat.reshape(image.height, image.width, CHANNELS[mode])


def _put(pixels: NDArray[np.uint8], out: NDArray[Any], orientation: int) -> None:
    """Write pixels as a file has them into an upright image."""
    place = as_stored(out, orientation)
    if place.dtype == np.uint8:
        place[...] = pixels
    else:
        np.divide(pixels, np.float32(255), out=place)


@cache
def _simplejpeg() -> Any:
    return installed("simplejpeg", "images")


@cache
def _pillow() -> Any:
    """Return `PIL.Image`, with the formats registered. By itself it imports all of them, which takes 100 ms."""
    image = installed("PIL.Image", "images")
    for name in ("WebP", "Tiff", "Avif", "Mpo"):
        try:
            import_module(f"PIL.{name}ImagePlugin")
        except ImportError:  # an older Pillow has no AVIF
            continue
    return image
