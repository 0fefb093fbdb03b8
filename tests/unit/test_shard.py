"""Shard: parts that share no item, are everything together, and follow one order, however many there are."""

from __future__ import annotations

import itertools
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.stages.deal import Deal, Dealing
from tests.searching import sampled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from asyncfeed.pipeline import Pipeline

UNEVEN = ["pad", "drop", "keep"]


def expected(order: list[Any], number: int, count: int, uneven: str) -> list[Any]:
    """Return a part of these items, as the documentation defines it."""
    if uneven == "drop":
        order = order[: len(order) // count * count]
    elif uneven == "pad" and order:
        order = [order[place % len(order)] for place in range(-(-len(order) // count) * count)]
    return order[number::count]


def parts(whole: Pipeline[Any], count: int, **options: Any) -> list[list[Any]]:
    return [list(whole.shard(number, count, **options)) for number in range(count)]


def as_stream(pipeline: Pipeline[Any]) -> Pipeline[Any]:
    """Return the same items as a stream, which is dealt out item by item."""
    return pipeline.filter(lambda _: True)


def stream() -> Iterator[int]:
    yield from range(53)


def noisy(item: int, rng: np.random.Generator) -> tuple[int, float]:
    return item, float(rng.random())


class Dataset:
    """Items that are read by the user's code."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> int:
        self.read.append(number)
        return number


SIZED = af.items(range(53))


# -- what is in a part


@sampled(24)
@pytest.mark.parametrize(
    "whole",
    [
        SIZED,
        SIZED.shuffle(seed=3),
        SIZED.map(str).shuffle(seed=3),
        SIZED.shuffle(seed=3).skip(2).take(40),
        SIZED.enumerate(),
        SIZED.repeat(2).shuffle(seed=1),
        SIZED.repeat(2),
        SIZED.map(noisy, rng=True),
        SIZED.scan(lambda total, x: (total + x, total + x), 0),
        SIZED.split(0.8, 0.2, seed=1)[0],
        SIZED.split(0.8, 0.2, seed=1, key=str)[0],
        SIZED.filter(lambda x: x % 3 > 0),
        SIZED.flat_map(lambda x: [x] * (x % 3)),
        SIZED.interleave(lambda x: [x] * 3, cycle=2),
        SIZED.shuffle(buffer=10, seed=2),
        SIZED.batch(4).map(np.ndarray.tolist),
        SIZED.bucket(boundaries=[20], size=3, length_of=int).map(np.ndarray.tolist),
        af.zip(SIZED, SIZED.shuffle(seed=1)),
        af.concat(SIZED, SIZED.shuffle(seed=1)),
        af.mix(SIZED, SIZED.map(str), seed=3),
        af.items(stream),
        af.items(Dataset(53)).shuffle(seed=4),
        af.items(Dataset(53)).repeat(2),
    ],
    ids=str,
)
@pytest.mark.parametrize("uneven", UNEVEN)
def test_each_part_takes_its_turns_in_the_order_of_the_whole(whole: Pipeline[Any], uneven: Any) -> None:
    """In each epoch."""
    for epoch in (0, 2):
        order = list(whole.open(epoch=epoch))
        for number in range(3):
            part = whole.shard(number, 3, uneven=uneven)
            assert list(part.open(epoch=epoch)) == expected(order, number, 3, uneven)
            assert part.size() in (None, len(expected(order, number, 3, uneven)))


@given(st.integers(0, 40), st.integers(1, 12), st.sampled_from(UNEVEN))
@settings(max_examples=60)
def test_parts_by_number_and_of_a_stream_are_the_same(n: int, count: int, uneven: Any) -> None:
    """Also if there are fewer items than parts, and if there are none."""
    whole = af.items(range(n))
    by_number = parts(whole, count, uneven=uneven)
    assert by_number == parts(as_stream(whole), count, uneven=uneven)
    assert by_number == [expected(list(range(n)), number, count, uneven) for number in range(count)]
    assert [len(whole.shard(number, count, uneven=uneven)) for number in range(count)] == list(map(len, by_number))


@given(st.integers(0, 60), st.integers(1, 9), st.integers(0, 5))
@settings(max_examples=40)
def test_parts_are_disjoint_and_complete(n: int, count: int, seed: int) -> None:
    whole = af.items(range(n)).shuffle(seed=seed)
    together = sorted(itertools.chain(*parts(whole, count, uneven="keep")))
    assert together == list(range(n))
    assert {*itertools.chain(*parts(whole, count))} == {*range(n)}
    kept = list(itertools.chain(*parts(whole, count, uneven="drop")))
    assert len({*kept}) == len(kept) == n // count * count


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2))
@settings(max_examples=40)
def test_each_step_trains_on_the_same_items_whatever_the_number_of_ranks(
    ranks: int, size: int, epoch: int
) -> None:
    """A batch of all ranks together is that of one rank with a batch as large."""
    whole = af.items(range(100)).shuffle(seed=5).map(noisy, rng=True)
    batches = [
        list(whole.shard(rank, ranks, uneven="drop").batch(size, drop_remainder=True).open(epoch=epoch))
        for rank in range(ranks)
    ]
    steps = [
        {(int(x), float(y)) for xs, ys in step for x, y in zip(xs, ys, strict=True)}
        for step in zip(*batches, strict=True)
    ]
    order = list(whole.open(epoch=epoch))
    together = ranks * size
    assert steps == [{*order[start : start + together]} for start in range(0, 100 - together + 1, together)]


@pytest.mark.parametrize("uneven", UNEVEN)
def test_each_epoch_is_dealt_out_anew(uneven: Any) -> None:
    """The rounds of each epoch begin with part 0."""
    for whole in (SIZED, as_stream(SIZED), af.items(stream)):
        part = whole.shard(2, 5, uneven=uneven)
        once = expected(list(range(53)), 2, 5, uneven)
        assert list(part.repeat(3)) == once * 3
        assert [list(epoch) for epoch in part.epochs(2)] == [once, once]
    shuffled = SIZED.shuffle(seed=1).shard(0, 2)
    assert len({tuple(epoch) for epoch in shuffled.epochs(3)}) == 3


def test_a_stream_without_an_end_is_dealt_out_for_ever() -> None:
    """It keeps nothing for a last round that never comes."""
    endless = SIZED.repeat().shard(3, 4)
    assert list(endless.take(30)) == [place % 53 for place in range(3, 123, 4)]
    (deal,) = endless.stages[-1].steps()
    deal.push(list(range(100)), range(100))  # type: ignore[union-attr, call-arg]
    assert deal.held == 0  # type: ignore[union-attr]


# -- what other stages make of a part


def test_a_part_can_be_shuffled_split_and_dealt_out_again() -> None:
    part = SIZED.shard(1, 2, uneven="keep")
    assert sorted(part.shuffle(seed=1)) == list(range(1, 53, 2))
    assert sorted(itertools.chain(*part.split(0.5, 0.5, seed=1))) == list(range(1, 53, 2))
    again = [list(part.shard(number, 3, uneven="keep")) for number in range(3)]
    assert again == [list(range(1 + 2 * number, 53, 6)) for number in range(3)]
    assert list(part.skip(3).take(2)) == [7, 9]


def test_the_parts_of_a_split_are_dealt_out_apart() -> None:
    train, test = SIZED.split(0.8, 0.2, seed=7)
    ranks = [[{*each.shard(rank, 3, uneven="keep")} for rank in range(3)] for each in (train, test)]
    assert sorted(itertools.chain(*ranks[0], *ranks[1])) == list(range(53))
    assert [sum(map(len, each)) for each in ranks] == [42, 11]


@pytest.mark.parametrize(
    "build",
    [
        lambda whole, shard: shard(whole.map(noisy, rng=True)),
        lambda whole, shard: shard(whole).map(noisy, rng=True),
        lambda whole, shard: shard(as_stream(whole)).map(noisy, rng=True),
        lambda whole, shard: shard(whole.repeat(2)).map(noisy, rng=True),
        lambda whole, shard: shard(shard(whole)).map(noisy, rng=True),
        lambda whole, shard: shard(af.items(Dataset(53)).shuffle(seed=2)).map(noisy, rng=True),
    ],
)
def test_an_item_draws_the_random_numbers_that_it_draws_in_the_whole(build: Callable[..., Any]) -> None:
    """Also if it comes a second time to complete a round, and in later epochs."""
    whole = {*build(SIZED, lambda pipeline: pipeline).open(epoch=1)}
    for count in (2, 5):
        drawn = [{*build(SIZED, lambda each, r=r, n=count: each.shard(r, n)).open(epoch=1)} for r in range(count)]
        assert set().union(*drawn) <= whole
        assert all(drawn)


def test_parts_that_are_shuffled_apart_draw_different_random_numbers() -> None:
    drawn = [
        [value for _, value in SIZED.shard(rank, 4).shuffle(seed=1).skip(1).map(noisy, rng=True)]
        for rank in range(4)
    ]
    assert len({*itertools.chain(*drawn)}) == sum(map(len, drawn)) == 4 * 13


def test_an_error_names_the_item_and_its_ordinal_in_the_whole() -> None:
    def fails(item: int) -> int:
        if item == 11:
            raise ValueError("eleven")
        return item

    for whole in (SIZED.skip(2).map(fails), as_stream(SIZED.skip(2)).map(fails)):
        with whole.shard(1, 4).open() as feed:
            got = []
            with pytest.raises(ValueError, match="eleven"):
                got.extend(feed)
            assert feed.failure is not None
            assert (feed.failure.key, feed.failure.ordinal) == ("number 11", 9)


# -- batches


@given(st.integers(0, 40), st.integers(1, 5), st.integers(1, 6), st.sampled_from(UNEVEN), st.booleans())
@settings(max_examples=25)
def test_batches_are_dealt_out_whole(n: int, size: int, count: int, uneven: Any, drop: bool) -> None:  # noqa: FBT001
    """By number, and those of a stream."""
    for whole in (af.items(range(n)), as_stream(af.items(range(n))), af.items(range(n)).shuffle(seed=1).map(int)):
        batches = whole.batch(size, drop_remainder=drop).map(np.ndarray.tolist)
        order = list(batches)
        assert parts(batches, count, uneven=uneven) == [
            expected(order, number, count, uneven) for number in range(count)
        ]


def test_batches_of_batches_are_dealt_out_in_each_epoch() -> None:
    nested = SIZED.take(52).batch(2).batch(3, drop_remainder=True).map(np.ndarray.tolist)
    assert parts(nested.repeat(2), 3) == [expected(list(nested) * 2, number, 3, "pad") for number in range(3)]
    assert [list(nested.shard(1, 3).repeat(2))] == [expected(list(nested), 1, 3, "pad") * 2]


def test_a_batch_draws_the_random_numbers_that_it_draws_in_the_whole() -> None:
    def noise(batch: Any, rng: np.random.Generator) -> tuple[int, float]:
        return int(batch[0]), float(rng.random())

    whole = SIZED.map(noisy, rng=True).map(lambda pair: pair[0]).shuffle(buffer=1).batch(4)
    for each in (whole, SIZED.shuffle(seed=1).batch(4)):
        noises = each.map(noise, rng=True)
        order = list(noises.open(epoch=2))
        got = [list(noises.shard(number, 3).open(epoch=2)) for number in range(3)]
        assert got == [expected(order, number, 3, "pad") for number in range(3)]


def test_what_makes_the_batches_of_another_part_is_not_read(tmp_path: Path) -> None:
    dataset = Dataset(40)
    part = af.items(dataset).shuffle(seed=2).map(int).batch(4).map(np.ndarray.tolist).prefetch(2).shard(1, 5)
    assert sorted(itertools.chain(*part)) == sorted(dataset.read)
    assert len(dataset.read) == 8
    for number in range(8):
        np.save(tmp_path / f"{number}.npy", np.full(3, number))
    batches = af.files(f"{tmp_path}/*.npy").load(af.npy).batch(2)
    for number in (0, 1, 4, 5):
        (tmp_path / f"{number}.npy").write_bytes(b"")
    assert [batch[:, 0].tolist() for batch in batches.shard(1, 2)] == [[2, 3], [6, 7]]


# -- what is read


def test_no_part_reads_the_items_of_another() -> None:
    """Also if the work is written before, and for the files of a `load`."""
    for build in (
        lambda items: items.shard(1, 4),
        lambda items: items.map(int).prefetch(3).shard(1, 4),
        lambda items: items.shuffle(seed=2).map(int).map(float, ordered=True).shard(1, 4),
        lambda items: items.repeat(2).shard(1, 4),
    ):
        dataset = Dataset(40)
        assert sorted(build(af.items(dataset))) == sorted(dataset.read)
        assert len({*dataset.read}) == 10


def test_files_of_another_part_are_not_opened(tmp_path: Path) -> None:
    for number in range(10):
        np.save(tmp_path / f"{number}.npy", np.full(3, number))
    whole = af.files(f"{tmp_path}/*.npy").shuffle(seed=1).load(af.npy)
    order = [int(each[0]) for each in whole]
    for number in range(10):
        if number not in order[1::3]:
            (tmp_path / f"{number}.npy").write_bytes(b"")
    part = whole.shard(1, 3, uneven="drop").batch(2)
    assert [batch[:, 0].tolist() for batch in part] == [order[1:5:3], [order[7]]]
    cached = af.files(f"{tmp_path}/*.npy").shuffle(seed=1).load(af.npy).cache("memory", max_bytes="1 MB")
    assert [int(each[0]) for each in cached.shard(1, 3, uneven="drop")] == order[1::3]


def test_files_that_are_still_being_listed_are_dealt_out(tmp_path: Path) -> None:
    for number in range(7):
        (tmp_path / f"{number}.txt").write_text(str(number))
    listed = af.files(f"{tmp_path}/*.txt", listing="streamed").load(af.text)
    assert parts(listed, 3) == [["0", "3", "6"], ["1", "4", "0"], ["2", "5", "1"]]


def test_a_part_of_a_billion_items_holds_no_list() -> None:
    part = af.items(range(10**9)).shuffle(seed=1).shard(1000, 1024)
    assert len(part) == -(-(10**9) // 1024)
    assert next(iter(part)) == list(af.items(range(10**9)).shuffle(seed=1).take(1001))[-1]


def test_of_an_unreadable_item_only_its_part_knows() -> None:
    """Items are dealt out before they are read, so the others keep theirs."""

    class Torn(Dataset):
        def __getitem__(self, number: int) -> int:
            if number == 4:
                raise ValueError
            return super().__getitem__(number)

    whole = af.items(Torn(9), on_error="skip", skip_limit=1)
    assert parts(whole, 3) == [[0, 3, 6], [1, 7], [2, 5, 8]]
    assert whole.shard(0, 3).size() is None


# -- the algorithm


@given(
    st.integers(0, 30), st.integers(1, 7), st.sampled_from(["pad", "drop", "keep"]), st.integers(1, 9), st.data()
)
@settings(max_examples=60)
def test_a_deal_does_not_depend_on_how_the_stream_is_cut(
    n: int, count: int, uneven: Any, chunk: int, data: st.DataObject
) -> None:
    """Neither does its state, and it starts again after an epoch."""
    number = data.draw(st.integers(0, count - 1))
    dealing = Dealing(number, count, even=count if uneven == "drop" else 1, pad=uneven == "pad")
    deal = Deal(dealing)
    for _ in range(2):
        got: list[int] = []
        places: list[Any] = []
        for start in range(0, n, chunk):
            again = Deal(dealing)
            again.restore(deal.state())
            deal = again
            part = range(start, min(start + chunk, n))
            items, where = deal.push(list(part), part)
            got += items
            places += where
            assert deal.held <= (number if uneven == "pad" else 1)
        items, where = deal.flush()
        assert got + items == places + list(where) == expected(list(range(n)), number, count, uneven)
        assert deal.held == 0


# -- the description


def test_the_description_shows_the_numbers() -> None:
    part = SIZED.shuffle(seed=7).shard(3, 8).batch(2)
    assert repr(SIZED.batch(2).shard(3, 8)) == "items(range(0, 53)).batch(2).shard(3, 8)"
    assert "shard(3, 8)  8 items by number" in SIZED.batch(2).shard(3, 8).explain()
    assert repr(part) == "items(range(0, 53)).shuffle(seed=7).shard(3, 8).batch(2)"
    assert repr(SIZED.shard(0, 2, uneven="drop")) == "items(range(0, 53)).shard(0, 2, uneven='drop')"
    assert "shard(3, 8)  7 items by number" in part.explain()
    assert part == pickle.loads(pickle.dumps(part)) != SIZED.shuffle(seed=7).shard(2, 8).batch(2)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SIZED.shard(3), "both index and count"),
        (lambda: SIZED.shard(count=3), "both index and count"),
        (lambda: SIZED.shard(3, 3), "3 of 3"),
        (lambda: SIZED.shard(-1, 3), "index must be at least 0"),
        (lambda: SIZED.shard(0, 0), "count must be at least 1"),
        (lambda: SIZED.shard(0, 2.0), "count must be a whole number"),  # type: ignore[arg-type]
        (lambda: SIZED.shard(0, 2, uneven="even"), "'pad', 'drop' or 'keep'"),  # type: ignore[arg-type]
        (lambda: SIZED.map(str, ordered=False).shard(0, 2), r"\.map\(str, ordered=False\) before it gives"),
        (lambda: af.concat(SIZED, SIZED.filter(str, ordered=False)).shard(0, 2), "leave out ordered=False"),
        (lambda: SIZED.map(str, on_error="skip", skip_limit=1).shard(0, 2), "leave out on_error"),
        (lambda: as_stream(SIZED).batch(2, timeout=1).shard(0, 2), "leave out timeout"),
        (
            lambda: af.items(Dataset(3), on_error="skip", skip_limit=1).take(2).shard(0, 2),
            "put shard before it, or leave out on_error='skip'",
        ),
    ],
)
def test_what_cannot_be_dealt_out_is_refused(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(af.PipelineError, match=message):
        build()


def test_what_comes_behind_a_part_may_be_in_any_order() -> None:
    part = SIZED.shard(1, 2, uneven="keep").map(str, ordered=False)
    assert sorted(part) == sorted(map(str, range(1, 53, 2)))
