"""Take, Skip, Enumerate and Repeat: the same by number, as a stream, and as a plain list."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncfeed.errors import PipelineError
from asyncfeed.places import shift
from asyncfeed.stages.base import Node
from asyncfeed.stages.enumerate import Enumerate
from asyncfeed.stages.repeat import Repeat
from asyncfeed.stages.steps import Algorithm, Passes, Reading
from asyncfeed.stages.take import Skip, Take


class Numbers:
    """An upstream whose item at place p of epoch e is `(e, p)`; it refuses places that it does not have."""

    on_thread = Reading()

    def __init__(self, n: int) -> None:
        self.n = n
        self.asked: list[Sequence[int]] = []

    def __len__(self) -> int:
        return self.n

    def pick(self, epoch: int, places: Sequence[int]) -> list[Any]:
        self.asked.append(places)
        assert all(0 <= place < self.n for place in places)
        return [(epoch, place) for place in places]

    def key(self, epoch: int, place: int) -> str:
        return f"{epoch}:{place}"


def model(node: Node, n: int, epoch: int) -> list[Any]:
    """Return what a stage makes of the items of one epoch, in plain Python."""
    items = [(epoch, place) for place in range(n)]
    match node:
        case Take(count):
            return items[:count]
        case Skip(count):
            return items[count:]
        case Enumerate(start):
            return list(enumerate(items, start))
        case Repeat(int(count)):
            return [(epoch * count + turn, place) for turn in range(count) for place in range(n)]
    raise AssertionError(node)


def stream(algorithm: Algorithm, items: list[Any], cuts: list[int]) -> tuple[list[Any], list[Any]]:
    """Push items, cut at these places, each with 10 times its place as its position; then flush."""
    out: list[Any] = []
    positions: list[Any] = []
    edges = [0, *sorted(cut % (len(items) + 1) for cut in cuts), len(items)]
    for start, stop in pairwise(edges):
        ready = algorithm.push(items[start:stop], range(10 * start, 10 * stop, 10))
        out += ready[0]
        positions += ready[1]
    last = algorithm.flush()
    return out + last[0], positions + list(last[1])


cuts = st.lists(st.integers(0, 50), max_size=5)
counts = st.integers(0, 40)
nodes = st.builds(Take, counts) | st.builds(Skip, counts) | st.builds(Enumerate, start=st.integers(-5, 5))


@given(nodes | st.builds(Repeat, st.integers(1, 4)), st.integers(0, 30), st.integers(0, 3), st.data())
def test_by_number_a_stage_is_what_it_is_for_a_list(node: Node, n: int, epoch: int, data: st.DataObject) -> None:
    """Any range and any scattered places, with the length and the names that belong to them."""
    upstream = Numbers(n)
    indexed = node.index(upstream)
    assert indexed is not None
    whole = model(node, n, epoch)
    assert len(indexed) == len(whole) == node.length(n)
    assert indexed.on_thread == upstream.on_thread
    assert indexed.pick(epoch, range(len(whole))) == whole
    if whole:
        places = data.draw(st.lists(st.integers(0, len(whole) - 1)))
        assert indexed.pick(epoch, places) == [whole[place] for place in places]
        start = data.draw(st.integers(0, len(whole) - 1))
        upstream.asked.clear()
        assert indexed.pick(epoch, range(start, start + 1)) == whole[start : start + 1]
        assert all(isinstance(places, range) for places in upstream.asked)
        item = whole[start][1] if isinstance(node, Enumerate) else whole[start]
        assert indexed.key(epoch, start) == f"{item[0]}:{item[1]}"


@given(nodes, st.integers(0, 30), cuts)
def test_as_a_stream_a_stage_is_what_it_is_for_a_list(node: Node, n: int, cuts: list[int]) -> None:
    """However the stream is cut, in every epoch; and each item keeps its position."""
    (algorithm,) = node.steps()
    assert isinstance(algorithm, Algorithm)
    for epoch in range(2):
        items, positions = stream(algorithm, [(epoch, place) for place in range(n)], cuts)
        assert items == model(node, n, epoch)
        whole = [item[1] if isinstance(node, Enumerate) else item for item in items]
        assert positions == [10 * place for _, place in whole]


@given(nodes, st.integers(0, 30), st.integers(0, 30))
def test_a_restored_stage_goes_on_as_if_nothing_had_happened(node: Node, before: int, after: int) -> None:
    """From any place."""
    (one,), (other,) = node.steps(), node.steps()
    assert isinstance(one, Algorithm)
    assert isinstance(other, Algorithm)
    one.push(list(range(before)), range(before))
    other.restore(one.state())
    assert other.done == one.done
    rest = list(range(after))
    assert stream(other, rest, []) == stream(one, rest, [])


def test_take_is_done_with_its_last_item() -> None:
    """So that nothing more is read; the next epoch begins anew."""
    (take,) = Take(3).steps()
    assert isinstance(take, Algorithm)
    assert take.push([0, 1], range(2)) == ([0, 1], range(2))
    assert not take.done
    assert take.push([2, 3], range(2, 4)) == ([2], range(2, 3))
    assert take.done
    assert take.push([4], range(4, 5)) == ([], range(4, 4))
    take.flush()
    assert not take.done


def test_take_nothing_is_done_before_the_first_item() -> None:
    """Also in the second epoch."""
    (take,) = Take(0).steps()
    assert isinstance(take, Algorithm)
    assert take.done
    take.flush()
    assert take.done


def test_a_repeat_without_a_count_has_no_end() -> None:
    """It has no length and no places: the source repeats."""
    assert Repeat().index(Numbers(3)) is None
    assert Repeat().length(3) is None
    assert Repeat().steps() == [Passes(None)]
    assert str(Repeat()) == "repeat()"
    assert str(Repeat(2)) == "repeat(2)"


def test_scattered_places_ask_upstream_once_for_each_of_its_epochs() -> None:
    """A shuffle above computes a whole epoch's places at once."""
    upstream = Numbers(10)
    indexed = Repeat(2).index(upstream)
    assert indexed is not None
    assert indexed.pick(1, [3, 13, 4, 14]) == [(2, 3), (3, 3), (2, 4), (3, 4)]
    assert upstream.asked == [[3, 4], [3, 4]]


