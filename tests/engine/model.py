"""What pipelines mean: their epochs in plain Python, item by item, with what ends a run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

import asyncfeed as af
from asyncfeed.randomness.generator import generator_at
from asyncfeed.randomness.permutation import Permutation
from asyncfeed.stages.shuffle import BufferShuffle
from tests.engine.failing import Oops
from tests.engine.inside import ENDLESS


class At(NamedTuple):
    """A value, and where it stands: the epoch of its source, and its ordinal in it."""

    value: int
    epoch: int
    ordinal: Any


class Bad(NamedTuple):
    """Stands where an item failed, and always last: the run ends here, after all before it."""

    number: int
    """What the error says."""
    epoch: int
    ordinal: Any


Items = list[Any]
"""Items of an epoch, each an `At`; the last may be a `Bad`."""
Pass = Callable[[int], Items]
"""Returns what a pipeline delivers in its epoch of this number."""
Meaning = Callable[[Items, int], Items]
"""Returns what a stage makes of the items of an epoch, whose number it is told."""


def good(items: Items) -> Items:
    """Return the items without the failure at their end."""
    return items[:-1] if items and isinstance(items[-1], Bad) else items


def failure(items: Items) -> Items:
    """Return the failure at their end, in a list that is empty if there is none."""
    return items[len(good(items)) :]


class Skips:
    """What one stage with `on_error="skip"` may leave out in a run: a number of items, or a share of them."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.begin()

    def begin(self) -> None:
        """Begin a run."""
        self.seen = 0
        self.left_out: list[int] = []

    def allows(self, number: int) -> bool:
        """Leave an item out, if that is allowed."""
        count = len(self.left_out) + 1
        if count > (self.limit if self.limit >= 1 else math.ceil(self.limit * (self.seen + count))):
            return False
        self.left_out.append(number)
        return True


class Expected(NamedTuple):
    """What a run delivers, how it ends, and what it leaves out."""

    values: list[int]
    bad: Bad | None
    left_out: list[int]


@dataclass(repr=False)
class Case:
    """A pipeline of numbers, and what each of its epochs is by the book."""

    pipeline: af.Pipeline[Any]
    of_epoch: Pass
    by_number: bool = False
    """Whether its items can be reached by number, so that an exact shuffle may follow."""
    movable: bool = False
    """Whether only maps of single items follow items that can be reached by number, so that a shuffle may, too."""
    renumbers: bool = False
    """Whether a `take` or `skip` that follows is worked into the source, and so numbers the items anew."""
    random: int = 0
    """How many random stages it has."""
    skips: list[Skips] = field(default_factory=list)
    fails: bool = False
    """Whether an item may end the run."""
    cuts: bool = False
    """Whether a stage may want no more while those before it go on: what they leave out then depends on timing."""
    ordered: bool = True
    """Whether the order is known. If not, all else is, but for what comes before a failure."""
    known: bool = True
    """Whether the ordinals are known."""

    def run(self, number: int = 0, count: int = 1) -> list[Expected]:
        """Return a run of some epochs, each for itself."""
        for each in self.skips:
            each.begin()
        out: list[Expected] = []
        for epoch in range(number, number + count):
            before = [len(each.left_out) for each in self.skips]
            items = self.of_epoch(epoch)
            left_out = [
                number for each, start in zip(self.skips, before, strict=True) for number in each.left_out[start:]
            ]
            out.append(Expected([at.value for at in good(items)], next(iter(failure(items)), None), left_out))
            if out[-1].bad is not None:
                break
        return out

    def epoch(self, number: int = 0) -> list[int]:
        """Return the values of one epoch."""
        return self.run(number)[0].values

    def __repr__(self) -> str:
        return repr(self.pipeline)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # hypothesis prints it so
        printer.text(repr(self))


# -- what stages mean


def calls(fn: Callable[[At], Iterable[At]], skips: Skips | None = None) -> Meaning:
    """Return the items with what a function makes of each; what it raises ends them, or is left out."""

    def out(items: Items, _: int) -> Items:
        made: Items = []
        for at in good(items):
            try:
                for each in fn(at):
                    made.append(each)
                    if skips is not None:
                        skips.seen += 1
            except Oops as error:
                if skips is None or not skips.allows(error.args[0]):
                    return [*made, Bad(error.args[0], at.epoch, at.ordinal)]
        return made + failure(items)

    return out


