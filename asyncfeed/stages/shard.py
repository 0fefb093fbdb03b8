"""Shard: one of several disjoint parts of the items, for each process that trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from asyncfeed.axes import Axes
from asyncfeed.errors import PipelineError
from asyncfeed.stages.base import Node, Source, check_count
from asyncfeed.stages.deal import Deal, Dealing, DealRest, LeftByOthers
from asyncfeed.stages.numbering import Part, Strided
from asyncfeed.stages.steps import Indexed, Step, Timed, Work, leaves_out
from asyncfeed.stages.together import arrange, fold, is_endless, keeps_places, least_items, whole_blocks

Uneven = Literal["pad", "drop", "keep"]
"""What happens if the number of items is no multiple of the number of parts."""
UNEVEN = ("pad", "drop", "keep")


@dataclass(frozen=True)
class Shard(Node):
    """Keeps the items `index`, `index + count`, `index + 2 * count`, ... of each epoch."""

    number: int
    count: int
    uneven: Uneven = "pad"
    no_end: bool = field(default=False, repr=False, compare=False)
    """Whether the items have no end. Then no item is kept for a last round."""
    left: LeftByOthers | None = field(default=None, repr=False, compare=False)
    """What other processes have left of the first epochs, if the items are a stream."""
    block: int = field(default=1, repr=False, compare=False)
    """How many items by number make one of those that are dealt out. Whole blocks are then dealt out by number."""
    least: int = field(default=1, repr=False, compare=False)
    """How many items the last block must have."""

    method: ClassVar[str] = "shard"
    positional: ClassVar[tuple[str, ...]] = ("number", "count")
    arranges: ClassVar[bool] = True
    counts: ClassVar[bool] = True
    shards: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("shard", "count", self.count, 1)
        check_count("shard", "index", self.number, 0)
        if self.number >= self.count:
            raise PipelineError(
                f"shard: index must be less than count, as parts are counted from 0: {self.number} of {self.count}"
            )
        if self.uneven not in UNEVEN:
            raise PipelineError(f"shard: uneven must be 'pad', 'drop' or 'keep', not {self.uneven!r}")

    @property
    def deals(self) -> tuple[int, int]:
        """The number of the part, and how many there are."""
        return self.number, self.count

    def after(self, source: Source, stages: Sequence[Node]) -> Node:
        """Return this stage. Raise if each process could see the items before it in another order."""
        _check_order(source, stages)
        arranged = arrange(stages)
        place, block = whole_blocks(arranged)
        indexed, rest = fold(source, arranged[:place])
        if block == 1 or indexed is None or rest or leaves_out(indexed):
            return replace(self, no_end=is_endless(source, stages))
        return replace(self, block=block, least=least_items(arranged[place:], block))

    def absorb_before(self, stages: Sequence[Node]) -> list[Node] | None:
        """Return these stages with this one before those that make whole blocks of items, as batches are made."""
        if self.block == 1:
            return None
        place, _ = whole_blocks(stages)
        return [*stages[:place], self, *stages[place:]]

    def index(self, upstream: Indexed) -> Indexed:
        """Return the items of the part by number. They are dealt out before they are read."""
        part = Part(self.number, self.count, len(upstream), self.block, self.least)
        return Strided(upstream, part, self.length(part.blocks))

    def steps(self) -> Sequence[Step]:
        """Return the step that deals out the items of a stream."""
        even = self.count if self.uneven == "drop" else 1
        pad = self.uneven == "pad" and not self.no_end
        dealing = Dealing(self.number, self.count, even=even, pad=pad)
        return [Deal(dealing) if self.left is None else DealRest(dealing, self.left)]

    def may_precede(self, other: Node) -> bool:
        """Return whether it may run before a stage that it follows, so that the items of other parts are not read.

        The items keep their ordinals, and with them their random numbers.
        """
        return keeps_places(other)

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return `upstream`: the items stay as they are."""
        return upstream

    def length(self, upstream: int) -> int:
        """Return the number of items of the part."""
        if self.uneven == "drop":
            return upstream // self.count
        own = self.number if self.uneven == "keep" else 0
        return -(-max(0, upstream - own) // self.count)


def _check_order(source: Source, stages: Sequence[Node]) -> None:
    """Raise if the order of the items depends on more than the description."""
    indexed, rest = fold(source, arrange(stages, merge=False))
    if indexed is None:
        for each in source.inputs:
            _check_order(each.source, each.stages)
    elif rest and leaves_out(indexed):
        raise _differs(str(source), "may leave out other items", "on_error='skip'")
    for node in rest:
        for step in node.steps():
            if isinstance(step, Timed):
                raise _differs(f".{node}", "may make other batches", "timeout")
            if isinstance(step, Work) and not step.ordered:
                raise _differs(f".{node}", "gives the items in another order", "ordered=False")
            if isinstance(step, Work) and step.skip is not None:
                raise _differs(f".{node}", "may leave out other items", "on_error")


def _differs(what: str, how: str, option: str) -> PipelineError:
    return PipelineError(
        f"shard: {what} before it {how} in each process, so the processes would not agree which items are whose: "
        f"put shard before it, or leave out {option}"
    )
