"""`mix`: items of several pipelines, drawn at random."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.stages.mix import BLOCK

LENGTHS = st.lists(st.integers(0, 12), min_size=1, max_size=4)


def numbered(lengths: Sequence[int]) -> list[af.Pipeline[tuple[int, int]]]:
    """Return an input for each length, whose items say where they are from; by number."""
    return [af.items([(which, n) for n in range(length)]) for which, length in enumerate(lengths)]


def streamed(lengths: Sequence[int]) -> list[af.Pipeline[tuple[int, int]]]:
    """Return the same as streams."""

    def make(which: int, length: int) -> Callable[[], Iterator[tuple[int, int]]]:
        return lambda: iter([(which, n) for n in range(length)])

    return [af.items(make(which, length)) for which, length in enumerate(lengths)]


@given(LENGTHS, st.data(), st.sampled_from(["first", "all"]), st.integers(0, 5))
def test_by_number_and_as_streams_it_is_the_same(lengths: list[int], data: Any, stop: Any, seed: int) -> None:
    """Each input keeps its order; with "all" every item comes once, also with a weight for each input."""
    few = st.sampled_from([0, 0.1, 1, 3])
    weights = data.draw(st.none() | st.lists(few, min_size=len(lengths), max_size=len(lengths)).filter(any))
    options = {"weights": weights, "seed": seed, "stop": stop}
    by_number = af.mix(*numbered(lengths), **options)
    mixed = list(by_number)
    assert list(af.mix(*streamed(lengths), **options)) == mixed
    assert len(by_number) == len(mixed)
    drawn = [length if weights is None or weights[which] else 0 for which, length in enumerate(lengths)]
    for which, length in enumerate(drawn):
        own = [n for each, n in mixed if each == which]
        assert own == list(range(len(own)))
        if stop == "all":
            assert len(own) == length


@pytest.mark.parametrize("lengths", [(BLOCK * 2, 50), (BLOCK, BLOCK), (3, BLOCK * 3), (1, 1, BLOCK + 1)])
@pytest.mark.parametrize("stop", ["first", "all"])
def test_it_is_the_same_across_blocks_of_draws(lengths: tuple[int, ...], stop: Any) -> None:
    """Long inputs, one of which may end in any block."""
    mixed = list(af.mix(*numbered(lengths), seed=2, stop=stop))
    assert list(af.mix(*streamed(lengths), seed=2, stop=stop)) == mixed
    scattered = af.mix(*numbered(lengths), seed=2, stop=stop).shuffle(seed=1)
    assert sorted(scattered) == sorted(mixed)


@given(LENGTHS, st.integers(1, 3), st.integers(0, 9), st.sampled_from(["first", "all"]))
def test_each_epoch_begins_anew_and_may_be_cut(lengths: list[int], epochs: int, most: int, stop: Any) -> None:
    """The draws are those of the first epoch, so each epoch is the same."""
    once = list(af.mix(*numbered(lengths), stop=stop))
    for inputs in (numbered, streamed):
        pipeline = af.mix(*inputs(lengths), stop=stop)
        if once[:most]:
            assert list(pipeline.take(most).repeat(epochs)) == once[:most] * epochs
            assert list(pipeline.repeat().take(len(once) + most)) == (once * (1 + most))[: len(once) + most]


def test_how_often_each_is_drawn() -> None:
    """As the weights say; no weights are equal ones."""
    endless = [af.items([which]).repeat() for which in range(3)]
    counts = Counter(af.mix(*endless, weights=[1, 2, 7], seed=4).take(10_000))
    assert all(abs(counts[which] - expected) < 200 for which, expected in enumerate((1000, 2000, 7000)))
    counts = Counter(af.mix(*endless, seed=4).take(9_000))
    assert all(abs(counts[which] - 3000) < 200 for which in range(3))


def test_another_seed_is_another_order_and_a_mix_in_a_mix_draws_other_numbers() -> None:
    """The seed and the random stages before decide."""

    def draws(pipeline: af.Pipeline[Any]) -> list[Any]:
        return list(pipeline.take(64))

    one, other = (af.items([which]).repeat() for which in range(2))
    assert draws(af.mix(one, other, seed=1)) != draws(af.mix(one, other, seed=2))
    inner = af.mix(one, other)
    assert draws(af.mix(inner, inner, seed=0)) != draws(inner)
    shuffled = af.mix(one.shuffle(buffer=1), other)
    assert draws(shuffled) != draws(af.mix(one, other))


def test_an_input_that_fails_names_its_own_item() -> None:
    """The items drawn before it come first."""

    def fails_at_two(item: tuple[int, int]) -> tuple[int, int]:
        if item == (1, 2):
            raise ValueError("two")
        return item

    first, second = numbered([50, 50])
    expected = list(af.mix(first, second, seed=3))
    got = []
    with (
        pytest.raises(ValueError, match="two") as caught,
        af.mix(first, second.map(fails_at_two), seed=3).open() as feed,
    ):
        got.extend(feed)
    assert got == [] or got == expected[: len(got)]
    assert "number 2 (" in "\n".join(caught.value.__notes__) or "number 2 " in "\n".join(caught.value.__notes__)


def test_whether_it_ends() -> None:
    """With "all" it has no end if one has none; with "first" if none has one."""
    endless, ends = af.items([1]).repeat(), af.items([2])
    assert af.mix(endless, ends).size() is None
    assert af.mix(ends, ends).size() == 2
    assert 2 in list(af.mix(endless, ends, stop="first", seed=1))
    assert af.mix(endless, ends, weights=[0, 1]).size() == 1
    assert list(af.mix(endless, ends, weights=[0, 1])) == [2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": [1]}, "2 inputs need one weight each, and 1 were given"),
        ({"weights": [0, 0]}, "and one above 0"),
        ({"weights": [1, -1]}, "at least 0"),
        ({"weights": [1, float("nan")]}, "at least 0"),
        ({"stop": "never"}, 'stop must be "first" or "all"'),
        ({"seed": -1}, "seed must be at least 0"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    """Early, with what is asked for."""
    with pytest.raises(af.PipelineError, match=message):
        af.mix(*numbered([1, 1]), **options)
    with pytest.raises(af.PipelineError, match="mix takes pipelines, not list"):
        af.mix([1, 2])  # type: ignore[arg-type]


def test_a_mix_can_be_pickled_after_its_length_was_asked_for() -> None:
    """What it remembers of its inputs by number is made again."""
    pipeline = af.mix(af.items(range(4)), af.items(range(3)), seed=1)
    assert len(pipeline) == 7
    again = pickle.loads(pickle.dumps(pipeline))
    assert again == pipeline
    assert list(again) == list(pipeline)
