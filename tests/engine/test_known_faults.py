"""What the search in `test_model.py` has found and nobody has mended yet: each at its smallest.

A test that begins to pass here fails, as it is strict: then it belongs beside the others of its kind, and the
search may draw such pipelines again (`drawn.may_follow`, and what `test_model.py` leaves out).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import asyncfeed as af
from asyncfeed.testing import run_virtual
from tests.engine.failing import Oops, draw, raises_later


async def later(x: Any) -> Any:
    await asyncio.sleep(0.001)
    return x


async def three() -> AsyncIterator[int]:
    for x in range(3):
        yield x


async def three_and_fail() -> AsyncIterator[int]:
    for x in range(3):
        yield x
    raise Oops


@pytest.mark.xfail(
    raises=AssertionError,
    reason="a failure that is on its way when a `take` has enough, or with which a longer input of a `zip` ends, goes on",
)
@pytest.mark.parametrize(
    "pipeline",
    [
        af.items(range(20)).filter(raises_later(Oops, 5)).take(4),
        af.items(range(20)).map(raises_later(Oops, 5)).filter(later).take(4),
        af.zip(af.items(three), af.items(three_and_fail), strict=False),
        af.zip(af.items(three_and_fail), af.items(three).map(later), strict=False),
    ],
    ids=["take", "take far from it", "shorter first", "shorter last"],
)
def test_a_failure_that_nobody_wants_is_not_raised_if_epochs_follow(pipeline: af.Pipeline[Any]) -> None:
    """Without a `repeat` it is not, and with one it depends on how far was read ahead."""
    without = run_virtual(draw(pipeline))
    assert without.error is None
    for seed in range(20):
        drawn = run_virtual(draw(pipeline.repeat(2)), seed=seed)
        assert (drawn.items, drawn.error) == (2 * without.items, None)
