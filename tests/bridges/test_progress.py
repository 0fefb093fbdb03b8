"""A state has what was trained on, however far a framework has read ahead; without any framework."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.bridges.progress import trained_of
from asyncfeed.bridges.run_factory import RunFactory

BATCHES = 5


def pipeline() -> af.Pipeline[Any]:
    return af.items(range(10)).shuffle(seed=3).batch(2)


class Framework:
    """Draws up to `ahead` batches before the trainer gets them, also of the next epochs."""

    def __init__(self, factory: RunFactory, ahead: int, epochs: int) -> None:
        self._ahead = ahead
        self._queue: list[list[int]] = []
        self._all = self._draw(factory, epochs)

    def _draw(self, factory: RunFactory, epochs: int) -> Any:
        for _ in range(epochs):
            run, items = factory.open()
            for item in items:
                yield item.tolist()
            run.stop("the framework let go")

    def next(self) -> list[int] | None:
        while len(self._queue) <= self._ahead:
            item = next(self._all, None)
            if item is None:
                break
            self._queue.append(item)
        return self._queue.pop(0) if self._queue else None

    def drop(self) -> None:
        self._all.close()


def made(progress: af.Progress) -> RunFactory:
    return RunFactory(pipeline(), None, None, trained=trained_of(progress))


WHOLE = [[batch.tolist() for batch in pipeline().open(epoch=epoch)] for epoch in range(3)]


@given(
    ahead=st.integers(0, 12),
    cuts=st.lists(st.integers(0, 3 * BATCHES), min_size=1, max_size=3),
    in_turn=st.booleans(),
)
def test_what_was_drawn_and_not_trained_on_comes_again(ahead: int, cuts: list[int], in_turn: bool) -> None:
    """Whatever the framework has read ahead, across the ends of epochs; several times one after the other."""
    seen: list[list[int]] = []
    state: Any = None
    for cut in [*cuts, 100]:
        progress = af.Progress()
        if state is not None and in_turn:
            progress.load_state_dict(state)  # before there is a dataset
        factory = made(progress)
        if state is not None and not in_turn:
            progress.load_state_dict(state)
        framework = Framework(factory, ahead, 3 - progress.epoch)
        for _ in range(cut):
            batch = framework.next()
            if batch is None:
                break
            seen.append(batch)
            progress.trained()
        framework.next()  # a batch that the trainer has, and has not trained on
        state = json.loads(json.dumps(progress.state_dict()))
        framework.drop()
    assert seen == [batch for epoch in WHOLE for batch in epoch]
    assert progress.epoch == 3


def test_an_iteration_that_was_left_is_not_counted_any_more() -> None:
    progress = af.Progress()
    factory = made(progress)
    first = Framework(factory, 2, 1)
    assert [first.next(), first.next()] == WHOLE[0][:2]
    progress.trained()
    first.drop()
    second = Framework(factory, 2, 1)
    assert second.next() == WHOLE[1][0]
    progress.trained()
    with pipeline().open(state=progress.state_dict()) as feed:
        assert [batch.tolist() for batch in feed] == WHOLE[1][1:]
    second.drop()


def test_more_than_was_delivered_cannot_be_trained_on() -> None:
    progress = af.Progress()
    framework = Framework(made(progress), 0, 1)
    framework.next()
    with pytest.raises(af.StateError, match="more than the dataset has delivered"):
        progress.trained(2)
    framework.drop()


def test_two_iterators_at_a_time_are_refused() -> None:
    progress = af.Progress()
    factory = made(progress)
    one, two = Framework(factory, 0, 1), Framework(factory, 0, 1)
    one.next()
    two.next()
    one.next()
    with pytest.raises(af.StateError, match="two iterators"):
        progress.trained()
    one.drop()
    two.drop()


def test_a_state_is_loaded_before_the_first_batch_is_trained_on() -> None:
    progress = af.Progress()
    framework = Framework(made(progress), 0, 1)
    framework.next()
    progress.trained()
    state = progress.state_dict()
    with pytest.raises(af.StateError, match="before the first batch"):
        progress.load_state_dict(state)
    framework.drop()


def test_each_dataset_has_a_progress_of_its_own() -> None:
    progress = af.Progress()
    made(progress)
    with pytest.raises(af.PipelineError, match="another dataset"):
        made(progress)


def test_a_progress_without_a_dataset_has_no_state() -> None:
    with pytest.raises(af.StateError, match="no dataset"):
        af.Progress().state_dict()
