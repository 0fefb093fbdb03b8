"""Reads sizes of memory: 1_000_000, 1e9, "500 MB", "1.5GiB"."""

from __future__ import annotations

import re
from math import isfinite

import numpy as np

from asyncfeed.errors import PipelineError

Size = int | float | str
"""Bytes as a number, or a number with a unit."""

UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_TEXT = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*(?:([kmgt]?)(i?)b)?\s*", re.IGNORECASE)


def parse_bytes(size: Size, stage: str, name: str = "memory_limit") -> int:
    """Return a size in bytes. Units count in thousands (kB, MB, GB, TB), or in 1,024s (KiB, MiB, GiB, TiB).

    Raises PipelineError if `size` is not a size or is less than 1 byte. The message names the stage and the
    option.

    >>> parse_bytes("1GB", "open"), parse_bytes("1.5 KiB", "open"), parse_bytes(4096, "open")
    (1000000000, 1536, 4096)
    """
    if isinstance(size, str):
        found = _TEXT.fullmatch(size)
        if found is None:
            raise _no_size(size, stage, name)
        number, unit, binary = found.groups()
        count = float(number) if "." in number else int(number)
        nbytes = int(count * (1024 if binary else 1000) ** UNITS[(unit or "").lower()])
    elif isinstance(size, (int, float, np.integer)) and not isinstance(size, bool) and isfinite(size):
        nbytes = int(size)
    else:
        raise _no_size(size, stage, name)
    if nbytes < 1:
        raise PipelineError(f"{stage}: {name} must be at least 1 byte, not {size!r}")
    return nbytes


def _no_size(size: object, stage: str, name: str) -> PipelineError:
    return PipelineError(
        f'{stage}: {name} must be a number of bytes, or text such as "500MB", "1GB" or "2GiB", not {size!r}'
    )
