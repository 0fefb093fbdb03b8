"""Arithmetic on places, which come as a `range` wherever they follow each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def shift(places: Sequence[int], by: int) -> Sequence[int]:
    """Return each place plus `by`; a `range` stays one."""
    if isinstance(places, range):
        return range(places.start + by, places.stop + by, places.step)
    return [place + by for place in places]


def join(left: Sequence[Any], right: Sequence[Any]) -> Sequence[Any]:
    """Return two sequences of ordinals as one: a `range` where the second goes on where the first ends."""
    if not left:
        return right
    if not right:
        return left
    match left, right:
        case range(step=1), range(step=1) if left.stop == right.start:
            return range(left.start, right.stop)
    return [*left, *right]
