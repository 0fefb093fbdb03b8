"""From a description to the steps that run it.

Algorithms are worked into the way out of the step before them; each stage with a function becomes a step with
a channel in front. A `repeat` becomes nothing: the source says where its epochs end, and stages know by their
level which of these ends are theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from asyncfeed.engine.channel import Channel
from asyncfeed.engine.checkpoint.gates import ReplayGate
from asyncfeed.engine.checkpoint.merges import InputRecord, MergeRecord, MergeStation
from asyncfeed.engine.checkpoint.record import WorkRecord
from asyncfeed.engine.checkpoint.rests import RestOfRun, rest_of
from asyncfeed.engine.checkpoint.skips import SkipRecord
from asyncfeed.engine.checkpoint.track import Track, needs_record
from asyncfeed.engine.constants import CHUNK_ITEMS, PREFETCH_BATCHES, PREFETCH_SAMPLES
from asyncfeed.engine.emitter import Emitter, Link, Sink, TransformLink, Watch
from asyncfeed.engine.epochs import EpochCounter
from asyncfeed.engine.limits.budget import Account, Budget
from asyncfeed.engine.operators.call_async import AsyncCalls
from asyncfeed.engine.operators.call_threads import ThreadCalls
from asyncfeed.engine.operators.expand import Expanding
from asyncfeed.engine.operators.merge import Branch, MergeStep, PickStep, ZipStep
from asyncfeed.engine.operators.operator import Executor, Operator
from asyncfeed.engine.operators.skip_budget import SkipBudget
from asyncfeed.engine.operators.source import IndexedSource, IterableSource
from asyncfeed.engine.operators.step import RunContext, Step, StepSpec
from asyncfeed.engine.provenance import Provenance
from asyncfeed.engine.relay import RelayStep
from asyncfeed.engine.timed import TimedStep
from asyncfeed.stages.base import Node, Source
from asyncfeed.stages.reached import reached
from asyncfeed.stages.steps import Algorithm, Passes, Picking, Queue, Timed, Work, Zipping
from asyncfeed.stages.together import arrange, first_place, is_endless, numbering

S = TypeVar("S", bound=Step)


class Description(Protocol):
    """What the engine sees of a pipeline."""

    @property
    def source(self) -> Source:
        """Where the items come from."""
        ...

    @property
    def stages(self) -> tuple[Node, ...]:
        """What becomes of them."""
        ...


def prefetched(description: Description) -> tuple[int, bool]:
    """Return how many batches may wait for the consumer, and whether the description says so."""
    arranged = arrange(description.stages)
    for step in arranged[-1].steps() if arranged and arranged[-1].is_queue else ():
        if isinstance(step, Queue):
            return step.room, True
    unit = 1
    for node in description.stages:
        unit = unit * node.gathers() or 1
    return max(PREFETCH_BATCHES, PREFETCH_SAMPLES // unit), False


def compile_steps(
    description: Description,
    context: RunContext,
    sink: Sink,
    run: int = 0,
    *,
    by_epoch: bool = False,
    state: dict[str, Any] | None = None,
    begins: bool = True,
) -> tuple[list[Step], Track]:
    """Return the steps that run a description, the first that draws first; the last sends to `sink`.

    `run` says how many runs went before: the epochs are counted on from theirs. With `by_epoch` they were passes
    of the last `repeat`, and the run goes on with the next pass. With a `state`, the run goes on from there. The
    track that is returned takes states. If it does not begin, one may look at what the state says.
    """
    if state is not None:
        run = state["run"]
    endless = is_endless(description.source, description.stages)
    rest = None if state is None else rest_of(description, state)
    resumes = int(state is not None) if rest is None else 1 + rest.epochs
    compiler = _Compiler(context, run, endless, by_epoch=by_epoch, resumes=resumes)
    last, _ = compiler.branch(description if rest is None else rest.description, (), rest, trailing=True)
    if state is not None:
        compiler.track.resume(state)
    if rest is not None:
        rest.leave_out(compiler.track)
    if begins:
        compiler.track.begin()
    compiler.close(last, sink)
    for depth, step in enumerate(compiler.steps):
        step.depth = depth
    return compiler.steps, compiler.track


def executor_of(work: Work) -> type[Executor]:
    """Return what calls a function of this shape and kind."""
    if work.shape == "flat":
        return Expanding
    return AsyncCalls if work.kind == "async" else ThreadCalls


class _Compiler:
    def __init__(self, context: RunContext, run: int, endless: bool, *, by_epoch: bool, resumes: int) -> None:
        self._context = context
        self._budget: Budget | Account = context.budget
        """What the steps that are added charge to."""
        self._run = run
        self._endless = endless
        self._by_epoch = by_epoch
        self._resumes = resumes
        """Number of epochs that may be empty, because their items were received before."""
        self.steps: list[Step] = []
        self.track = Track(run)
        self._links: list[Link] = []

    def branch(
        self,
        description: Description,
        outer: Sequence[int | None],
        rest: RestOfRun | None = None,
        *,
        trailing: bool = False,
        cut: int | None = None,
    ) -> tuple[Step, int]:
        """Add the steps of one pipeline; return its last, which is still open, and how many `repeat`s it has.

        `cut` is the level, counted from the end of this pipeline, of the epochs that a later stage may end early.
        """
        arranged = arrange(description.stages)
        arranged, again = (arranged, None) if rest is None else rest.prepare(arranged)
        indexed, folded, stages = reached(description.source, arranged, again)
        above = [str(description.source), *map(str, arranged[:folded])]
        if trailing and stages and stages[-1].is_queue:
            stages.pop()  # the handoff's own bound
        planned = [(node, node.steps()) for node in stages]
        own = [each.count for _, steps in planned for each in steps if isinstance(each, Passes)]
        repeats = (*own, *outer)
        levels = len(repeats)
        cut, cuts = _cuts(planned, None if cut is None else len(own) + cut, len(own))
        spec = StepSpec(str(description.source), self._context, levels, Provenance(None, None))
        step: Step
        if indexed is not None:
            numbers = again or numbering(description.source, arranged[:folded], indexed)
            spec = replace(spec, provenance=Provenance(numbers.size, numbers.name))
            station = self.track.add_source(self._epochs(repeats), spec.provenance, numbers.place)
            step = IndexedSource(spec, station, indexed, numbers)
        else:
            step = self._stream(description.source, spec, repeats, first_place(arranged[:folded]), cut)
        self._open(step)
        self.track.note_shard(arranged[:folded])
        level = 0
        unit = 1  # queues of batches are shorter
        for (node, steps), cut in zip(planned, cuts, strict=True):
            gathers = node.gathers()
            for each in steps:
                match each:
                    case Algorithm() | Timed():
                        step = self._regroup(step, each, replace(spec, name=str(node)), level, repeats)
                        unit, gathers = unit * gathers, 1
                    case Work():
                        spec = replace(spec, name=str(node), unit=unit)
                        step = self._work(step, spec, each, level, SkipBudget(each.skip, self._context, cut))
                    case Queue():
                        step = self._next(step, each.room, partial(RelayStep, replace(spec, name=str(node))))
                    case Passes():
                        if each.count is None:
                            what = ".".join(above)
                            self._links.append(Watch(what, level, levels, step.skips, resumes=self._resumes))
                        level += 1
            self.track.note_shard([node])
            unit = unit * gathers or 1
            if not node.hidden:
                above.append(str(node))
        return step, len(own)

    def _stream(
        self, source: Source, spec: StepSpec, repeats: Sequence[int | None], place: int, cut: int | None
    ) -> Step:
        """Return the step of a source whose items cannot be reached by number."""
        epochs = self._epochs(repeats)
        if source.inputs:
            return self._merge(source, spec, epochs, repeats, cut)
        return IterableSource(spec, self.track.add_source(epochs, spec.provenance), source, place)

    def _regroup(
        self, step: Step, regroups: Algorithm | Timed, spec: StepSpec, level: int, repeats: Sequence[int | None]
    ) -> Step:
        """Put an algorithm into the way out of a step: of the one before, or of one that keeps its time."""
        timed = isinstance(regroups, Timed)
        if isinstance(regroups, Timed):
            step = self._next(step, CHUNK_ITEMS, partial(TimedStep, spec, regroups))
            regroups = regroups.algorithm
        top = level == len(repeats)
        link = TransformLink(regroups, level, self._epochs(repeats[level:]), top=top, name=spec.name)
        self._links.append(link)
        self.track.add_link(link, spec.name, timed=timed)
        return step

    def _epochs(self, repeats: Sequence[int | None]) -> EpochCounter:
        if self._by_epoch:
            return EpochCounter(repeats, self._run, len(repeats) - 1)
        if self._endless and None in repeats:
            # A later run has no place after one that never ends: it starts at that pass of the endless repeat.
            return EpochCounter(
                repeats, self._run, max(level for level, count in enumerate(repeats) if count is None)
            )
        return EpochCounter(repeats, self._run)

    def _work(self, step: Step, spec: StepSpec, work: Work, level: int, skip_budget: SkipBudget) -> Operator:
        """Add the step of a function."""
        if work.slow_paths is not None:
            self._context.slow_paths.append(work.slow_paths)
        record = WorkRecord(spec.name) if needs_record(work) else None
        if record is not None:
            self._links.append(record)

        def make(inbox: Channel) -> Operator:
            return Operator(spec, work, inbox, executor_of(work), skip_budget)

        operator = self._next(step, max(1, CHUNK_ITEMS // spec.unit), make)
        if record is not None:
            operator.record = record
            self.track.add_work(work, record, self._links, operator.executor.order)
        if skip_budget.counts:
            operator.skipped = SkipRecord()
            self.track.add_skips(operator.skipped, skip_budget)
        if work.carries:
            gate = ReplayGate(spec.name)
            self._links.append(gate)
            self.track.add_carrying(gate, level, spec.name)
        return operator

    def _merge(
        self,
        source: Source,
        spec: StepSpec,
        epochs: EpochCounter,
        repeats: Sequence[int | None],
        cut: int | None,
    ) -> Step:
        branches: list[Branch] = []
        merging = source.merging()
        if merging.ends_early:
            cut = 0
        budget = self._budget
        for each in source.inputs:
            account = self._budget = Account(budget)
            last, own = self.branch(each, repeats, cut=cut)
            channel = Channel(CHUNK_ITEMS)
            self.close(last, channel)
            branches.append(Branch(last, channel, own, account))
            branches[-1].record = InputRecord(self.track.last, own)
        self._budget = budget
        spec = replace(spec, name=source.method)
        record = MergeRecord([branch.record for branch in branches if branch.record is not None])
        match merging:
            case Zipping(strict):
                merge: MergeStep = ZipStep(spec, epochs, branches, strict=strict)
                choice = None
            case Picking(choose):
                merge = PickStep(spec, epochs, branches, choice=choose())
                choice = choose()
        merge.record = record
        self.track.add_merge(MergeStation(record, epochs.copy(), spec.provenance, choice))
        for branch in branches:
            branch.step.after = merge
        return merge

    def _open(self, step: Step) -> None:
        step.budget = self._budget
        self.steps.append(step)
        self._links = []

    def _next(self, step: Step, room: int, make: Callable[[Channel], S]) -> S:
        channel = Channel(room)
        self.close(step, channel)
        following = make(channel)
        step.after = following
        following.before = [step]
        self._open(following)
        return following

    def close(self, step: Step, sink: Sink) -> None:
        """Give a step its way out."""
        step.out = Emitter(self._links, sink, self._budget, step.skip)
        self._links = []


def _cuts(
    planned: Sequence[tuple[Node, Sequence[Any]]], cut: int | None, level: int
) -> tuple[int | None, list[int | None]]:
    """Return the level of the epochs that a later stage may end early: for the source, and for each stage.

    `cut` is that level for what follows the last stage, and `level` the number of `repeat`s before its end.
    """
    cuts: list[int | None] = []
    for _, steps in reversed(planned):
        cuts.append(cut)
        for each in reversed(steps):
            if isinstance(each, Passes):
                level -= 1
            elif isinstance(each, Algorithm) and each.ends_early:
                cut = level
    return cut, cuts[::-1]
