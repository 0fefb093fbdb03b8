"""Which axes of the delivered arrays have one size in all items.

A framework asks for shapes before it has seen the data. The first item gives the sizes. The description says which
of these sizes hold for every item. The other axes get size None.

* In a batch, the axes of the samples are fixed unless a stage pads. The first axis is fixed if no batch can be
  smaller than the others.
* In items that are not batches, no axis is fixed, because no stage has compared the shapes of the items. Only the
  number of axes is taken from the first item.

Each stage declares how it changes the axes: see `Node.axes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Axes(Protocol):
    """A rule that says which axes have one size in all items."""

    def holds(self, ndim: int) -> tuple[bool, ...]:
        """Return, for each axis of an array with `ndim` axes, whether its size is the same in all items."""
        ...

    def mapped(self) -> Axes:
        """Return the rule for the results, if a function of the user's is called for each item."""
        ...


@dataclass(frozen=True)
class Unknown:
    """No axis has one size in all items."""

    def holds(self, ndim: int) -> tuple[bool, ...]:
        """Return False for each axis."""
        return (False,) * ndim

    def mapped(self) -> Axes:
        """Return this rule: a function cannot fix an axis."""
        return self


@dataclass(frozen=True)
class Fixed:
    """All axes have one size: rows of one array, or samples that were stacked."""

    def holds(self, ndim: int) -> tuple[bool, ...]:
        """Return True for each axis."""
        return (True,) * ndim

    def mapped(self) -> Axes:
        """Return `Unknown`: a function may crop each row in another way."""
        return Unknown()


@dataclass(frozen=True)
class PaddedTo:
    """The axes that were padded to a given size are fixed."""

    to: tuple[int | None, ...]

    def holds(self, ndim: int) -> tuple[bool, ...]:
        """Return True for each axis with a given size."""
        return tuple(axis < len(self.to) and self.to[axis] is not None for axis in range(ndim))

    def mapped(self) -> Axes:
        """Return `Unknown`: a function may exchange the axes."""
        return Unknown()


@dataclass(frozen=True)
class Batched:
    """The axis of the batch, then the axes of the samples. The first is fixed if all batches are `whole`."""

    whole: bool
    sample: Axes

    def holds(self, ndim: int) -> tuple[bool, ...]:
        """Return `whole` for the first axis, and the samples' rule for the other axes."""
        return (self.whole, *self.sample.holds(ndim - 1)) if ndim else ()

    def mapped(self) -> Axes:
        """Return the same for equal samples: a function of equal batches makes equal batches."""
        return self if self.sample == Fixed() else Batched(self.whole, Unknown())


@dataclass(frozen=True)
class AllOf:
    """An axis is fixed if all of several rules fix it."""

    rules: tuple[Axes, ...]

    def holds(self, ndim: int) -> tuple[bool, ...]:
        """Return True for each axis that all rules fix."""
        return tuple(map(all, zip(*(rule.holds(ndim) for rule in self.rules), strict=True)))

    def mapped(self) -> Axes:
        """Return the `mapped` rules of all of them."""
        return AllOf(tuple(rule.mapped() for rule in self.rules))


def open_shape(rule: Axes, shape: Sequence[int]) -> tuple[int | None, ...]:
    """Return the shape of an array in the first item, with None for the axes that may vary.

    >>> open_shape(Batched(False, Fixed()), (32, 8, 8))
    (None, 8, 8)
    """
    return tuple(size if held else None for size, held in zip(shape, rule.holds(len(shape)), strict=True))
