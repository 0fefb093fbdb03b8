"""`to_torch_dataset` in a `DataLoader`: workers and ranks each get their share, and epochs go on."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.bridges.share import share_size, shared
from asyncfeed.stages.deal import Deal, Dealing

torch = pytest.importorskip("torch")
data = pytest.importorskip("torch.utils.data")


def double(x: Any) -> Any:
    return 2 * x


def numbered(count: int = 23) -> af.Pipeline[Any]:
    return af.items(range(count)).shuffle(seed=1).map(double).batch(3)


def lists(batches: Any) -> list[Any]:
    return [np.asarray(batch).tolist() for batch in batches]


def by_worker(pipeline: af.Pipeline[Any], ranks: int, workers: int, rank: int = 0) -> list[Any]:
    """Return what each worker of a rank delivers."""
    return [
        lists(shared(pipeline, rank=rank, ranks=ranks, worker=worker, workers=workers))
        for worker in range(workers)
    ]


def in_turns(parts: list[Any]) -> list[Any]:
    """Return the batches in the order in which a loader takes them from its workers."""
    return [each for each in chain.from_iterable(zip_longest(*parts)) if each is not None]


@pytest.mark.parametrize("batch", [0, 4])
def test_a_shuffle_behind_a_map_is_divided_in_the_order_in_which_it_runs(batch: int) -> None:
    """Each item comes in one worker. Workers that share batches deliver the batches of an undivided run."""
    whole = af.items(range(50)).map(double).shuffle(seed=2)
    whole = whole.batch(batch) if batch else whole
    assert in_turns(by_worker(whole, 1, 3)) == lists(whole)
    assert share_size(whole, 2) == (
        None if share_size(af.items(range(50)).shuffle(), 2) is None else len(whole) // 2
    )


# -- in a loader


def test_a_loader_gets_tensors_epoch_after_epoch() -> None:
    dataset = numbered().to_torch_dataset()
    loader = data.DataLoader(dataset, batch_size=None)
    assert len(loader) == len(dataset) == 8
    seen = [lists(loader) for _ in range(3)]
    assert seen == [lists(epoch) for epoch in numbered().epochs(3)]
    assert isinstance(next(iter(loader)), torch.Tensor)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_deliver_the_epochs_of_a_loader_without_workers(method: str) -> None:
    """New ones each epoch, and the same; also if an epoch is left early or chosen, and for a rank."""
    script = Path(__file__).with_name("loaders.py")
    env = {**os.environ, "PYTHONPATH": str(script.parents[2])}
    done = subprocess.run([sys.executable, script, method], env=env, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("all epochs are as they should be\n", 0), done.stderr


def test_set_epoch_says_which_epoch_is_next() -> None:
    dataset = numbered().to_torch_dataset()
    epochs = [lists(epoch) for epoch in numbered().epochs(6)]
    dataset.set_epoch(4)
    assert [lists(dataset), lists(dataset)] == epochs[4:]
    dataset.set_epoch(0)
    assert lists(dataset) == epochs[0]


def test_a_pipeline_that_is_the_part_of_a_rank_is_not_divided_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its workers divide the part."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    whole = numbered().stages[0]
    part = af.items(range(24)).then(whole).shard().batch(3)
    assert str(part.stages[1]) == "shard(1, 2)"
    dataset = part.to_torch_dataset()
    assert (lists(dataset), len(dataset)) == (lists(part), 4)
    assert in_turns(by_worker(part, 1, 2)) == lists(part)
    with pytest.raises(af.PipelineError, match="one of 2 parts already: leave out ranks='split'"):
        list(part.to_torch_dataset(ranks="split"))
    assert lists(part.to_torch_dataset(ranks="same")) == lists(part)
    with pytest.raises(af.PipelineError, match="2 ranks train together"):
        list(af.items(range(24)).shard(0, 3).to_torch_dataset())


def test_an_error_reaches_the_trainer() -> None:
    def bad(x: int) -> int:
        if x == 7:
            raise ValueError("seven")
        return x

    dataset = af.items(range(10)).map(bad).batch(2).to_torch_dataset()
    with pytest.raises(ValueError, match="seven"):
        list(data.DataLoader(dataset, batch_size=None))


def test_a_loader_that_makes_batches_itself_gets_samples() -> None:
    dataset = af.arrays(np.arange(6.0), np.arange(6)).to_torch_dataset(dtype=torch.float32)
    x, y = next(iter(data.DataLoader(dataset, batch_size=4)))
    assert (x.dtype, y.tolist()) == (torch.float32, [0, 1, 2, 3])


def test_a_dataset_is_pickled_and_copied_with_its_epoch() -> None:
    dataset = numbered().to_torch_dataset()
    epochs = [lists(epoch) for epoch in numbered().epochs(2)]
    assert lists(dataset) == epochs[0]
    for other in (pickle.loads(pickle.dumps(dataset)), copy.deepcopy(dataset)):
        assert isinstance(other, data.IterableDataset)
        assert lists(other) == epochs[1]
    assert lists(dataset) == epochs[1]


def test_a_length_that_is_not_known_is_a_type_error() -> None:
    dataset = af.items(range(9)).filter(bool).to_torch_dataset()
    with pytest.raises(TypeError, match=r"filter\(bool\).to_torch_dataset\(\) is not known"):
        len(dataset)
    assert len(list(dataset)) == 8


def test_accelerate_takes_a_loader() -> None:
    """It wraps the loader, and each iteration is still the next epoch."""
    accelerate = pytest.importorskip("accelerate")
    dataset = numbered().to_torch_dataset(ranks="same")
    loader = accelerate.Accelerator(cpu=True).prepare(data.DataLoader(dataset, batch_size=None))
    assert [lists(loader) for _ in range(2)] == [lists(epoch) for epoch in numbered().epochs(2)]


# -- ranks


@pytest.fixture
def second_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set what torchrun sets."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")


@pytest.mark.usefixtures("second_of_two")
def test_several_ranks_must_be_told_what_to_do() -> None:
    with pytest.raises(af.PipelineError, match=r"2 ranks train together: write .*ranks='split'.*ranks='same'"):
        list(numbered().to_torch_dataset())


@pytest.mark.usefixtures("second_of_two")
def test_each_rank_gets_its_share() -> None:
    dataset = numbered().to_torch_dataset(ranks="split")
    assert len(dataset) == 4
    assert lists(data.DataLoader(dataset, batch_size=None)) == lists(numbered())[1::2]


@pytest.mark.usefixtures("second_of_two")
def test_another_library_may_divide_the_batches() -> None:
    dataset = numbered().to_torch_dataset(ranks="same")
    assert len(dataset) == 8
    assert lists(dataset) == lists(numbered())


def test_a_rank_is_that_of_the_process_group_and_goes_with_the_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is spawned has no process group."""
    dataset = numbered().to_torch_dataset(ranks="split")
    with monkeypatch.context() as patch:
        patch.setattr(torch.distributed, "is_initialized", lambda: True)
        patch.setattr(torch.distributed, "get_rank", lambda: 1)
        patch.setattr(torch.distributed, "get_world_size", lambda: 3)
        sent = pickle.dumps(dataset)
        assert lists(dataset) == lists(numbered())[1:6:3]
    assert lists(pickle.loads(sent)) == lists(numbered())[1:6:3]