@pytest.mark.parametrize(
    ("node", "wrong", "message"),
    [
        (Take, -1, "take: count must be at least 0, not -1"),
        (Take, 2.0, "take: count must be a whole number, not 2.0$"),
        (Take, np.int64(2), r"take: count must be a whole number, not (np.int64\(2\)|2): write int\(...\)$"),
        (Skip, -1, "skip: count must be at least 0, not -1"),
        (Skip, True, "skip: count must be a whole number, not True"),
        (Enumerate, "1", "enumerate: start must be a whole number, not '1'"),
        (Repeat, 0, "repeat: count must be at least 1, not 0"),
    ],
)
def test_a_wrong_description_is_refused(node: type[Any], wrong: object, message: str) -> None:
    """Where it is written, with the value."""
    with pytest.raises(PipelineError, match=message):
        node(wrong)


def test_stages_are_written_as_they_were_called() -> None:
    """Positional fields without their names."""
    assert [str(Take(3)), str(Skip(2)), str(Enumerate(start=1)), str(Enumerate())] == [
        "take(3)",
        "skip(2)",
        "enumerate(start=1)",
        "enumerate()",
    ]


@given(st.lists(st.integers(0, 9)) | st.builds(range, st.integers(0, 5), st.integers(0, 9)), st.integers(0, 5))
def test_shifted_places_keep_their_kind(places: Sequence[int], by: int) -> None:
    """A range stays a range."""
    assert list(shift(places, by)) == [place + by for place in places]
    assert isinstance(shift(places, by), range) == isinstance(places, range)
