"""The state of `to_torch_dataset`: alone, in a `StatefulDataLoader`, and where there is none."""

from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.bridges.share import shared
from asyncfeed.errors import StateError
from tests.bridges.placed_states import PIPELINES, Loaded, check, cuts, ways
from tests.bridges.test_torch_dataset import WHOLE
from tests.searching import sampled

torch = pytest.importorskip("torch")
data = pytest.importorskip("torch.utils.data")

NUMBERS = PIPELINES["shuffled"]
EPOCHS = [[batch.tolist() for batch in epoch] for epoch in NUMBERS.epochs(6)]


def lists(batches: Any) -> list[Any]:
    return [np.asarray(batch).tolist() for batch in batches]


def drawn(count: int, epoch: int = 0) -> Any:
    """Return the state of a dataset after some batches."""
    dataset = NUMBERS.to_torch_dataset()
    dataset.set_epoch(epoch)
    feed = iter(dataset)
    for _ in range(count):
        next(feed)
    return dataset.state_dict()


# -- the dataset alone


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(sorted(PIPELINES)), cut=cuts, ways=ways)
def test_several_resumes_give_what_an_uninterrupted_training_gives(
    name: str, cut: list[int], ways: list[str]
) -> None:
    check(lambda: PIPELINES[name].to_torch_dataset(), cut, ways)


@settings(max_examples=20, deadline=None)
@given(cut=cuts)
def test_a_loader_without_workers_is_no_step_ahead(cut: list[int]) -> None:
    class Plain:
        """Draws from a loader, and saves the dataset."""

        def __init__(self) -> None:
            self.dataset = NUMBERS.to_torch_dataset()
            self.loader = data.DataLoader(self.dataset, batch_size=None)

        def __iter__(self) -> Any:
            return iter(self.loader)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.dataset, name)

    check(Plain, cut, ["batches"])


def test_a_state_fits_the_other_bridges() -> None:
    state = drawn(2, epoch=3)
    other = NUMBERS.to_torch()
    other.load_state_dict(state)
    assert (other.epoch, lists(other)) == (3, EPOCHS[3][2:])
    dataset = NUMBERS.to_torch_dataset(dtype=torch.float16)
    dataset.load_state_dict(state)
    assert (dataset.epoch, lists(dataset), lists(dataset)) == (3, EPOCHS[3][2:], EPOCHS[4])


def test_a_dataset_is_sent_with_the_state_that_was_loaded() -> None:
    dataset = NUMBERS.to_torch_dataset()
    dataset.load_state_dict(drawn(2))
    for other in (pickle.loads(pickle.dumps(dataset)), copy.deepcopy(dataset)):
        assert lists(other) == EPOCHS[0][2:]


def test_set_epoch_of_the_epoch_in_which_the_state_is_keeps_the_place() -> None:
    dataset = NUMBERS.to_torch_dataset()
    dataset.load_state_dict(drawn(2, epoch=3))
    dataset.set_epoch(3)
    assert lists(dataset) == EPOCHS[3][2:]
    dataset.set_epoch(4)
    assert lists(dataset) == EPOCHS[4]
    dataset.set_epoch(5)
    assert NUMBERS.to_torch_dataset().epoch == 0
    assert lists(dataset) == EPOCHS[5]


def test_set_epoch_of_another_epoch_is_refused_after_a_state() -> None:
    """A loop that counts from 0 again would repeat what was trained on, and no error would say so."""
    dataset = NUMBERS.to_torch_dataset()
    dataset.load_state_dict(drawn(2, epoch=3))
    with pytest.raises(
        StateError, match="epoch 0 is asked for, but the state that was loaded goes on with epoch 3"
    ):
        dataset.set_epoch(0)
    with pytest.raises(StateError, match="epoch 4 is asked for, .* goes on with epoch 3"):
        dataset.set_epoch(4)
    assert lists(dataset) == EPOCHS[3][2:]
    with pytest.raises(StateError, match="epoch 3 is asked for, .* goes on with epoch 4"):
        dataset.set_epoch(3)
    assert lists(dataset) == EPOCHS[4]


def test_set_epoch_forgets_a_loop_that_was_left() -> None:
    dataset = NUMBERS.to_torch_dataset()
    for _ in dataset:
        break
    dataset.set_epoch(4)
    assert dataset.epoch == 4
    resumed = NUMBERS.to_torch_dataset()
    resumed.load_state_dict(dataset.state_dict())
    assert lists(resumed) == EPOCHS[4]


def test_an_iterator_that_was_never_drawn_from_is_no_epoch() -> None:
    dataset = NUMBERS.to_torch_dataset()
    iter(dataset), iter(dataset)
    assert lists(dataset) == EPOCHS[0]


def test_a_state_is_not_loaded_behind_the_first_batch() -> None:
    dataset = NUMBERS.to_torch_dataset()
    feed = iter(dataset)
    next(feed)
    with pytest.raises(StateError, match="open already"):
        dataset.load_state_dict(drawn(1))
    with pytest.raises(StateError, match="has begun"):
        feed.load_state_dict(drawn(1))
    other = iter(dataset)
    next(other)
    with pytest.raises(StateError, match="two iterators"):
        dataset.state_dict()