def test_one_rank_needs_no_word() -> None:
    assert lists(numbered().to_torch_dataset(ranks="split")) == lists(numbered())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ranks": "all"}, "ranks must be 'split' or 'same'"),
        ({"dtype": torch.int8}, "to_torch_dataset: dtype must"),
    ],
)
def test_a_wrong_option_is_an_error_of_the_call(options: dict[str, Any], message: str) -> None:
    with pytest.raises(af.PipelineError, match=message):
        numbered().to_torch_dataset(**options)


# -- shares

WHOLE = {
    "by index": numbered(),
    "drop_remainder": af.items(range(26)).map(double).prefetch(2).batch(3, drop_remainder=True).prefetch(1),
    "two batches": af.items(range(50)).batch(3, drop_remainder=True).map(double).batch(2),
    "two batches, drop_remainder": af.items(range(26)).batch(2).batch(3, drop_remainder=True),
    "stream": af.items(lambda: range(23)).map(double).batch(3),
    "stream, whole batches": af.items(lambda: range(23)).batch(3, drop_remainder=True),
    "samples": af.items(range(11)).map(double),
    "buffer": af.items(lambda: range(40)).shuffle(buffer=9, seed=2).map(double).batch(4),
    "numbers": af.items(range(20)).enumerate().map(sum).batch(3),
    "taken": af.items(range(40)).take(20).map(double).batch(3),
    "across epochs": af.items(range(7)).shuffle().repeat(3).map(double).batch(4),
    "padded": af.items([np.ones(each % 4) for each in range(20)]).batch(3).pad(),
    "counted after work": af.items(range(30)).filter(double).take(20).batch(3),
    "state": af.items(range(30)).map(double).scan(lambda total, x: (total + x, total + x), 0).batch(4),
    "state after batches": af.items(range(30)).batch(4).scan(lambda total, x: (total + x.sum(), total), 0),
    "little": af.items(range(2)).batch(3),
}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_in_turns_give_the_batches_of_an_undivided_run(name: str, workers: int) -> None:
    assert in_turns(by_worker(WHOLE[name], 1, workers)) == lists(WHOLE[name])


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize(("ranks", "workers"), [(2, 1), (2, 2), (3, 2), (4, 1)])
def test_ranks_get_the_same_number_of_the_first_batches(name: str, ranks: int, workers: int) -> None:
    expected = lists(WHOLE[name])
    each = len(expected) // ranks
    for rank in range(ranks):
        found = in_turns(by_worker(WHOLE[name], ranks, workers, rank))
        assert found == expected[rank : each * ranks : ranks]
    assert share_size(WHOLE[name], ranks) in (each, None)


