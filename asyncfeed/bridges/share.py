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
from asyncfeed.stages.base import Node
from asyncfeed.stages.deal import Deal, Dealing
from asyncfeed.stages.steps import Step, Work
from asyncfeed.stages.together import arrange, fold, keeps_places, least_items, whole_blocks


@dataclass(frozen=True)
class Share(Node):
    """Keeps the items of one process."""

    dealing: Dealing

    method: ClassVar[str] = "share"
    arranges: ClassVar[bool] = True
    counts: ClassVar[bool] = True
    hidden: ClassVar[bool] = True

    def steps(self) -> Sequence[Step]:
        """Return the step that counts items."""
        return [Deal(self.dealing)]

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return `upstream`: the items stay as they are."""
        return upstream


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
    least = least_items(after, block)
    known = Pipeline(pipeline.source, before).size()
    limit = None
    if ranks > 1 and known is not None:
        blocks = known // block + (known % block >= least)
        limit = min(known, (blocks - blocks % ranks) * block)
    share = Share(Dealing(worker * ranks + rank, count, block, least, ranks, limit))
    return Pipeline(pipeline.source, (*before, share, *after))


def share_size(pipeline: Pipeline[Any], ranks: int) -> int | None:
    """Return the number of items that each rank gets; None if it is not known."""
    size = pipeline.size()
    pipeline = _as_run(pipeline)
    return size // ranks if size is not None and _place(pipeline) == whole_blocks(pipeline.stages) else None


def _as_run(pipeline: Pipeline[Any]) -> Pipeline[Any]:
    """Return a pipeline with its stages in the order in which they run: an exact shuffle before a `map`."""
    return Pipeline(pipeline.source, tuple(arrange(pipeline.stages, merge=False)))


def _place(pipeline: Pipeline[Any]) -> tuple[int, int]:
    """Return the place of the stage, and the size of its blocks."""
    stages = pipeline.stages
    place, block = whole_blocks(stages)
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


def _works(node: Node) -> bool:
    """Return whether a stage calls a function for its items. All other stages only choose, order and count."""
    return any(isinstance(step, Work) for step in node.steps())


def _counts(node: Node) -> bool:
    """Return whether a stage counts items or has a state, so that it must see the items of all processes."""
    if keeps_places(node) or (node.arranges and not node.counts):
        return False
    return node.one_to_one or (node.gathers() == 1 and not _works(node))
