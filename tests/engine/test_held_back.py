"""A feed names the stages that compute on one core because of the GIL."""

from __future__ import annotations

import time
from typing import Any

import pytest

import asyncfeed as af
from asyncfeed.machine import runs_python_in_parallel, usable_cores
from tests.engine import in_worker as fns
from tests.engine.inside import one_core_is

pytestmark = pytest.mark.skipif(
    usable_cores() == 1 or runs_python_in_parallel(), reason="functions have all cores there are"
)
TEXT = 'on one core because of the GIL; with on="process", or in_processes() behind them, they use'


def computes(item: int) -> int:
    began = time.thread_time()
    while time.thread_time() - began < 0.0002:
        pass
    return item


def explained(pipeline: af.Pipeline[Any]) -> list[str]:
    """Return what a feed says of its stages after 20 batches."""
    with pipeline.open() as feed:
        for _ in range(20):
            next(feed)
        return [line for line in feed.explain().splitlines() if TEXT in line]


@pytest.mark.quiet  # beside other programs, the consumer is late itself
def test_a_function_that_computes_is_named_while_the_consumer_waits() -> None:
    with one_core_is(0.05, 10):
        (line,) = explained(af.items(range(10_000)).map(computes).batch(16))
    assert line.startswith("map(computes).batch(16): its functions computed for ")
    assert line.endswith(f" {usable_cores()} cores")


def test_nothing_is_said_of_functions_that_use_more_cores_or_wait() -> None:
    with one_core_is(10, 20):
        assert not explained(af.items(range(10_000)).map(computes).batch(16))


def test_nothing_is_said_of_functions_in_processes() -> None:
    with one_core_is(0.0, 10):
        assert not explained(af.items(range(1000)).map(fns.same, on="process").batch(16))


@pytest.mark.quiet
def test_a_feed_says_the_same_after_its_run() -> None:
    with one_core_is(0.05, 10):
        with af.items(range(1000)).map(computes).batch(16).open() as feed:
            list(feed)
        assert TEXT in feed.explain()


def test_nothing_is_said_before_the_run() -> None:
    pipeline = af.items(range(10)).map(computes)
    assert pipeline.open().explain() == pipeline.explain()
