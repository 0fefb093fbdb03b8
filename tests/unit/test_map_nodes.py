"""`map`, `filter` and `flat_map`: how they run their function, and the random numbers of `map`."""

from __future__ import annotations

import asyncio
import functools
import pickle
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncfeed.attempts.skip import skip_of
from asyncfeed.errors import PipelineError
from asyncfeed.randomness.generator import generator_at
from asyncfeed.stages.filter import Filter
from asyncfeed.stages.flat_map import FlatMap
from asyncfeed.stages.map import Map

Stage = type[Map] | type[Filter] | type[FlatMap]
STAGES = [Map, Filter, FlatMap]


def plain(item: Any) -> Any:
    return item


async def waits(item: Any) -> Any:
    return item


def yields(item: Any) -> Iterator[Any]:
    yield item


async def streams(item: Any) -> AsyncIterator[Any]:
    yield item


class Waits:
    """An object whose call is awaited."""

    async def __call__(self, item: Any) -> Any:
        return item

    async def method(self, item: Any) -> Any:
        return item


def draws(item: int, generator: np.random.Generator) -> float:
    return item + generator.random()


async def waits_and_draws(item: int, generator: np.random.Generator) -> float:
    return draws(item, generator)


@dataclass
class Where:
    """A place."""

    epoch: int
    ordinal: Any

    def name(self, member: int | None = None) -> str:
        return f"{self.ordinal}[{member}]"


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    ("fn", "kind"),
    [
        (plain, "thread"),
        (str, "thread"),
        (Waits, "thread"),
        (functools.partial(plain), "thread"),
        (waits, "async"),
        (functools.partial(functools.partial(waits)), "async"),
        (Waits(), "async"),
        (Waits().method, "async"),
        (functools.partial(Waits()), "async"),
    ],
)
def test_a_function_runs_where_it_belongs(stage: Stage, fn: Any, kind: str) -> None:
    (step,) = stage(fn).steps()
    assert step.kind == kind
    assert step.fn is fn
    assert not step.placed


def test_flat_map_goes_through_generators() -> None:
    assert FlatMap(yields).steps()[0].kind == "thread"
    assert FlatMap(streams).steps()[0].kind == "async"


@pytest.mark.parametrize("stage", [Map, Filter])
@pytest.mark.parametrize("fn", [yields, streams, functools.partial(yields)])
def test_only_flat_map_takes_generators(stage: Stage, fn: Any) -> None:
    with pytest.raises(PipelineError, match=r"is a generator function; use flat_map\(fn\)"):
        stage(fn)


@pytest.mark.parametrize(("stage", "shape"), [(Map, "map"), (Filter, "filter"), (FlatMap, "flat")])
def test_a_step_says_what_becomes_of_the_result_and_carries_the_policy(stage: Stage, shape: str) -> None:
    (step,) = stage(plain, concurrency=3, ordered=False, on_error="skip", skip_limit=5).steps()
    assert (step.shape, step.concurrency, step.ordered, step.skip) == (shape, 3, False, skip_of("skip", 5))
    (step,) = stage(plain).steps()
    assert (step.concurrency, step.ordered, step.skip) == ("auto", True, None)


def test_map_keeps_the_number_of_items_unless_some_may_be_skipped() -> None:
    assert Map(plain).length(7) == 7
    assert Map(plain, on_error="skip", skip_limit=1).length(7) is None
    assert Filter(plain).length(7) is None
    assert FlatMap(plain).length(7) is None


def test_what_a_partial_holds_is_not_shown() -> None:
    """It may be all of the user's data, and the name of a stage is in that of each of its workers."""
    scaled = functools.partial(plain, scale=list(range(100_000)))
    assert str(Map(scaled)) == "map(partial(plain, ...))"
    assert str(Map(functools.partial(scaled, 1))) == "map(partial(plain, ...))"


