"""Arithmetic on places. Consecutive places are a `range`."""

from __future__ import annotations

from collections.abc import Sequence


def shift(places: Sequence[int], by: int) -> Sequence[int]:
    """Return each place plus `by`. A `range` gives a `range`."""
    if isinstance(places, range):
        return range(places.start + by, places.stop + by, places.step)
    return [place + by for place in places]
