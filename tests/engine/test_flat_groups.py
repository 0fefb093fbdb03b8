"""`flat_map` calls a quick function for several items with one job of a thread, as far as it returns short lists."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncfeed as af
from tests.engine.inside import CHUNK, LATE, chunks_of, counted_jobs, groups_that_end_after
from tests.searching import searched

WAYS = {
    "list": lambda item, count: [(item, at) for at in range(count)],
    "tuple": lambda item, count: tuple((item, at) for at in range(count)),
    "iterator": lambda item, count: iter([(item, at) for at in range(count)]),
}
ITEMS = st.lists(
    st.tuples(st.sampled_from([*WAYS, "list", "list", "list", "failure"]), st.sampled_from([0, 1, 1, 2, 5, 300])),
    max_size=40,
)


def children_of(asked: tuple[int, tuple[str, int]]) -> Any:
    item, (way, count) = asked
    if way == "failure":
        raise LookupError(item)
    return WAYS[way](item, count)


def expected(items: list[tuple[str, int]], *, skips: bool) -> list[tuple[int, int]]:
    """Return what a plain loop makes, up to the first failure unless failures are skipped."""
    made: list[tuple[int, int]] = []
    for asked in enumerate(items):
        try:
            made += children_of(asked)
        except LookupError:
            if not skips:
                break
    return made


def received(feed: af.Feed[Any]) -> list[Any]:
    made: list[Any] = []
    try:
        made.extend(feed)
    except LookupError:
        pass
    return made


@searched(60)
@given(
    items=ITEMS,
    skips=st.booleans(),
    concurrency=st.sampled_from([1, 3, "auto"]),
    ordered=st.booleans(),
    limit=st.sampled_from([1, 1000, 100_000, None]),
    late=st.sampled_from([LATE, -1]),
    length=st.sampled_from([1, 3, CHUNK]),
    data=st.data(),
)
def test_children_are_those_of_a_plain_loop_and_a_state_goes_on_between_them(
    items: list[tuple[str, int]],
    skips: bool,
    concurrency: Any,
    ordered: bool,
    limit: int | None,
    late: float,
    length: int,
    data: st.DataObject,
) -> None:
    how: dict[str, Any] = {"on_error": "skip", "skip_limit": 100} if skips else {}
    pipeline = af.items(list(enumerate(items))).flat_map(
        children_of, concurrency=concurrency, ordered=ordered, **how
    )
    wanted = expected(items, skips=skips)
    cut = data.draw(st.integers(0, len(wanted) if ordered or skips else 0))
    with groups_that_end_after(late), chunks_of(length):
        with pipeline.open(memory_limit=limit) as feed:
            first = [next(feed) for _ in range(cut)]
            state = feed.state_dict()
        with pipeline.open(memory_limit=limit, state=state) as feed:
            rest = received(feed)
    if ordered:
        assert first + rest == wanted
    elif skips:
        assert Counter(first + rest) == Counter(wanted)
    else:  # children of later items may come before the failure, and those of earlier ones may not
        assert not Counter(rest) - Counter(expected(items, skips=True))


def test_short_lists_of_many_items_take_few_jobs_of_a_thread() -> None:
    """Where each item had a job of its own, the jobs took longer than quick functions."""
    with counted_jobs() as jobs:
        assert list(af.items(range(5000)).flat_map(lambda item: [item])) == list(range(5000))
        assert jobs() < 1000


@pytest.mark.parametrize("late", [LATE, -1])
def test_with_one_call_at_a_time_items_are_called_once_each_in_their_order(late: float) -> None:
    called: list[int] = []

    def children(item: int) -> Any:
        called.append(item)
        return iter([item]) if item % 7 == 3 else [item] * (item % 3)

    with groups_that_end_after(late):
        list(af.items(range(500)).flat_map(children, concurrency=1))
    assert called == list(range(500))


def test_no_more_calls_run_at_a_time_than_asked_for() -> None:
    lock, running, most = threading.Lock(), 0, 0

    def children(item: int) -> list[int]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.001 if item % 50 == 0 else 0)
        with lock:
            running -= 1
        return [item]

    assert list(af.items(range(500)).flat_map(children, concurrency=2)) == list(range(500))
    assert most <= 2


def test_a_stop_iteration_of_the_function_is_the_failure_of_its_item() -> None:
    def children(item: int) -> list[int]:
        if item == 40:
            raise StopIteration
        return [item]

    with af.items(range(100)).flat_map(children).open() as feed:
        came: list[int] = []
        with pytest.raises(RuntimeError, match="StopIteration"):
            came.extend(feed)
        assert came == list(range(40))
        assert feed.failure is not None
        assert feed.failure.ordinal == 40


def test_lists_that_get_long_do_not_hold_up_the_items_of_their_group() -> None:
    """A worker waits while an item holds many children, so another one goes on with the next item."""

    def children(item: int) -> list[int]:
        return [item] * (1000 if item >= 30 else 1)

    pipeline = af.items(range(60)).flat_map(children, ordered=False)
    assert Counter(pipeline) == Counter(child for item in range(60) for child in children(item))
