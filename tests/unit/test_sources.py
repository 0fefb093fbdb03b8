"""Sources: objects, arrays, tables, and several pipelines as one."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.stages.steps import Indexed

few = settings(max_examples=100, suppress_health_check=list(HealthCheck))


class Dataset:
    """A map-style dataset, as torch has them."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, place: int) -> int:
        if not 0 <= place < 5:
            raise IndexError(place)
        return place * 10


def generator() -> Any:
    yield from (1, 2, 3)


async def async_generator() -> Any:
    for number in (1, 2, 3):
        await asyncio.sleep(0)
        yield number


async def coroutine() -> list[int]:
    return [1, 2, 3]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ([1, 2, 3], [1, 2, 3]),
        ((1, 2, 3), [1, 2, 3]),
        (range(3), [0, 1, 2]),
        (np.arange(3), [0, 1, 2]),
        (deque([1, 2]), [1, 2]),
        (Dataset(), [0, 10, 20, 30, 40]),
        ({1}, [1]),
        ({"a": 1}.items(), [("a", 1)]),
        (generator, [1, 2, 3]),
        (generator(), [1, 2, 3]),
        (async_generator, [1, 2, 3]),
        (coroutine, [1, 2, 3]),
        (lambda: [1, 2, 3], [1, 2, 3]),
        (map(abs, [-1, 2]), [1, 2]),
        ([], []),
        (lambda: iter([]), []),
    ],
    ids=[
        "list", "tuple", "range", "array", "deque", "dataset", "set", "view", "generator function", "generator",
        "async generator function", "coroutine function", "function", "iterator", "empty list", "empty iterator",
    ],
)  # fmt: skip
def test_items_takes_anything_that_can_be_gone_through(data: Any, expected: list[Any]) -> None:
    """Sequences by number, iterables on a thread, async ones on the loop."""
    assert list(af.items(data)) == expected


def test_an_async_iterator_is_taken_as_it_is() -> None:
    """An async generator that was already made."""

    async def main() -> list[int]:
        return [x async for x in af.items(async_generator())]

    assert asyncio.run(main()) == [1, 2, 3]


def test_a_function_that_returns_no_iterable_is_an_error() -> None:
    """It names what came."""
    with pytest.raises(af.PipelineError, match="not int"):
        list(af.items(lambda: 3))


def test_an_endless_source_can_be_taken_from() -> None:
    """Nothing waits for its end."""
    assert list(af.items(itertools.count).take(3)) == [0, 1, 2]
    assert list(af.items(itertools.count).filter(lambda x: x % 2).take(3).repeat(2)) == [1, 3, 5, 1, 3, 5]


def test_an_empty_source_under_an_endless_repeat_is_an_error() -> None:
    """It would never deliver, and never end."""
    for empty in (af.items([]), af.items(lambda: iter([]))):
        with pytest.raises(af.PipelineError, match="never end"):
            list(empty.repeat())


@dataclass
class Sample:
    x: Any
    y: Any


class Frame:
    """What pandas' tables look like: shape and `[label]`."""

    shape = (3, 2)
    iloc = None

    def __getitem__(self, label: str) -> Any:
        raise KeyError(label)


class Group:
    """What HDF5 and zarr call a group: arrays by name."""

    def keys(self) -> list[str]:
        return ["x"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1, 2, 3], r"arrays: \[0\] must be an array with a first axis, not int: write arrays\(numpy.array"),
        ([["secret"]], r"arrays: \[0\]\[0\] must be .* not str: open the file"),
        ("x.zarr", r"arrays: the array must be .* not str: open the file, and give its array"),
        (Frame(), r"not Frame: pandas finds rows by label: write arrays\(frame.to_numpy\(\)\)"),
        ({"x": Group()}, r"arrays: \['x'\] must be .* not Group: it holds arrays by name.*group\['x'\]"),
        (np.float32(1), r"not float32: an array without axes is one sample: items"),
        (None, "not NoneType: write"),
    ],
)
def test_what_is_no_array_is_refused_with_what_to_write(given: Any, message: str) -> None:
    """At the line, naming the kind and where it stands, and never what is in it."""
    with pytest.raises(af.PipelineError, match=message) as caught:
        af.arrays(given)
    assert "secret" not in str(caught.value)


