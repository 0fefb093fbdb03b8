"""A feed that goes on from a state delivers what an uninterrupted one would have, whatever the pipeline."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.testing import run_virtual
from tests.engine.drawn import failing, pipelines, unordered
from tests.engine.drawn_sources import Ledger
from tests.engine.failing import Oops
from tests.engine.inside import CHUNK, chunks_of, memory_guessed, memory_used, stages_apart, tracked
from tests.engine.model import Case
from tests.searching import LONGER, Tally, searched

seeds = st.integers(0, 2**32)
limits = st.sampled_from([None, 1, 1000, 100_000])
tally = Tally()


@pytest.fixture(autouse=True, scope="module")
def _figures() -> Iterator[None]:
    yield
    tally.show("checkpoints")


async def draw(
    pipeline: af.Pipeline[Any], count: int | None, state: Any, looks: int, limit: int | None
) -> tuple[list[Any], Any, int]:
    """Return the next items after a state, the state after them, and the bytes that are charged in the end."""
    items: list[Any] = []
    async with pipeline.open(state=state, memory_limit=limit) as feed:
        while count is None or len(items) < count:
            if len(items) % looks == 0:
                feed.state_dict()  # a state that is not used changes nothing
            try:
                items.append(await anext(feed))
            except StopAsyncIteration:
                break
        after = json.loads(json.dumps(feed.state_dict()))
    return items, after, memory_used(feed) or memory_guessed(feed) if count is None else 0


@searched(40)
@given(
    case=pipelines(),
    cuts=st.lists(st.integers(0, 40 * LONGER), min_size=1, max_size=4),
    lengths=st.lists(st.sampled_from([1, 2, 3, 17, CHUNK]), min_size=1, max_size=3),
    looks=st.integers(1, 20),
    limit=limits,
    seed=seeds,
)
def test_nothing_is_lost_or_repeated_at_any_cut(
    case: Case, cuts: list[int], lengths: list[int], looks: int, limit: int | None, seed: int
) -> None:
    """One state after the other, each of a feed that began with the one before; in chunks of any length.

    It is the same state whether stages are called together or apart.
    """
    expected = case.run()[0].values
    state: Any = None
    items: list[Any] = []
    for number, count in enumerate([*cuts, None]):
        Ledger.begin()
        with chunks_of(lengths[number % len(lengths)]), tracked(4 * (number % 2)), stages_apart(number % 3 == 1):
            more, state, used = run_virtual(draw(case.pipeline, count, state, looks, limit), seed=seed + number)
        items += more
        tally.add(len(more))
        assert items == expected[: len(items)]
        assert used == 0 or case.cuts
        assert Ledger.settled()
    assert items == expected


@searched(30)
@given(
    case=unordered(),
    cuts=st.lists(st.integers(0, 40 * LONGER), min_size=1, max_size=4),
    lengths=st.lists(st.sampled_from([1, 2, 3, 17, CHUNK]), min_size=1, max_size=3),
    looks=st.integers(1, 20),
    limit=limits,
    seed=seeds,
)
def test_nothing_is_lost_or_repeated_where_items_come_out_of_order(
    case: Case, cuts: list[int], lengths: list[int], looks: int, limit: int | None, seed: int
) -> None:
    expected = case.run()[0]
    assume(expected.bad is None)
    state: Any = None
    items: list[Any] = []
    for number, count in enumerate([*cuts, None]):
        with chunks_of(lengths[number % len(lengths)]), tracked(4 * (number % 2)), stages_apart(number % 3 == 1):
            more, state, used = run_virtual(draw(case.pipeline, count, state, looks, limit), seed=seed + number)
        items += more
        tally.add(len(more))
        assert used == 0 or case.cuts
    assert sorted(items) == sorted(expected.values)


async def draw_failing(
    pipeline: af.Pipeline[Any], count: int | None, state: Any, limit: int | None
) -> tuple[list[Any], Any, Any]:
    """Return the next items after a state, the number that failed, and the state after them."""
    items: list[Any] = []
    bad = None
    async with pipeline.open(state=state, memory_limit=limit) as feed:
        try:
            while count is None or len(items) < count:
                items.append(await anext(feed))
        except StopAsyncIteration:
            pass
        except Oops as error:
            bad = error.args[0]
        return items, bad, json.loads(json.dumps(feed.state_dict()))


@searched(40)
@given(
    case=failing(),
    cuts=st.lists(st.integers(0, 40 * LONGER), min_size=1, max_size=4),
    length=st.sampled_from([1, 2, 3, 17, CHUNK]),
    tracks=st.sampled_from([1, 4, 4096]),
    limit=limits,
    seed=seeds,
)
def test_items_that_fail_are_left_out_and_end_a_run_as_if_there_was_one_run(
    case: Case, cuts: list[int], length: int, tracks: int, limit: int | None, seed: int
) -> None:
    """Limits of how many may be left out count over all runs. An item that ends a run ends the next one, too."""
    expected = case.run()[0]
    state: Any = None
    items: list[Any] = []
    for number, count in enumerate([*cuts, None]):
        with chunks_of(length), tracked(tracks), stages_apart(number % 3 == 1):
            more, bad, state = run_virtual(draw_failing(case.pipeline, count, state, limit), seed=seed + number)
        items += more
        tally.add(len(more))
        assert items == expected.values[: len(items)]
        assert bad is None or items == expected.values
    assert items == expected.values
    assert bad == (None if expected.bad is None else expected.bad.number)
