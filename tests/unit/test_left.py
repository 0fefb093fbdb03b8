"""What several parts have left is in one order, each item once, and is found in both directions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncfeed.errors import StateError
from asyncfeed.stages.left import Left
from asyncfeed.stages.numbering import Part

parts = st.tuples(st.integers(0, 60), st.integers(1, 8), st.integers(1, 5))


@given(parts=parts, data=st.data())
def test_each_item_that_is_left_is_there_once_in_the_order_of_the_whole(
    parts: tuple[int, int, int], data: st.DataObject
) -> None:
    size, count, block = parts
    dealt = [Part(number, count, size, block) for number in range(count)]
    blocks = -(-size // block)
    lengths = [each.length(-(-max(0, blocks - each.number) // count)) for each in dealt]
    starts = [data.draw(st.integers(0, length)) for length in lengths]
    held = {
        (part, place) for part, start in enumerate(starts) for place in range(start) if data.draw(st.booleans())
    }
    left = Left(lengths, starts, held, block)

    pairs = [left.pair(number) for number in range(len(left))]
    wanted = {(part, place) for part, length in enumerate(lengths) for place in range(starts[part], length)} | held
    whole = [dealt[part].places([place])[0] for part, place in pairs]
    assert whole == sorted(dealt[part].places([place])[0] for part, place in wanted)
    assert [left.number(*pair) for pair in pairs] == list(range(len(left)))


def test_an_item_that_was_received_is_not_found() -> None:
    left = Left([5, 5], [3, 2], [])
    for part, place in ((0, 2), (1, 0), (0, 5)):
        with pytest.raises(StateError, match="is not left"):
            left.number(part, place)


def test_a_billion_items_take_no_memory() -> None:
    left = Left([10**9] * 8, list(range(0, 8 * 10**8, 10**8)), [(7, 5), (3, 10**8)])
    assert len(left) == sum(10**9 - start for start in range(0, 8 * 10**8, 10**8)) + 2
    for number in (0, 5, 10**9, len(left) - 1):
        assert left.number(*left.pair(number)) == number