def test_a_rank_has_a_state_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another rank does not take it."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    dataset = NUMBERS.to_torch_dataset(ranks="split")
    feed = iter(dataset)
    next(feed)
    state = dataset.state_dict()
    rest = lists(feed)
    resumed = NUMBERS.to_torch_dataset(ranks="split")
    resumed.load_state_dict(state)
    assert lists(resumed) == rest == EPOCHS[0][3::2]
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(StateError, match="another pipeline"):
        NUMBERS.to_torch_dataset(ranks="split").load_state_dict(state)


@sampled(20)
@pytest.mark.parametrize("name", [name for name in WHOLE if not name.startswith("state")])
@pytest.mark.parametrize(("ranks", "workers"), [(1, 2), (2, 1), (2, 2), (3, 2)])
def test_the_share_of_each_worker_and_rank_goes_on_at_any_cut(name: str, ranks: int, workers: int) -> None:
    for rank, worker in product(range(ranks), range(workers)):
        part = shared(WHOLE[name], rank=rank, ranks=ranks, worker=worker, workers=workers)
        expected = lists(part)
        for cut in range(len(expected) + 1):
            with part.open() as feed:
                assert lists(islice(feed, cut)) == expected[:cut]
                state = feed.state_dict()
            assert lists(part.open(state=state)) == expected[cut:]


# -- torchdata

LOADER_WARNS = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")


@LOADER_WARNS
@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(sorted(PIPELINES)), cut=cuts)
def test_a_stateful_loader_saves_and_resumes_exactly(name: str, cut: list[int]) -> None:
    loaders = pytest.importorskip("torchdata.stateful_dataloader")

    def make() -> Loaded:
        return Loaded(loaders.StatefulDataLoader(PIPELINES[name].to_torch_dataset(), batch_size=None))

    check(make, cut, ["batches"])


@LOADER_WARNS
def test_a_stateful_loader_that_makes_batches_itself_resumes_exactly() -> None:
    loaders = pytest.importorskip("torchdata.stateful_dataloader")
    samples = af.items(range(17)).shuffle(seed=7)

    def loader() -> Any:
        return loaders.StatefulDataLoader(samples.to_torch_dataset(), batch_size=3)

    one = loader()
    expected = [lists(one) for _ in range(3)]
    one, states, got = loader(), [], []
    for _ in range(2):
        for batch in one:
            got.append(batch.tolist())
            states.append((copy.deepcopy(one.state_dict()), list(got)))
        states.append((copy.deepcopy(one.state_dict()), list(got)))
    for state, before in states:
        other = loader()
        other.load_state_dict(state)
        rest: list[Any] = []
        while len(before) + len(rest) < 18:
            rest += lists(other)
        assert before + rest == [batch for epoch in expected for batch in epoch]


def test_workers_of_a_stateful_loader_resume_exactly() -> None:
    """What they have read ahead is read again. A state of the whole is refused by workers."""
    pytest.importorskip("torchdata.stateful_dataloader")
    script = Path(__file__).with_name("stateful_loaders.py")
    env = {**os.environ, "PYTHONPATH": str(script.parents[2])}
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ('{"end": "end"}', 0), done.stderr


# -- with the model


def test_accelerate_says_with_which_epoch_to_begin() -> None:
    """It counts its iterations itself, and tells the dataset."""
    accelerate = pytest.importorskip("accelerate")
    dataset = NUMBERS.to_torch_dataset(ranks="same")
    loader = accelerate.Accelerator(cpu=True).prepare(data.DataLoader(dataset, batch_size=None))
    dataset.load_state_dict(drawn(2, epoch=3))
    with pytest.raises(StateError, match="epoch 0 is asked for"):
        list(loader)
    loader.set_epoch(dataset.epoch)
    assert [lists(loader), lists(loader)] == [EPOCHS[3][2:], EPOCHS[4]]


@LOADER_WARNS
@pytest.mark.parametrize("epoch", [0, 2])
@pytest.mark.parametrize("count", [1, 5, 6])
def test_accelerate_resumes_a_stateful_loader(epoch: int, count: int) -> None:
    """It reads one batch ahead, and saves the state before. After the last batch that is the next epoch."""
    accelerate = pytest.importorskip("accelerate")
    loaders = pytest.importorskip("torchdata.stateful_dataloader")
    config = accelerate.utils.DataLoaderConfiguration(use_stateful_dataloader=True)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=config)

    def loader() -> Any:
        dataset = NUMBERS.to_torch_dataset(ranks="same")
        return accelerator.prepare(loaders.StatefulDataLoader(dataset, batch_size=None))

    one, state = loader(), None
    for _ in range(epoch):
        lists(one)
    for number, _ in enumerate(one, 1):
        if number == count:
            state = one.state_dict()
            break
    other = loader()
    other.load_state_dict(state)
    over = count == 6
    other.set_epoch(epoch + over)
    assert [lists(other), lists(other)] == [EPOCHS[epoch + over][count % 6 :], EPOCHS[epoch + over + 1]]
    wrong = loader()
    wrong.load_state_dict(state)
    if epoch or over:  # it counts from 0
        with pytest.raises(StateError, match="is asked for, but the state that was loaded goes on with epoch"):
            lists(wrong), lists(wrong)


def test_it_is_saved_with_the_model_by_torch() -> None:
    file = io.BytesIO()
    torch.save({"data": drawn(2)}, file)
    file.seek(0)
    dataset = NUMBERS.to_torch_dataset()
    dataset.load_state_dict(torch.load(file, weights_only=True)["data"])
    assert lists(dataset) == EPOCHS[0][2:]
