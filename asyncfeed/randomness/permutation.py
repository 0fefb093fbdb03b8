"""An exact permutation of 0..n-1 that is computed, not stored.

A keyed bijection (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002): a place p below a*b is
the pair (p // b, p % b), with a and b the nearest to the root of n. Each round adds to one half a scrambled
function of the other, modulo its size, which can be undone and so loses nothing (a generalised Feistel
network). A result of n or more is sent through again until it is below n ("cycle walking"); as a*b < n + a,
that happens to about one place in sqrt(n).

The numbers are part of every checkpoint: they never change between versions.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

import numpy as np

from asyncfeed.randomness import FIRST_FACTOR, GOLDEN, SECOND_FACTOR, mix

Places = np.ndarray[Any, np.dtype[np.uint64]]

LIMIT = 2**62
ROUNDS = 6
SMALL = 4096
"""Up to this many places a table is sorted once: as cheap, and uniform over all permutations."""

_U27, _U30, _U31, _U32 = map(np.uint64, (27, 30, 31, 32))


class Permutation:
    """The permutation of 0..n-1 that belongs to (seed, epoch).

    Calling it with an array of places returns what stands at each of them. It holds at most 32 KB whatever
    n is (up to 2**62), and any place costs the same to reach.
    """

    __slots__ = ("_keys", "_sizes", "_table", "n")

    def __init__(self, n: int, seed: int, epoch: int) -> None:
        if not 0 <= n <= LIMIT:
            raise ValueError(f"a permutation has 0 to 2**62 places, not {n}")
        self.n = n
        key = mix(seed, epoch)
        self._table: Places | None = None
        if n <= SMALL:
            scrambled = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(GOLDEN) + np.uint64(key)
            self._table = np.argsort(_scramble(scrambled), kind="stable").astype(np.uint64)
        rows = isqrt(n - 1) + 1 if n else 1
        self._sizes = (np.uint64(rows), np.uint64(-(-n // rows)))
        self._keys = [np.uint64(mix(key, number)) for number in range(ROUNDS)]

    def __call__(self, places: Places) -> Places:
        """Return what stands at each of these places, which must all be below n."""
        if self._table is not None:
            return self._table[places]
        found = self._walk(places)
        while (beyond := np.flatnonzero(found >= self.n)).size:
            found[beyond] = self._walk(found[beyond])
        return found

    def numbers(self, places: Places) -> list[int]:
        """Return the same as Python numbers."""
        numbers: list[int] = self(places).tolist()
        return numbers

    def _walk(self, places: Places) -> Places:
        rows, columns = self._sizes
        changing, other = places // columns, places % columns
        size, next_size = rows, columns
        for key in self._keys:
            step = _scramble(other + key)
            # The upper 32 bits, scaled to 0..size-1; no division, and nothing overflows as size <= 2**31.
            step >>= _U32
            step *= size
            step >>= _U32
            changing += step
            # Modulo size: where the sum was below it, the difference wraps around and is the greater.
            np.minimum(changing, changing - size, out=changing)
            changing, other = other, changing
            size, next_size = next_size, size
        return changing * columns + other


def _scramble(x: Places) -> Places:
    """Mix the bits of each element in place: the finaliser of splitmix64."""
    x ^= x >> _U30
    x *= np.uint64(FIRST_FACTOR)
    x ^= x >> _U27
    x *= np.uint64(SECOND_FACTOR)
    x ^= x >> _U31
    return x