def mapped(fn: Callable[[int], int], skips: Skips | None = None) -> Meaning:
    return calls(lambda at: [at._replace(value=fn(at.value))], skips)


def kept(fn: Callable[[int], bool], skips: Skips | None = None) -> Meaning:
    return calls(lambda at: [at] if fn(at.value) else [], skips)


def expanded(fn: Callable[[int], Iterable[int]], skips: Skips | None = None) -> Meaning:
    def children(at: At) -> Iterator[At]:
        for place, value in enumerate(fn(at.value)):
            yield At(value, at.epoch, (at.ordinal, place))

    return calls(children, skips)


def in_turns(fn: Callable[[int], Iterable[int]], cycle: int, block: int) -> Meaning:
    """Return the children of items, `block` of each of `cycle` items in turn, as TensorFlow's `interleave` does."""

    def out(items: Items, _: int) -> Items:
        whole = good(items)
        opened = (
            [At(value, at.epoch, (at.ordinal, place)) for place, value in enumerate(fn(at.value))] for at in whole
        )
        slots: list[Items | None] = [None] * cycle
        sent: Items = []
        turn = 0
        while True:
            if slots[turn] is None:
                slots[turn] = next(opened, None)
            children = slots[turn]
            if children is None:
                if not any(slot is not None for slot in slots):
                    return sent + failure(items)
            else:
                sent += children[:block]
                slots[turn] = children[block:] if len(children) >= block else None
            turn = (turn + 1) % cycle

    return out


def summed(items: Items, _: int) -> Items:
    """Return the sum of each item and all before it."""
    total = 0
    sums = []
    for at in good(items):
        total += at.value
        sums.append(at._replace(value=total))
    return sums + failure(items)


def noisy(fn: Callable[[int, np.random.Generator], int], seed: int) -> Meaning:
    return calls(lambda at: [at._replace(value=fn(at.value, generator_at(seed, at.epoch, at.ordinal)))])


def permuted(seed: int) -> Meaning:
    def shuffled(items: Items, epoch: int) -> Items:
        order = Permutation(len(items), seed, epoch).numbers(np.arange(len(items), dtype=np.uint64))
        return numbered([items[place].value for place in order], epoch)

    return shuffled


def buffered(seed: int, size: int) -> Meaning:
    def shuffled(items: Items, epoch: int) -> Items:
        buffer = BufferShuffle(size, seed)
        buffer.begin(epoch)
        out = list(buffer.push(good(items), range(len(good(items))))[0])
        return out + (failure(items) or list(buffer.flush()[0]))

    return shuffled


def rebatched(size: int, *, drop: bool) -> Meaning:
    """Return the items of batches, out of which they were taken again; a failure leaves its batch unfinished."""

    def out(items: Items, _: int) -> Items:
        whole, bad = good(items), failure(items)
        groups = [whole[start : start + size] for start in range(0, len(whole), size)]
        return [
            At(at.value, group[0].epoch, ([each.ordinal for each in group], place))
            for group in groups
            if len(group) == size or not (drop or bad)
            for place, at in enumerate(group)
        ] + bad

    return out


def taken(count: int) -> Meaning:
    return lambda items, _: items[:count]  # also without a failure right after them


def skipped(count: int) -> Meaning:
    return lambda items, _: good(items)[count:] + failure(items)


def counted(items: Items, _: int) -> Items:
    return [at._replace(value=at.value + place) for place, at in enumerate(good(items))] + failure(items)


def numbered(values: Iterable[int], epoch: int) -> Items:
    return [At(value, epoch, place) for place, value in enumerate(values)]


def repeated(case: Case, count: int) -> Pass:
    """Return the passes as one epoch, up to the first that fails."""

    def of_epoch(epoch: int) -> Items:
        out: Items = []
        for number in range(epoch * count, (epoch + 1) * count):
            out += case.of_epoch(number)
            if failure(out):
                break
        return out

    return of_epoch


def each_epoch_by_itself(case: Case) -> Case:
    """Return the case before a stage that may end its epochs early: what is left out counts in each by itself."""
    before = case.of_epoch

    def of_epoch(epoch: int) -> Items:
        for each in case.skips:
            each.begin()
        return before(epoch)

    return replace(case, of_epoch=of_epoch)


