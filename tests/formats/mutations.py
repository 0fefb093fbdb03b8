"""Damaged copies of a file."""

from __future__ import annotations

import random
from collections.abc import Iterator


def mutations(data: bytes, count: int, *, seed: int = 0, bytes_of: bytes = b"\0\1\x7f\x80\xff") -> Iterator[bytes]:
    """Yield damaged copies: bits and bytes changed, and parts lost, doubled or moved."""
    draw = random.Random(seed)
    for _ in range(count):
        mutated = bytearray(data)
        for _ in range(draw.choice([1, 1, 2, 4])):
            where = draw.randrange(len(mutated))
            match draw.randrange(5):
                case 0 | 1:
                    mutated[where] ^= 1 << draw.randrange(8)
                case 2:
                    mutated[where] = draw.choice(bytes_of)
                case 3:
                    del mutated[where : where + draw.randrange(1, 9)]
                case _:
                    mutated[where:where] = mutated[: draw.randrange(1, 30)]
        yield bytes(mutated)
