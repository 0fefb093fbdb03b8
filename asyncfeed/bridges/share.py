"""Divides the items of a pipeline among processes that each run the same description.

A stage is put into the description as early as possible. It counts items and keeps those of one process. So an
item keeps its place: its order, its random numbers and its name in errors are those of an undivided run.

    files.shuffle()  [keeps blocks of 32]  .load().batch(32)      each process reads the files of its own batches
    files.shuffle()  [keeps single files]  .load().filter().batch(32)

In the first case the processes together deliver the batches of an undivided run. In the second case it is not
known in advance which files make a batch, so the files are divided, and each process makes batches of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from asyncfeed.axes import Axes
from asyncfeed.errors import PipelineError
from asyncfeed.pipeline import Pipeline
from asyncfeed.position import Positions, join
from asyncfeed.stages.base import Node
from asyncfeed.stages.steps import Algorithm, Step, Work
from asyncfeed.stages.together import arrange, fold


@dataclass(frozen=True)
class Share(Node):
    """Keeps one of each `count` blocks of `block` items: the one with this number, counted from 0.

    With `even`, blocks form rounds of `even` blocks. The last round is dropped if it is not complete. A block at
    the end of the data counts if it has at least `least` items.
    """

    number: int
    count: int
    block: int = 1
    least: int = 1
    even: int = 1
    limit: int | None = None
    """Number of items in the complete rounds, if it is known."""

    method: ClassVar[str] = "share"
    arranges: ClassVar[bool] = True
    counts: ClassVar[bool] = True
    hidden: ClassVar[bool] = True

    def steps(self) -> Sequence[Step]:
        """Return the step that counts items."""
        return [Deal(self)]

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return `upstream`: the items stay as they are."""
        return upstream


class Deal(Algorithm):
    """Keeps the items of one share. A block waits until its round is complete, unless the limit is known."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._begin()

    def _begin(self) -> None:
        self._seen = 0
        self._items: list[Any] = []
        self._positions: Positions = ()
        self.done = self._share.limit == 0

    @property
    def held(self) -> int:
        """Number of items that wait until their round is complete."""
        return len(self._items)

    def push(self, items: list[Any], positions: Positions) -> tuple[list[Any], Positions]:
        """Return the items of the share whose rounds are complete."""
        share = self._share
        if share.limit is not None:
            left = share.limit - self._seen
            items, positions = items[:left], positions[:left]
            self.done = len(items) == left
        elif share.even > 1:
            return self._push_rounds(items, positions)
        own = self._keep(items, positions)
        self._seen += len(items)
        return own

    def flush(self) -> tuple[list[Any], Positions]:
        """Return a last block that waits, if its round is complete except that its last block is short."""
        share = self._share
        more = self._seen % (share.block * share.even)
        complete = more >= share.block * (share.even - 1) + share.least
        last = (self._items, self._positions) if complete else ([], ())
        self._begin()
        return last

    def state(self) -> dict[str, Any]:
        """Return how many items there were, and those that wait."""
        return {"seen": self._seen, "items": list(self._items), "positions": list(self._positions)}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state` returned."""
        self._seen = state["seen"]
        self._items, self._positions = list(state["items"]), state["positions"]

    def _push_rounds(self, items: list[Any], positions: Positions) -> tuple[list[Any], Positions]:
        """Add items round by round. Return those of the rounds that are complete now."""
        size = self._share.block * self._share.even
        ready: list[Any] = []
        places: Positions = ()
        at = 0
        while at < len(items):
            end = min(len(items), at + size - self._seen % size)
            own, where = self._keep(items[at:end], positions[at:end])
            self._seen += end - at
            self._items += own
            self._positions = join(self._positions, where)
            if self._seen % size == 0:
                ready += self._items
                places = join(places, self._positions)
                self._items, self._positions = [], ()
            at = end
        return ready, places

    def _keep(self, items: list[Any], positions: Positions) -> tuple[list[Any], Positions]:
        """Return the items of the share."""
        block, count = self._share.block, self._share.count
        period = block * count
        start = (self._share.number * block - self._seen) % period
        if block == 1:
            return items[start::count], positions[start::count]
        own: list[Any] = []
        places: Positions = ()
        for at in range(start - period, len(items), period):  # the first block may have begun in an earlier push
            low, high = max(at, 0), max(at + block, 0)
            own += items[low:high]
            places = join(places, positions[low:high])
        return own, places