def cut(case: Case, count: int) -> Pass:
    """Return the first `count` items of an endless repeat."""

    def of_epoch(epoch: int) -> Items:
        out: Items = []
        for each in case.skips:
            each.begin()
        for number in itertools.count(epoch * ENDLESS):
            if len(out) >= count or failure(out):
                return out[:count]
            out += case.of_epoch(number)
        raise AssertionError

    return of_epoch


def concatenated(one: Case, other: Case) -> Pass:
    def of_epoch(epoch: int) -> Items:
        items = one.of_epoch(epoch)
        if not failure(items):
            items = items + other.of_epoch(epoch)
        return numbered([at.value for at in good(items)], epoch) + failure(items)

    return of_epoch


def added(one: Case, other: Case) -> Pass:
    """Return the sums of a `zip`, which asks its inputs in turn: the first that ends or fails ends it."""

    def of_epoch(epoch: int) -> Items:
        sums: list[int] = []
        bad: Items = []
        columns = [iter(each.of_epoch(epoch)) for each in (one, other)]
        while not bad:
            row: Items = []
            for column in columns:
                at = next(column, None)
                if at is None or isinstance(at, Bad):
                    bad = [] if at is None else [at]
                    break
                row.append(at)
            if len(row) < len(columns):
                break
            sums.append(sum(at.value for at in row))
        return numbered(sums, epoch) + bad

    return of_epoch


def drawn_from(one: Case, other: Case, weights: tuple[float, float], seed: int, *, all_of_both: bool) -> Pass:
    """Return the items of a `mix`: a random number decides for each place, among the inputs that have not ended."""

    def of_epoch(epoch: int) -> Items:
        bits = np.random.PCG64([seed, 2])
        inputs = {which: iter(each.of_epoch(epoch)) for which, each in enumerate((one, other))}
        values: list[int] = []
        while inputs:
            number = (int(bits.random_raw()) >> 11) * 2.0**-53
            at = None
            while at is None and inputs:
                both = len(inputs) == 2
                which = int(number >= weights[0] / sum(weights)) if both else next(iter(inputs))
                at = next(inputs[which], None)
                if isinstance(at, Bad):
                    return [*numbered(values, epoch), at]
                if at is not None:
                    values.append(at.value)
                elif all_of_both:
                    del inputs[which]
                else:
                    return numbered(values, epoch)
        return numbered(values, epoch)

    return of_epoch


# -- cases after stages


def then(case: Case, pipeline: af.Pipeline[Any], fn: Meaning, **changes: Any) -> Case:
    """Return the case after a stage that makes a stream of the items."""
    before = case.of_epoch
    return replace(
        case, pipeline=pipeline, of_epoch=lambda epoch: fn(before(epoch), epoch),
        **{"by_number": False, "movable": False, "renumbers": False, **changes},
    )  # fmt: skip


def with_policy(case: Case, pipeline: af.Pipeline[Any], fn: Meaning, skips: Skips | None, **changes: Any) -> Case:
    """Return the case after a stage that may leave items out."""
    return then(case, pipeline, fn, skips=case.skips + ([] if skips is None else [skips]), **changes)


def sliced(case: Case, pipeline: af.Pipeline[Any], fn: Meaning, **changes: Any) -> Case:
    """Return the case after a stage that picks by place, which may be worked into the source."""
    before, renumbers = case.of_epoch, case.renumbers

    def of_epoch(epoch: int) -> Items:
        items = fn(before(epoch), epoch)
        return numbered([at.value for at in items], epoch) if renumbers else items

    return replace(case, pipeline=pipeline, of_epoch=of_epoch, **changes)


def merged(one: Case, two: Case, pipeline: af.Pipeline[Any], of_epoch: Any, **changes: Any) -> Case:
    """Return two cases as one; a merge numbers its items anew."""
    return Case(
        pipeline, of_epoch, skips=one.skips + two.skips,
        **{
            "random": max(one.random, two.random), "fails": one.fails or two.fails, "cuts": one.cuts or two.cuts,
            "ordered": one.ordered and two.ordered, "known": one.known and two.known, **changes,
        },
    )  # fmt: skip
