"""Unbatch: the rows of each batch as samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from asyncfeed.stages.base import Node, Step, Work
from asyncfeed.trees import Spec, Tree, flatten, leaf_name, unflatten

INLINE = 1024
"""Rows that the loop itself may make: about 0.1 ms."""


@dataclass(frozen=True)
class Unbatch(Node):
    """Splits each batch along its first axis; the samples are views of the batch, and nothing is copied."""

    method: ClassVar[str] = "unbatch"

    def gathers(self) -> int:
        """Return 0: rows are single samples again."""
        return 0

    def steps(self) -> Sequence[Step]:
        """Return the splitting."""
        return [Work(split, "thread", shape="flat", inline=few)]


def split(batch: Tree) -> list[Tree]:
    """Return the rows of a batch, each with the structure of the batch.

    Raises ValueError where a leaf is no array with a first axis, or has not as many rows as the others.
    """
    leaves, spec = flatten(batch)
    for number, leaf in enumerate(leaves):
        if not isinstance(leaf, np.ndarray) or not leaf.ndim:
            raise ValueError(
                f"unbatch: {_called(spec, number)} is {leaf!r}, which has no rows; "
                "every leaf of a batch must be an array with a first axis"
            )
        if len(leaf) != len(leaves[0]):
            raise ValueError(
                f"unbatch: {_called(spec, 0)} has {len(leaves[0])} rows, but {_called(spec, number)} has "
                f"{len(leaf)}; give them the same number with .map() before"
            )
    if spec.is_leaf():
        return list(leaves[0])
    return [unflatten(spec, row) for row in zip(*leaves, strict=True)]


def few(batch: Tree) -> bool:
    """Return whether there are so few rows that the loop may split them."""
    leaf: Any = next(iter(flatten(batch)[0]), None)
    return isinstance(leaf, np.ndarray) and leaf.ndim > 0 and len(leaf) <= INLINE


def _called(spec: Spec, number: int) -> str:
    return leaf_name(spec, number) or "the batch"
