"""`Pipeline.epochs`: one run whose epochs the consumer can tell apart."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.testing import run_virtual
from tests.engine.drawn import cut_short, pipelines
from tests.engine.model import Case
from tests.searching import searched

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator


def noise(item: Any, rng: np.random.Generator) -> tuple[Any, int]:  # noqa: ANN401
    return item, int(rng.integers(1000))


async def waits(item: Any) -> Any:  # noqa: ANN401
    number = item[0] if isinstance(item, tuple) else item
    await asyncio.sleep((number * 7919) % 13 / 1000)
    return item


TRAIN = af.items(range(10)).shuffle(seed=3).map(noise, rng=True).map(waits).batch(3).prefetch(2)


def shown(batch: Any) -> str:  # noqa: ANN401
    return str(batch)


def by_the_book(pipeline: af.Pipeline[Any], count: int, start: int = 0) -> list[list[str]]:
    """Return the epochs as runs of their own."""
    return [[shown(batch) for batch in pipeline.open(epoch=start + epoch)] for epoch in range(count)]


async def gathered(epochs: af.Epochs[Any], most: int | None = None) -> list[list[str]]:
    out = []
    async with epochs:
        async for epoch in epochs:
            out.append([])
            if most == 0:
                continue
            async for batch in epoch:
                out[-1].append(shown(batch))
                if len(out[-1]) == most:
                    break
    return out


# -- what they are


def test_each_epoch_is_the_run_of_its_number() -> None:
    """Orders and random numbers differ from epoch to epoch, and are those of `open(epoch=k)`."""
    found = [(epoch.number, [shown(batch) for batch in epoch]) for epoch in TRAIN.epochs(3)]
    assert [number for number, _ in found] == [0, 1, 2]
    assert [batches for _, batches in found] == by_the_book(TRAIN, 3)
    assert found[0][1] != found[1][1]


def test_async_epochs_are_the_same(seed: int) -> None:
    assert run_virtual(gathered(TRAIN.epochs(3)), seed=seed) == by_the_book(TRAIN, 3)


def test_they_start_where_an_earlier_program_ended() -> None:
    epochs = TRAIN.epochs(2, start=3)
    assert [(epoch.number, list(map(shown, epoch))) for epoch in epochs] == list(
        zip([3, 4], by_the_book(TRAIN, 2, start=3), strict=True)
    )


@searched(30)
@given(
    case=pipelines(depth=4) | cut_short(),
    seed=st.integers(0, 2**32),
    count=st.integers(1, 4),
    most=st.none() | st.integers(0, 5),
    start=st.integers(0, 2),
    limit=st.sampled_from([None, 1, 5000]),
)
def test_any_pipeline_has_its_epochs(
    case: Case, seed: int, count: int, most: int | None, start: int, limit: int | None
) -> None:
    """Left early or gone through, on any schedule, with little memory."""
    epochs = case.pipeline.epochs(count, start=start, memory_limit=limit)
    found = run_virtual(gathered(epochs, most), seed=seed)
    assert found == [list(map(str, case.epoch(start + number)))[:most] for number in range(count)]


def test_an_epoch_without_items_is_an_epoch(seed: int) -> None:
    nothing = af.items(range(5)).filter(lambda _: False)
    assert run_virtual(gathered(nothing.epochs(4)), seed=seed) == [[], [], [], []]


def test_a_stage_without_end_has_epochs_that_are_left(seed: int) -> None:
    """Each begins anew: steps per epoch are the caller's."""
    endless = af.items(range(4)).shuffle(seed=1).map(waits).repeat()
    found = run_virtual(gathered(endless.epochs(3), most=6), seed=seed)
    assert [len(set(each[:4])) for each in found] == [4, 4, 4]
    assert found == [list(map(str, itertools.islice(iter(endless.take(6).open(epoch=e)), 6))) for e in range(3)]


def test_they_may_be_endless(seed: int) -> None:
    async def main() -> list[int]:
        numbers = []
        async with TRAIN.epochs() as epochs:
            async for epoch in epochs:
                numbers.append(epoch.number)
                async for _ in epoch:
                    break
                if epoch.number == 7:
                    break
        return numbers

    assert run_virtual(main(), seed=seed) == list(range(8))


# -- one run


def test_the_next_epoch_is_read_before_this_one_is_over(seed: int) -> None:
    """At its first batch nothing has to be waited for."""
    calls: list[int] = []

    async def load(item: int) -> int:
        await asyncio.sleep(1)
        calls.append(item)
        return item

    async def main() -> tuple[int, float]:
        loop = asyncio.get_running_loop()
        async with af.items(range(4)).map(load, concurrency=4).epochs(2) as epochs:
            first = await anext(epochs)
            for _ in range(4):
                await anext(first)
            await asyncio.sleep(10)
            ahead = len(calls)
            second = await anext(epochs)
            before = loop.time()
            await anext(second)
            return ahead, loop.time() - before

    assert run_virtual(main(), seed=seed) == (8, 0.0)


