"""Positions in checkpoints: as JSON, and back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncfeed.position import MOST, NOWHERE, canonical, from_json, to_json

numbers = st.integers(0, 40) | st.integers(0, 2**60)
positions: st.SearchStrategy[Any] = st.recursive(
    numbers,
    lambda inner: st.tuples(inner, st.integers(0, 9)) | st.lists(inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(st.lists(positions | st.just(NOWHERE), max_size=20))
def test_positions_come_back(given: list[Any]) -> None:
    assert list(map(canonical, from_json(json.loads(json.dumps(to_json(given)))))) == list(map(canonical, given))


def test_consecutive_numbers_take_no_room() -> None:
    assert to_json(range(7, 10**6)) == [[7, 10**6 - 7]]
    assert to_json([range(3), range(3, 6)]) == [{"all": [[0, 3]]}, {"all": [[3, 3]]}]


def test_numbers_near_each_other_are_short() -> None:
    """Those of a buffer are within its size of each other, in whatever epoch."""
    held = [2**48 * 7 + (number * 7919) % 10_000 for number in range(10_000)]
    assert len(json.dumps(to_json(held), separators=(",", ":"))) < 8 * len(held)


def test_children_that_follow_each_other_share_an_entry() -> None:
    of_one = [(2**48 * 7 + 5, number) for number in range(1000)]
    assert len(json.dumps(to_json(of_one))) < 8 * len(of_one)
    in_turns = [(2**48 * 7 + number % 4, number // 4) for number in range(1000)]
    assert len(json.dumps(to_json(in_turns))) < 8 * len(in_turns)
    groups: list[Any] = [in_turns[start : start + 50] for start in range(0, 1000, 50)]
    assert len(json.dumps(to_json(groups))) < 8 * len(in_turns)


@pytest.mark.parametrize(
    "hostile",
    [
        [[0, MOST + 1]],
        [[0, MOST // 2], [0, MOST // 2], 1],
        [{"all": [[0, MOST // 2]]}] * 3,
        [{"of": [[0, MOST // 2]], "n": [[0, MOST // 2]]}] * 2,
        [{"all": [{"all": [[0, MOST]]}]}],
    ],
)
def test_a_hostile_length_is_refused(hostile: list[Any]) -> None:
    with pytest.raises(ValueError, match="too many"):
        from_json([1, *hostile])
