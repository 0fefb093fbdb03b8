"""Runs loaders that have workers. It is a program of its own: a process with threads of JAX should not be forked."""

from __future__ import annotations

import os
import sys
from typing import Any

from torch.utils.data import DataLoader

import asyncfeed as af


def double(x: Any) -> Any:
    return 2 * x


def numbered() -> af.Pipeline[Any]:
    return af.items(range(23)).shuffle(seed=1).map(double).batch(3)


def lists(batches: Any) -> list[Any]:
    return [batch.tolist() for batch in batches]


def check_epochs(method: str, *, persistent: bool) -> None:
    """Three epochs, one that is left early, and one that is asked for."""
    expected = [lists(epoch) for epoch in numbered().epochs(9)]
    dataset = numbered().to_torch_dataset()
    loader: Any = DataLoader(
        dataset, batch_size=None, num_workers=2, persistent_workers=persistent, multiprocessing_context=method
    )
    assert [lists(loader) for _ in range(3)] == expected[:3]
    if persistent:
        return
    for batch in loader:
        assert batch.tolist() == expected[3][0]
        break
    assert lists(loader) == expected[4]
    dataset.set_epoch(8)
    assert lists(loader) == expected[8]


def check_ranks(method: str) -> None:
    """The second of two ranks."""
    os.environ.update(RANK="1", WORLD_SIZE="2")
    dataset = numbered().to_torch_dataset(ranks="split")
    loader: Any = DataLoader(dataset, batch_size=None, num_workers=3, multiprocessing_context=method)
    assert len(loader) == 4
    assert lists(loader) == lists(numbered())[1::2]


if __name__ == "__main__":
    for how in sys.argv[1:]:
        check_epochs(how, persistent=True)
        if how == "fork":  # workers that are spawned import torch again
            check_epochs(how, persistent=False)
            check_ranks(how)
    print("all epochs are as they should be")
