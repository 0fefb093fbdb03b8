"""What the first bytes of an image say, found without decoding it: its kind, its orientation, its size."""

from __future__ import annotations

import struct
from typing import Final

JPEG: Final = b"\xff\xd8\xff"
ORIENTATION: Final = 0x0112
"""The number of the EXIF entry with the orientation."""
UPRIGHT: Final = 1
MAX_ENTRIES: Final = 512
"""Most entries of an EXIF directory that are looked at. Cameras write fewer than 50."""

_EXIF = b"Exif\0\0"
_APP1, _SCAN = 0xE1, 0xDA
_KINDS = {
    b"\x89PNG\r\n\x1a\n": "a PNG image",
    JPEG: "a JPEG image",
    b"GIF8": "a GIF image",
    b"BM": "a BMP image",
    b"II*\0": "a TIFF image",
    b"MM\0*": "a TIFF image",
    b"\x93NUMPY": "an .npy file, which load(npy) reads",
    b"PK\3\4": "a zip archive",
    b"\x1f\x8b": "compressed with gzip",
    b"<svg": "an SVG drawing, which has no pixels",
    b"<?xml": "an XML file",
    b"<!DOCT": "a web page",
    b"<html": "a web page",
    b"%PDF": "a PDF document",
}
"""The first bytes of files that have the name of an image, and the kind of such a file."""


def kind_of(start: bytes) -> str:
    """Return the kind of a file by its first bytes, as text; empty if it is not known.

    >>> kind_of(b"GIF89a...")
    'a GIF image'
    """
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "a WebP image"
    return next((kind for magic, kind in _KINDS.items() if start.startswith(magic)), "")


def jpeg_orientation(data: memoryview) -> int:
    """Return the EXIF orientation of a JPEG file: 1 to 8. It is 1 if the file does not say it, or says it wrongly.

    Only the segments before the first scan are looked at. This takes 2 us for a file without EXIF.
    """
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        if marker == _SCAN:
            break
        size = data[at + 2] << 8 | data[at + 3]
        if marker == _APP1 and bytes(data[at + 4 : at + 10]) == _EXIF:
            return exif_orientation(data[at + 10 : at + 2 + size])
        at += 2 + size
    return UPRIGHT


def exif_orientation(exif: memoryview) -> int:
    """Return the orientation in an EXIF block: 1 to 8. It is 1 if the block does not say it, or is damaged.

    >>> exif_orientation(memoryview(bytes.fromhex("49492a0008000000010012010300010000000600000000000000")))
    6
    """
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(bytes(exif[:4]))
    if order is None or len(exif) < 8:
        return UPRIGHT
    try:
        (directory,) = struct.unpack_from(f"{order}I", exif, 4)
        (count,) = struct.unpack_from(f"{order}H", exif, directory)
        for number in range(min(count, MAX_ENTRIES)):
            tag, kind, values, value = struct.unpack_from(f"{order}HHIH", exif, directory + 2 + 12 * number)
            if tag == ORIENTATION:
                return value if kind == 3 and values == 1 and 1 <= value <= 8 else UPRIGHT
    except struct.error:  # an offset leads out of the block
        pass
    return UPRIGHT


def webp_size(start: memoryview) -> tuple[int, int] | None:
    """Return height and width of a WebP file as its first 30 bytes declare them; None if they do not.

    Pillow's decoder takes memory for all pixels when it is made, so the size must be known before.
    """
    if len(start) < 30 or bytes(start[:4]) != b"RIFF" or bytes(start[8:12]) != b"WEBP":
        return None
    match bytes(start[12:16]):
        case b"VP8X":
            width, height = (int.from_bytes(start[at : at + 3], "little") + 1 for at in (24, 27))
        case b"VP8L":
            bits = int.from_bytes(start[21:25], "little")
            width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 ":
            width, height = (int.from_bytes(start[at : at + 2], "little") & 0x3FFF for at in (26, 28))
        case _:
            return None
    return height, width
