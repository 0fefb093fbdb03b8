"""A worker process that dies: its items go to another one, and only an item that two have died of is a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import asyncfeed as af
from asyncfeed.testing import no_leaks
from tests.engine import in_worker as fns
from tests.engine.inside import OwnWorkers, memory_used
from tests.searching import Tally

TALLY = Tally()


@pytest.fixture
def own() -> Iterator[Callable[..., OwnWorkers]]:
    """Make workers outside any run, and end them."""
    made: list[OwnWorkers] = []

    def make(fn: Callable[..., Any], **options: Any) -> OwnWorkers:
        made.append(OwnWorkers(fn, **options))
        return made[-1]

    yield make
    for each in made:
        each.stop()


# -- which item is to blame


def test_results_of_another_order_are_never_taken_for_those_of_this_one(own: Any) -> None:
    """A worker that dies before it has its order leaves the results of the order before in shared memory."""
    workers = own(fns.pid)
    first = workers.call(0)
    assert workers.call(fns.KillsWhenSent(1, first)) != first


def test_a_worker_that_dies_before_its_order_suspects_no_item(own: Any) -> None:
    """It had answered others, so it is only replaced, again and again."""
    workers = own(fns.pid)
    pid = workers.call(0)
    for _ in range(3):
        pid = workers.call(fns.KillsWhenSent(1, pid))
    assert workers.deaths == 3


def test_what_was_done_before_the_death_counts_and_what_comes_after_is_innocent(own: Any, tmp_path: Path) -> None:
    """The results before it are kept, it goes to another worker alone, and the others are called once."""
    items = [fns.Deadly(each, f"{tmp_path}/{each}", "call" if each in (2, 4) else "") for each in range(6)]
    workers = own(fns.outlives)
    assert [[number for number, _ in part] for part in workers.call_group(items)] == [[0, 1, 2], [3, 4], [5]]
    assert workers.deaths == 2


def test_an_item_that_kills_two_workers_has_failed(own: Any) -> None:
    """Not those that were sent with it."""
    ((sound, failed, rest),) = own(fns.dies).call_group([6, 7, 8])
    assert (sound, rest) == (6, None)
    assert "exited with status 3 while it worked on this item, the second one to die there" in str(failed)


@pytest.mark.parametrize("phase", ["load", "call", "answer"])
@pytest.mark.parametrize("how", fns.WAYS_TO_DIE)
def test_a_death_at_an_item_is_no_failure(tmp_path: Path, phase: str, how: str, capfd: Any) -> None:
    """While it is read, in the call, and while the result is written."""
    items = [fns.Deadly(each, str(tmp_path / "died"), phase if each == 5 else "", how) for each in range(30)]
    pipeline = af.items(items).map(fns.outlives, on="process", concurrency=2)
    with no_leaks(), pipeline.open() as feed:
        assert [number for number, _ in feed] == list(range(30))
        assert dict(feed.stats().slow_paths) == {
            "map(outlives, concurrency=2, on='process'), worker process died": 1
        }
        assert memory_used(feed) == 0


def test_a_name_that_a_function_asks_for_is_sent_though_a_later_item_kills(own: Any) -> None:
    """The group ends at the item that needs its name."""
    first, (*others, failed, rest) = own(fns.needs_name_then_dies).call_group(list(range(6)), placed=True)
    assert (first, others, rest) == ([0, 1], [2, 3], None)
    assert "exited with status 3" in str(failed)
