"""From bytes to samples: one decoder per file format. `docs/extending.md` shows how to write one."""

from __future__ import annotations

from asyncfeed.formats.base import Decoder, Header, Layout, RangeDecoder, Row, StreamDecoder
from asyncfeed.reading.compression import Compression

__all__ = ["Compression", "Decoder", "Header", "Layout", "RangeDecoder", "Row", "StreamDecoder"]
