"""How an image of one size becomes one of another: which part of it is kept, and where it is put."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from numpy.typing import NDArray

Resize = Literal["crop", "pad", "stretch"]
Size = tuple[int, int]
"""Height and width."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The part of an image that is kept, and its place in the result. Sizes are height first."""

    kept: tuple[float, float]
    """Size of the part of the image that is kept. It is the middle of the image."""
    size: Size
    """Size that this part has in the result."""
    offset: Size
    """Number of rows above it and of columns to the left of it in the result."""

    @classmethod
    def of(cls, image: Size, target: Size, resize: Resize) -> Fit:
        """Return how an image of one size fits into a target size.

        >>> Fit.of((100, 300), (50, 50), "pad")
        Fit(kept=(100, 300), size=(17, 50), offset=(16, 0))
        >>> Fit.of((100, 300), (50, 50), "crop")
        Fit(kept=(100, 100.0), size=(50, 50), offset=(0, 0))
        """
        (height, width), (rows, columns) = image, target
        if resize == "stretch":
            return cls(image, target, (0, 0))
        ratios = rows / height, columns / width
        if resize == "crop":
            scale = max(ratios)
            return cls((min(height, rows / scale), min(width, columns / scale)), target, (0, 0))
        scale = min(ratios)
        size = min(rows, max(1, round(height * scale))), min(columns, max(1, round(width * scale)))
        return cls(image, size, (round((rows - size[0]) / 2), round((columns - size[1]) / 2)))

    def least(self, image: Size) -> Size:
        """Return the smallest size to decode the image at, so that no part of it must be enlarged to fit.

        This is the size of the image if it must be enlarged in any case.
        """
        rows, columns = (
            min(whole, ceil(whole * size / kept - 1e-9))
            for whole, size, kept in zip(image, self.size, self.kept, strict=True)
        )
        return rows, columns

    def box(self, image: Size, decoded: Size) -> tuple[float, float, float, float]:
        """Return the part to keep of an image that was decoded at a smaller scale: left, top, right, bottom."""
        scale = _scale(image, decoded)
        (top, bottom), (left, right) = (
            ((whole - kept) / 2 * scale, min((whole + kept) / 2 * scale, at))
            for whole, kept, at in zip(image, self.kept, decoded, strict=True)
        )
        return left, top, right, bottom

    def turned(self) -> Fit:
        """Return the same for an image whose rows and columns are exchanged."""
        return Fit(self.kept[::-1], self.size[::-1], self.offset[::-1])


def _scale(image: Size, decoded: Size) -> float:
    """Return the scale at which libjpeg has decoded an image: a number of eighths.

    Sizes are rounded up. So the last row and column may show less of the image than the others.
    """
    for eighths in range(1, 8):
        if all(-(-whole * eighths // 8) == at for whole, at in zip(image, decoded, strict=True)):
            return eighths / 8
    return 1.0


def turned(size: Size, orientation: int) -> Size:
    """Return the size of an image after it was turned upright, or before."""
    return size if orientation < 5 else size[::-1]


def as_stored(image: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Return a view of an upright image whose pixels are in the order of a file with this EXIF orientation."""
    match orientation:
        case 2:
            return image[:, ::-1]
        case 3:
            return image[::-1, ::-1]
        case 4:
            return image[::-1]
        case 5:
            return image.swapaxes(0, 1)
        case 6:
            return image[:, ::-1].swapaxes(0, 1)
        case 7:
            return image[::-1, ::-1].swapaxes(0, 1)
        case 8:
            return image[::-1].swapaxes(0, 1)
    return image
