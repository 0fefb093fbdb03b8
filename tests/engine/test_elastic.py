"""The merged states of some processes go on in any number of others, which deliver the rest, each item once."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.testing import run_virtual
from tests.engine.drawn_parts import Parts, parts, tally
from tests.engine.failing import Oops
from tests.engine.inside import CHUNK, chunks_of, tracked
from tests.searching import searched


async def draw(pipeline: af.Pipeline[Any], count: int | None, state: Any) -> tuple[list[Any], Any]:
    """Return the next items after a state, and the state after them. A run may fail."""
    items: list[Any] = []
    async with pipeline.open(state=state) as feed:
        while count is None or len(items) < count:
            try:
                items.append(await anext(feed))
            except StopAsyncIteration:
                break
            except Oops:
                break
        return items, json.loads(json.dumps(feed.state_dict()))


@searched(30)
@given(
    case=parts(),
    counts=st.lists(st.integers(1, 8), min_size=2, max_size=4),
    cuts=st.lists(st.integers(0, 25), min_size=1, max_size=8),
    bad=st.none() | st.integers(0, 49),
    lengths=st.sampled_from([1, 2, 3, 17, CHUNK]),
    seed=st.integers(0, 2**32),
)
def test_each_item_is_delivered_once_whatever_the_numbers_of_processes(
    case: Parts, counts: list[int], cuts: list[int], bad: int | None, lengths: int, seed: int
) -> None:
    noise = not case.draws_by_part
    expected = tally(run_virtual(draw(case.part(0, 1), None, None))[0], noise=noise)
    received: Counter[Any] = Counter()
    state: Any = None
    with chunks_of(lengths), tracked(4):
        for number, count in enumerate(counts):
            last = number == len(counts) - 1
            case.flaky.bad = None if last else bad
            states = []
            for index in range(count):
                cut = None if last else cuts[(index + number) % len(cuts)]
                pipeline = case.alone() if count == 1 and state else case.part(index, count)
                items, its = run_virtual(draw(pipeline, cut, state), seed=seed + index)
                received += tally(items, noise=noise)
                states.append(its)
            state = af.merge_states(states)
    if case.uneven == "keep":
        assert received == expected
    elif case.uneven == "pad":
        assert received.keys() == expected.keys()
        assert expected <= received
    else:
        assert received <= expected
