"""Segment: neighbouring stages whose functions are called together, without a hand-over between them.

One rule decides what a segment is. It is a run of stages that each call a sync function once for each item:
`load`, `map`, the `[number]` of a dataset. If `batch` follows, it is the last stage of the segment, which then
makes whole batches. All stages of a segment agree in `on` and `concurrency`. Results come in order, and a failure
ends the run. Everything else ends a segment. So does `prefetch`, which a user can put between two stages to keep
them apart.

If a segment makes batches, the numbers of the items are grouped first. So the position of a batch is known before
any work is done, and the order, states, epochs and names are those of the stages without a segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

from asyncfeed.axes import Axes
from asyncfeed.reading.listing import FileList, FileSpan
from asyncfeed.stages.base import Node
from asyncfeed.stages.batch import Batch, Group
from asyncfeed.stages.chain import Call, Chain
from asyncfeed.stages.load import Load
from asyncfeed.stages.load_batch import Cost, Measure, batches_of
from asyncfeed.stages.steps import Step, Work
from asyncfeed.stats import SlowPaths

JOINS = True
"""Whether there are segments. Without them a pipeline delivers the same, only slower: tests compare both."""


@dataclass(frozen=True)
class Segment(Node):
    """What `joined` makes of several stages."""

    nodes: tuple[Node, ...]
    files: FileList | None = field(default=None, repr=False, compare=False)
    """The list whose numbers come in place of the files. None if the files come."""

    method: ClassVar[str] = "segment"

    @property
    def batch(self) -> Batch | None:
        """The stage that makes batches, if there is one."""
        last = self.nodes[-1]
        return last if isinstance(last, Batch) else None

    @property
    def reads_rows(self) -> bool:  # type: ignore[override]
        """Whether local files are read into rows."""
        first = self.nodes[0]
        return self.batch is not None and isinstance(first, Load) and first.fuses

    @property
    def hidden(self) -> bool:  # type: ignore[override]
        """Whether all stages are hidden."""
        return all(node.hidden for node in self.nodes)

    def steps(self) -> Sequence[Step]:
        """Return one step that calls all functions. Steps that group, or read on the loop, come before it."""
        first, batch = self.nodes[0], self.batch
        of_nodes = [node.steps() for node in self.nodes]
        works = [work for steps in of_nodes for work in steps[-1:] if isinstance(work, Work)]
        if batch is None:
            return [*of_nodes[0][:-1], _each(self, works)]
        make = None if self.files is None else partial(FileSpan, self.files)
        work = _batches(self, works)
        chained = isinstance(work.fn, Chain)
        group = Group(batch.size, batch.drop_remainder, make, sends_unfinished=chained)
        if not (isinstance(first, Load) and first.on_loop):
            return [group, work]
        if chained:  # each object is read for itself: a list of large ones would be too much at a time
            return [first.read_on_loop(), group, work]
        return [group, first.read_on_loop(batch.size), work]

    def over(self, files: FileList) -> Segment | None:
        """Return this stage as it takes the numbers of files, if it reads them together."""
        first = self.nodes[0]
        reads = self.batch is not None and isinstance(first, Load) and not first.on_loop
        return replace(self, files=files) if reads else None

    def gathers(self) -> int:
        """Return how many samples make a batch."""
        return 1 if self.batch is None else self.batch.size

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return what the stages say."""
        for node in self.nodes:
            upstream = node.axes(upstream, endless=endless)
        return upstream

    def length(self, upstream: int) -> int | None:
        """Return what the stages say."""
        length: int | None = upstream
        for node in self.nodes:
            length = None if length is None else node.length(length)
        return length

    def __str__(self) -> str:
        """Return the calls that make these stages."""
        padding = None if self.batch is None else self.batch.padding
        return ".".join(map(str, filter(None, (*(node for node in self.nodes if not node.hidden), padding))))


def joined(stages: Sequence[Node]) -> list[Node]:
    """Return the stages, with those that make a segment as one."""
    out: list[Node] = []
    run: list[Node] = []
    like: Work | None = None

    def close() -> None:
        nonlocal like
        if run and not isinstance(run[-1], Batch) and _reads_many(run[0]):
            out.append(run.pop(0))  # it reads many items with one call, and a chain for single items does not
        if len(run) > 1:
            out.append(Segment(tuple(run)))
        else:
            out.extend(run)
        run.clear()
        like = None

    for node in stages:
        work = _joins(node) if JOINS else None
        if run and like is not None and isinstance(node, Batch) and _takes(node, like):
            run.append(node)
            close()
        elif work is None or isinstance(node, Batch):
            close()
            out.append(node)
        else:
            apart = like is not None and (work.kind, work.concurrency) != (like.kind, like.concurrency)
            if apart or isinstance(node, Load):  # a `load` begins a segment, whose files are read together
                close()
            run.append(node)
            like = work
    close()
    return out


def _joins(node: Node) -> Work | None:
    """Return how a stage calls a sync function once for each item, in order; None if it does anything else."""
    if node.gathers() != 1 or node.exact:
        return None
    steps = node.steps()
    if len(steps) != 1 and not (len(steps) == 2 and isinstance(node, Load)):
        return None
    work = steps[-1]
    if not isinstance(work, Work):
        return None
    plain = work.shape == "map" and work.ordered and not work.carries and work.inline is None
    return work if plain and work.kind != "async" and work.skip is None and work.policy is None else None


def _reads_many(node: Node) -> bool:
    """Return whether a stage has a faster way for many items."""
    step = node.steps()[-1]
    return isinstance(step, Work) and step.many is not None


def _takes(batch: Batch, like: Work) -> bool:
    """Return whether a batch is made where the functions before it are called."""
    return batch.timeout is None and (batch.collate is None or like.kind == "thread")


def _each(segment: Segment, works: list[Work]) -> Work:
    """Return the step that calls all functions for one item."""
    first = works[0]
    chain = Chain(_calls(segment.nodes, works))
    return replace(
        first, fn=chain, many=None, waits=None, placed=chain.placed, grows=True, slow_paths=_slow_paths(works)
    )


def _batches(segment: Segment, works: list[Work]) -> Work:
    """Return the step that makes whole batches."""
    batch = segment.batch
    assert batch is not None
    *each, stack = works
    load = segment.nodes[0]
    if len(each) == 1 and isinstance(load, Load) and batch.collate is None and load.fuses:
        return batches_of(load, batch, each[0])
    last = Call(stack.fn, str(batch), stack.placed)
    first = each[0]
    read = first.read if first.kind == "process" or not getattr(load, "on_loop", False) else None
    chain = Chain(_calls(segment.nodes[:-1], each), last, read)
    cost = None if first.cost is None else Cost(first.cost, None, lambda: None)
    return Work(
        chain,
        first.kind,
        waits=getattr(read, "waits", None) if first.kind == "thread" else None,
        placed=True,
        concurrency=first.concurrency,
        cost=cost,
        measure=None if first.measure is None or cost is None else Measure(first.measure, None, cost),
        packed=first.packed,
        members=batch.size,
        grows=True,
        slow_paths=_slow_paths(works),
    )


def _calls(nodes: Sequence[Node], works: Sequence[Work]) -> tuple[Call, ...]:
    return tuple(Call(work.fn, str(node), work.placed) for node, work in zip(nodes, works, strict=True))


def _slow_paths(works: Sequence[Work]) -> SlowPaths | None:
    return next((work.slow_paths for work in works if work.slow_paths is not None), None)
