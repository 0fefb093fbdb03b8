"""A worker process that dies: its items go to another one, and only an item that two have died of is a failure."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import random
import signal
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.testing import no_leaks
from tests.engine import dying
from tests.engine import in_worker as fns
from tests.engine.inside import OwnWorkers, memory_used
from tests.searching import SEARCH, SEED, SEEDS, Tally
from tests.unit.test_shared import same

TALLY = Tally()
KILLS = max(2, round(3 * SEARCH))
"""Number of kills in each long run."""


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
    others, workers = fns.children(), own(fns.same)
    assert workers.call(0) == 0
    assert workers.call(dying.KillsWhenSent(1, others)) == 1


def test_a_worker_that_dies_before_its_order_suspects_no_item(own: Any) -> None:
    """It had answered others, so it is only replaced. The new one that dies, too, has the first suspicion."""
    others, workers = fns.children(), own(fns.same)
    for number in range(2):
        assert workers.call_group([number, number]) == [[number, number]]
        assert workers.call(dying.KillsWhenSent(5, others, times=2)) == 5
    assert workers.deaths == 4


def test_a_worker_that_dies_before_its_first_answer_suspects_the_first_item(own: Any) -> None:
    """Even if it had not begun it: else a worker that always dies would be replaced without end."""
    others, workers = fns.children(), own(fns.same)
    failed, rest = workers.call_group([dying.KillsWhenSent(5, others, times=2), 6])[0]
    assert "the second one to die there" in str(failed)
    assert rest is None
    assert workers.deaths == 2
    assert workers.call(dying.KillsWhenSent(5, others)) == 5


def test_what_was_done_before_the_death_counts_and_what_comes_after_is_innocent(own: Any, tmp_path: Path) -> None:
    """The results before it are kept, it goes to another worker alone, and the others are called once."""
    items = [dying.Deadly(each, f"{tmp_path}/{each}", "call" if each in (2, 4) else "") for each in range(6)]
    workers = own(dying.outlives)
    assert [[number for number, _ in part] for part in workers.call_group(items)] == [[0, 1, 2], [3, 4], [5]]
    assert workers.deaths == 2


def test_an_item_that_kills_two_workers_has_failed(own: Any) -> None:
    """Not those that were sent with it."""
    ((sound, failed, rest),) = own(fns.dies).call_group([6, 7, 8])
    assert (sound, rest) == (6, None)
    assert "exited with status 3 while it worked on this item, the second one to die there" in str(failed)


@pytest.mark.parametrize("phase", ["load", "call", "answer"])
@pytest.mark.parametrize("how", dying.WAYS_TO_DIE)
def test_a_death_at_an_item_is_no_failure(tmp_path: Path, phase: str, how: str, capfd: Any) -> None:
    """While it is read, in the call, and while the result is written."""
    items = [dying.Deadly(each, str(tmp_path / "died"), phase if each == 5 else "", how) for each in range(30)]
    pipeline = af.items(items).map(dying.outlives, on="process", concurrency=2)
    with no_leaks(), pipeline.open() as feed:
        assert [number for number, _ in feed] == list(range(30))
        assert dict(feed.stats().slow_paths) == {
            "map(outlives, concurrency=2, on='process'), worker process died": 1
        }
        assert memory_used(feed) == 0


def test_a_name_that_a_function_asks_for_is_sent_though_a_later_item_kills(own: Any) -> None:
    """The group ends at the item that needs its name."""
    workers = own(dying.needs_name_then_dies, skips=True)
    first, (*others, failed), rest = workers.call_group(list(range(6)), placed=True)
    assert (first, others, rest) == ([0, 1], [2, 3], [5])
    assert "exited with status 3" in str(failed)


# -- workers that die while they start


def test_a_worker_that_dies_while_it_starts_is_replaced(own: Any, tmp_path: Path) -> None:
    workers = own(dying.DiesLoadingOnce(str(tmp_path / "died")))
    assert workers.call_group([1, 2]) == [[1, 2]]
    assert workers.deaths == 1


def test_the_second_worker_in_a_row_that_dies_while_it_starts_ends_the_run(tmp_path: Path) -> None:
    """No item is at fault, so none is skipped. The error says how the worker ended, and where to look."""
    fn = fns.DiesLoading(str(tmp_path / "starts"))
    with pytest.raises(af.PipelineError) as raised:
        list(af.items(range(9)).map(fn, on="process", concurrency=1, on_error="skip", skip_limit=9))
    text = (
        "exited with status 4 while it was starting, the second in a row: look at what the modules of the function"
    )
    assert text in str(raised.value)
    assert (tmp_path / "starts").read_text() == "xx"


# -- failures


def test_the_error_names_the_item_and_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match="was killed by SIGKILL while it worked on this item") as raised:
        list(af.items(range(30)).map(fns.killed, on="process", concurrency=2))
    assert "item number 7 (ordinal 7 of epoch 0)" in raised.value.__notes__[-1]
    assert "because memory ran out (`dmesg` tells): lower concurrency or memory_limit" in str(raised.value)


@pytest.mark.parametrize("batched", [False, True])
def test_the_error_names_the_file(tmp_path: Path, batched: bool) -> None:
    """A batch that is decoded in a worker is one item, so all its files are named."""
    for number in range(12):
        np.save(tmp_path / f"{number:02}.npy", np.full(9, number))
    pipeline = af.files(f"{tmp_path}/*.npy").load(dying.DiesAt("07.npy"), on="process", concurrency=1)
    with pytest.raises(RuntimeError, match="exited with status 3 while it worked on this item") as raised:
        list(pipeline.batch(4) if batched else pipeline)
    (note,) = (each for each in raised.value.__notes__ if "in stage" in each)
    assert f"{tmp_path}/07.npy" in note
    assert (f"{tmp_path}/04.npy" in note) is batched
    assert f"{tmp_path}/08.npy" not in note


def test_the_member_of_a_batch_that_kills_two_workers_is_the_one_that_is_named() -> None:
    """All batches before it are delivered."""
    pipeline = af.items(range(32)).map(fns.killed, on="process").map(fns.same, on="process").batch(4)
    with pipeline.open() as feed:
        came: list[Any] = []
        with pytest.raises(RuntimeError, match="the second one to die there"):
            came.extend(feed)
        assert [batch.tolist() for batch in came] == [[0, 1, 2, 3]]
        assert feed.failure is not None
        assert (feed.failure.key, feed.failure.ordinal) == ("number 7", 7)


def test_a_worker_that_dies_while_it_stacks_a_batch_blames_no_member() -> None:
    """The last member was done by then. All members are named."""
    with af.items(range(32)).map(dying.dies_when_stacked, on="process").batch(4).open() as feed:
        came: list[Any] = []
        with pytest.raises(RuntimeError, match="the second one to die there"):
            came.extend(feed)
        assert len(came) == 1
        assert feed.failure is not None
        assert feed.failure.ordinal == [4, 5, 6, 7]


def test_deaths_at_several_members_of_a_batch_are_no_failure(tmp_path: Path) -> None:
    """Each member has killed one worker, so none is at fault."""
    items = [
        dying.Deadly(each, f"{tmp_path}/{each}", "call" if each in (1, 2, 6, 9) else "") for each in range(12)
    ]
    pipeline = af.items(items).map(dying.outlives_alone, on="process", concurrency=1).batch(4)
    with no_leaks(), pipeline.open() as feed:
        assert [batch.tolist() for batch in feed] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
        assert sum(count for _, count in feed.stats().slow_paths) == 4


def test_an_item_that_killed_two_workers_counts_as_one_failure_also_in_states() -> None:
    """Limits count it once, and a run that goes on from a state does not count or call it again."""
    pipeline = af.items(range(30)).map(fns.killed, on="process", concurrency=2, on_error="skip", skip_limit=1)
    with pipeline.open() as feed:
        first = [next(feed) for _ in range(12)]
        assert [each.ordinal for each in feed.skipped] == [7]
        assert feed.stats().skipped == 1
        state = feed.state_dict()
    with pipeline.open(state=state) as feed:
        assert first + list(feed) == [each for each in range(30) if each != 7]
        assert dict(feed.stats().slow_paths) == {}


# -- in a whole run


def pipeline_of(folder: Path, rng: random.Random, on: str) -> tuple[af.Pipeline[Any], int]:
    """Draw a pipeline whose workers die of some items, once each. On threads it does not die."""
    lethal = 0
    items = []
    for number in range(rng.randrange(20, 60)):
        phase = rng.choice(["load", "call", "answer"]) if rng.random() < 0.08 else ""
        lethal += bool(phase)
        place = folder / f"{number}"
        if on == "thread" and phase:
            place.touch()
        items.append(dying.Deadly(number, str(place), phase, rng.choice(list(dying.WAYS_TO_DIE))))
    options: dict[str, Any] = {
        "on": on,
        "concurrency": rng.choice([1, 2, 3]),
        "ordered": rng.random() < 0.7,
        "rng": rng.random() < 0.7,
    }
    if rng.random() < 0.3:
        options |= {"on_error": "skip", "skip_limit": 1}
    source = af.items(items)
    if rng.random() < 0.5:
        source = source.shuffle(seed=rng.randrange(9))
    return source.map(dying.outlives, **options), lethal


@pytest.mark.parametrize("seed", SEEDS)
def test_deaths_change_nothing(tmp_path: Path, seed: int) -> None:
    """Workers die at drawn items and phases; results, order and random numbers are those of threads.

    Also if the run is left in the middle, and another one goes on from its state.
    """
    (tmp_path / "thread").mkdir()
    answers = list(pipeline_of(tmp_path / "thread", random.Random(seed), "thread")[0])
    plain = [pickle.loads(pickle.dumps(each)) for each in answers]
    pipeline, lethal = pipeline_of(tmp_path, rng := random.Random(seed), "process")
    limit = rng.choice(["1MB", "100MB"])
    got: list[Any] = []
    died = 0
    state = None
    with no_leaks():
        for stop in (rng.randrange(len(plain)), len(plain) + 1):
            with pipeline.open(state=state, memory_limit=limit) as feed:
                for each in feed:
                    got.append(each)
                    if len(got) == stop:
                        break
                state = feed.state_dict()
                died += sum(count for _, count in feed.stats().slow_paths)
    if "ordered=False" in str(pipeline):
        got, plain = by_number(got), by_number(plain)
    assert same(got, plain)
    assert died <= lethal
    TALLY.add(died)


def by_number(items: list[Any]) -> list[Any]:
    return sorted(items, key=lambda each: each[0])


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder of files of 80 KB each."""
    for number in range(50):
        np.save(tmp_path / f"{number}.npy", np.full(10_000, float(number)))
    return tmp_path


