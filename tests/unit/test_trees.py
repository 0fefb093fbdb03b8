"""Trees: what is a container, what is a leaf, and what an item is charged with."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncfeed.trees import flatten, leaf_name, map_leaves, size_of, total_size, unflatten


class Point(NamedTuple):
    """A named tuple, as users write them."""

    x: Any
    y: Any


@dataclass(frozen=True)
class Sample:
    """A frozen dataclass, as users write them."""

    image: Any
    label: Any


@dataclass(slots=True)
class Checked:
    """A dataclass that refuses what a batch holds."""

    value: Any

    def __post_init__(self) -> None:
        if not isinstance(self.value, int):
            raise TypeError("not a sample")


leaves = st.none() | st.integers() | st.floats() | st.text() | st.binary()
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.builds(Point, inner, inner)
        | st.builds(Sample, inner, inner)
    ),
    max_leaves=8,
)


@given(trees)
def test_a_tree_taken_apart_and_put_together_is_the_same(tree: Any) -> None:
    """Flatten and unflatten are each other's inverse, for every kind of container."""
    found, spec = flatten(tree)
    assert repr(unflatten(spec, found)) == repr(tree)
    assert not any(isinstance(leaf, (tuple, list, dict, Sample)) for leaf in found)


@given(trees)
def test_mapping_keeps_the_structure(tree: Any) -> None:
    """The function sees the leaves in order, and its results stand in their places."""
    seen: list[Any] = []
    mapped = map_leaves(lambda leaf: (seen.append(leaf), len(seen))[1], tree)
    found, spec = flatten(tree)
    assert repr(seen) == repr(found)
    assert flatten(mapped) == (list(range(1, len(found) + 1)), spec)


@pytest.mark.parametrize("leaf", [None, 1, "text", b"bytes", np.zeros(2), np.float32(1), object(), {1, 2}, int])
def test_what_is_no_container_is_a_leaf(leaf: Any) -> None:
    """None, numbers, text, arrays, sets, classes and unknown objects are not looked into."""
    found, spec = flatten((leaf,))
    assert found[0] is leaf
    assert flatten(leaf)[1].is_leaf()
    assert spec == flatten((0,))[1]


def test_the_structure_of_a_bare_leaf_is_the_same_however_it_was_found() -> None:
    """A leaf known beforehand and one that optree had to look at have equal structures."""
    assert flatten(1)[1] == flatten(object())[1]


def test_a_dataclass_is_rebuilt_without_its_checks() -> None:
    """What a sample may hold says nothing about what a batch may hold."""
    assert map_leaves(str, Checked(1)).value == "1"


def test_nested_dataclasses_of_new_types_are_walked() -> None:
    """Each type becomes known when its first instance appears, at any depth."""

    @dataclass
    class Inner:
        a: int

    @dataclass
    class Outer:
        inner: Inner
        b: int

    assert flatten([Outer(Inner(1), 2)])[0] == [1, 2]


def test_a_dataclass_seen_first_by_many_threads_is_registered_once() -> None:
    """All threads find the same leaves."""

    @dataclass
    class Fresh:
        a: int

    start, found = threading.Barrier(8), []

    def look() -> None:
        start.wait()
        found.append(flatten(Fresh(3))[0])

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[3]] * 8


def test_a_leaf_is_named_as_it_is_reached_in_code() -> None:
    """Messages show the way to the leaf."""
    spec = flatten({"a": (1, Sample(2, 3)), "b": 4})[1]
    assert [leaf_name(spec, i) for i in range(4)] == ["['a'][0]", "['a'][1].image", "['a'][1].label", "['b']"]
    assert leaf_name(flatten(1)[1], 0) == ""


@pytest.mark.parametrize(
    ("item", "size"),
    [
        (1, 32),
        (None, 32),
        (True, 32),
        (1.5, 32),
        (np.zeros(10, np.float32), 40),
        (np.float32(1), 4),
        (np.rec.array([(1, 2)], "i4,i4"), 8),
        ("four", 4),
        (b"four", 4),
        (bytearray(5), 5),
        (memoryview(bytes(6)), 6),
        ((1, np.zeros(2)), 64 + 32 + 16),
        ([], 64),
        ({"a": b"xyz"}, 64 + 3),
        (OrderedDict(a=1), 64 + 32),
        (Point(1, b"1"), 64 + 32 + 1),
        (Sample(np.zeros(3, np.uint8), 0), 64 + 3 + 32),
        (object(), 64),
        (np.ndarray, 64),
        (np.array([b"12345", "123"], object), 16 + 5 + 3),
    ],
)
def test_an_item_is_charged_with_what_it_holds(item: Any, size: int) -> None:
    """Arrays and text by their bytes, numbers 32, a container or an unknown object 64."""
    assert size_of(item) == size


@given(st.lists(trees, max_size=6) | st.lists(st.integers()) | st.lists(st.tuples(st.text(), st.binary())))
def test_the_total_is_the_sum(items: list[Any]) -> None:
    """The short ways for lists of one type change nothing."""
    assert total_size(items) == sum(map(size_of, items))


def test_the_total_of_arrays_is_the_sum() -> None:
    """Also where some of them hold objects."""
    arrays = [np.zeros(3), np.zeros((2, 2), np.int8), np.array(["abc"], object)]
    assert total_size(arrays) == 24 + 4 + 8 + 3
    assert total_size(arrays[:2]) == 28
