"""Unbatch: the rows of each batch as samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any, ClassVar

import numpy as np

from asyncfeed.axes import Axes, Unknown
from asyncfeed.stacking.foreign import is_foreign, to_array
from asyncfeed.stages.base import Node
from asyncfeed.stages.steps import Step, Work
from asyncfeed.trees import Spec, Tree, flatten, leaf_name, unflatten

INLINE = 1024
"""Number of rows that the loop itself may make: about 0.1 ms."""


@dataclass(frozen=True)
class Unbatch(Node):
    """Splits each batch along its first axis. The samples are views of the batch, without a copy."""

    method: ClassVar[str] = "unbatch"

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return `Unknown`: the batch decides the rows."""
        return Unknown()

    def gathers(self) -> int:
        """Return 0: rows are single samples again."""
        return 0

    def steps(self) -> Sequence[Step]:
        """Return the step that splits batches."""
        return [Work(split, "thread", shape="flat", inline=few)]


def split(batch: Tree) -> list[Tree]:
    """Return the rows of a batch, each with the structure of the batch. A leaf that is None is None in each row.

    Raises ValueError if a leaf is no array with a first axis, or has not as many rows as the others.
    """
    leaves, spec = flatten(batch)
    leaves = [
        to_array(leaf, partial(_called, spec, at)) if is_foreign(leaf) else leaf for at, leaf in enumerate(leaves)
    ]
    first = next((number for number, leaf in enumerate(leaves) if leaf is not None), 0)
    for number, leaf in enumerate(leaves):
        if leaf is None and number != first:
            continue  # as in all samples of the batch
        if not isinstance(leaf, np.ndarray) or not leaf.ndim:
            raise ValueError(
                f"unbatch: {_called(spec, number)} is {leaf!r}, which has no rows; "
                "every leaf of a batch must be an array with a first axis"
            )
        if len(leaf) != len(leaves[first]):
            raise ValueError(
                f"unbatch: {_called(spec, first)} has {len(leaves[first])} rows, but {_called(spec, number)} has "
                f"{len(leaf)}; give them the same number with .map() before"
            )
    if spec.is_leaf():
        return list(leaves[0])
    count = len(leaves[first]) if leaves else 0
    columns = [repeat(None, count) if leaf is None else leaf for leaf in leaves]
    return [unflatten(spec, row) for row in zip(*columns, strict=True)]


def few(batch: Tree) -> bool:
    """Return whether the loop may split the batch because it has few rows."""
    leaves: list[Any] = [leaf for leaf in flatten(batch)[0] if leaf is not None]
    arrays = all(isinstance(leaf, np.ndarray) and leaf.ndim > 0 for leaf in leaves)
    return arrays and bool(leaves) and len(leaves[0]) <= INLINE


def _called(spec: Spec, number: int) -> str:
    return leaf_name(spec, number) or "the batch"
