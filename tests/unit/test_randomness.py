"""The random numbers of a description: known answers, and what they do not depend on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.randomness import mix, stage_seed
from asyncfeed.randomness.generator import generator_at

if TYPE_CHECKING:
    from collections.abc import Callable


def draw(item: Any, rng: np.random.Generator) -> tuple[Any, float]:  # noqa: ANN401
    return item, float(rng.random())


async def draw_async(item: Any, rng: np.random.Generator) -> tuple[Any, float]:  # noqa: ANN401
    return item, float(rng.random())


def same(item: Any) -> Any:  # noqa: ANN401
    return item


NUMBERS = af.items(range(2000))


# -- known answers: these numbers never change between versions


def test_known_seeds_of_stages() -> None:
    assert [stage_seed(7, stream) for stream in range(4)] == [
        7, 2875738036014693257, 16129155333475108587, 17670481865470212032,
    ]  # fmt: skip
    assert mix(0) == 16294208416658607535
    assert mix(1, 2, 3) == 7702586659592502839
    assert mix(2**64 + 5) == mix(5)


def test_known_orders_of_shuffles() -> None:
    ten = af.items(range(10))
    assert list(ten.shuffle(seed=7)) == [3, 7, 1, 6, 4, 0, 9, 5, 8, 2]
    assert list(ten.shuffle(seed=7).shuffle(seed=7)) == [4, 5, 1, 2, 8, 9, 0, 7, 3, 6]
    assert list(ten.shuffle(seed=7, buffer=4)) == [2, 3, 5, 0, 1, 6, 9, 8, 4, 7]
    after_a_random_map = ten.map(draw, rng=True).map(lambda pair: pair[0]).shuffle(seed=7, buffer=4)
    assert list(after_a_random_map) == [3, 0, 4, 6, 5, 7, 2, 9, 8, 1]


def test_known_numbers_of_maps() -> None:
    twice = af.items(range(3)).map(draw, rng=True, seed=7).map(draw, rng=True, seed=7)
    assert [(first, second) for (_, first), second in twice] == [
        (0.8720734548204873, 0.47302253404358496),
        (0.10281709468611455, 0.7471276323184592),
        (0.9063653532456504, 0.6807343773208335),
    ]
    assert generator_at(7, 1, 3).random() == 0.001073713053232006
    assert generator_at(7, 2**64 + 1, 3).random() == 0.8428279753333358


# -- two stages


@pytest.mark.parametrize("second", [draw, draw_async], ids=["sync", "async"])
def test_two_random_maps_draw_independent_numbers(second: Callable[..., Any]) -> None:
    pairs = [(a, b) for (_, a), b in NUMBERS.map(draw, rng=True).map(second, rng=True)]
    assert abs(np.corrcoef(np.array(pairs).T)[0, 1]) < 0.1


def test_each_of_many_random_maps_draws_its_own_numbers() -> None:
    pipeline: af.Pipeline[Any] = af.items(range(50))
    for _ in range(5):
        pipeline = pipeline.map(draw, rng=True, seed=3)
    seen = []
    for item in pipeline:
        while isinstance(item, tuple):
            item, number = item
            seen.append(number)
    assert len(set(seen)) == 250


@pytest.mark.parametrize("buffer", [None, 500])
def test_two_shuffles_are_two_permutations(buffer: int | None) -> None:
    """The second is not the first once more: that would put many items back, or cycle a few orders."""
    once = list(NUMBERS.shuffle(seed=1, buffer=buffer))
    again = list(af.items(once).shuffle(seed=1, buffer=buffer))  # in a description of its own: the same numbers
    twice = list(NUMBERS.shuffle(seed=1, buffer=buffer).shuffle(seed=1, buffer=buffer))
    assert sorted(twice) == list(range(2000))
    assert twice != again


def test_a_shuffle_and_the_map_after_it_keep_their_numbers_in_other_company() -> None:
    """The first random stage has the numbers of its seed, in any description that begins the same way."""
    assert list(NUMBERS.shuffle(seed=5)) == [x for x, _ in NUMBERS.shuffle(seed=5).map(draw, rng=True)]


@pytest.mark.parametrize(
    "insert",
    [
        lambda p: p.map(same),
        lambda p: p.filter(lambda _: True),
        lambda p: p.prefetch(3),
        lambda p: p.take(10_000),
        lambda p: p.skip(0),
        lambda p: p.map(same, ordered=False),
    ],
)
def test_a_stage_that_draws_nothing_changes_no_numbers(insert: Callable[[Any], Any]) -> None:
    numbers = af.items(range(100))
    plain = numbers.shuffle(seed=3).map(draw, rng=True).map(draw, rng=True)
    for pipeline in (
        insert(numbers).shuffle(seed=3, buffer=10).map(draw, rng=True),
        insert(numbers.shuffle(seed=3, buffer=10)).map(draw, rng=True),
    ):
        assert sorted(pipeline) == sorted(numbers.shuffle(seed=3, buffer=10).map(draw, rng=True))
    inserted = insert(numbers.shuffle(seed=3).map(draw, rng=True)).map(draw, rng=True)
    assert sorted(inserted) == sorted(plain)


def test_a_pipeline_delivers_the_same_inside_a_zip_as_alone() -> None:
    """So two lists shuffled with one seed stay pairs."""
    images = NUMBERS.shuffle(seed=4).map(draw, rng=True)
    labels = NUMBERS.shuffle(seed=4)
    both = list(af.zip(images, labels))
    assert both == list(zip(images, labels, strict=True))
    assert all(image == label for (image, _), label in both)


def test_a_stage_after_a_zip_draws_other_numbers_than_its_inputs() -> None:
    both = af.zip(NUMBERS.map(draw, rng=True), NUMBERS).map(draw, rng=True)
    pairs = np.array([(a, b) for ((_, a), _), b in both])
    assert abs(np.corrcoef(pairs.T)[0, 1]) < 0.1


def test_equal_descriptions_are_equal_with_their_streams() -> None:
    one = NUMBERS.shuffle(seed=1).map(draw, rng=True)
    assert one == NUMBERS.shuffle(seed=1).map(draw, rng=True)
    assert str(one.map(draw, rng=True)).count("stream") == 0


# -- without reshuffling


@pytest.mark.parametrize("buffer", [None, 8])
def test_without_reshuffling_every_epoch_has_the_first_order(buffer: int | None) -> None:
    fixed = af.items(range(30)).shuffle(seed=2, buffer=buffer, reshuffle=False)
    first = list(af.items(range(30)).shuffle(seed=2, buffer=buffer))
    assert list(fixed.repeat(3)) == first * 3
    assert list(fixed.open(epoch=5)) == first
    assert repr(fixed).endswith("reshuffle=False)")


def test_reshuffle_is_yes_or_no() -> None:
    with pytest.raises(af.PipelineError, match="reshuffle must be True or False, not 1"):
        af.items(range(3)).shuffle(reshuffle=1)  # type: ignore[arg-type]
