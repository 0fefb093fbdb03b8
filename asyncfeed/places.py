"""Arithmetic on places, which come as a `range` wherever they follow each other."""

from __future__ import annotations

from collections.abc import Sequence


def shift(places: Sequence[int], by: int) -> Sequence[int]:
    """Return each place plus `by`; a `range` stays one."""
    if isinstance(places, range):
        return range(places.start + by, places.stop + by, places.step)
    return [place + by for place in places]
