"""The option `compression` of a decoder, and how the compression of a file is told from its first bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from asyncfeed.errors import PipelineError

Format = Literal["gzip", "zlib", "zstd", "lz4", "xz", "bz2"]

_BZ2_TAILS = (b"1AY&SY", b"\x17rE8P\x90")
MAGIC: Final[dict[Format, tuple[bytes, ...]]] = {
    "gzip": (b"\x1f\x8b\x08",),
    "zstd": (b"\x28\xb5\x2f\xfd", *(bytes((0x50 + each, 0x2A, 0x4D, 0x18)) for each in range(16))),
    "lz4": (b"\x04\x22\x4d\x18",),
    "xz": (b"\xfd7zXZ\x00",),
    "bz2": tuple(b"BZh%d%b" % (level, tail) for level in range(1, 10) for tail in _BZ2_TAILS),
}
"""The first bytes of a file of each format. The first bytes of zlib data are too common to tell it."""
HEAD: Final = 16
"""Bytes that tell the format; that of a file of records, too, whose first checksum says that it is one."""
SUFFIXES: Final[dict[str, Format]] = {
    "gz": "gzip",
    "bgz": "gzip",
    "zst": "zstd",
    "zstd": "zstd",
    "lz4": "lz4",
    "xz": "xz",
    "bz2": "bz2",
}


@dataclass(frozen=True)
class Compression:
    """How a file is compressed, and how much may come out of it.

    Args:
        format: "gzip", "zlib", "zstd", "lz4", "xz" or "bz2". "auto" tells it from the first bytes of the file, and
            a file that begins like none of them is not compressed. zlib data cannot be told from its first bytes.
        max_ratio: How many times larger the contents may be than the file. This counts once 64 MB have come out.
            gzip reaches 1,032 for a file of zeros.
        max_bytes: Number of bytes that may come out. None is no limit.

    Example:
        >>> Compression("zstd", max_bytes=1 << 30)
        Compression(format='zstd', max_ratio=1100, max_bytes=1073741824)
    """

    format: Format | Literal["auto"] = "auto"
    max_ratio: float = 1100
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.format != "auto" and self.format not in get_args(Format):
            known = ", ".join(map(repr, get_args(Format)))
            raise PipelineError(f"compression must be 'auto', None, {known} or a Compression, not {self.format!r}")
        if not isinstance(self.max_ratio, int | float) or not self.max_ratio >= 1:
            raise PipelineError(f"Compression: max_ratio must be at least 1, not {self.max_ratio!r}")
        if self.max_bytes is not None and not (type(self.max_bytes) is int and self.max_bytes >= 1):
            raise PipelineError(
                f"Compression: max_bytes must be a whole number of at least 1, not {self.max_bytes!r}"
            )


Compressed = Compression | Format | Literal["auto"] | None
"""What the option `compression` of a decoder takes. None is a file that is not compressed."""


def as_compression(compression: Compressed) -> Compression | None:
    """Return the option of a decoder as a `Compression`. Raise `PipelineError` if it is not valid."""
    return compression if compression is None or isinstance(compression, Compression) else Compression(compression)


class Magic:
    """Tells the format of a file from its first bytes."""

    def undecided(self, head: bytes) -> bool:
        """Return whether more bytes are needed to tell the format of a file that begins with these."""
        return len(head) < HEAD and any(magic.startswith(head) for magics in MAGIC.values() for magic in magics)

    def format(self, head: bytes, path: str) -> Format | None:
        """Return the format of a file with these first bytes. None: it is not compressed.

        A file that is too short to tell has the format that its name says. So a file that was cut short is found.
        """
        for name, magics in MAGIC.items():
            if head.startswith(magics):
                return name
        named = SUFFIXES.get(path.rpartition(".")[2].lower())
        if named is not None and any(magic.startswith(head) for magic in MAGIC[named]):
            return named
        return None


BY_MAGIC: Final = Magic()
