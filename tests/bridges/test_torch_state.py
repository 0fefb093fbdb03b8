"""The state of `to_torch`: what was given out, not what was copied early; batch for batch over several resumes."""

from __future__ import annotations

import gc
import io
import json
import threading
import weakref
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.bridges.device_feed import PlacedBatches
from asyncfeed.bridges.run_factory import RunFactory
from asyncfeed.errors import StateError
from asyncfeed.stages import Algorithm, Node
from tests.bridges.placed_states import END, PIPELINES, Training, check, cuts, ways

torch = pytest.importorskip("torch")

NUMBERS = PIPELINES["queues"]


class Early:
    """Starts the transfer of the next batch as soon as it is ready, as CUDA and JAX do."""

    early = True

    def __init__(self) -> None:
        self.started: list[Any] = []

    def start(self, batch: Any) -> Any:
        self.started.append(np.asarray(batch).tolist())
        return batch

    def finish(self, started: Any) -> Any:
        return started


def placed(pipeline: Any, placer: Early | None = None) -> PlacedBatches:
    factory = RunFactory(pipeline, None, None, "to_torch")
    return PlacedBatches(factory, (lambda: placer) if placer else Early, None, "fake")


class Pairing(Algorithm):
    """Has no state that can be saved."""

    def push(self, items: list[Any], positions: Any) -> Any:
        return [each for each in items for _ in range(2)], [each for each in positions for _ in range(2)]

    def flush(self) -> Any:
        return [], []


@dataclass(frozen=True)
class Pairs(Node):
    method: ClassVar[str] = "pairs"

    def steps(self) -> Any:
        return [Pairing()]

    def axes(self, upstream: Any, *, endless: bool) -> Any:
        return upstream


def lists(batches: Any) -> list[Any]:
    return [np.asarray(batch).tolist() for batch in batches]


# -- exact at any cut


@settings(max_examples=120, deadline=None)
@given(name=st.sampled_from(sorted(PIPELINES)), cut=cuts, ways=ways, sync=st.booleans())
def test_several_resumes_give_what_an_uninterrupted_training_gives(
    name: str, cut: list[int], ways: list[str], sync: bool
) -> None:
    """Also with a device that is given batches early, at the end of an epoch and in later epochs."""
    check(lambda: placed(PIPELINES[name]), cut, ways if sync else ["batches"], sync=sync)


@settings(max_examples=30, deadline=None)
@given(name=st.sampled_from(sorted(PIPELINES)), cut=cuts, ways=ways)
def test_tensors_too(name: str, cut: list[int], ways: list[str]) -> None:
    check(lambda: PIPELINES[name].to_torch(dtype=torch.float64), cut, ways)


def test_a_batch_that_was_started_early_is_not_in_the_state() -> None:
    placer = Early()
    data = placed(NUMBERS, placer)
    feed = iter(data)
    given = lists([next(feed)])
    while len(placer.started) < len(given) + 1:  # until one was ready in time
        given += lists([next(feed)])
    assert placer.started == lists(NUMBERS)[: len(given) + 1]
    for state in (data.state_dict(), feed.state_dict()):
        assert given + lists(NUMBERS.open(state=state)) == lists(NUMBERS)


def test_a_batch_that_could_not_be_placed_comes_again() -> None:
    """If the loop goes on behind it, it counts."""

    class Full(Early):
        def start(self, batch: Any) -> Any:
            super().start(batch)
            if len(self.started) == 3:
                raise MemoryError("the device is full")
            return batch

    data = placed(NUMBERS, Full())
    feed, expected = iter(data), lists(NUMBERS)
    assert lists([next(feed), next(feed)]) == expected[:2]
    with pytest.raises(MemoryError):
        next(feed)
    assert lists(NUMBERS.open(state=data.state_dict())) == expected[2:]
    assert lists([next(feed)]) == expected[3:4]
    assert lists(NUMBERS.open(state=data.state_dict())) == expected[4:]


def test_threads_that_share_an_iterator_share_its_state() -> None:
    pipeline = af.items(range(200))
    data = placed(pipeline)
    feed, got = iter(data), []

    def draw() -> None:
        got.extend(int(next(feed)) for _ in range(30))

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == list(range(120))
    assert lists(pipeline.open(state=data.state_dict())) == list(range(120, 200))


# -- which epoch


def test_the_number_of_the_epoch_goes_on() -> None:
    data = placed(NUMBERS)
    assert data.epoch == 0
    lists(data)
    assert data.epoch == 1
    feed = iter(data)
    next(feed)
    state = data.state_dict()
    resumed = placed(NUMBERS)
    resumed.load_state_dict(state)
    assert resumed.epoch == 1
    seen = []
    for epoch in range(resumed.epoch, 4):
        seen.append((epoch, resumed.epoch, len(lists(resumed))))
    assert seen == [(1, 1, 5), (2, 2, 6), (3, 3, 6)]


