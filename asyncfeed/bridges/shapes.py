"""Which axes of the arrays that a pipeline delivers have one size in all items.

A framework asks for shapes before it has seen the data. The first item tells the sizes, and the description
which of them hold for every item; the others are left open. In short: in a batch the samples' axes hold
unless something pads, and the first axis only where no batch can be smaller. Of items that are no batches
only the number of axes holds, because nothing has compared them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from asyncfeed.sources import Arrays, Items
from asyncfeed.stages.batch import Batch
from asyncfeed.stages.bucket import Bucket
from asyncfeed.stages.enumerate import Enumerate
from asyncfeed.stages.filter import Filter
from asyncfeed.stages.map import Map
from asyncfeed.stages.merge import Zip
from asyncfeed.stages.pad import Pad
from asyncfeed.stages.prefetch import Prefetch
from asyncfeed.stages.repeat import Repeat
from asyncfeed.stages.shuffle import Shuffle
from asyncfeed.stages.split import Split
from asyncfeed.stages.take import Skip, Take

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncfeed.pipeline import Pipeline
    from asyncfeed.stages.base import Source

_SAME = (Split, Enumerate, Filter, Prefetch, Repeat, Shuffle, Skip, Take)
"""Stages that leave what is in an item as it is."""


class Rule(Protocol):
    """Says which axes hold."""

    def holds(self, ndim: int) -> tuple[bool, ...]:
        """Return for each axis of an array of so many whether its size is the same in all items."""
        ...

    def mapped(self) -> Rule:
        """Return the rule for what a function of the user's makes of the items."""
        ...


@dataclass(frozen=True)
class Nothing:
    """No axis holds."""

    def holds(self, ndim: int) -> tuple[bool, ...]:
        """Return no for all."""
        return (False,) * ndim

    def mapped(self) -> Rule:
        """Return the same: a function makes nothing certain."""
        return self


@dataclass(frozen=True)
class Everything:
    """All axes hold: rows of one array, or samples that were stacked."""

    def holds(self, ndim: int) -> tuple[bool, ...]:
        """Return yes for all."""
        return (True,) * ndim

    def mapped(self) -> Rule:
        """Return nothing: a function may crop each row otherwise."""
        return Nothing()


@dataclass(frozen=True)
class Padded:
    """The axes hold that were padded to a given size."""

    to: tuple[int | None, ...]

    def holds(self, ndim: int) -> tuple[bool, ...]:
        """Return yes where a size was given."""
        return tuple(axis < len(self.to) and self.to[axis] is not None for axis in range(ndim))

    def mapped(self) -> Rule:
        """Return nothing: a function may exchange the axes."""
        return Nothing()


@dataclass(frozen=True)
class Batched:
    """The samples' axes after the axis of the batch, which holds where all batches are `whole`."""

    whole: bool
    sample: Rule

    def holds(self, ndim: int) -> tuple[bool, ...]:
        """Return the batch's axis, and what the sample's rule says of the others."""
        return (self.whole, *self.sample.holds(ndim - 1)) if ndim else ()

    def mapped(self) -> Rule:
        """Return the same for equal samples: a function of equal batches makes equal batches."""
        return self if self.sample == Everything() else Batched(self.whole, Nothing())


@dataclass(frozen=True)
class Both:
    """What holds by all of several rules."""

    rules: tuple[Rule, ...]

    def holds(self, ndim: int) -> tuple[bool, ...]:
        """Return yes where all rules do."""
        return tuple(map(all, zip(*(rule.holds(ndim) for rule in self.rules), strict=True)))

    def mapped(self) -> Rule:
        """Return what holds by all rules afterwards."""
        return Both(tuple(rule.mapped() for rule in self.rules))


def open_shape(rule: Rule, shape: Sequence[int]) -> tuple[int | None, ...]:
    """Return the shape of an array in the first item, with None for the axes that need not hold.

    >>> open_shape(Batched(False, Everything()), (32, 8, 8))
    (None, 8, 8)
    """
    return tuple(size if held else None for size, held in zip(shape, rule.holds(len(shape)), strict=True))


def rule_of(pipeline: Pipeline[Any]) -> Rule:
    """Return which axes hold for the items of a pipeline."""
    rule = _of_source(pipeline.source)
    endless = False
    before: Any = None
    for node in pipeline.stages:
        if isinstance(node, Pad):
            padded = Padded(node.to if isinstance(node.to, tuple) else (node.to,))
            if isinstance(before, Batch | Bucket) and isinstance(rule, Batched):
                rule = Batched(rule.whole, padded)
            else:
                rule = padded
        elif isinstance(node, Batch | Bucket) and node.collate is not None:
            rule = Nothing()  # a function of the user's made it
        elif isinstance(node, Batch):
            # A batch of several has compared them; one alone says nothing of the next.
            alike = node.size > 1 and not isinstance(rule, Batched)
            rule = Batched(node.drop_remainder or endless, Everything() if alike else rule)
        elif isinstance(node, Bucket):
            rule = Batched(node.drop_remainder and len(set(node.sizes)) == 1, Nothing())
        elif isinstance(node, Map):
            rule = rule.mapped()
        elif not isinstance(node, _SAME):
            rule = Nothing()
        endless = endless or (isinstance(node, Repeat) and node.count is None)
        before = node
    return rule


def _of_source(source: Source) -> Rule:
    if isinstance(source, Zip):
        return Both(tuple(map(rule_of, source.pipelines)))
    if isinstance(source, Arrays) or (isinstance(source, Items) and isinstance(source.data, np.ndarray)):
        return Everything()
    return Nothing()
