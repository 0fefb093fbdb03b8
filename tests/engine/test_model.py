"""Any composition of stages is its plain-Python model, on any schedule, concurrency and loop."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.testing import run_virtual
from tests.eager import eagerly
from tests.engine.drawn import cut_short, failing, in_processes, pipelines, unordered
from tests.engine.drawn_consumers import Consumer, consumers, is_part_of, patient
from tests.engine.drawn_sources import Ledger
from tests.engine.failing import Oops, draw_on_thread
from tests.engine.inside import CHUNK, LATE, chunks_of, groups_that_end_after, memory_guessed, memory_used
from tests.engine.model import Case, Expected
from tests.searching import searched

HEAVIEST = 128
"""How many bytes the heaviest item of a model has: a number with its place."""

seeds = st.integers(0, 2**32)


class Run(NamedTuple):
    """What a consumer saw of a run."""

    items: list[Any]
    error: Oops | None
    failure: af.Failure | None
    left_out: list[int]
    used: int
    """How many bytes were charged at the end."""
    peak: int
    """How many at most."""


async def collect(pipeline: af.Pipeline[Any], memory_limit: int | None = None, epoch: int = 0) -> Run:
    Ledger.begin()
    items: list[Any] = []
    error: Oops | None = None
    async with pipeline.open(memory_limit=memory_limit, epoch=epoch) as feed:
        try:
            async for item in feed:
                items.append(item)
        except Oops as raised:
            error = raised.with_traceback(None)
        left_out = [each.error.args[0] for each in feed.skipped]
        assert feed.stats().skipped == len(left_out)
        used = memory_used(feed) or memory_guessed(feed)
        return Run(items, error, feed.failure, left_out, used, feed.stats().memory_peak)


def check(run: Run, expected: Expected, case: Case) -> None:
    """Compare a run with the model: its items, its end, and what it has left out."""
    values, bad, left_out = expected
    assert run.items == values
    if bad is None:
        assert (run.error, run.failure) == (None, None)
    else:
        assert run.error is not None and run.failure is not None
        assert run.error.args == (bad.number,)
        assert run.failure.error is run.error
        assert (run.failure.epoch, run.failure.ordinal) == (bad.epoch, bad.ordinal)
    if bad is None and not case.cuts:
        assert sorted(run.left_out) == sorted(left_out)
    assert Ledger.settled()


@searched(40)
@given(
    case=pipelines(),
    seed=seeds,
    limit=st.sampled_from([None, 1, 300, 5000, 20_000]),
    length=st.sampled_from([1, 2, 3, 17, CHUNK]),
    late=st.sampled_from([LATE, -1]),
    slow=st.booleans(),
)
def test_a_pipeline_is_its_model(
    case: Case, seed: int, limit: int | None, length: int, late: float, slow: bool, eager: bool
) -> None:
    """The same items in the same order, on any schedule, in chunks of any length, however little memory there is.

    Also where each group on a thread ends too late, after its first item; where all items pass for slow ones, so
    that several threads share each list; and on a loop with eager tasks.
    """
    with chunks_of(length), groups_that_end_after(late, slow=slow):
        main = collect(case.pipeline, limit)
        run = run_virtual(eagerly(main) if eager else main, seed=seed)
    check(run, case.run()[0], case)
    if not case.cuts:  # or else a stage ends before what is above it; see below
        assert run.used == 0
    if limit is not None and length < CHUNK:
        # What is next is let through: a chunk, or one in each stage if there is room for none.
        chunks = 1 if limit >= 5000 else repr(case).count("(")
        assert run.peak <= limit + chunks * length * HEAVIEST


@searched(40)
@given(
    case=failing(),
    seed=seeds,
    limit=st.sampled_from([None, 1, 5000]),
    length=st.sampled_from([1, 3, CHUNK]),
    late=st.sampled_from([LATE, -1]),
    number=st.integers(0, 2),
)
def test_items_that_fail_end_the_run_or_are_left_out_as_in_the_model(
    case: Case, seed: int, limit: int | None, length: int, late: float, number: int
) -> None:
    """The first failure in the order of the stream ends it, after all good items before; it says where it was."""
    with chunks_of(length), groups_that_end_after(late):
        run = run_virtual(collect(case.pipeline, limit, number), seed=seed)
    check(run, case.run(number)[0], case)


@searched(30)
@given(case=unordered(), seed=seeds, limit=st.sampled_from([None, 1, 5000]), count=st.integers(1, 3))
def test_unordered_stages_deliver_the_items_of_each_epoch_once(
    case: Case, seed: int, limit: int | None, count: int
) -> None:
    """In any order; before a failure come some of them."""

    async def main() -> tuple[list[list[int]], Oops | None]:
        found: list[list[int]] = []
        async with case.pipeline.epochs(count, memory_limit=limit) as epochs:
            try:
                async for epoch in epochs:
                    found.append([])
                    async for item in epoch:
                        found[-1].append(item)
            except Oops as error:
                return found, error.with_traceback(None)
        return found, None

    Ledger.begin()
    found, error = run_virtual(main, seed=seed)
    expected = case.run(count=count)
    assert (error is None) == all(each.bad is None for each in expected)
    assert len(found) == len(expected)
    for items, each in zip(found, expected, strict=True):
        if each.bad is None:
            assert sorted(items) == sorted(each.values)
    assert Ledger.settled()


@searched(40)
@given(case=cut_short(), seed=seeds, length=st.sampled_from([1, 3, CHUNK]))
def test_what_was_read_ahead_changes_no_random_number(case: Case, seed: int, length: int) -> None:
    """A `take` may end an epoch early, on any schedule: those after it draw what the description says."""
    with chunks_of(length):
        check(run_virtual(collect(case.pipeline), seed=seed), case.run()[0], case)


@searched(40)
@given(case=pipelines() | cut_short(), seed=seeds, number=st.integers(0, 3))
def test_a_later_run_is_that_pass_of_a_repeat(case: Case, seed: int, number: int) -> None:
    """`open(epoch=k)` delivers epoch k of a `repeat` over all of it, random numbers included."""
    check(run_virtual(collect(case.pipeline, epoch=number), seed=seed), case.run(number)[0], case)


# -- consumers


@searched(30)
@given(
    case=pipelines() | failing(),
    seed=seeds,
    limit=st.sampled_from([None, 1, 5000]),
    length=st.sampled_from([1, 3, CHUNK]),
    data=st.data(),
)
def test_whoever_draws_and_leaves_as_they_like_gets_every_item_once(
    case: Case, seed: int, limit: int | None, length: int, data: Any
) -> None:
    """In order, also after draws that were given up. Nothing stays behind, and another run begins anew."""
    values, bad, _ = expected = case.run()[0]
    consumer = data.draw(consumers(len(values) + 1), label="consumer")
    Ledger.begin()
    with chunks_of(length):
        got, failed = run_virtual(consumer.main(case.pipeline, limit), seed=seed)
        assert got == values[: len(got)]
        if consumer.way != "cancelled":
            assert len(got) == min(consumer.most, len(values))
            assert failed == (bad is not None and consumer.most > len(values))
        assert Ledger.settled()
        check(run_virtual(collect(case.pipeline), seed=seed + 1), expected, case)


@searched(20)
@given(
    case=pipelines() | failing(),
    seed=seeds,
    limit=st.sampled_from([None, 1, 5000]),
    drawing=st.lists(patient(10**9), min_size=2, max_size=4),
)
def test_tasks_that_share_a_feed_get_every_item_once(
    case: Case, seed: int, limit: int | None, drawing: list[Consumer]
) -> None:
    """Each gets its own in order, whoever gives up meanwhile; all of them come to the end, or to the failure."""

    async def main() -> tuple[list[list[int]], list[Any]]:
        shares: list[list[int]] = [[] for _ in drawing]
        async with case.pipeline.open(memory_limit=limit) as feed:
            draws = [each.draw(feed, share) for each, share in zip(drawing, shares, strict=True)]
            return shares, await asyncio.gather(*draws, return_exceptions=True)

    values, bad, _ = case.run()[0]
    shares, ends = run_virtual(main, seed=seed)
    assert sorted(sum(shares, [])) == sorted(values)
    assert all(is_part_of(share, values) for share in shares)
    assert [end and end.args for end in ends] == [bad and (bad.number,)] * len(drawing)


@searched(8)
@given(case=pipelines() | failing())
def test_a_background_thread_delivers_the_same(case: Case) -> None:
    """`for` and `async for` are the same pipeline."""
    values, bad, _ = case.run()[0]
    drawn = draw_on_thread(case.pipeline)
    assert drawn.items == values
    assert (drawn.error and drawn.error.args) == (bad and (bad.number,))


@searched(8)
@given(case=pipelines() | failing())
def test_plain_asyncio_delivers_the_same(case: Case) -> None:
    """Nothing depends on the virtual loop."""
    check(asyncio.run(collect(case.pipeline)), case.run()[0], case)


@searched(6)
@given(case=in_processes())
def test_worker_processes_deliver_the_same(case: Case) -> None:
    """A stage with `on="process"`, wherever it stands."""
    check(asyncio.run(collect(case.pipeline)), case.run()[0], case)


# -- memory


@searched(30)
@given(
    case=pipelines() | cut_short(),
    seed=seeds,
    limit=st.sampled_from([None, 1, 300, 5000]),
    length=st.sampled_from([1, 3, CHUNK]),
)
def test_what_ends_early_gives_its_memory_back(case: Case, seed: int, limit: int | None, length: int) -> None:
    """A `take` or a `zip` ends before what is above it: what comes next in a `concat` has all the memory."""

    async def main() -> tuple[list[Any], int]:
        later = asyncio.Event()

        async def rest() -> Any:
            await later.wait()
            yield -1

        async with af.concat(case.pipeline, af.items(rest)).open(memory_limit=limit) as feed:
            got = [await anext(feed) for _ in values]
            await asyncio.sleep(10)
            used = memory_used(feed) or memory_guessed(feed)
            later.set()
            assert [item async for item in feed] == [-1]
            return got, used

    values = case.epoch()
    with chunks_of(length):
        got, used = run_virtual(main, seed=seed)
    assert got == values
    assert used == 0
