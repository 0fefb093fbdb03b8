"""Pipelines that hypothesis draws, with what they mean."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.randomness import stage_seed
from tests.engine import in_worker
from tests.engine.drawn_functions import (
    Fails,
    Groups,
    add,
    add_later,
    at_once,
    copies,
    countdown,
    double,
    late_noise,
    most,
    noise,
    thirds,
    ticks,
    waits,
)
from tests.engine.drawn_sources import concurrency, failing_sources, policy, sources
from tests.engine.model import (
    Case,
    added,
    buffered,
    concatenated,
    counted,
    cut,
    drawn_from,
    each_epoch_by_itself,
    expanded,
    in_turns,
    kept,
    mapped,
    merged,
    noisy,
    permuted,
    rebatched,
    repeated,
    skipped,
    sliced,
    summed,
    taken,
    then,
    with_policy,
)

MAPS = ["map", "async map", "quick map", "noise", "late noise"]
FILTERS = ["filter", "async filter"]
FLAT = ["flat list", "flat lazy", "flat async", "flat groups"]
PLACES = ["take", "skip", "repeat", "cut", "enumerate", "shuffle", "buffer shuffle", "take", "repeat"]
OTHERS = ["batch", "rebatch", "prefetch", "interleave", "zip", "concat", "mix", "scan"]
RANDOM = ["noise", "late noise", "shuffle", "buffer shuffle"]
ALL = MAPS + FILTERS + FLAT + PLACES + OTHERS
FAILING = [f"failing {kind}" for kind in ("map", "async map", *FILTERS, *FLAT)]
UNORDERED = ["map", "async map", "late noise", *FILTERS, *FLAT]
"""What can be unordered; also what an unordered stage may precede, as each item is on its own there."""
ALONE = [*MAPS, *FILTERS, *FLAT, *FAILING, "repeat", "prefetch", "concat", "whole batch", "buffer shuffle"]
"""Where the order of the items decides nothing but the order."""


@st.composite
def pipelines(draw: st.DrawFn, depth: int = 5) -> Case:
    """Draw a pipeline of whole numbers; every stage is ordered and succeeds, so there is one right answer."""
    case = draw(sources())
    for _ in range(draw(st.integers(0, depth))):
        case = draw(one_more(case))
    return case


@st.composite
def failing(draw: st.DrawFn, depth: int = 4) -> Case:
    """Draw a pipeline in which items fail, and end the run or are left out; there is one right answer, too."""
    case = draw(sources().filter(Case.epoch) | failing_sources())
    for _ in range(draw(st.integers(0, 2))):
        case = draw(one_more(case))
    case = draw(one_more(case, FAILING))
    if draw(st.booleans()):  # what fails may not be wanted
        for kinds in (
            ["prefetch", "map", "batch", "take"],
            ["take", "zip", "cut"],
            ["repeat", "take", "enumerate"],
        ):
            case = draw(one_more(case, kinds))
    for _ in range(draw(st.integers(0, depth))):
        case = draw(one_more(case, ALL + FAILING))
    return case


@st.composite
def unordered(draw: st.DrawFn, depth: int = 4) -> Case:
    """Draw a pipeline with a stage that hands results on as they come: the items are known, their order is not."""
    case = draw(sources())
    for _ in range(draw(st.integers(0, 2))):
        case = draw(one_more(case))
    case = draw(one_more(case, UNORDERED, ordered=False))
    for _ in range(draw(st.integers(0, depth))):
        case = draw(one_more(case, ALONE, ordered=draw(st.booleans())))
    return case


@st.composite
def cut_short(draw: st.DrawFn) -> Case:
    """Draw a pipeline with random numbers in which a `take` cuts a `repeat` short, and is repeated."""
    case = draw(sources().filter(lambda case: len(case.epoch()) > 3))
    for kinds in (RANDOM, RANDOM + FILTERS + ["batch"], [*FILTERS, "batch", "noise", "prefetch", "zip"]):
        if draw(st.booleans()):
            case = draw(one_more(case, kinds))
    case = draw(one_more(case, ["cut", "repeat"]))
    for kinds in (RANDOM, ["take"], ["repeat"], [*RANDOM, "batch"], ["take", "repeat", "noise"]):
        case = draw(one_more(case, kinds))
    return case


@st.composite
def in_processes(draw: st.DrawFn) -> Case:
    """Draw a pipeline with stages that run in worker processes, and few items."""
    case = draw(sources())
    for kinds in (ALL, ["process map"], [*ALL, "process map"], [*PLACES, "batch"]):
        case = draw(one_more(case, kinds))
    return case


def may_follow(case: Case, kind: str) -> bool:
    """Return whether a stage may follow a case, and what comes out is known."""
    match kind:
        case "noise" | "late noise":
            return case.known
        case "shuffle":
            return case.by_number or case.movable
        case "interleave":
            return "repeat(" not in repr(case)  # it mixes no items of two passes
        case "cut":
            leaves_out = any(word in repr(case) for word in ("filter", "flat_map", "skip_limit"))
            # An endless repeat of an epoch without items is an error.
            return len(case.epoch()) > 3 and not (case.random and leaves_out)
    return True


@st.composite
def one_more(draw: st.DrawFn, case: Case, kinds: list[str] = ALL, *, ordered: bool = True) -> Case:
    """Draw a stage of one of these kinds after a case; the case itself, if that cannot follow it."""
    kinds = [kind for kind in kinds if may_follow(case, kind)]
    if not kinds:
        return case
    kind = draw(st.sampled_from(kinds))
    how: dict[str, Any] = {"concurrency": draw(concurrency)}
    if not ordered:
        how["ordered"] = False
        case = replace(case, ordered=False)
    if kind in FAILING:
        return draw(failing_stage(case, kind.removeprefix("failing "), how))
    if kind in PLACES:
        return draw(placed(case, kind))
    if kind in OTHERS or kind == "whole batch":
        return draw(other(case, kind))
    p = case.pipeline
    movable = ordered and (case.by_number or case.movable)
    match kind:
        case "map":
            return then(case, p.map(double, **how), mapped(double), movable=movable)
        case "async map":
            return then(case, p.map(waits, **how), mapped(lambda x: x + 1), movable=movable)
        case "quick map":
            return then(case, p.map(at_once, **how), mapped(lambda x: x + 1), movable=movable)
        case "process map":
            return then(
                case, p.map(in_worker.double, on="process", concurrency=draw(st.integers(1, 2))), mapped(double)
            )
        case "noise" | "late noise":
            seed = draw(st.integers(0, 2))
            fn: Any = noise if kind == "noise" else late_noise
            meaning = noisy(noise, stage_seed(seed, case.random))
            return then(case, p.map(fn, rng=True, seed=seed, **how), meaning, random=case.random + 1)
        case "filter":
            return then(case, p.filter(most, **how), kept(most))
        case "async filter":
            return then(case, p.filter(thirds, **how), kept(lambda x: x % 3 != 1))
        case "flat list":
            return then(case, p.flat_map(copies, **how), expanded(copies))
        case "flat lazy":
            return then(case, p.flat_map(countdown, **how), expanded(countdown))
        case "flat async":
            return then(case, p.flat_map(ticks, **how), expanded(lambda x: range((x + 1) % 3)))
        case "flat groups":
            return then(case, p.flat_map(Groups(copies), **how), expanded(copies))
    return case


@st.composite
def failing_stage(draw: st.DrawFn, case: Case, kind: str, how: dict[str, Any]) -> Case:
    """Draw a stage whose function fails for some numbers, with what becomes of those."""
    fails = Fails(every := draw(st.sampled_from([60, 40, 23, 11, 3])), draw(st.integers(0, every - 1)))
    options, skips = policy(draw)
    if skips is not None and skips.limit < math.inf and not case.ordered:
        options, skips = {}, None  # which items are left out depends on timing
    method, fn, meaning = {
        "map": ("map", fails.check, mapped(fails.check, skips)),
        "async map": ("map", fails.later, mapped(fails.check, skips)),
        "filter": ("filter", fails.keeps, kept(fails.keeps, skips)),
        "async filter": ("filter", fails.keeps_later, kept(fails.keeps, skips)),
        "flat list": ("flat_map", fails.lists, expanded(fails.lists, skips)),
        "flat lazy": ("flat_map", fails.yields, expanded(fails.yields, skips)),
        "flat async": ("flat_map", fails.yields_later, expanded(fails.yields, skips)),
        "flat groups": ("flat_map", Groups(fails.yields), expanded(fails.yields, skips)),
    }[kind]
    pipeline = getattr(case.pipeline, method)(fn, **how, **options)
    return with_policy(case, pipeline, meaning, skips, fails=case.fails or skips is None or skips.limit < math.inf)


@st.composite
def placed(draw: st.DrawFn, case: Case, kind: str) -> Case:
    """Draw a stage that depends on places."""
    p = case.pipeline
    seed = draw(st.integers(0, 2))
    own_seed = stage_seed(seed, case.random)
    match kind:
        case "take":
            n = draw(st.integers(1, 40) | st.integers(0, len(case.epoch()) + 2))
            return sliced(each_epoch_by_itself(case), p.take(n), taken(n), cuts=True)
        case "skip":
            n = draw(st.integers(0, 4) | st.integers(0, 4) | st.integers(0, 40))
            return sliced(case, p.skip(n), skipped(n), movable=False)
        case "enumerate":
            place_by_place = sliced(case, p.enumerate(), lambda items, _: items)
            return then(place_by_place, p.enumerate().map(sum, concurrency=draw(concurrency)), counted)
        case "repeat":
            n = draw(st.integers(1, 3))
            return replace(case, pipeline=p.repeat(n), of_epoch=repeated(case, n), renumbers=False, movable=False)
        case "cut":
            n = draw(st.integers(0, 2 * len(case.epoch())))
            return replace(
                case, pipeline=p.repeat().take(n), of_epoch=cut(case, n), by_number=False, movable=False,
                renumbers=False, cuts=True,
            )  # fmt: skip
        case "shuffle":
            before = case.of_epoch
            return replace(
                case, pipeline=p.shuffle(seed=seed), renumbers=case.by_number, random=case.random + 1,
                of_epoch=lambda epoch: permuted(own_seed)(before(epoch), epoch),
            )  # fmt: skip
        case "buffer shuffle":
            n = draw(st.integers(1, 30))
            return then(case, p.shuffle(seed=seed, buffer=n), buffered(own_seed, n), random=case.random + 1)
    return case


@st.composite
def other(draw: st.DrawFn, case: Case, kind: str) -> Case:
    """Draw a stage that gathers, waits or merges."""
    p = case.pipeline
    match kind:
        case "batch" | "whole batch":
            n, drop = draw(st.integers(1, 7)), kind == "batch" and draw(st.booleans())
            unbatched = p.batch(n, drop_remainder=drop).unbatch().map(int)
            return then(case, unbatched, rebatched(n, drop=drop), known=case.known and case.ordered)
        case "rebatch":
            m, n, drop = draw(st.integers(1, 7)), draw(st.integers(1, 7)), draw(st.booleans())
            rows = p.batch(m).rebatch(n, drop_remainder=drop).unbatch().map(int)
            first, second = rebatched(m, drop=False), rebatched(n, drop=drop)
            return then(
                case, rows, lambda items, epoch: second(first(items, epoch), epoch),
                known=case.known and case.ordered,
            )  # fmt: skip
        case "interleave":
            cycle, block = draw(st.integers(1, 4)), draw(st.integers(1, 3))
            fn: Any = draw(st.sampled_from([copies, countdown]))
            return then(case, p.interleave(fn, cycle=cycle, block=block), in_turns(fn, cycle, block))
        case "scan":
            fn = draw(st.sampled_from([add, add_later]))
            return then(case, p.scan(fn, 0), summed)
        case "prefetch":
            queue = p.prefetch(draw(st.integers(1, 4)))
            return then(case, queue, lambda items, _: items, renumbers=case.renumbers)
        case "zip":
            one, two = map(each_epoch_by_itself, draw(st.permutations([case, draw(pipelines(depth=2))])))
            pipeline = af.zip(one.pipeline, two.pipeline, strict=False).map(sum)
            return merged(one, two, pipeline, added(one, two), cuts=True)
        case "concat":
            one, two = draw(st.permutations([case, draw(pipelines(depth=2))]))
            indexed = one.by_number and two.by_number
            both = merged(one, two, af.concat(one.pipeline, two.pipeline), concatenated(one, two))
            return replace(both, by_number=indexed, renumbers=indexed, known=case.known and case.ordered)
        case "mix":
            one, two = draw(st.permutations([case, draw(pipelines(depth=2))]))
            seed, weights = draw(st.integers(0, 2)), draw(st.sampled_from([(1.0, 1.0), (0.9, 0.1), (1.0, 3.0)]))
            stop: Any = draw(st.sampled_from(["all", "first"]))
            if stop == "first":
                one, two = map(each_epoch_by_itself, (one, two))
            random = max(one.random, two.random)
            of_epoch = drawn_from(one, two, weights, stage_seed(seed, random), all_of_both=stop == "all")
            pipeline = af.mix(one.pipeline, two.pipeline, weights=weights, seed=seed, stop=stop)
            both = merged(one, two, pipeline, of_epoch, cuts=one.cuts or two.cuts or stop == "first")
            indexed = pipeline.indexed() is not None
            return replace(
                both, by_number=indexed, renumbers=indexed, random=random + 1, known=case.known and case.ordered
            )
    return case