def test_a_state_after_the_last_batch_has_an_empty_rest_until_the_loop_has_ended() -> None:
    data = placed(NUMBERS)
    states = []
    for _ in data:
        states.append(data.state_dict())
    states.append(data.state_dict())
    for state, expected in zip(states[-2:], [[], lists(NUMBERS)], strict=True):
        resumed = placed(NUMBERS)
        resumed.load_state_dict(state)
        assert lists(resumed) == expected


def test_the_state_of_an_iterator_at_its_end_has_an_empty_rest() -> None:
    feed = iter(placed(NUMBERS))
    lists(feed)
    other = iter(placed(NUMBERS))
    other.load_state_dict(feed.state_dict())
    assert lists(other) == []


@pytest.mark.parametrize("leave", ["break", "close", "drop", "with"])
def test_a_loop_that_was_left_keeps_its_place(leave: str) -> None:
    """For a program that saves after it was asked to stop. Its own next loop is the next epoch."""
    data = placed(NUMBERS)
    if leave == "break":
        for _ in data:
            break
    else:
        feed = iter(data)
        if leave == "with":
            with feed:
                next(feed)
        else:
            next(feed)
        if leave == "close":
            feed.close()
        if leave == "drop":
            del feed
    gc.collect()
    resumed = placed(NUMBERS)
    resumed.load_state_dict(data.state_dict())
    assert (data.epoch, resumed.epoch) == (0, 0)
    assert lists(resumed) == lists(NUMBERS)[1:]
    assert data.epoch == 0
    next(iter(data))
    assert data.epoch == 1


def test_the_state_does_not_hold_the_run() -> None:
    closed = threading.Event()

    def endless() -> Any:
        try:
            while True:
                yield np.ones(1)
        finally:
            closed.set()

    data = placed(af.items(endless))
    for _ in data:
        data.state_dict()
        break
    gc.collect()
    assert closed.wait(30)
    assert data.state_dict()


def test_the_state_holds_nothing_that_the_run_opened() -> None:
    class Model:
        pass

    opened: list[Any] = []

    @contextmanager
    def model() -> Any:
        made = Model()
        opened.append(weakref.ref(made))
        yield made

    def use(x: int, model: Model) -> int:
        return x

    data = placed(af.items(range(50)).using(model=model).map(use).batch(2))
    with iter(data) as feed:
        next(feed)
    del feed
    gc.collect()
    assert [each() for each in opened] == [None]
    assert data.state_dict()


def test_before_the_first_batch_a_state_is_the_start_or_what_was_loaded() -> None:
    data = placed(NUMBERS)
    start = data.state_dict()
    feed = iter(data)
    next(feed)
    state = data.state_dict()
    for saved, expected in ((start, lists(NUMBERS)), (state, lists(NUMBERS)[1:])):
        resumed = placed(NUMBERS)
        resumed.load_state_dict(saved)
        again = placed(NUMBERS)
        again.load_state_dict(resumed.state_dict())
        assert lists(again) == expected


def test_an_iterator_that_has_not_begun_takes_a_state_that_is_loaded_later() -> None:
    data = placed(NUMBERS)
    feed = iter(data)
    next(feed)
    state = data.state_dict()
    resumed = placed(NUMBERS)
    early = iter(resumed)
    resumed.load_state_dict(state)
    assert lists(early) == lists(NUMBERS)[1:]
    assert resumed.epoch == 1


def test_a_training_may_go_back_to_an_earlier_state() -> None:
    data = placed(NUMBERS)
    training = Training(data)
    first = training.draw(3)
    state = data.state_dict()
    rest = training.draw(9)
    assert rest[3] == (0, END)
    training = Training(data)
    data.load_state_dict(state)
    assert training.draw(9) == rest
    assert first[0][0] == 0


# -- what is refused


def test_a_state_is_not_loaded_behind_the_first_batch() -> None:
    data = placed(NUMBERS)
    state = data.state_dict()
    feed = iter(data)
    next(feed)
    with pytest.raises(StateError, match=r"open already: load a state before the first batch.* or close\(\)"):
        data.load_state_dict(state)
    with pytest.raises(StateError, match="the feed has begun: load a state before the first batch"):
        feed.load_state_dict(state)
    feed.close()
    data.load_state_dict(state)
    assert lists(data) == lists(NUMBERS)


