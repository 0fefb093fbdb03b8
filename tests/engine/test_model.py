"""Any composition of stages is its plain-Python model, on any schedule, concurrency and loop."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.testing import run_virtual
from tests.eager import eagerly
from tests.engine.inside import CHUNK, LATE, chunks_of, groups_that_end_after, memory_guessed, memory_used
from tests.engine.model import Case, cut_short, pipelines

slow = settings(max_examples=300, suppress_health_check=list(HealthCheck))


async def collect(pipeline: af.Pipeline[Any], memory_limit: int | None = None) -> tuple[list[Any], int]:
    got = []
    async with pipeline.open(memory_limit=memory_limit) as feed:
        async for item in feed:
            got.append(item)
        return got, memory_used(feed) or memory_guessed(feed)


@slow
@given(
    case=pipelines(),
    seed=st.integers(0, 2**32),
    limit=st.sampled_from([None, 1, 300, 5000]),
    length=st.sampled_from([1, 2, 3, 17, CHUNK]),
    late=st.sampled_from([LATE, -1]),
)
def test_a_pipeline_is_its_model(
    case: Case, seed: int, limit: int | None, length: int, late: float, eager: bool
) -> None:
    """The same items in the same order, on any schedule, in runs of any length, however little memory there is.

    Also where each hop to a thread ends too late, after its first item, and on a loop with eager tasks.
    """
    with chunks_of(length), groups_that_end_after(late):
        main = collect(case.pipeline, limit)
        got, used = run_virtual(eagerly(main) if eager else main, seed=seed)
    assert got == case.epoch()
    if "take" not in repr(case) and "zip" not in repr(case):  # these end before what is above them
        assert used == 0


@slow
@given(case=cut_short(), seed=st.integers(0, 2**32), length=st.sampled_from([1, 3, CHUNK]))
def test_what_was_read_ahead_changes_no_random_number(case: Case, seed: int, length: int) -> None:
    """A `take` may end an epoch early, on any schedule: those after it draw what the description says."""
    with chunks_of(length):
        got, _ = run_virtual(collect(case.pipeline), seed=seed)
    assert got == case.epoch()


@slow
@given(case=pipelines() | cut_short(), seed=st.integers(0, 2**32), number=st.integers(0, 3))
def test_a_later_run_is_that_pass_of_a_repeat(case: Case, seed: int, number: int) -> None:
    """`open(epoch=k)` delivers epoch k of a `repeat` over all of it, random numbers included."""

    async def one_run() -> list[Any]:
        async with case.pipeline.open(epoch=number) as feed:
            return [item async for item in feed]

    assert run_virtual(one_run(), seed=seed) == case.epoch(number)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(case=pipelines())
def test_a_background_thread_delivers_the_same(case: Case) -> None:
    """`for` and `async for` are the same pipeline."""
    assert list(case.pipeline) == case.epoch()


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(case=pipelines())
def test_plain_asyncio_delivers_the_same(case: Case) -> None:
    """Nothing depends on the virtual loop."""
    assert asyncio.run(collect(case.pipeline))[0] == case.epoch()