def shared(pipeline: Pipeline[Any], *, rank: int, ranks: int, worker: int, workers: int) -> Pipeline[Any]:
    """Return the part of a pipeline that one worker of one rank delivers.

    The items are dealt out to the ranks in turns, and those of a rank to its workers in turns. Each rank gets the
    same number, and the rest is dropped.
    """
    count = ranks * workers
    if count == 1:
        return pipeline
    pipeline = _as_run(pipeline)
    place, block = _place(pipeline)
    before, after = pipeline.stages[:place], pipeline.stages[place:]
    least = next(least for least in range(1, block + 1) if _length(after, least) != 0)
    known = Pipeline(pipeline.source, before).size()
    limit = None
    if ranks > 1 and known is not None:
        blocks = known // block + (known % block >= least)
        limit = min(known, (blocks - blocks % ranks) * block)
    share = Share(worker * ranks + rank, count, block, least, ranks, limit)
    return Pipeline(pipeline.source, (*before, share, *after))


def share_size(pipeline: Pipeline[Any], ranks: int) -> int | None:
    """Return the number of items that each rank gets; None if it is not known."""
    size = pipeline.size()
    pipeline = _as_run(pipeline)
    return size // ranks if size is not None and _place(pipeline) == _whole_blocks(pipeline.stages) else None


def _as_run(pipeline: Pipeline[Any]) -> Pipeline[Any]:
    """Return a pipeline with its stages in the order in which they run: an exact shuffle before a `map`."""
    return Pipeline(pipeline.source, tuple(arrange(pipeline.stages, merge=False)))


def _place(pipeline: Pipeline[Any]) -> tuple[int, int]:
    """Return the place of the stage, and the size of its blocks."""
    stages = pipeline.stages
    place, block = _whole_blocks(stages)
    folded = len(stages) - len(fold(pipeline.source, stages)[1])
    works = next((at for at in range(folded, place) if _works(stages[at])), None)
    if works is None:
        return place, block
    if not any(map(_counts, stages[works:])):
        return works, 1  # so that no process does the work of another
    if any(not step.ordered for node in stages[works:place] for step in node.steps() if isinstance(step, Work)):
        raise PipelineError(
            f"to_torch_dataset: {pipeline!r} counts items that come in any order, so processes could not agree on "
            "their shares: leave out ordered=False"
        )
    return place, block


def _whole_blocks(stages: Sequence[Node]) -> tuple[int, int]:
    """Return the first place from which on each block of items makes one item, and the size of a block."""
    place, block = len(stages), 1
    while place and (gathered := _gathers_whole(stages[place - 1])):
        place -= 1
        block *= gathered
    return place, block


def _gathers_whole(node: Node) -> int:
    """Return how many consecutive items make one item of this stage; 0 if it uses items in another way."""
    count = node.gathers()
    if _keeps_places(node):
        return 1
    whole = count > 1 and [node.length(count * blocks) for blocks in (1, 2, 7)] == [1, 2, 7]
    return count if whole else 0


def _keeps_places(node: Node) -> bool:
    """Return whether each item that comes out is made from the item at its place, and from no other."""
    if node.one_to_one:  # a `scan` is, but it has a state
        return not any(isinstance(step, Algorithm) for step in node.steps())
    return node.is_queue or (node.pads and node.gathers() == 1)


def _works(node: Node) -> bool:
    """Return whether a stage calls a function for its items. All other stages only choose, order and count."""
    return any(isinstance(step, Work) for step in node.steps())


def _counts(node: Node) -> bool:
    """Return whether a stage counts items or has a state, so that it must see the items of all processes."""
    if _keeps_places(node) or (node.arranges and not node.counts):
        return False
    return node.one_to_one or (node.gathers() == 1 and not _works(node))


def _length(stages: Sequence[Node], count: int) -> int | None:
    for node in stages:
        length = count if _keeps_places(node) else node.length(count)
        if length is None:
            return None
        count = length
    return count
