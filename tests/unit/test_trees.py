"""Trees: what is a container, what is a leaf, and what an item is charged with."""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import optree
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncfeed.stacking.collate import collate
from asyncfeed.trees import flatten, leaf_name, map_leaves, same, size_of, total_size, unflatten


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


class Named(Sample):
    """A subclass that is no dataclass itself."""

    def __init__(self, image: Any, label: Any, name: str) -> None:
        super().__init__(image, label)
        object.__setattr__(self, "name", name)


@dataclass
class Late:
    """A dataclass with fields that `__init__` does not set, and something remembered."""

    values: Any
    made: Any = field(init=False, default=7)
    unset: Any = field(init=False)
    flag: InitVar[bool] = True

    @cached_property
    def total(self) -> int:
        return sum(self.values)


T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class Box(Generic[T]):
    """A frozen, generic one with slots."""

    value: T


@dataclass
class Pair(Generic[T, U]):
    """A generic one, whose instances remember how they were made."""

    one: T
    other: U


class Marked(Box[T]):
    """A subclass with slots of its own, one of them private."""

    __slots__ = ("__secret", "mark")

    def __init__(self, value: T, mark: str) -> None:
        super().__init__(value)
        object.__setattr__(self, "mark", mark)
        object.__setattr__(self, "_Marked__secret", mark * 2)

    @property
    def secret(self) -> str:
        return self.__secret


def test_what_is_no_field_stays() -> None:
    """Attributes of a subclass, those set later, slots: `map_leaves` changes leaves and nothing else."""
    named = map_leaves(str, Named(1, 2, "a"))
    assert (type(named), named.image, named.label, named.name) == (Named, "1", "2", "a")
    late = Late((1, 2))
    late.note = "later"
    assert late.total == 3
    other = map_leaves(lambda x: x * 2, late)
    assert (other.values, other.made, other.note, other.total) == ((2, 4), 14, "later", 6)
    assert not hasattr(other, "unset")
    assert late.total == 3
    box = map_leaves(str, Box(1))
    assert box == Box("1")
    assert not hasattr(box, "__dict__")
    marked = map_leaves(str, Marked(1, "x"))
    assert (marked.value, marked.mark, marked.secret) == ("1", "x", "xx")
    assert flatten(Pair[int, str](1, "a"))[1] == flatten(Pair(2.0, 3))[1]


def test_what_is_beside_the_fields_is_part_of_the_structure() -> None:
    """Samples that agree on it make a batch, which has it; others are an error, as it can be stacked nowhere."""
    batch = collate([Named(np.ones(2), 1, "a"), Named(np.zeros(2), 2, "a")], str)
    assert (batch.label.tolist(), batch.name) == ([1, 2], "a")
    with pytest.raises(ValueError, match=r"beside name.*make fields of what differs beside the fields"):
        collate([Named(1, 1, "a"), Named(1, 1, "b")], str)
    arrays = [Late((1,)), Late((2,))]
    for each in arrays:
        each.weights = np.ones(3)
    assert collate(arrays, str).weights.tolist() == [1, 1, 1]


def test_a_dataclass_that_cannot_be_made_anew_is_a_leaf() -> None:
    """One over a builtin type, which only that type can make."""

    @dataclass
    class Mine(dict):  # type: ignore[type-arg]
        a: int = 1

    mine = Mine()
    assert flatten((mine, 1))[0] == [mine, 1]


def test_a_dataclass_that_optree_refuses_is_a_leaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """For whatever reason: it is asked once, not for ever."""
    calls = []

    def refuse(kind: type, *_: Any, **__: Any) -> None:
        calls.append(kind)
        raise ValueError("not this one")

    @dataclass
    class Refused:
        a: int

    monkeypatch.setattr(optree, "register_pytree_node", refuse)
    refused = Refused(1)
    assert flatten((refused, 1))[0] == [refused, 1]
    assert calls == [Refused]


class Odd:
    """Its comparison raises."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no answer")

    __hash__ = None  # type: ignore[assignment]


class Elementwise:
    """A tensor: its comparison returns no bool."""

    def __eq__(self, other: object) -> Any:
        return [True]

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("make", "equal"),
    [
        (lambda: np.arange(3), True),
        (lambda: [np.arange(3), {"a": (np.ones(2), "x")}], True),
        (lambda: np.array([np.ones(2), None], object), True),
        (lambda: np.array(["a", "b"]), True),
        (lambda: np.zeros(2, "i4,f8"), True),
        (lambda: {"a": [1, 2.5, None, b"x"]}, True),
        (lambda: deque([np.ones(2)]), True),
        (lambda: Point(np.ones(2), 1), True),
        (Odd, False),
        (lambda: [Odd()], False),
        (Elementwise, False),
        (lambda: {"a": Elementwise()}, False),
    ],
)
def test_equal_objects_are_the_same_and_nothing_raises(make: Callable[[], Any], equal: bool) -> None:
    """Whatever is compared with whatever."""
    one = make()
    assert same(one, one)
    assert same(one, make()) is equal
    for other in (None, 1, "a", [1], np.ones(3), np.ones(1), {}, [Odd()]):
        assert same(one, other) is False
        assert same(other, one) is False


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.ones(2), np.ones(2, "f4")),
        (np.ones(1), np.ones((1, 1))),
        (np.ones(2), np.zeros(2)),
        ([np.ones(1)], [1.0]),
        ([np.ones(2)], (np.ones(2),)),
        ({"a": 1}, {"b": 1}),
        ([1], [1, 2]),
    ],
)
def test_unequal_objects_are_not_the_same(one: Any, other: Any) -> None:
    """In dtype, shape, content or kind."""
    assert not same(one, other)
    assert not same(other, one)


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


class Plain:
    def __init__(self, x: Any, y: Any) -> None:
        self.x = x
        self.y = y


class Slotted:
    __slots__ = ("x", "y", "z")

    def __init__(self, x: Any, y: Any) -> None:
        self.x = x
        self.y = y


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
        ({1, 2, 3}, 64 + 3 * 32),
        (array("d", [1, 2]), 16),
        (Plain(np.zeros(4), b"xyz"), 64 + 32 + 3),
        (Slotted(np.zeros(4), Plain(1, 2)), 64 + 32 + 64 + 64),
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


@given(
    st.lists(
        st.fixed_dictionaries({"a": trees, "b": trees}) | st.dictionaries(st.text(max_size=1), trees), max_size=40
    )
)
def test_the_total_of_rows_is_the_sum(rows: list[Any]) -> None:
    assert total_size(rows) == sum(map(size_of, rows)) == size_of(rows) - size_of([])
    rows = [{"b": row, "a": 1} if at % 2 else {"a": row, "b": "text"} for at, row in enumerate(rows)]
    assert total_size(rows) == sum(map(size_of, rows)) == size_of(rows) - size_of([])


def test_the_total_of_arrays_is_the_sum() -> None:
    """Also where some of them hold objects."""
    arrays = [np.zeros(3), np.zeros((2, 2), np.int8), np.array(["abc"], object)]
    assert total_size(arrays) == 24 + 4 + 8 + 3
    assert total_size(arrays[:2]) == 28