def test_random_numbers_are_those_of_an_undivided_run() -> None:
    def noisy(x: int, rng: Any) -> float:
        return x + float(rng.random())

    pipeline = af.items(range(20)).shuffle(seed=3).map(noisy, rng=True).batch(3)
    assert in_turns(by_worker(pipeline, 1, 3)) == lists(pipeline)


def test_no_process_does_the_work_of_another() -> None:
    """Also if a later stage leaves items out: then the items before the work are divided."""
    for last in ("batch", "filter"):
        seen: list[int] = []
        pipeline = af.items(range(24)).map(lambda x, seen=seen: seen.append(x) or x)
        pipeline = pipeline.batch(4) if last == "batch" else pipeline.filter(lambda x: x % 3 > 0)
        parts = by_worker(pipeline, 1, 3)
        assert sorted(seen) == list(range(24))
        assert len([each for part in parts for each in part]) == (6 if last == "batch" else 16)


def test_rows_of_a_dataset_are_read_by_one_process_only() -> None:
    class Rows:
        def __init__(self) -> None:
            self.read: list[int] = []

        def __len__(self) -> int:
            return 12

        def __getitem__(self, number: int) -> int:
            self.read.append(number)
            return number

    rows = Rows()
    assert in_turns(by_worker(af.items(rows).batch(2), 1, 3)) == [[each, each + 1] for each in range(0, 12, 2)]
    assert sorted(rows.read) == list(range(12))


def test_items_that_come_in_any_order_cannot_be_divided_by_their_number() -> None:
    pipeline = af.items(range(9)).map(double, ordered=False).take(5)
    loose = af.items(range(9)).filter(bool).map(double, ordered=False).take(5)
    with pytest.raises(af.PipelineError, match="leave out ordered=False"):
        shared(loose, rank=0, ranks=1, worker=0, workers=2)
    assert pipeline is shared(pipeline, rank=0, ranks=1, worker=0, workers=1)


@pytest.mark.parametrize("even", [1, 2])
@pytest.mark.parametrize("chunk", [1, 2, 5, 100])
def test_a_deal_does_not_depend_on_how_the_stream_is_cut(even: int, chunk: int) -> None:
    dealing = Dealing(number=1, count=2 * even, block=3, least=2, even=even)
    whole = Deal(dealing)
    expected = [*whole.push(list(range(35)), range(35))[0], *whole.flush()[0]]
    deal = Deal(dealing)
    for _ in range(2):  # it starts again after an epoch
        got: list[int] = []
        places: list[Any] = []
        for start in range(0, 35, chunk):
            part = range(start, min(start + chunk, 35))
            again = Deal(dealing)
            again.restore(deal.state())
            deal = again
            items, where = deal.push(list(part), part)
            got += items
            places += where
        items, where = deal.flush()
        assert got + items == expected == places + list(where)
        assert deal.held == 0
