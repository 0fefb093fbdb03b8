"""`items` over the datasets of torch and Grain, and over anything with a length and `[number]`."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import asyncfeed as af

torch = pytest.importorskip("torch")
data = pytest.importorskip("torch.utils.data")


def pairs() -> Any:
    return data.TensorDataset(torch.arange(12.0).reshape(6, 2), torch.arange(6))


def labels(batches: Any) -> list[Any]:
    return [batch[1].tolist() for batch in batches]


def test_a_tensor_dataset_is_shuffled_exactly() -> None:
    pipeline = af.items(pairs()).shuffle(seed=1).batch(4)
    assert len(pipeline) == 2
    assert sorted(sum(labels(pipeline.to_torch()), [])) == list(range(6))
    assert labels(pipeline) == labels(af.arrays(np.zeros(6), np.arange(6)).shuffle(seed=1).batch(4))


def test_subsets_and_datasets_that_are_joined_are_read_by_number() -> None:
    joined = data.ConcatDataset([data.Subset(pairs(), [5, 1, 3]), pairs()])
    assert labels(af.items(joined).skip(1).batch(3).to_torch()) == [[1, 3, 0], [1, 2, 3], [4, 5]]


class Meeting(data.Dataset):  # type: ignore[misc]
    """Its first rows are only read together."""

    def __init__(self, parties: int) -> None:
        self.barrier = threading.Barrier(parties, timeout=30)
        self.threads: set[str] = set()

    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> dict[str, Any]:
        self.barrier.wait()
        self.threads.add(threading.current_thread().name)
        return {"x": torch.full((2,), float(number)), "number": number}


def test_a_dataset_of_your_own_is_read_by_several_threads_at_a_time() -> None:
    dataset = Meeting(4)
    (batch,) = af.items(dataset, concurrency=4).batch(4).to_torch()
    assert batch["number"].tolist() == [0, 1, 2, 3]
    assert batch["x"].shape == (4, 2)
    assert threading.current_thread().name not in dataset.threads


class Stream(data.IterableDataset):  # type: ignore[misc]
    def __iter__(self) -> Any:
        return iter(torch.arange(5))


def test_an_iterable_dataset_is_a_stream_that_begins_again() -> None:
    pipeline = af.items(Stream())
    assert [batch.tolist() for batch in pipeline.repeat(2).batch(4).to_torch()] == [
        [0, 1, 2, 3],
        [4, 0, 1, 2],
        [3, 4],
    ]
    with pytest.raises(af.PipelineError, match="buffer"):
        pipeline.shuffle().open().__enter__()


def test_a_loader_is_a_stream_of_its_batches() -> None:
    loader = data.DataLoader(pairs(), batch_size=4)
    assert labels(af.items(loader).to_torch()) == [[0, 1, 2, 3], [4, 5]]


def test_a_dataset_of_ours_is_a_source_too() -> None:
    dataset = af.items(range(5)).batch(2).to_torch_dataset()
    assert [batch.tolist() for batch in af.items(dataset).to_torch()] == [[0, 1], [2, 3], [4]]


def test_datasets_of_grain_are_sources_and_take_a_pipeline() -> None:
    grain = pytest.importorskip("grain")
    dataset = grain.MapDataset.range(10).map(lambda x: 2 * x)
    assert sorted(af.items(dataset).shuffle(seed=1)) == list(range(0, 20, 2))
    assert list(af.items(dataset.to_iter_dataset())) == list(range(0, 20, 2))
    items = af.items(range(10)).shuffle(seed=1).indexed()
    assert items is not None

    class Source:
        def __len__(self) -> int:
            return len(items)

        def __getitem__(self, number: int) -> Any:
            return items.pick(0, [number])[0]

    assert list(grain.MapDataset.source(Source())) == list(af.items(range(10)).shuffle(seed=1))
