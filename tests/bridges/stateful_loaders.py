"""Cuts trainings over `StatefulDataLoader`s with workers. It is a program of its own: see `loaders.py`."""

from __future__ import annotations

import json
import sys
import warnings
from functools import partial
from typing import Any

from torchdata.stateful_dataloader import StatefulDataLoader

import asyncfeed as af
from tests.bridges.placed_states import END, PIPELINES, Loaded, check

CUTS = {"shuffled": [8, 3], "buffer": [2, 5], "half a flat map": [4]}


def loader(name: str, **options: Any) -> Any:
    return Loaded(StatefulDataLoader(PIPELINES[name].to_torch_dataset(), batch_size=None, **options))


def check_workers(**options: Any) -> None:
    for name, cut in CUTS.items():
        check(partial(loader, name, num_workers=2, multiprocessing_context="fork", **options), cut, ["batches"])


def check_middle_refused() -> None:
    """A state of the whole is not divided among workers, and nothing is delivered twice instead."""
    from torch.utils.data import DataLoader

    dataset = PIPELINES["shuffled"].to_torch_dataset()
    feed = iter(dataset)
    next(feed)
    state = dataset.state_dict()
    for method in ("fork", "spawn"):
        resumed = PIPELINES["shuffled"].to_torch_dataset()
        resumed.load_state_dict(state)
        try:
            list(DataLoader(resumed, batch_size=None, num_workers=1, multiprocessing_context=method))
        except af.StateError as error:
            assert "in the middle of an epoch, which a DataLoader with workers cannot divide" in str(error)
        else:
            raise AssertionError


def check_workers_of_main_refused() -> None:
    from torch.utils.data import DataLoader

    dataset = PIPELINES["shuffled"].to_torch_dataset()
    loader: Any = DataLoader(dataset, batch_size=None, num_workers=2)
    list(loader)
    try:
        dataset.state_dict()
    except af.StateError as error:
        assert "use num_workers=0, or save the state of torchdata's StatefulDataLoader" in str(error)
    else:
        raise AssertionError


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    check_workers()
    check_workers(persistent_workers=True, snapshot_every_n_steps=3, prefetch_factor=4)
    check_workers_of_main_refused()
    check_middle_refused()
    json.dump({"end": END}, sys.stdout)
