"""Split: parts that share no item, in any epoch, and are everything together."""

from __future__ import annotations

import itertools
import pickle
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncfeed as af
from tests.searching import sampled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from asyncfeed.pipeline import Pipeline


def stream() -> Iterator[int]:
    yield from range(500)


def patient(item: int) -> str:
    return f"patient {item // 5}"


def itself(item: int) -> int:
    return item


class Dataset:
    """Items that are read by the user's code."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> int:
        if not 0 <= number < self.count:
            raise IndexError(number)
        self.read.append(number)
        return number


SIZED = af.items(range(500))


# -- every kind of source and of part


@sampled(16)
@pytest.mark.parametrize(
    "whole",
    [
        SIZED,
        SIZED.skip(3).take(400).map(itself),
        SIZED.shuffle(reshuffle=False),
        SIZED.enumerate().map(lambda pair: pair[1]),
        af.concat(af.items(range(250)), af.items(range(250, 500))),
        af.zip(SIZED, SIZED).map(lambda pair: pair[0]),
        SIZED.filter(lambda _: True),
        SIZED.shuffle(buffer=20),
        SIZED.map(itself, ordered=False),
        SIZED.flat_map(lambda x: [2 * x, 2 * x + 1]),
        af.items(stream),
        af.items(stream).shuffle(buffer=50),
        af.concat(af.items(stream), af.items(lambda: iter(range(500, 600)))),
        af.items(Dataset(500)),
        af.items(Dataset(500)).map(itself),
        af.items(Dataset(500), on_error="skip", skip_limit=3),
    ],
    ids=str,
)
@pytest.mark.parametrize("key", [None, patient, itself])
def test_the_parts_share_no_item_in_any_epoch_and_are_everything(
    whole: Pipeline[Any], key: Callable[[int], Any] | None
) -> None:
    parts = whole.split(0.5, 0.3, 0.2, seed=3, key=key)
    epochs = [[sorted(part.open(epoch=epoch)) for part in parts] for epoch in range(3)]
    assert epochs[0] == epochs[1] == epochs[2]
    assert sorted(itertools.chain(*epochs[0])) == sorted(whole)
    for part, share in zip(epochs[0], (0.5, 0.3, 0.2), strict=True):
        assert abs(len(part) / len(list(whole)) - share) < (0.15 if key is patient else 0.1)  # of 100 patients
    assert [sorted(part.shuffle(seed=1, buffer=9).open(epoch=4)) for part in parts] == epochs[0]


def test_the_obvious_split_of_images_does_not_leak() -> None:
    """Shuffled anew each epoch, no part ever shows an item of the other."""
    train, test = (part.shuffle(seed=7) for part in SIZED.split(0.8, 0.2, seed=7))
    seen = {item for epoch in train.epochs(3) for item in epoch}
    assert seen.isdisjoint(item for epoch in test.epochs(3) for item in epoch)
    assert len(seen) == 400


# -- by index


@given(st.integers(0, 300), st.lists(st.integers(1, 9), min_size=2, max_size=5), st.integers(0, 9))
@settings(max_examples=50)
def test_items_that_are_reached_by_number_are_dealt_out_exactly(n: int, weights: list[int], seed: int) -> None:
    shares = [weight / sum(weights) for weight in weights]
    parts = af.items(range(n)).split(*shares, seed=seed)
    assert sorted(itertools.chain(*parts)) == list(range(n))
    for part, share in zip(parts, shares, strict=True):
        assert abs(len(part) - share * n) <= 1
        assert list(part) == list(part.open(epoch=3))


def test_known_parts() -> None:
    """These never change between versions."""
    assert [list(part) for part in af.items(range(10)).split(0.7, 0.3, seed=7)] == [
        [3, 7, 1, 6, 4, 0, 9],
        [5, 8, 2],
    ]
    keyed = af.items(range(10)).split(0.7, 0.3, seed=7, key=str)
    assert [list(part) for part in keyed] == [[0, 1, 2, 3, 4, 5, 6, 8, 9], [7]]
    ordinal = af.items(lambda: iter(range(10))).split(0.7, 0.3, seed=7)
    assert [list(part) for part in ordinal] == [[1, 4, 6, 7, 8, 9], [0, 2, 3, 5]]


def test_another_seed_makes_other_parts() -> None:
    for key in (None, itself):
        first, second = (set(SIZED.split(0.5, 0.5, seed=seed, key=key)[0]) for seed in (0, 1))
        assert 80 < len(first & second) < 170


def test_a_part_can_be_shuffled_exactly_and_holds_no_list() -> None:
    train, _ = af.items(range(10**12)).split(0.5, 0.5)
    assert len(train) == 5 * 10**11
    assert next(iter(train.shuffle(seed=1))) != next(iter(train))


def test_what_another_part_has_is_not_read() -> None:
    dataset = Dataset(100)
    _, test = af.items(dataset).map(itself).split(0.9, 0.1)
    assert sorted(dataset.read) == []
    assert sorted(test) == sorted(dataset.read)
    assert len(dataset.read) == 10
    assert str(test).startswith("items(<Dataset of 100>).split(0.9, 0.1)[1].map(itself)")


# -- by key


def test_with_a_key_an_item_keeps_its_part_when_the_list_grows() -> None:
    for make in (lambda n: af.items(range(n)), lambda n: af.items(lambda: iter(range(n)))):
        small, large = ([set(part) for part in make(n).split(0.6, 0.4, key=itself)] for n in (300, 500))
        assert all(few <= many for few, many in zip(small, large, strict=True))


def test_items_of_one_key_stay_together() -> None:
    train, test = SIZED.split(0.7, 0.3, key=patient)
    assert {patient(item) for item in train}.isdisjoint(patient(item) for item in test)


def test_a_key_makes_the_same_parts_of_a_list_and_of_a_stream() -> None:
    by_number = [list(part) for part in SIZED.split(0.6, 0.4, key=patient)]
    assert by_number == [list(part) for part in af.items(stream).split(0.6, 0.4, key=patient)]
    assert by_number == [list(part) for part in af.items(Dataset(500)).split(0.6, 0.4, key=patient)]


def test_parts_by_key_can_be_reached_by_number() -> None:
    """The keys of a list are asked for once, so its parts have a length and an exact shuffle."""
    calls: list[int] = []

    def counted(item: int) -> int:
        calls.append(item)
        return item

    parts = SIZED.split(0.6, 0.4, key=counted)
    assert calls == list(range(500))
    assert sum(map(len, parts)) == 500
    assert sorted(itertools.chain(*(part.shuffle(seed=1).repeat(2) for part in parts))) == sorted(
        [*range(500)] * 2
    )
    assert len(calls) == 500


def test_after_a_reshuffling_shuffle_a_key_tells_items_apart() -> None:
    parts = SIZED.shuffle(seed=1).split(0.6, 0.4, key=itself)
    assert [set(part.open(epoch=1)) for part in parts] == [set(part) for part in parts]


@pytest.mark.parametrize(
    "key", [str, lambda x: b"%d" % x, np.int64, lambda x: (x, "a"), lambda x: PurePosixPath(f"/data/{x}")]
)
def test_keys_of_these_types_are_taken(key: Callable[[int], Any]) -> None:
    parts = [list(part) for part in SIZED.split(0.5, 0.5, key=key)]
    assert sorted(itertools.chain(*parts)) == list(range(500))
    assert 200 < len(parts[0]) < 300


def test_a_number_of_numpy_is_the_same_key_as_one_of_python() -> None:
    assert list(SIZED.split(0.5, 0.5, key=int)[0]) == list(SIZED.split(0.5, 0.5, key=np.int32)[0])


def test_a_key_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="key must return text, bytes, a whole number") as caught:
        SIZED.split(0.5, 0.5, key=float)
    assert caught.value.__notes__ == ["asyncfeed: in split(0.5, 0.5, key=float)[0], item number 0"]
    with pytest.raises(TypeError, match="not float") as caught:
        list(af.items(stream).split(0.5, 0.5, key=float)[0])
    assert "split(0.5, 0.5, key=float)[0]" in "\n".join(caught.value.__notes__)


# -- splits of splits, and what stands around them


@pytest.mark.parametrize("key", [None, itself])
@pytest.mark.parametrize("whole", [SIZED, af.items(stream)], ids=["sized", "stream"])
def test_a_split_of_a_split_deals_out_anew(whole: Pipeline[int], key: Callable[[int], Any] | None) -> None:
    """With one seed, too: or else all items of a part would be in one part of it."""
    first, _ = whole.split(0.5, 0.5, key=key)
    a, b = first.split(0.5, 0.5, key=key)
    assert 90 < len(list(a)) < 160
    assert sorted([*a, *b]) == sorted(first)


def test_a_split_changes_no_random_numbers_after_it() -> None:
    train = SIZED.split(0.5, 0.5)[0].map(lambda x, rng: float(rng.random()), rng=True)
    assert list(train) == list(SIZED.map(lambda x, rng: float(rng.random()), rng=True).take(250))


def test_random_stages_before_it_change_no_parts() -> None:
    noisy = SIZED.map(lambda x, rng: x, rng=True)
    assert list(noisy.split(0.5, 0.5)[0]) == list(SIZED.split(0.5, 0.5)[0])


def test_parts_compare_and_pickle() -> None:
    parts = SIZED.split(0.5, 0.5, key=str)
    assert parts == SIZED.split(0.5, 0.5, key=str)
    assert parts[0] != parts[1]
    assert list(pickle.loads(pickle.dumps(parts[0]))) == list(parts[0])


# -- what is refused


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ((0.8,), "at least two shares"),
        ((), "at least two shares"),
        ((0.8, 0.3), "must add up to 1, not 1.1"),
        ((0.8, 0.1), "must add up to 1, not 0.9"),
        ((1.0, 0.0), "between 0 and 1"),
        ((80, 20), "between 0 and 1, not 80"),
        (("0.8", 0.2), "between 0 and 1"),
    ],
)
def test_shares_that_are_none_are_refused(shares: tuple[Any, ...], message: str) -> None:
    with pytest.raises(af.PipelineError, match=message):
        SIZED.split(*shares)


async def async_key(item: int) -> int:
    return item


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (
            lambda: SIZED.shuffle(seed=1).split(0.5, 0.5),
            r"\.shuffle\(seed=1\) before split .* shuffle\(reshuffle=False\)",
        ),
        (lambda: SIZED.shuffle(seed=1).map(itself).split(0.5, 0.5), "the parts would share items"),
        (lambda: SIZED.repeat(2).split(0.5, 0.5), r"put it before \.repeat\(2\)"),
        (lambda: SIZED.batch(5).split(0.5, 0.5), r"put it before \.batch\(5\)"),
        (lambda: af.zip(SIZED.shuffle(), SIZED.shuffle()).split(0.5, 0.5), "the parts would share items"),
        (lambda: af.zip(af.items(stream).shuffle(buffer=3), SIZED).split(0.5, 0.5), "the parts would share items"),
        (lambda: SIZED.split(0.5, 0.5, key=async_key), "key must be a sync function"),
        (lambda: SIZED.split(0.5, 0.5, key=3), "callable"),
        (lambda: SIZED.split(0.5, 0.5, seed=-1), "seed must be at least 0"),
    ],
)
def test_a_split_that_would_leak_is_refused(split: Callable[[], Any], message: str) -> None:
    with pytest.raises(af.PipelineError, match=message):
        split()


def test_the_batches_of_a_dataset_for_keras_are_split_by_their_numbers() -> None:
    class Squares(Dataset):
        def on_epoch_end(self) -> None:
            pass

    for dataset in (Dataset(20), Squares(20)):
        from asyncfeed import pydataset

        train, test = pydataset(dataset).split(0.75, 0.25, seed=1)
        found = [sorted(train.shuffle(seed=2)), sorted(test)]
        assert [len(each) for each in found] == [15, 5]
        assert sorted(itertools.chain(*found)) == list(range(20))