def test_arrays_gives_the_rows_of_a_tree() -> None:
    """Views, in the structure given."""
    x, y = np.arange(6).reshape(3, 2), np.array([7, 8, 9])
    assert [row.tolist() for row in af.arrays(x)] == [[0, 1], [2, 3], [4, 5]]
    assert next(iter(af.arrays(x))).base is not None
    assert [(a.tolist(), int(b)) for a, b in af.arrays(x, y)] == [([0, 1], 7), ([2, 3], 8), ([4, 5], 9)]
    assert [row["y"] for row in af.arrays({"x": x, "y": y})] == [7, 8, 9]
    assert [row.y for row in af.arrays(Sample(x, y))] == [7, 8, 9]
    (batch,) = af.arrays({"x": x, "y": y}).batch(3)
    np.testing.assert_array_equal(batch["x"], x)


@st.composite
def indexed(draw: st.DrawFn, depth: int = 3) -> tuple[af.Pipeline[Any], list[Any]]:
    """Draw a pipeline that stays reachable by number, and its items."""
    n = draw(st.integers(0, 12))
    pipeline: af.Pipeline[Any] = af.items(range(n))
    values: list[Any] = list(range(n))
    for _ in range(draw(st.integers(0, depth))):
        match draw(st.sampled_from(["take", "skip", "repeat", "zip", "concat", "enumerate"])):
            case "take":
                k = draw(st.integers(0, 15))
                pipeline, values = pipeline.take(k), values[:k]
            case "skip":
                k = draw(st.integers(0, 15))
                pipeline, values = pipeline.skip(k), values[k:]
            case "repeat":
                k = draw(st.integers(1, 3))
                pipeline, values = pipeline.repeat(k), values * k
            case "enumerate":
                pipeline, values = pipeline.enumerate(), list(enumerate(values))
            case "zip":
                other, theirs = draw(indexed(depth=1))
                pipeline = af.zip(pipeline, other, strict=False)
                values = list(zip(values, theirs, strict=False))
            case "concat":
                other, theirs = draw(indexed(depth=1))
                pipeline, values = af.concat(pipeline, other), values + theirs
    return pipeline, values


@few
@given(case=indexed(), data=st.data())
def test_items_by_number_are_the_items_in_order(
    case: tuple[af.Pipeline[Any], list[Any]], data: st.DataObject
) -> None:
    """Any places, in any order, as ranges or lists; and each has a name."""
    pipeline, values = case
    found: Indexed | None = pipeline.indexed()
    assert found is not None
    assert len(found) == len(values) == len(pipeline)
    start = data.draw(st.integers(0, len(values)))
    stop = data.draw(st.integers(start, len(values)))
    assert found.pick(0, range(start, stop)) == values[start:stop]
    places = data.draw(st.lists(st.integers(0, len(values) - 1), max_size=8)) if values else []
    assert found.pick(0, places) == [values[place] for place in places]
    assert all(isinstance(found.key(0, place), str) for place in places)
    assert list(pipeline) == values


def test_a_shuffle_after_a_stage_that_rearranges_is_exact() -> None:
    """Everything before it is reached by number, also across `repeat`, `zip` and `concat`."""
    pipeline = af.concat(af.items(range(5)), af.items(range(5, 9))).repeat(2).shuffle(seed=1)
    got = list(pipeline)
    assert sorted(got) == sorted([*range(9)] * 2)
    assert got != sorted(got)
    epochs = list(af.items(range(20)).shuffle(seed=1).repeat(2))
    assert sorted(epochs[:20]) == sorted(epochs[20:]) == list(range(20))
    assert epochs[:20] != epochs[20:]


def test_a_billion_items_are_shuffled_at_once() -> None:
    """Nothing is stored and nothing is computed that is not asked for."""
    first = list(af.items(range(10**9)).shuffle(seed=3).take(5))
    assert len(set(first)) == 5
    assert max(first) > 10**6
