"""Facts about a whole description, computed from its source and all its stages."""

from __future__ import annotations

from collections.abc import Sequence

from asyncfeed.axes import Axes, Unknown
from asyncfeed.stages.base import Node, Source
from asyncfeed.stages.numbering import Numbering, Strided
from asyncfeed.stages.steps import Algorithm, Indexed


def arrange(stages: Sequence[Node], *, merge: bool = True) -> list[Node]:
    """Return the stages in the order in which they run.

    With `merge`, a stage that can do the work of the next one absorbs it. A stage that may precede others comes
    before them: `take` before work that nobody would see, and an exact `shuffle` before work on single items, so
    that it finds items that can be reached by number.
    """
    arranged: list[Node] = []
    for node in stages:
        place = len(arranged)
        joined = node.absorb_before(arranged) if merge else None
        if joined is not None:
            arranged = joined
            continue
        merged = arranged[place - 1].absorb(node) if place and merge else None
        if merged is not None:
            arranged[place - 1 :] = [merged]
            continue
        place = len(arranged)
        while place and node.may_precede(arranged[place - 1]):
            place -= 1
        arranged.insert(place, node)
    return arranged


def fold(source: Source, stages: Sequence[Node], *, whole: bool = False) -> tuple[Indexed | None, Sequence[Node]]:
    """Return the items of a description by number, and the remaining stages, which run as a stream.

    The stages next to the source that only rearrange places are folded into the items by number. So skipping,
    shuffling and resuming cost nothing.

    A `repeat` stays in the stream, because it ends epochs there. There are two exceptions: a later shuffle needs
    all items by number, or the `whole` description is an input of another pipeline, which does not see its epochs.
    """
    return fold_over(source.indexed(), stages, whole=whole)


def fold_over(
    indexed: Indexed | None, stages: Sequence[Node], *, whole: bool = False
) -> tuple[Indexed | None, Sequence[Node]]:
    """Return the result of `fold` for given items by number."""
    if indexed is None:
        return None, stages
    exact = [place for place, node in enumerate(stages) if node.exact]
    needed = exact[-1] if exact else -1
    for place, node in enumerate(stages):
        if node.begins_epochs and place > needed and not whole:
            return indexed, stages[place:]
        rearranged = node.index(indexed)
        if rearranged is None:
            return indexed, stages[place:]
        indexed = rearranged
    return indexed, ()


def numbering(source: Source, folded: Sequence[Node], indexed: Indexed) -> Numbering:
    """Return the ordinals of the items of `fold`. An item of a part keeps the ordinal that it has in the whole."""
    if all(node.deals == (0, 1) for node in folded):
        return Numbering(indexed)
    items = source.indexed()
    assert items is not None
    numbers = Numbering(items)
    for node in folded:
        items = node.index(items)
        assert items is not None
        numbers = numbers.of_part(items) if isinstance(items, Strided) else numbers.rearranged(items)
    return numbers


def keeps_places(node: Node) -> bool:
    """Return whether each item that comes out is made from the item at its place, and from no other."""
    if node.one_to_one:  # a `scan` is, but it has a state
        return not any(isinstance(step, Algorithm) for step in node.steps())
    return node.is_queue or (node.pads and node.gathers() == 1)


def whole_blocks(stages: Sequence[Node]) -> tuple[int, int]:
    """Return the first place from which on each block of items makes one item, and the size of a block."""
    place, block = len(stages), 1
    while place and (gathered := _gathers_whole(stages[place - 1])):
        place -= 1
        block *= gathered
    return place, block


def _gathers_whole(node: Node) -> int:
    """Return how many consecutive items make one item of this stage; 0 if it uses items in another way."""
    count = node.gathers()
    if keeps_places(node):
        return 1
    whole = count > 1 and [node.length(count * blocks) for blocks in (1, 2, 7)] == [1, 2, 7]
    return count if whole else 0


def least_items(stages: Sequence[Node], block: int) -> int:
    """Return how many items at least make one of `block` items, for the stages that `whole_blocks` found."""
    return next(least for least in range(1, block + 1) if _length(stages, least) != 0)


def _length(stages: Sequence[Node], count: int) -> int | None:
    for node in stages:
        length = count if keeps_places(node) else node.length(count)
        if length is None:
            return None
        count = length
    return count


def first_place(folded: Sequence[Node]) -> int:
    """Return the place at which to open a source that can only be iterated, if these stages are folded into it."""
    return sum(node.leaves_out_first for node in folded)


def axes_of(source: Source, stages: Sequence[Node]) -> Axes:
    """Return which axes have one size in all items that a description delivers."""
    nodes: list[Node] = [source]
    known = [source.axes(Unknown(), endless=False)]
    ends = [source.has_no_end]
    for node in stages:
        merged = nodes[-1].absorb(node)
        if merged is not None:
            for each in (nodes, known, ends):
                each.pop()
        nodes.append(merged or node)
        known.append(nodes[-1].axes(known[-1], endless=ends[-1]))
        ends.append(nodes[-1].endless(upstream=ends[-1]))
    return known[-1]


def is_endless(source: Source, stages: Sequence[Node]) -> bool:
    """Return whether a run over a description is known to have no end."""
    endless = source.has_no_end
    for node in stages:
        endless = node.endless(upstream=endless)
    return endless
