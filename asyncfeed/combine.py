"""Several pipelines as one."""

from __future__ import annotations

from typing import Any, TypeVar

from asyncfeed.pipeline import Pipeline
from asyncfeed.stages.merge import Concat, Zip

T = TypeVar("T")


def zip(*pipelines: Pipeline[Any], strict: bool = True) -> Pipeline[tuple[Any, ...]]:  # noqa: A001
    """Feed one item of each pipeline at a time, as a tuple, as Python's `zip`.

    By default it is an error if one has more items than another; `strict=False` stops at the shortest.

    >>> from asyncfeed.sources import items
    >>> list(zip(items([1, 2]), items("ab".upper)))
    [(1, 'A'), (2, 'B')]
    """
    return Pipeline(Zip(pipelines, strict=strict))


def concat(*pipelines: Pipeline[T]) -> Pipeline[T]:
    """Feed the items of one pipeline after those of the other; the later ones read ahead meanwhile.

    >>> from asyncfeed.sources import items
    >>> list(concat(items([1, 2]), items([3])))
    [1, 2, 3]
    """
    return Pipeline(Concat(pipelines))