def test_what_is_left_of_an_epoch_is_not_read() -> None:
    """The source hears of it, and goes on with the next epoch."""
    drawn: list[int] = []

    def source() -> Iterator[int]:
        for number in range(100_000):
            drawn.append(number)
            yield number

    for epoch in af.items(source).epochs(3):
        next(epoch)
    assert len(drawn) < 30_000


def test_a_source_without_end_hears_that_its_epoch_was_left() -> None:
    """It may be at work at that moment, and then waits for nothing."""
    for _ in range(20):
        endless = af.items(range(3)).shuffle().repeat()
        for epoch in endless.epochs(3):
            assert set(itertools.islice(epoch, 3)) == {0, 1, 2}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("drawn", range(1, 6))
def test_items_of_an_epoch_that_was_left_let_others_run(drawn: int) -> None:
    """A source that never waits lets the loop tell it so, also if it had just been told that there is room."""
    endless = af.items(range(3)).repeat().prefetch(4)
    by_the_book = [str(number % 3) for number in range(drawn)]
    assert run_virtual(gathered(endless.epochs(3), most=drawn)) == [by_the_book] * 3


@pytest.mark.parametrize("count", [1, 3, 100])
def test_an_item_that_expands_without_end_is_left_with_its_epoch(count: int) -> None:
    """Also one whose turn has not come, and those that wait in front of the stage."""
    closed: list[int] = []

    def endless(start: int) -> Iterator[int]:
        try:
            yield from itertools.count(start)
        finally:
            closed.append(start)

    async def endless_async(start: int) -> AsyncIterator[int]:
        for number in itertools.count(start):
            await asyncio.sleep(0)
            yield number

    for function in (endless, endless_async):
        expanded = af.items(range(count)).flat_map(function)
        assert [next(epoch) for epoch in expanded.epochs(3)] == [0, 0, 0]
        assert list(expanded.take(2).repeat(3)) == [0, 1] * 3
        assert list(expanded.take(2).shuffle(buffer=1).repeat(2).epochs(2).__next__()) == [0, 1] * 2
    assert closed.count(0) >= 6


def test_stages_that_hold_items_begin_each_epoch_empty(seed: int) -> None:
    """Left early, a buffer or half a batch of one epoch must not reach the next."""
    pipeline = af.items(lambda: iter(range(10))).shuffle(buffer=4).batch(4)
    found = run_virtual(gathered(pipeline.epochs(3), most=1), seed=seed)
    assert found == [batches[:1] for batches in by_the_book(pipeline, 3)]


# -- leaving


def test_an_epoch_that_was_left_delivers_nothing_more() -> None:
    with TRAIN.epochs(2) as epochs:
        first = next(epochs)
        next(first)
        second = next(epochs)
        assert list(first) == []
        assert [shown(batch) for batch in second] == by_the_book(TRAIN, 2)[1]
        assert list(second) == []


def test_epochs_may_be_left_before_the_run_has_begun() -> None:
    epochs = TRAIN.epochs(3)
    for _ in range(2):
        next(epochs)
    assert [shown(batch) for batch in next(epochs)] == by_the_book(TRAIN, 3)[2]


def begun(epochs: af.Epochs[Any]) -> af.Epochs[Any]:
    next(next(epochs))
    return epochs


@pytest.mark.parametrize("make", [lambda: TRAIN.epochs(3), lambda: begun(TRAIN.epochs(4))])
def test_epochs_in_a_list_say_to_draw_from_each_when_it_comes(make: Callable[[], af.Epochs[Any]]) -> None:
    """All were over before anything was drawn from them. Nothing of them is no answer: a loop would do nothing."""
    epochs = make()
    for epoch in list(epochs):
        for _ in range(2):
            with pytest.raises(
                af.ClosedError, match=rf"epoch {epoch.number} is over.*next one.*for batch in epoch"
            ):
                next(epoch)
    epochs.feed.close()
    epochs = make()
    last, _ = next(epochs), next(epochs)
    with pytest.raises(af.ClosedError, match="is over"):
        list(last)
    epochs.feed.close()


def test_async_epochs_in_a_list_say_the_same(seed: int) -> None:
    async def main() -> None:
        for epoch in [epoch async for epoch in TRAIN.epochs(3)]:
            with pytest.raises(af.ClosedError, match=rf"epoch {epoch.number} is over"):
                await anext(epoch)

    run_virtual(main(), seed=seed)


def test_letting_go_of_them_stops_the_run() -> None:
    """`nothing_left` looks for threads after each test."""
    for epoch in TRAIN.epochs(3):
        next(epoch)
        break
    del epoch


def test_the_run_stops_after_the_last_epoch_however_that_was_left() -> None:
    epochs = TRAIN.epochs(2)
    for epoch in epochs:
        next(epoch)
    epochs.feed.close()
    assert epochs.feed.failure is None
    assert list(epochs) == []


