"""Items that are read many at a time: datasets with `__getitems__`, and records by number."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncfeed as af
from tests.engine.failing import Oops
from tests.engine.inside import Parts
from tests.formats.tfrecords import file_of

COUNT = 500


class Table:
    """A dataset that can read many rows at once, and counts the calls for single rows and for many."""

    def __init__(self, bad: frozenset[int] = frozenset()) -> None:
        self.bad = bad
        self.calls: list[int] = []
        self.singles: Counter[int] = Counter()

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, number: int) -> int:
        self.singles[number] += 1
        if number in self.bad:
            raise Oops(f"row {number}")
        return 10 * number

    def __getitems__(self, numbers: list[int]) -> list[int]:
        self.calls.append(len(numbers))
        if self.bad.intersection(numbers):
            raise Oops("some row")
        return [10 * number for number in numbers]


@pytest.mark.parametrize("concurrency", [1, 3, "auto"])
def test_the_rows_are_those_that_are_read_one_by_one(concurrency: Any) -> None:
    data = Table()
    assert list(af.items(data, concurrency=concurrency)) == [10 * each for each in range(COUNT)]
    assert sum(data.calls) + sum(data.singles.values()) == COUNT
    assert max(data.calls) > 1


@pytest.mark.parametrize("build", [
    lambda rows: rows.shuffle(seed=3),
    lambda rows: rows.repeat(3),
    lambda rows: rows.shuffle(seed=3).repeat(2),
    lambda rows: rows.repeat(2).shuffle(seed=3),
    lambda rows: rows.skip(7).take(100),
    lambda rows: rows.split(0.4, 0.6, seed=2)[1],
    lambda rows: af.zip(rows, rows.shuffle(seed=1)),
    lambda rows: af.concat(rows, rows),
    lambda rows: af.zip(rows, af.items(range(COUNT))).enumerate(),
])  # fmt: skip
def test_rows_may_be_rearranged_first(build: Any) -> None:
    assert list(build(af.items(Table()))) == list(build(af.items([10 * each for each in range(COUNT)])))


@pytest.mark.parametrize("bad", [0, 1, 77, COUNT - 1])
def test_a_row_that_fails_is_named_and_the_rows_before_it_arrive(bad: int) -> None:
    data = Table(frozenset([bad]))
    got = []
    with pytest.raises(Oops, match=f"row {bad}") as error:
        for row in af.items(data):
            got.append(row)  # noqa: PERF402 - what came before the error counts
    assert got == [10 * each for each in range(bad)]
    assert f"number {bad}" in "".join(error.value.__notes__)


def test_only_rows_that_fail_are_left_out() -> None:
    bad = frozenset([0, 3, 4, 200, COUNT - 1])
    rows = list(af.items(Table(bad), on_error="skip", skip_limit=10))
    assert rows == [10 * each for each in range(COUNT) if each not in bad]


def test_a_wrong_number_of_rows_is_an_error() -> None:
    class Short(Table):
        def __getitems__(self, numbers: list[int]) -> list[int]:
            return super().__getitems__(numbers)[1:]

    with pytest.raises(TypeError, match=r"a call for \d+ items returned \d+"):
        list(af.items(Short()))


def test_a_subset_of_torch_is_asked_for_many() -> None:
    """It passes the call on to the dataset that it is a subset of."""
    torch = pytest.importorskip("torch")
    data = Table()
    numbers = list(range(0, COUNT, 5))
    assert list(af.items(torch.utils.data.Subset(data, numbers))) == [10 * each for each in numbers]
    assert max(data.calls) > 1


# -- the parts of a group


@given(
    st.lists(st.integers(0, 9), max_size=30),
    st.integers(1, 12),
    st.sets(st.integers(0, 9)),
    st.sets(st.integers(0, 9)),
)
def test_the_outcomes_are_those_of_single_calls(
    items: list[int], grow: int, fails: set[int], interrupts: set[int]
) -> None:
    """Whatever fails, and however large a part is."""

    def one(item: int) -> int:
        if item in interrupts:
            raise KeyboardInterrupt
        if item in fails:
            raise Oops(item)
        return -item

    def outcome(call: Any, item: int) -> Any:
        try:
            return call(item)
        except (Oops, KeyboardInterrupt) as error:
            return type(error)

    parts = Parts(lambda each: [one(item) for item in each], one)
    for _ in range(grow):
        parts.learn(heavy=False)
    results = parts.of(items)
    expected = [outcome(one, item) for item in items]
    got = [outcome(results, item) for item in items]
    # An interrupt in a call for several items is the outcome of the first of them.
    pairs = zip(got, expected, strict=True)
    assert all(mine == theirs for mine, theirs in pairs if mine is not KeyboardInterrupt or not interrupts)


def test_parts_grow_until_they_are_heavy() -> None:
    sizes: list[int] = []

    def many(items: list[int]) -> list[int]:
        sizes.append(len(items))
        return items

    parts = Parts(many, lambda item: item)
    for heavy in (False, False, False, True, False):
        results = parts.of(list(range(8)))
        assert [results(item) for item in range(8)] == list(range(8))
        parts.learn(heavy=heavy)
    assert sizes == [2, 2, 2, 2, 4, 4, 8, 4, 4]


def test_large_rows_are_not_read_together() -> None:
    """Memory is bounded: a few parts of large rows, and then smaller ones again."""

    class Large(Table):
        def __getitems__(self, numbers: list[int]) -> list[Any]:
            self.calls.append(len(numbers))
            return [np.zeros(1 << 20, np.uint8) for _ in numbers]

        def __getitem__(self, number: int) -> Any:
            return np.zeros(1 << 20, np.uint8)

    data = Large()
    assert sum(1 for _ in af.items(data).take(100)) == 100
    assert max(data.calls, default=1) <= 64


# -- records


def test_records_that_are_asked_for_twice_in_a_group(tmp_path: Any) -> None:
    """A shuffle of repeated data may do so."""
    path = tmp_path / "some.tfrecord"
    path.write_bytes(file_of(b"%d" % each for each in range(40)))
    records = af.files(str(path)).flat_map(af.tfrecord(indexed=True)).repeat(5).shuffle(seed=1)
    assert Counter(records) == {b"%d" % each: 5 for each in range(40)}
