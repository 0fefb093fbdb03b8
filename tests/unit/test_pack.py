"""Pack: short sequences in rows of a fixed length, against a plain model."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.stages.pack import FirstFit, Packed

LENGTH = 8


def model(lengths: list[int], bins: int) -> list[list[int]]:
    """Return the numbers of the sequences in each row, in plain Python."""
    done: list[list[int]] = []
    opened: list[list[int]] = []
    for number, length in enumerate(lengths):
        fits = [row for row in opened if sum(lengths[each] for each in row) + length <= LENGTH]
        if fits:
            row = fits[0]
        else:
            if len(opened) == bins:
                done.append(opened.pop(0))
            row = []
            opened.append(row)
        row.append(number)
        if sum(lengths[each] for each in row) == LENGTH:
            opened = [each for each in opened if each is not row]
            done.append(row)
    return done + opened


LENGTHS = st.lists(st.integers(0, LENGTH), max_size=40)


@given(LENGTHS, st.integers(1, 4), st.lists(st.integers(0, 40), max_size=4))
def test_sequences_go_into_the_first_row_with_room(lengths: list[int], bins: int, cuts: list[int]) -> None:
    """However the stream is cut, and if the state is moved to another object in between."""
    packing = FirstFit(LENGTH, bins)
    rows: list[Any] = []
    places: list[Any] = []
    edges = [0, *sorted(min(cut, len(lengths)) for cut in cuts), len(lengths)]
    for start, stop in pairwise(edges):
        items = [np.full(lengths[number], number) for number in range(start, stop)]
        more, where = packing.push(items, range(100 + start, 100 + stop))
        rows += more
        places += where
        held = packing.held
        moved = FirstFit(LENGTH, bins)
        moved.restore(packing.state())
        packing = moved
        assert packing.held == held
    more, where = packing.flush()
    assert [[each - 100 for each in members] for members in [*places, *where]] == model(lengths, bins)
    for row, members in zip(rows + more, [*places, *where], strict=True):
        assert [len(each) for each in row] == [lengths[each - 100] for each in members]
    assert packing.held == 0


@given(LENGTHS, st.integers(1, 5), st.integers(1, 3))
def test_a_row_says_what_is_where(lengths: list[int], bins: int, epochs: int) -> None:
    sequences = [np.arange(number * 100, number * 100 + length) for number, length in enumerate(lengths)]
    rows = list(af.items(sequences).pack(LENGTH, bins=bins, value=-1).repeat(epochs))
    expected = model(lengths, bins) * epochs
    assert len(rows) == len(expected)
    for row, members in zip(rows, expected, strict=True):
        assert isinstance(row, Packed)
        filled = sum(lengths[each] for each in members)
        assert row.values.tolist() == [
            *(x for each in members for x in sequences[each].tolist()),
            *[-1] * (LENGTH - filled),
        ]
        segments = [number for number, each in enumerate(members, 1) for _ in range(lengths[each])]
        assert row.segment_ids.tolist() == segments + [0] * (LENGTH - filled)
        places = [place for each in members for place in range(lengths[each])]
        assert row.positions.tolist() == places + [0] * (LENGTH - filled)
        assert (row.segment_ids.dtype, row.positions.dtype) == (np.int32, np.int32)


def test_trees_are_packed_leaf_by_leaf_and_batched() -> None:
    samples = [
        {"tokens": np.arange(n, dtype=np.int32), "weights": np.ones((n, 2), np.float32)} for n in (3, 2, 4, 1)
    ]
    (batch,) = af.items(samples).pack(5, value={"tokens": 9, "weights": 0}).batch(2)
    assert isinstance(batch, Packed)
    assert batch.values["tokens"].tolist() == [[0, 1, 2, 0, 1], [0, 1, 2, 3, 0]]
    assert batch.values["weights"].shape == (2, 5, 2)
    assert (batch.values["tokens"].dtype, batch.values["weights"].dtype) == (np.int32, np.float32)
    assert batch.segment_ids.tolist() == [[1, 1, 1, 2, 2], [1, 1, 1, 1, 2]]


def test_a_sequence_that_is_too_long_is_an_error_that_says_what_to_do() -> None:
    pipeline = af.items([np.arange(3), np.arange(9)])
    with pytest.raises(ValueError, match=r'number 1 has 9 places, more than a row of 8.*too_long="split"'):
        list(pipeline.pack(8))


@given(st.lists(st.integers(0, 30), max_size=12))
def test_a_sequence_that_is_too_long_is_split_into_pieces_or_cut(lengths: list[int]) -> None:
    sequences = [np.arange(length) + 1 for length in lengths]
    whole = af.items(sequences)
    pieces = [each[at : at + LENGTH] for each in sequences for at in range(0, len(each), LENGTH) or [0]]
    split, cut = whole.pack(LENGTH, too_long="split"), whole.pack(LENGTH, too_long="cut")
    assert _plain(split) == _plain(af.items(pieces).pack(LENGTH))
    assert _plain(cut) == _plain(af.items([each[:LENGTH] for each in sequences]).pack(LENGTH))


def _plain(pipeline: af.Pipeline[Packed]) -> list[Any]:
    return [[leaf.tolist() for leaf in row] for row in pipeline]


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([np.arange(2), 3], "number 1 has no length"),
        ([[1, 2, 3]], "a list is a tree"),
        ([{"a": np.arange(2), "b": np.arange(3)}], "number 0 has no length"),
        ([np.arange(2), np.arange(2.0)], "number 0 has dtype int64, number 1 has dtype float64"),
        ([np.ones((2, 3)), np.ones((2, 4))], "all axes but the first must be equal"),
        ([np.arange(2), {"a": np.arange(2)}], "samples of different structure"),
    ],
)
def test_samples_that_cannot_be_packed_are_named(samples: list[Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        list(af.items(samples).pack(8))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"length": 0}, "length"),
        ({"length": 4, "bins": 0}, "bins"),
        ({"length": 4, "too_long": "drop"}, "too_long must be"),
        ({"length": 4, "value": [np.ones(2)]}, "value must be one number"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(af.PipelineError, match=f"pack: .*{words}"):
        af.items([np.arange(2)]).pack(**options)


def test_padding_that_does_not_fit_the_dtype_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"pack: value=0.5 is not int64"):
        list(af.items([np.arange(2)]).pack(4, value=0.5))


def test_the_statistics_tell_how_much_is_padding() -> None:
    with af.items([np.arange(3)] * 4).pack(8).open() as feed:
        list(feed)
        stats = feed.stats()
    assert dict(stats.slow_paths) == {"pack: places with data": 12, "pack: places with padding": 4}
    assert "pack: places with data" in str(stats)
    assert "slow: pack" not in str(stats)


def test_many_open_rows_leave_little_padding() -> None:
    lengths = np.random.default_rng(0).integers(20, 900, 5000)
    with af.items([np.zeros(n, np.uint8) for n in lengths]).pack(2048).open() as feed:
        list(feed)
        counts = dict(feed.stats().slow_paths)
    assert counts["pack: places with data"] / sum(counts.values()) > 0.97