def test_stages_are_values_and_show_as_they_are_written() -> None:
    assert Map(plain) == Map(plain) != Map(str)
    assert str(Map(plain, rng=True, seed=3)) == "map(plain, rng=True, seed=3)"
    assert str(Filter(plain)) == "filter(plain)"
    assert str(FlatMap(plain, concurrency=2)) == "flat_map(plain, concurrency=2)"


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    ("wrong", "fix"),
    [
        ({"fn": 3}, "the function must be callable, not 3"),
        ({"concurrency": 0}, "concurrency must be"),
        ({"on_error": "skip"}, "needs a skip_limit"),
        ({"on_error": "skip", "skip_limit": -1}, "skip_limit must be"),
    ],
)
def test_a_wrong_description_is_refused_and_names_the_stage(stage: Stage, wrong: dict[str, Any], fix: str) -> None:
    with pytest.raises(PipelineError, match=rf"^{stage.method}: .*{fix}"):
        stage(**{"fn": plain, **wrong})


@pytest.mark.parametrize(
    ("wrong", "fix"),
    [
        ({"seed": -1, "rng": True}, "seed must be at least 0"),
        ({"seed": 1.5, "rng": True}, "seed must be a whole number"),
        ({"seed": 2**64, "rng": True}, "less than 2"),
        ({"seed": 1}, "does nothing without rng=True"),
    ],
)
def test_a_wrong_seed_is_refused(wrong: dict[str, Any], fix: str) -> None:
    with pytest.raises(PipelineError, match=fix):
        Map(draws, **wrong)


# Random numbers


def test_a_function_draws_by_its_place() -> None:
    (step,) = Map(draws, rng=True, seed=7).steps()
    assert step.placed
    assert step.kind == "thread"
    assert step.fn(100, Where(2, 5)) == 100 + generator_at(7, 2, 5).random()
    assert pickle.loads(pickle.dumps(step.fn)) == step.fn


def test_an_async_function_draws_the_same() -> None:
    (step,) = Map(waits_and_draws, rng=True, seed=7).steps()
    assert step.placed
    assert step.kind == "async"
    assert asyncio.run(step.fn(100, Where(2, 5))) == 100 + generator_at(7, 2, 5).random()
    assert pickle.loads(pickle.dumps(step.fn)) == step.fn


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ((0, 0, 0), [213000021201967259, 4455796210202625458]),
        ((7, 2, 41), [4249201577162374991, 591428282867914143]),
        ((2**64 - 1, 3, 2**40), [6782303782635472697, 381271913236294596]),
        ((7, 0, (5, 3)), [13590722550911961487, 3501173449357810248]),
        ((7, 0, range(4)), [3667097561366115413, 555071711768656088]),
        ((7, 1, [(1, 0), (1, 1)]), [12225589042945397121, 7974985924465278199]),
    ],
)
def test_the_numbers_are_the_same_on_every_machine(place: tuple[int, int, Any], expected: list[int]) -> None:
    assert generator_at(*place).bit_generator.random_raw(2).tolist() == expected


ORDINALS = st.recursive(st.integers(0, 2**62), lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=8)


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**40), ORDINALS), min_size=2, unique=True))
def test_different_places_draw_different_numbers(places: list[tuple[int, int, Any]]) -> None:
    drawn = {tuple(generator_at(*place).bit_generator.random_raw(2).tolist()) for place in places}
    assert len(drawn) == len(places)


@given(ORDINALS)
def test_equal_places_draw_equal_numbers_whatever_they_are_made_of(ordinal: Any) -> None:
    def otherwise(each: Any) -> Any:
        return list(map(otherwise, each)) if isinstance(each, tuple) else np.int64(each)

    assert generator_at(1, 2, ordinal).random() == generator_at(1, 2, otherwise(ordinal)).random()


def test_a_range_is_the_sequence_of_its_numbers() -> None:
    assert generator_at(1, 2, range(3)).random() == generator_at(1, 2, (0, 1, 2)).random()


def test_the_numbers_are_those_of_numpy_philox() -> None:
    reference = np.random.Philox(key=[7, 0], counter=[0, 0, 5, 2])
    assert generator_at(7, 2, 5).bit_generator.random_raw() == reference.random_raw()


def test_each_call_has_a_generator_of_its_own() -> None:
    first, second = generator_at(0, 0, 0), generator_at(0, 0, 0)
    first.random(100)
    assert second.random() == generator_at(0, 0, 0).random()
