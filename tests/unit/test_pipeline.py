"""The description: a value that prints as it was written, and refuses what cannot run."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.stages.base import Node

NUMBERS = af.items(range(10))


def square(x: int) -> int:
    return x * x


async def fetch(x: int) -> int:
    return x


def everything() -> af.Pipeline[Any]:
    return (
        af.items(range(20)).shuffle(seed=3).repeat(2).skip(1).take(30).enumerate(start=5).map(square, concurrency=4)
        .map(fetch, ordered=False).filter(bool, on_error="skip", skip_limit=0.5).flat_map(range)
        .batch(4, drop_remainder=True).pad(value=-1, to=8).unbatch().bucket(boundaries=[3], size=2).pad().prefetch(3)
    )  # fmt: skip


def test_it_prints_as_it_was_written() -> None:
    """The repr is the code, without defaults."""
    assert repr(everything()) == (
        "items(range(0, 20)).shuffle(seed=3).repeat(2).skip(1).take(30).enumerate(start=5).map(square, concurrency=4)"
        ".map(fetch, ordered=False).filter(bool, on_error='skip', skip_limit=0.5).flat_map(range)"
        ".batch(4, drop_remainder=True).pad(value=-1, to=8).unbatch().bucket(boundaries=(3,), size=2).pad().prefetch(3)"
    )
    assert repr(af.zip(NUMBERS, NUMBERS.repeat(), strict=False)) == (
        "zip(items(range(0, 10)), items(range(0, 10)).repeat(), strict=False)"
    )
    assert repr(af.items(np.zeros(3))) == "items(<ndarray of 3>)"
    assert repr(af.items(list(range(100)))) == "items(<list of 100>)"
    assert repr(af.arrays(np.zeros((3, 2)), np.zeros(3, int))) == "arrays(<float64 3x2>, <int64 3>)"


def test_pipelines_are_equal_where_they_are_written_the_same() -> None:
    """Equality and hash are those of the description."""
    assert everything() == everything()
    assert hash(everything()) == hash(everything())
    assert everything() != everything().take(1)
    assert NUMBERS.batch(2) != NUMBERS.batch(3)
    assert af.items([1]) != af.items([2])
    assert af.arrays(np.arange(3)) == af.arrays(np.arange(3)) != af.arrays(np.arange(4))
    assert NUMBERS != 3


def test_a_prefix_can_be_shared() -> None:
    """Each method returns a new pipeline and leaves the old one as it was."""
    prefix = NUMBERS.map(square)
    left, right = prefix.take(2), prefix.skip(8)
    assert list(left) == [0, 1]
    assert list(right) == [64, 81]
    assert list(prefix) == [x * x for x in range(10)]


def test_it_cannot_be_changed() -> None:
    """Attributes are read-only."""
    with pytest.raises(AttributeError, match="cannot be changed"):
        NUMBERS.stages = ()


def test_it_pickles() -> None:
    """A description whose functions pickle runs elsewhere."""
    copy = pickle.loads(pickle.dumps(NUMBERS.shuffle(seed=1).map(square).batch(2)))
    assert copy == NUMBERS.shuffle(seed=1).map(square).batch(2)
    assert [batch.tolist() for batch in copy] == [b.tolist() for b in NUMBERS.shuffle(seed=1).map(square).batch(2)]


@pytest.mark.parametrize(
    ("pipeline", "length"),
    [
        (NUMBERS.batch(3), 4),
        (NUMBERS.batch(3, drop_remainder=True), 3),
        (NUMBERS.repeat(2).batch(3), 7),
        (NUMBERS.batch(3).repeat(2), 8),
        (NUMBERS.take(3).skip(1), 2),
        (NUMBERS.repeat().take(25), 25),
        (NUMBERS.map(square).enumerate().prefetch(2), 10),
        (af.zip(NUMBERS, NUMBERS.skip(4), strict=False), 6),
        (af.concat(NUMBERS, NUMBERS.take(1)), 11),
        (af.items({1, 2, 3}), 3),
    ],
)
def test_the_length_is_known_where_it_can_be(pipeline: af.Pipeline[Any], length: int) -> None:
    """`len()` is what a run delivers."""
    assert len(pipeline) == length == len(list(pipeline))


@pytest.mark.parametrize(
    "pipeline",
    [
        NUMBERS.repeat(),
        NUMBERS.filter(bool),
        NUMBERS.flat_map(range),
        af.items(lambda: iter([1])),
        NUMBERS.batch(2).unbatch(),
    ],
)
def test_an_unknown_length_is_a_type_error(pipeline: af.Pipeline[Any]) -> None:
    """As for any object without a length; `size()` says None."""
    assert pipeline.size() is None
    assert bool(pipeline)
    with pytest.raises(TypeError, match="not known"):
        len(pipeline)


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: NUMBERS.batch(0), "batch: size must be at least 1"),
    (lambda: NUMBERS.batch(2.5), "whole number"),
    (lambda: NUMBERS.take(-1), "take: count"),
    (lambda: NUMBERS.repeat(0), "repeat: count"),
    (lambda: NUMBERS.prefetch(0), "prefetch: count"),
    (lambda: NUMBERS.shuffle(buffer=0), "shuffle: buffer"),
    (lambda: NUMBERS.filter(square).shuffle(), r"shuffle\(buffer="),
    (lambda: NUMBERS.repeat().shuffle(), "buffer"),
    (lambda: af.items(lambda: iter([1])).shuffle(), "buffer"),
    (lambda: NUMBERS.pad(), r"pad\(to="),
    (lambda: NUMBERS.batch(2).map(square).pad(), r"pad\(to="),
    (lambda: NUMBERS.map(3), "function"),
    (lambda: NUMBERS.map(square, concurrency=0), "concurrency"),
    (lambda: NUMBERS.map(square, on_error="skip"), "skip_limit"),
    (lambda: NUMBERS.map(square, on_error="ignore"), "on_error"),
    (lambda: NUMBERS.load(3), "decoder"),
    (lambda: NUMBERS.bucket(boundaries=[], size=2), "boundaries"),
    (lambda: NUMBERS.open(memory_limit=0), "memory_limit"),
    (lambda: NUMBERS.open(grace=-1), "grace"),
    (lambda: af.items("text"), "wrap it in a list"),
    (lambda: af.items({"a": 1}), r"data.items\(\)"),
    (lambda: af.items(3), "iterable"),
    (lambda: af.items(iter([1])).repeat(2), "only once"),
    (lambda: af.concat(af.items(iter([1]))).repeat(), "only once"),
    (lambda: af.arrays(), "at least one"),
    (lambda: af.arrays(np.zeros(3), np.zeros(4)), "4 rows"),
    (lambda: af.arrays(3.0), "first axis"),
    (lambda: af.zip(), "at least one"),
    (lambda: af.zip([1, 2]), r"items\(...\)"),
    (lambda: af.zip(NUMBERS, NUMBERS.take(3)), "strict=False"),
]  # fmt: skip


@pytest.mark.parametrize(("write", "fix"), WRONG, ids=[fix for _, fix in WRONG])
def test_wrong_use_raises_where_it_is_written_and_says_the_fix(write: Callable[[], Any], fix: str) -> None:
    """A `PipelineError`, which is a `ValueError`, from the line itself."""
    with pytest.raises(af.PipelineError, match=fix) as caught:
        write()
    assert isinstance(caught.value, ValueError)


def test_an_iterator_is_drawn_from_once() -> None:
    """A second run would silently be empty."""
    once = af.items(iter([1, 2]))
    assert list(once) == [1, 2]
    with pytest.raises(af.PipelineError, match="earlier run"):
        list(once)


def test_explain_says_how_it_runs() -> None:
    """What is worked into the source, each stage with its bound, and the memory limit."""
    text = NUMBERS.shuffle().map(square).map(fetch, concurrency=7).batch(2).prefetch(5).explain(memory_limit=1000)
    assert text.splitlines() == [
        "items(range(0, 10)).shuffle()  10 items by number",
        "map(square)                    1 to 256 threads, in order",
        "map(fetch, concurrency=7)      up to 7 calls on the loop, in order",
        "batch(2)                       regroups items on the loop; 1 to 256 threads, in order",
        "prefetch(5)                    a queue",
        "-> consumer                    up to 5 ready",
        "memory: at most 1,000 bytes in flight in the whole run",
    ]


def test_explain_counts_one_as_one() -> None:
    """Of items, of calls and of threads."""
    text = af.items([5]).map(square, concurrency=1).map(fetch, concurrency=1).explain()
    assert [line.split("  ")[-1].strip() for line in text.splitlines()[:3]] == [
        "1 item by number",
        "1 thread, in order",
        "1 call on the loop, in order",
    ]
    assert "1 process, in order" in af.items([5]).map(square, on="process", concurrency=1).explain()


class Tensor:
    """Its comparison has no truth."""

    def __eq__(self, other: object) -> Any:
        return np.array([True, False])

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("make", "equal"),
    [
        (lambda: af.items(np.arange(3)), True),
        (lambda: af.items([np.ones(2), np.zeros(2)]), True),
        (lambda: af.items([{"x": [np.ones(2)], "y": (1, np.ones(1))}]), True),
        (lambda: af.arrays(np.ones((2, 2)), {"y": np.arange(2)}), True),
        (lambda: af.zip(af.items(np.arange(3)), af.items([np.ones(2)] * 3)), True),
        (lambda: af.concat(af.items(np.arange(3)), af.items(np.arange(2))).batch(2), True),
        (lambda: af.items([1]).batch(1).pad(value={"x": np.array(0), "y": np.float32(1)}), True),
        (lambda: af.items([Tensor()]), False),
        (lambda: af.arrays(np.ones(2)).map(partial(np.add, np.ones(2))), False),
    ],
)
def test_pipelines_are_compared_without_an_error(make: Callable[[], af.Pipeline[Any]], equal: bool) -> None:
    """Whatever data they hold; equal ones have equal hashes, and their nodes too."""
    one, other = make(), make()
    assert one == one
    assert (one == other) is equal
    assert one != one.prefetch(1)
    assert one != af.items(range(3))
    nodes = [(one.source, other.source), *zip(one.stages, other.stages, strict=True)]
    for mine, theirs in nodes:
        assert hash(mine) == hash(theirs)
        assert isinstance(mine == theirs, bool)
    assert hash(one) == hash(other)
    assert len({one, other}) == 2 - equal


def test_every_node_compares_by_the_same_rule() -> None:
    """None has the comparison that `dataclass` makes, which raises for arrays."""
    left = list(Node.__subclasses__())
    while left:
        kind = left.pop()
        left += kind.__subclasses__()
        assert kind.__eq__ is Node.__eq__, kind
        assert kind.__hash__ is Node.__hash__, kind
