"""Values are known by JSON that costs little and is the same in every process."""

from __future__ import annotations

import json
import re
from array import array
from collections import OrderedDict, UserDict, deque
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncfeed.reading import File
from asyncfeed.state.functions import contents
from asyncfeed.state.values import MAX_VALUES, SAMPLED, Describer, sampled

if TYPE_CHECKING:
    from collections.abc import Callable


def known(value: Any) -> str:
    return json.dumps(Describer().describe(value), sort_keys=True)


class Counting(list[int]):
    """A list that counts how many of its items were asked for."""

    asked = 0

    def __getitem__(self, place: Any) -> Any:
        self.asked += 1
        return super().__getitem__(place)


class Dataset:
    """A dataset whose items must not be read."""

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, place: int) -> Any:
        raise AssertionError("an item was read")


class Failing:
    """An object of the user's whose every method raises."""

    def __len__(self) -> int:
        raise RuntimeError

    def __repr__(self) -> str:
        raise RuntimeError

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError


class Torch:
    """As a tensor of torch: it has a shape and a dtype, and shows where it is."""

    shape = (3, 4)
    dtype = "torch.float32"


class Color(Enum):
    RED = 1


def test_of_a_long_sequence_a_thousand_items_count() -> None:
    data = Counting(range(10**6))
    known(data)
    assert data.asked == SAMPLED


def test_the_items_of_a_dataset_are_not_read() -> None:
    assert known(Dataset()) == '["object", "Dataset", 1000000000, null]'


def test_deep_trees_cost_no_more_than_a_bound() -> None:
    data = [[[[Counting(range(50))] * 50] * 50] * 50] * 50
    known(data)
    assert data[0][0][0][0].asked <= MAX_VALUES
    endless: list[Any] = []
    endless.append(endless)
    assert known(endless)


@given(st.integers(0, 5000), st.integers(2, 100))
def test_the_sample_has_the_first_and_the_last_place_and_no_place_twice(count: int, most: int) -> None:
    places = sampled(count, most)
    assert len(places) == min(count, most)
    assert sorted(set(places)) == list(places)
    assert not count or (places[0], places[-1]) == (0, count - 1)


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5), max_leaves=20,
), st.data())  # fmt: skip
def test_equal_trees_are_known_by_the_same(tree: Any, data: Any) -> None:
    def again(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: again(value[key]) for key in data.draw(st.permutations(list(value)))}
        return [again(each) for each in value] if isinstance(value, list) else value

    assert known(tree) == known(again(tree))


@dataclass
class Unset:
    """An object of the user's that lacks a field, and uses names that mean something to asyncfeed."""

    missing: int = field(init=False)
    tuning: int = 3
    deciding: int = 4


class Asks:
    """An object of the user's whose class is another one at each look."""

    def __getattribute__(self, name: str) -> Any:
        raise KeyboardInterrupt if name == "never" else ValueError(name)


ODD: dict[str, Callable[[], Any]] = {
    "a field that is not set": Unset,
    "methods that raise": Failing,
    "a class that cannot be asked for": Asks,
    "a masked number": lambda: np.ma.masked,
    "a masked array": lambda: np.ma.array([1, 2], mask=[0, 1]),
    "bytes with gaps": lambda: memoryview(b"abcd")[::2],
    "a class that is a mapping": lambda: UserDict({"a": 1}),
    "a partial of a partial": lambda: partial(partial(print, 1), sep=""),
}


@pytest.mark.parametrize("what", ODD)
def test_odd_objects_never_make_it_fail(what: str) -> None:
    assert known(ODD[what]()) == known(ODD[what]())
    assert known([ODD[what](), 1]) != known([ODD[what](), 2])


def test_fields_of_other_objects_count_whatever_they_are_called() -> None:
    @dataclass
    class Augment:
        size: int = 1
        tuning: str = "size"

    assert known(Augment(2)) != known(Augment(3))


def test_an_object_with_a_method_of_a_stage_is_no_stage() -> None:
    @dataclass
    class Policy:
        size: int = 1

        def deciding(self) -> int:
            return 0

    assert known(Policy(2)) != known(Policy(3))


SIMPLE = st.integers(-3, 3) | st.text("ab", max_size=2) | st.none() | st.binary(max_size=1)


@given(st.lists(SIMPLE, max_size=4), st.lists(SIMPLE, max_size=4))
def test_other_lists_are_known_by_something_else(one: list[Any], other: list[Any]) -> None:
    assert (known(one) == known(other)) == (one == other)


