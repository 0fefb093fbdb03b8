"""Objects that are no arrays: what they weigh, what users say they weigh, and what nobody can tell."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed import weights
from asyncfeed.trees import size_of, total_size, unweighable


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    before = dict(weights._registered)
    yield
    weights._registered.clear()
    weights._registered.update(before)


class Opaque:
    """Holds what Python cannot see."""

    __slots__ = ()


class Derived(Opaque):
    __slots__ = ()


class Frame:
    """What pandas has."""

    def memory_usage(self, *, deep: bool) -> np.ndarray[Any, Any]:
        assert deep
        return np.array([100, 800])


class Column:
    def memory_usage(self, *, deep: bool) -> int:
        return 900 * deep


class Table:
    """What polars has."""

    def estimated_size(self) -> int:
        return 1234


class Image:
    """What PIL has."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.size = 640, 480

    def getbands(self) -> tuple[str, ...]:
        return ("I",) if self.mode == "I" else tuple(self.mode)


class Tensor:
    """What some frameworks have."""

    class dtype:  # noqa: N801
        size = 2

    shape = (3, 5)


class Hostile:
    @property
    def nbytes(self) -> int:
        raise RuntimeError("not now")


@pytest.mark.parametrize(
    ("item", "nbytes"),
    [
        (Frame(), 900), (Column(), 900), (Table(), 1234), (Image("RGB"), 640 * 480 * 3), (Image("I"), 640 * 480 * 4),
        (Image("L"), 640 * 480), (Tensor(), 30), (Opaque(), 64), (Hostile(), 64), ([Image("L")], 64 + 640 * 480),
    ],
)  # fmt: skip
def test_objects_tell_their_size_in_many_ways(item: Any, nbytes: int) -> None:
    assert size_of(item) == total_size([item]) == nbytes


def test_real_images_frames_and_tensors_are_weighed() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": np.zeros(1000), "b": ["x" * 100] * 1000})
    assert size_of(frame) > 100_000
    assert size_of(frame["a"]) >= 8000


def test_an_image_of_pil_is_weighed() -> None:
    image = pytest.importorskip("PIL.Image").new("RGB", (100, 50))
    assert size_of(image) == 15_000


def test_a_tensor_of_torch_is_weighed() -> None:
    assert size_of(pytest.importorskip("torch").zeros(10, 10)) == 400


def test_what_refers_to_itself_has_an_end() -> None:
    class Ring:
        pass

    ring: Any = Ring()
    ring.me = ring
    assert size_of(ring) >= 64


def test_users_say_what_their_types_weigh() -> None:
    """Subclasses too, unless they have a function of their own."""
    af.register_size(Opaque, lambda _: 1000)
    assert [size_of(each) for each in (Opaque(), Derived(), (Opaque(), 1))] == [1000, 1000, 64 + 1000 + 32]
    af.register_size(Derived, lambda _: 5)
    assert [size_of(Opaque()), size_of(Derived())] == [1000, 5]
    assert unweighable([Opaque()]) is None


@pytest.mark.parametrize(("kind", "fn"), [(int, len), (tuple, len), (object, len), ("Opaque", len), (Opaque, 3)])
def test_what_cannot_be_registered_is_an_error(kind: Any, fn: Any) -> None:
    with pytest.raises(af.PipelineError, match="register_size"):
        af.register_size(kind, fn)


def test_a_registered_size_counts_for_the_limit() -> None:
    af.register_size(Opaque, lambda _: 1_000_000)
    with af.items(range(50)).map(lambda _: Opaque(), concurrency=8).open(memory_limit=4_000_000) as feed:
        assert sum(1 for _ in feed) == 50
        assert 1_000_000 <= feed.stats().memory_peak <= 4_000_000


async def _drain(pipeline: af.Pipeline[Any]) -> int:
    async with pipeline.open() as feed:
        return len([item async for item in feed])


async def _stream() -> Any:
    for _ in range(50):
        yield Opaque()


async def _make(_: int) -> Opaque:
    return Opaque()


@pytest.mark.parametrize(
    "pipeline",
    [
        af.items(range(50)).map(lambda _: Opaque()),
        af.items(range(50)).map(_make),
        af.items(range(50)).map(lambda _: {"x": [Opaque()], "y": 1}),
        af.items(range(5)).flat_map(lambda _: [Opaque()] * 10),
        af.items(lambda: (Opaque() for _ in range(50))),
        af.items(_stream),
    ],
    ids=["map", "async map", "in a tree", "flat_map", "source", "async source"],
)
def test_what_nobody_can_weigh_is_said_once_for_each_stage(
    pipeline: af.Pipeline[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The stage, the type and what to write."""
    with caplog.at_level(logging.WARNING, logger="asyncfeed"):
        assert asyncio.run(_drain(pipeline)) == 50
    (record,) = [each for each in caplog.records if "nothing tells" in each.message]
    assert str(pipeline.stages[-1] if pipeline.stages else pipeline.source) in record.message
    assert "test_weights.Opaque takes" in record.message
    assert "asyncfeed.register_size(Opaque, function)" in record.message


def test_what_can_be_weighed_is_not_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    values = [1, "a", np.zeros(3), (1, b"x"), {"a": None}, {1, 2}, Image("L"), np.float32(1), 1 + 2j, range(9)]
    with caplog.at_level(logging.WARNING, logger="asyncfeed"):
        assert len(list(af.items(values).map(lambda x: x).filter(lambda x: True))) == len(values)
    assert not caplog.records


def test_no_library_is_imported_to_weigh() -> None:
    code = (
        "import sys, asyncfeed as af; list(af.items([object(), 3]).map(lambda x: x));"
        "print([name for name in ('pandas', 'PIL', 'torch', 'polars') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