def test_two_open_iterators_have_no_one_place() -> None:
    data = placed(NUMBERS)
    one, other = iter(data), iter(data)
    next(one)
    with pytest.raises(StateError, match=r"two iterators .*call state_dict\(\) of the iterator"):
        data.state_dict()
    with pytest.raises(StateError, match="is open already"):
        data.load_state_dict(one.state_dict())
    assert lists(NUMBERS.open(state=one.state_dict())) == lists(NUMBERS)[1:]
    lists(one)
    next(other)
    resumed = placed(NUMBERS)
    resumed.load_state_dict(data.state_dict())
    assert (resumed.epoch, len(lists(resumed))) == (1, 5)


def test_a_state_of_another_pipeline_is_refused_when_it_is_loaded() -> None:
    data = placed(NUMBERS)
    with pytest.raises(StateError, match="another pipeline: source"):
        data.load_state_dict(placed(af.items(range(9)).batch(2)).state_dict())
    with pytest.raises(StateError):
        data.load_state_dict({"asyncfeed": "no JSON"})
    assert lists(data) == lists(NUMBERS)


def test_what_has_no_state_says_so_only_when_one_is_taken() -> None:
    data = placed(af.items(range(4)).then(Pairs()))
    assert lists(data) == [0, 0, 1, 1, 2, 2, 3, 3]
    feed = iter(data)
    next(feed)
    with pytest.raises(StateError, match="lacks .*`state`, `restore`"):
        data.state_dict()


# -- where it is saved


def test_a_state_fits_other_devices_and_dtypes_and_the_pipeline_itself() -> None:
    data = NUMBERS.to_torch(dtype=torch.float32)
    feed = iter(data)
    next(feed)
    state = data.state_dict()
    for other in (NUMBERS.to_torch(), NUMBERS.to_torch(device="meta"), NUMBERS.to_torch(dtype=torch.float16)):
        other.load_state_dict(state)
        assert len(list(other)) == 5
    assert lists(NUMBERS.open(state=state)) == lists(NUMBERS)[1:]
    with NUMBERS.open() as plain:
        next(plain)
        data = NUMBERS.to_torch()
        data.load_state_dict(json.dumps(plain.state_dict()))
        assert lists(data) == lists(NUMBERS)[1:]


def test_the_states_of_ranks_merge() -> None:
    """Four ranks of unequal progress go on as two."""

    def part(rank: int, ranks: int, batch: int) -> Any:
        return af.items(range(24)).shuffle(seed=7).shard(rank, ranks).batch(batch).to_torch()

    states, seen = [], []
    for rank in range(4):
        data = part(rank, 4, 2)
        feed = iter(data)
        for _ in range(rank % 3):
            seen += next(feed).tolist()
        states.append(data.state_dict())
    merged = af.merge_states(states)
    for rank in range(2):
        data = part(rank, 2, 4)
        data.load_state_dict(merged)
        feed = iter(data)
        seen += next(feed).tolist()
        again = part(rank, 2, 4)
        again.load_state_dict(data.state_dict())
        assert again.epoch == 0
        seen += [number for batch in again for number in batch.tolist()]
        assert again.epoch == 1
        assert lists(again) == lists(af.items(range(24)).shuffle(seed=7).shard(rank, 2).batch(4).open(epoch=1))
    assert sorted(seen) == list(range(24))


def test_it_is_saved_with_the_model_by_torch() -> None:
    model = torch.nn.Linear(2, 1)
    data = NUMBERS.to_torch()
    feed = iter(data)
    next(feed)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "data": data.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = NUMBERS.to_torch()
    resumed.load_state_dict(saved["data"])
    assert lists(resumed) == lists(NUMBERS)[1:]


@pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")
def test_distributed_checkpoint_saves_and_restores_the_batches_themselves(tmp_path: Any) -> None:
    """It asks the object that is restored for its leaves, and fills in only these."""
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    from torch.distributed.checkpoint.stateful import Stateful

    model = torch.nn.Linear(2, 1)
    data = PIPELINES["buffer"].to_torch()
    assert isinstance(data, Stateful)
    feed = iter(data)
    expected = lists(feed)[3:]
    data = PIPELINES["buffer"].to_torch()
    feed = iter(data)
    assert isinstance(feed, Stateful)
    next(feed), next(feed), next(feed)
    checkpoint.save({"model": model.state_dict(), "data": data}, checkpoint_id=tmp_path, no_dist=True)
    resumed = PIPELINES["buffer"].to_torch()
    checkpoint.load({"model": model.state_dict(), "data": resumed}, checkpoint_id=tmp_path, no_dist=True)
    assert lists(resumed) == expected