EQUAL: dict[str, tuple[Any, Any]] = {
    "sets": ({"a", "b", "c"}, {"c", "b", "a"}),
    "a view of an array": (np.arange(20)[::2], np.arange(0, 20, 2)),
    "an array in another order of memory": (np.eye(40), np.asfortranarray(np.eye(40))),
    "dicts": ({"a": 1, "b": 2}, OrderedDict(b=2, a=1)),
    "views of a dict": ({"a": 1}.items(), deque([("a", 1)])),
    "an array of Python's": (array("d", [1, 2]), np.array([1.0, 2.0])),
    "paths": (Path("/a/x.npy"), Path("/b/c/x.npy")),
    "files": (File("/a/x.npy", 3, 17), File("/b/x.npy", 3, 18)),
    "objects without a repr": (object(), object()),
    "objects that raise": (Failing(), Failing()),
    "tensors": (Torch(), Torch()),
}
UNEQUAL: dict[str, tuple[Any, Any]] = {
    "sets": ({"a", "b"}, {"a", "c"}),
    "the last of many large items": ([[1] * 32] * 2000 + [[1, 2]], [[1] * 32] * 2000 + [[1, 3]]),
    "a list in the last of many rows": (
        [{"x": "a", "y": 1, "z": [1, 2]}] * 2000 + [{"x": "a", "y": 1, "z": [1, 2]}],
        [{"x": "a", "y": 1, "z": [1, 2]}] * 2000 + [{"x": "a", "y": 1, "z": [1, 3]}],
    ),
    "long texts": ("x" * 9999 + "a", "x" * 9999 + "b"),
    "long bytes": (b"x" * 9999 + b"a", b"x" * 9999 + b"b"),
    "text and bytes": ("a", b"a"),
    "numbers and truth": (1, True),
    "large numbers": (10**30, 10**30 + 1),
    "not a number": (float("nan"), None),
    "an empty array": (np.zeros((0, 3)), np.zeros((0, 4))),
    "arrays of objects": (np.array([1, None]), np.array([2, None])),
    "fields of arrays": (np.zeros(2, [("a", "i4")]), np.zeros(2, [("b", "i4")])),
    "the last number of an array": (np.zeros(10**6), np.r_[np.zeros(10**6 - 1), 1]),
    "arrays without axes": (np.array(1), np.array(2)),
    "times": (np.datetime64("2026-01-01"), np.datetime64("2026-01-02")),
    "wide numbers": (np.longdouble(1), np.longdouble(2)),
    "files": (File("/a/x.npy", 3, 17), File("/a/y.npy", 3, 17)),
    "types": (int, float),
    "kinds of numbers": (np.dtype("int32"), np.dtype("int64")),
    "expressions": (re.compile("a"), re.compile("b")),
    "names of a kind": (Color.RED, 1),
}


@pytest.mark.parametrize("what", EQUAL)
def test_these_are_known_by_the_same(what: str) -> None:
    one, other = EQUAL[what]
    assert known(one) == known(other)


@pytest.mark.parametrize("what", UNEQUAL)
def test_these_are_known_by_something_else(what: str) -> None:
    one, other = UNEQUAL[what]
    assert known(one) != known(other)


def test_an_array_in_a_file_is_not_read(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(5))
    one = known(np.load(tmp_path / "x.npy", mmap_mode="r"))
    np.save(tmp_path / "x.npy", np.arange(5) + 1)
    assert known(np.load(tmp_path / "x.npy", mmap_mode="r")) == one == '["array", [5], "<i8"]'


def test_an_absolute_path_in_a_repr_counts_with_its_last_part() -> None:
    class Folder:
        def __init__(self, root: str) -> None:
            self.root = root

        def __repr__(self) -> str:
            return f"Folder\n  Root location: {self.root}\n  Split: 'train'"

    assert known(Folder("/data/one/images")) == known(Folder("/mnt/images"))
    assert known(Folder("/data/one/images")) != known(Folder("/data/one/labels"))


LAMBDAS: list[tuple[Callable[..., Any], list[list[str]]]] = [
    (lambda x: x + 1, [["x"], ["1"], ["+"]]),
    (lambda row: row["x"] > 3 and row["y"] not in ("a", "b"),
     [["row"], ["'a'", "'b'", "'x'", "'y'", "3"], [">", "CONTAINS_OP 1"]]),
    (lambda xs: [x * 2 for x in xs if x is not None], [["x", "xs"], ["2"], ["*"]]),
    (lambda x: f"{x:>{SAMPLED}}-{x!r}", [["SAMPLED", "x"], ["'-'", "'>'"], []]),
    (lambda x, *a, y=3, **kw: dict(x=x, y=y, **kw), [["a", "dict", "kw", "x", "y"], ["'x'", "'y'"], []]),
    (lambda x: {"a": x, "b": [1, 2, 3], "c": {1, 2}}, [["x"], ["'a'", "'b'", "'c'", "1", "2", "3"], []]),
    (lambda x: x[1:3] + x[::2], [["x"], ["1", "2", "3"], ["+"]]),
    (lambda x: print(x, x, sep="-", end=""), [["print", "x"], ["'-'", "'end'", "'sep'"], []]),
    (lambda x: (lambda y: y + x)(2 * 3), [["x", "y"], ["6"], ["+"]]),
    (lambda b: [[c + 1 for c in a] for a in b], [["a", "b", "c"], ["1"], ["+"]]),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(LAMBDAS)))
def test_what_is_in_a_lambda_is_the_same_in_every_version_of_python(number: int) -> None:
    """Compared by hand under 3.11, 3.12 and 3.13."""
    fn, expected = LAMBDAS[number]
    assert contents(fn.__code__) == expected