RUNS: dict[str, Callable[[Any, Path, str], af.Pipeline[Any]]] = {
    "small": lambda numbers, _, on: numbers.map(fns.takes_time, on=on, concurrency=2),
    "random": lambda numbers, _, on: numbers.map(fns.noisy, rng=True, on=on, concurrency=3),
    "blocks": lambda numbers, _, on: numbers.map(fns.large_and_slow, on=on, concurrency=2),
    "unordered": lambda numbers, _, on: numbers.map(fns.large_and_slow, on=on, concurrency=3, ordered=False),
    "batches": lambda numbers, at, on: (
        numbers.map(lambda n: af.File(f"{at}/{n % 50}.npy")).load(af.npy, on=on, concurrency=2).batch(4)
    ),
    "segments": lambda numbers, at, on: (
        numbers.map(fns.takes_time, on=on, concurrency=2)
        .map(fns.number_and_noise, rng=True, on=on, concurrency=2)
        .batch(4)
    ),
}


def digest(delivered: Any) -> Any:
    """Return something short that differs if what was delivered does."""
    if isinstance(delivered, np.ndarray):
        return delivered.shape, float(delivered.flat[0]), zlib.crc32(np.ascontiguousarray(delivered))
    return delivered


@pytest.mark.parametrize("kind", RUNS)
def test_kills_at_any_moment_change_nothing(files: Path, kind: str) -> None:
    """A worker is killed when all items have come that were sent before the last kill. So none is killed twice."""
    rng, build, before = random.Random(f"{SEED} {kind}"), RUNS[kind], fns.children()
    sent = kills = until = count = 0

    def numbers() -> Iterator[int]:
        nonlocal sent
        while kills < KILLS:
            sent += 1
            yield sent - 1

    got: list[Any] = []
    with no_leaks(), build(af.items(numbers), files, "process").open(memory_limit="32MB") as feed:
        for each in feed:
            got.append(digest(each))
            count += len(each) if kind in ("batches", "segments") else 1
            all_came = count >= until and (kind != "unordered" or {x for _, x, _ in got} >= set(range(until)))
            running = sorted(fns.children() - before)
            if kills < KILLS and all_came and running and rng.random() < 0.1:
                until = sent
                os.kill(rng.choice(running), signal.SIGKILL)
                kills += 1
        died = sum(number for name, number in feed.stats().slow_paths if "died" in name)
        assert memory_used(feed) == 0
    plain = [digest(each) for each in build(af.items(range(sent)), files, "thread")]
    if kind == "unordered":
        got, plain = sorted(got), sorted(plain)
    assert got == plain
    assert died <= KILLS
    TALLY.add(died)
    TALLY.show("workers killed")


@pytest.mark.parametrize("how", ["close", "cancel"])
def test_a_run_may_be_left_at_any_moment_of_a_death(tmp_path: Path, how: str) -> None:
    """While workers die and others start in their place; no process, thread or descriptor is left."""
    rng, before = random.Random(f"{SEED} {how}"), fns.children()

    async def leave(feed: af.Feed[Any], seconds: float) -> None:
        async def drain() -> None:
            async for _ in feed:
                pass

        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(drain(), seconds)
        await feed.aclose()

    with no_leaks():
        for number in range(KILLS):
            items = [dying.Deadly(each, f"{tmp_path}/{number} {each}", "call") for each in range(40)]
            feed = af.items(items).map(dying.outlives, on="process", concurrency=2).open()
            seconds = rng.random()
            if how == "cancel":
                asyncio.run(leave(feed, seconds))
                continue
            timer = threading.Timer(seconds, feed.close)
            timer.start()
            with contextlib.suppress(af.ClosedError):
                list(feed)
            timer.join()
    assert fns.children() <= before
