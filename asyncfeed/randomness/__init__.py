"""Where random numbers come from: the scheme that shuffles, random maps and splits share.

The numbers of a stage depend on four things and on nothing else:

* its `seed`;
* its stream: the number of random stages before it in the description. A `shuffle`, a `map(rng=True)` and a `mix`
  count. Two stages with one seed therefore draw different numbers, and a stage that draws nothing changes no
  other. The inputs of a `zip` or `concat` count from 0 each, so a pipeline delivers the same inside a `zip` as
  alone;
* the epoch: see `EpochCounter` in `engine/epochs.py`;
* for a map, the item's ordinal in its epoch.

A seed and a stream make one number, the stage's own seed. Stream 0 keeps the seed as it was given.

| stage | generator | keyed with |
|---|---|---|
| `shuffle` | `Permutation` (a Feistel network) | stage seed, epoch |
| `shuffle(buffer=)` | PCG64 | stage seed, epoch |
| `map(rng=True)` | Philox | stage seed, epoch; counts from the ordinal |
| `mix` | PCG64 | stage seed; the same in each epoch |
| `split` | `Permutation`, or a hash of the ordinal or key | stage seed; its stream counts the splits before it |

The numbers are part of every checkpoint: they never change between versions.
"""

from __future__ import annotations

# The constants of splitmix64 (Steele, Lea and Flood, 2014).
GOLDEN = 0x9E3779B97F4A7C15
FIRST_FACTOR = 0xBF58476D1CE4E5B9
SECOND_FACTOR = 0x94D049BB133111EB
WORD = (1 << 64) - 1
"""The largest number of 64 bits."""


def mix(*words: int) -> int:
    """Return 64 bits that depend on every bit of these numbers, each taken modulo 2**64."""
    key = 0
    for word in words:
        key = (key + (word & WORD) + GOLDEN) & WORD
        key = ((key ^ key >> 30) * FIRST_FACTOR) & WORD
        key = ((key ^ key >> 27) * SECOND_FACTOR) & WORD
        key ^= key >> 31
    return key


def stage_seed(seed: int, stream: int) -> int:
    """Return the seed of one random stage: `seed` itself for the first, 64 mixed bits for a later one.

    >>> stage_seed(7, 0)
    7
    >>> stage_seed(7, 1) == stage_seed(7, 2)
    False
    """
    return seed if stream == 0 else mix(seed, stream)