def test_every_batch_of_an_epoch_goes_to_one_of_many_threads() -> None:
    """None draws a batch of the next epoch, however late it comes to the end of this one."""
    with af.items(range(2000)).map(lambda x: x).epochs(4) as epochs:
        for epoch in epochs:
            got: list[list[int]] = [[] for _ in range(4)]
            threads = [threading.Thread(target=lambda mine=mine, e=epoch: mine.extend(e)) for mine in got]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(itertools.chain(*got)) == list(range(2000))


def test_tasks_that_wait_for_a_batch_of_an_epoch_that_is_left_come_to_its_end(seed: int) -> None:
    async def main() -> list[int]:
        async def slow() -> AsyncIterator[int]:
            for number in itertools.count():
                await asyncio.sleep(1)
                yield number

        async with af.items(slow).epochs(2) as epochs:
            first = await anext(epochs)
            await anext(first)

            async def rest() -> list[int]:
                return [item async for item in first]

            waiting = asyncio.ensure_future(rest())
            await asyncio.sleep(0.1)
            await anext(epochs)
            return await waiting

    assert run_virtual(main(), seed=seed) == []


def test_the_last_epoch_comes_to_its_end_as_those_before() -> None:
    """Also for a thread that waits for its next batch."""
    never = threading.Event()
    found: list[int] = []

    def stalls() -> Iterator[int]:
        yield 1
        never.wait()

    epochs = af.items(stalls).epochs(1)
    epoch = next(epochs)
    found.append(next(epoch))
    waiting = threading.Thread(target=lambda: found.append(next(epoch, -1)))
    waiting.start()
    assert next(epochs, None) is None
    waiting.join()
    assert found == [1, -1]
    assert list(epoch) == []
    never.set()
    epochs.feed.close()


def test_the_feed_of_epochs_delivers_the_items_of_all() -> None:
    """Whoever draws from it passes the end of an epoch, which takes the only place there is."""
    train = af.items(range(3)).map(waits).prefetch(1)
    assert list(train.epochs(3).feed) == [0, 1, 2] * 3

    async def main() -> list[int]:
        async with train.epochs(3) as epochs:
            return [item async for item in epochs.feed]

    assert run_virtual(main()) == [0, 1, 2] * 3


def test_an_epoch_ends_when_its_feed_was_drawn_beyond_it() -> None:
    epochs = af.items(range(3)).epochs(3)
    first = next(epochs)
    assert [next(epochs.feed) for _ in range(4)] == [0, 1, 2, 0]
    assert list(first) == []
    assert [list(epoch) for epoch in epochs] == [[1, 2], [0, 1, 2]]


# -- errors


def test_a_failing_item_ends_them_and_names_its_epoch() -> None:
    def fails_later(item: int, rng: np.random.Generator) -> int:
        if item == 3 and rng.random() < 0.5:
            raise ValueError(item)
        return item

    epochs = af.items(range(5)).map(fails_later, rng=True, seed=1).epochs(50)
    with pytest.raises(ValueError, match="3") as caught:
        for epoch in epochs:
            list(epoch)
    assert f"epoch {epoch.number}" in "\n".join(caught.value.__notes__)
    assert epochs.feed.failure is not None
    assert epochs.feed.failure.epoch == epoch.number


def test_an_iterator_has_one_epoch() -> None:
    assert [list(epoch) for epoch in af.items(iter(range(3))).epochs(1)] == [[0, 1, 2]]
    with pytest.raises(af.PipelineError, match="can be read only once"):
        af.items(iter(range(3))).epochs(2)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"count": 0}, "count must be at least 1, not 0"),
        ({"start": -1}, "start must not be negative, not -1"),
        ({"start": 1.5}, "start must be a whole number, not 1.5"),
        ({"start": "1"}, "start must be a whole number, not '1'"),
        ({"grace": -1}, "grace must not be negative"),
        ({"coord": 3}, "coord must be a Coordinator"),
        ({"memory_limit": 0}, "memory_limit"),
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(af.PipelineError, match=message):
        TRAIN.epochs(**wrong)


def test_the_number_of_an_epoch_may_be_one_of_numpy() -> None:
    """It may come out of a checkpoint."""
    train = af.items(range(10)).shuffle(seed=1)
    assert list(train.open(epoch=np.int64(2))) == list(train.open(epoch=2))
    assert [list(epoch) for epoch in train.epochs(1, start=np.int64(2))] == [list(train.open(epoch=2))]


# -- looking


def test_they_tell_their_length() -> None:
    with TRAIN.epochs(3) as epochs:
        assert len(epochs) == 3
        assert bool(epochs)
        assert len(next(epochs)) == len(TRAIN) == 4
        assert "1 of 3 epochs of <Feed of" in repr(epochs)
    with af.items(lambda: iter(range(3))).epochs() as endless:
        assert repr(next(endless)) == "<Epoch 0>"
        with pytest.raises(TypeError, match="no end"):
            len(endless)
        with pytest.raises(TypeError, match="not known"):
            len(next(endless))


def test_the_feed_counts_batches_of_all_epochs() -> None:
    epochs = TRAIN.epochs(3)
    for epoch in epochs:
        list(epoch)
    assert epochs.feed.stats().batches == 12
