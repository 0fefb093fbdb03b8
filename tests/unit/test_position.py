"""Positions: where an item stands in its stream, of what kind it may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncfeed.position import (
    Position,
    all_numbers,
    canonical,
    children,
    first_number,
    in_epoch,
    join,
    member,
    members,
    name,
    single_number,
)

SIZE = 10
"""How many items an epoch has here."""
EPOCHS = st.integers(0, 5)


def positions(numbers: st.SearchStrategy[int]) -> st.SearchStrategy[Position]:
    """Return positions of every kind, to any depth."""

    def around(inner: st.SearchStrategy[Position]) -> st.SearchStrategy[Position]:
        child = st.builds(
            lambda parent, number: [*children(parent, range(number + 1))][-1], inner, st.integers(0, 9)
        )
        return child | st.lists(inner, max_size=3).map(members)

    return st.recursive(numbers, around, max_leaves=6)


def test_children_have_the_position_of_their_parent_and_a_number_of_their_own() -> None:
    assert list(children(7, range(2, 4))) == [(7, 2), (7, 3)]
    [grandchild] = children((7, 2), range(1))
    assert (first_number(grandchild), all_numbers(grandchild)) == (7, [7, 2, 0])


@pytest.mark.parametrize(
    ("position", "number"), [(7, 7), ((7, 3), 7), (range(7, 9), 7), ([(7, 3), 2], 7), (([7, 8], 1), 7), ([], 0)]
)
def test_an_item_is_of_the_epoch_of_the_first_item_that_it_comes_from(position: Position, number: int) -> None:
    assert first_number(position) == number


def test_the_members_of_a_group_are_found_by_their_number() -> None:
    group = members(range(4, 8))
    assert [member(group, number) for number in range(4)] == [4, 5, 6, 7]
    assert isinstance(group, range), "which costs nothing for each member"


def test_a_group_is_no_child_whatever_sequence_its_members_come_in() -> None:
    assert name(members((4, 5)), str) == "batch of 4 to 5"
    assert name(next(iter(children(4, range(5, 6)))), str) == "4[5]"


@pytest.mark.parametrize(
    ("position", "called"),
    [
        (3, "item 3"),
        ((3, 1), "item 3[1]"),
        (((3, 1), 2), "item 3[1][2]"),
        (range(3, 6), "batch of item 3 to item 5"),
        ([(3, 1), 5], "batch of item 3[1] to item 5"),
        ((range(3, 6), 1), "batch of item 3 to item 5[1]"),
        ([], "empty batch"),
    ],
)
def test_a_name_says_which_items_of_the_source_it_comes_from(position: Position, called: str) -> None:
    assert name(position, "item {}".format) == called


@given(positions(st.integers(0, SIZE - 1)), EPOCHS)
def test_in_each_epoch_an_item_has_the_position_of_the_first(position: Position, epoch: int) -> None:
    """Whatever came out of it, and whatever it was grouped with."""

    def later(each: Any) -> Position:
        if isinstance(each, tuple):
            return later(each[0]), each[1]
        return each + epoch * SIZE if isinstance(each, int) else [later(one) for one in each]

    assert in_epoch(later(position), SIZE) == position


@given(positions(st.integers(0, 99)))
def test_equal_positions_have_one_form(position: Position) -> None:
    """Whatever sequences and integers they are made of."""

    def otherwise(each: Any) -> Any:
        return np.int64(each) if isinstance(each, int) else list(map(otherwise, each))

    assert canonical(position) == canonical(otherwise(position))
    assert all_numbers(position) == all_numbers(otherwise(position))
    assert single_number(position) == single_number(otherwise(position))


def test_only_an_item_of_a_source_has_a_single_number() -> None:
    assert single_number(7) == 7
    assert single_number((7, 0)) is None
    assert single_number(range(7, 8)) is None


def test_positions_that_follow_each_other_join_to_a_range() -> None:
    """Any others to a list."""
    assert join(range(2, 4), range(4, 9)) == range(2, 9)
    assert join((), range(4)) == range(4)
    assert join(range(4), ()) == range(4)
    assert join(range(2), range(3, 4)) == [0, 1, 3]
    assert join([1], (2,)) == [1, 2]
    assert join(range(0, 4, 2), range(4, 6)) == [0, 2, 4, 5]


def test_positions_of_a_part_join_to_a_range_with_steps() -> None:
    """Also if the end of a range lies before its next step."""
    assert join(range(0, 4, 2), range(4, 6, 2)) == range(0, 6, 2)
    assert join(range(1, 6, 4), range(9, 14, 4)) == range(1, 14, 4)
    assert join(range(1, 6, 4), range(13, 14, 4)) == [1, 5, 13]
