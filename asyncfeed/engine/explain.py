"""`explain`: describes in words how a pipeline will run."""

from __future__ import annotations

from asyncfeed.engine.constants import FLAT_CALLS
from asyncfeed.engine.operators.call_async import AsyncCalls
from asyncfeed.engine.operators.call_threads import ThreadCalls
from asyncfeed.engine.plan import Description, prefetched
from asyncfeed.engine.run import Run
from asyncfeed.limits import process_memory
from asyncfeed.machine import local_processes, runs_python_in_parallel, usable_cores
from asyncfeed.reading.uring_reader import refusal
from asyncfeed.stages.reached import reached
from asyncfeed.stages.steps import Algorithm, Passes, Queue, Step, Timed
from asyncfeed.stages.together import arrange, first_place
from asyncfeed.stats import FeedStats

ONE = {"async": "call on the loop", "thread": "thread", "process": "process"}
MANY = {"async": "calls on the loop", "thread": "threads", "process": "processes"}
HELD_BACK_SHARE = 0.2
"""Share of the time that the consumer must wait, so that more cores would help."""
ONE_CORE = 0.6, 1.15
"""The seconds that functions compute in a second if they have one core and hardly wait."""


def explain(description: Description, memory_limit: int | None) -> str:
    """Return one line for each part of a run, from the source to the consumer.

    Without a memory limit, the feed shares that of the process.
    """
    arranged = arrange(description.stages)
    indexed, folded, rest = reached(description.source, arranged)
    lines = []
    if indexed is not None:
        names = [str(description.source), *map(str, arranged[:folded])]
        how = f"{len(indexed):,} item{'' if len(indexed) == 1 else 's'} by number"
        for read in (node for node in rest if node.hidden):
            how += f", read by {'; '.join(map(_step, read.steps()))}"
        lines.append((".".join(names), how))
    elif description.source.inputs:
        lines.append((str(description.source), "the inputs run at the same time and share the memory limit"))
    else:
        names = [str(description.source), *map(str, arranged[:folded])]
        place = first_place(arranged[:folded])
        start = f", from item {place:,} on" if place else ""
        lines.append((".".join(names), f"drawn one after the other{start}"))
    for node in rest:
        if node.hidden:
            continue
        steps = [_step(each) for each in node.steps()]
        lines.append((str(node), "; ".join(steps)))
    room, fixed = prefetched(description)
    lines.append(("-> consumer", f"up to {room} ready" + ("" if fixed else ", fewer if they are large")))
    width = max(len(name) for name, _ in lines)
    text = "\n".join(f"{name:<{width}}  {how}" for name, how in lines)
    if any(node.reads_rows for node in rest) and description.source.listed is not None:
        why = refusal()
        text += f"\nsmall files: {f'read by threads, without io_uring: {why}' if why else 'read through io_uring'}"
    where = "in the whole run" if memory_limit is not None else "in all feeds of this process together"
    processes = local_processes()
    if processes > 1:
        text += (
            f"\ncores: {usable_cores()}, because the launcher has started {processes} processes on this machine"
        )
    return f"{text}\nmemory: at most {memory_limit or process_memory.limit:,} bytes in flight {where}"


def remarks(run: Run) -> str:
    """Return lines that say why the consumer of a run waits, as far as that can be told."""
    stats = run.stats()
    if stats.consumer_waited < HELD_BACK_SHARE * stats.seconds:
        return ""
    return _held_back(run, stats) + _crowded(stats)


def _held_back(run: Run, stats: FeedStats) -> str:
    """Return a line for each stage that computes on one core because of the GIL.

    There is none if the functions give the GIL up: then they use more cores.
    """
    cores = usable_cores()
    if cores == 1 or runs_python_in_parallel():
        return ""
    return "".join(
        f"\n{name}: its functions computed for {computed / stats.seconds:.0%} of the time, on one core "
        f'because of the GIL; with on="process", or in_processes() behind them, they use {cores} cores'
        for name, calls, computed in run.stages()
        if calls <= cores and ONE_CORE[0] * stats.seconds < computed < ONE_CORE[1] * stats.seconds
    )


def _crowded(stats: FeedStats) -> str:
    if not stats.other_feeds or stats.turns_waited < HELD_BACK_SHARE * stats.seconds:
        return ""
    feeds = f"{stats.other_feeds:,} other feed{'s' if stats.other_feeds > 1 else ''}"
    return (
        f"\nits calls waited for their turns for {stats.turns_waited:.2f} s: {feeds} of this process compute, too"
    )


def _step(step: Step) -> str:
    match step:
        case Algorithm():
            return "regroups items on the loop"
        case Timed():
            return f"regroups items on the loop, at the latest after {step.seconds:g} s"
        case Queue():
            return "a queue"
        case Passes():
            return "ends of epochs, from the source"
    if step.concurrency == 1:
        calls = f"1 {ONE[step.kind]}"
    elif step.shape == "flat" or step.concurrency != "auto":
        calls = f"up to {FLAT_CALLS if step.concurrency == 'auto' else step.concurrency} {MANY[step.kind]}"
    else:
        most = AsyncCalls.range_of(step)[1] if step.kind == "async" else ThreadCalls.most
        calls = f"1 to {most} {MANY[step.kind]}"
    return f"{calls}, {'in order' if step.ordered else 'as they finish'}"
