"""The state of `to_jax`: what was given out, not what was transferred early; saved by Orbax beside the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncfeed as af
from tests.bridges.placed_states import PIPELINES, check, cuts, ways

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.tensorflow


def lists(batches: Any) -> list[Any]:
    return [np.asarray(batch).tolist() for batch in batches]


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(sorted(PIPELINES)), cut=cuts, ways=ways, sync=st.booleans())
def test_several_resumes_give_what_an_uninterrupted_training_gives(
    name: str, cut: list[int], ways: list[str], sync: bool
) -> None:
    check(PIPELINES[name].to_jax, cut, ways if sync else ["batches"], sync=sync)


def test_a_state_fits_one_device_and_several() -> None:
    pipeline = PIPELINES["queues"]
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    data = pipeline.to_jax(device=jax.devices()[0])
    feed = iter(data)
    next(feed)
    other = pipeline.to_jax(sharding=sharding)
    other.load_state_dict(json.dumps(data.state_dict()))
    assert lists(other) == lists(pipeline)[1:]


# -- a training

X = np.random.default_rng(0).random((48, 4), dtype=np.float32)
TRAIN = af.arrays(X, X.sum(axis=1)).shuffle(seed=7).batch(5)


@jax.jit
def step(weights: Any, inputs: Any, targets: Any) -> Any:
    slope = jax.grad(lambda w: ((inputs @ w - targets) ** 2).mean())(weights)
    return weights - 0.1 * slope


def train(weights: Any, batches: Any, save: Any = None, steps: int | None = None) -> Any:
    for _ in range(batches.epoch, 4):
        for inputs, targets in batches:
            weights = step(weights, inputs, targets)
            if steps is not None:
                steps -= 1
                if steps == 0:
                    save(weights, batches.state_dict())
                    raise KeyboardInterrupt
    return weights


def interrupted(save: Any, steps: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(jax.numpy.zeros(4), TRAIN.to_jax(), save, steps)


@pytest.mark.parametrize("steps", [1, 10, 13])
def test_a_training_that_goes_on_has_the_weights_of_one_that_was_not_interrupted(steps: int) -> None:
    saved: list[Any] = []
    interrupted(lambda *each: saved.extend(each), steps)
    batches = TRAIN.to_jax()
    batches.load_state_dict(saved[1])
    np.testing.assert_array_equal(train(saved[0], batches), train(jax.numpy.zeros(4), TRAIN.to_jax()))


@pytest.mark.filterwarnings("ignore")
def test_orbax_saves_the_state_as_it_is(tmp_path: Path) -> None:
    """docs/jax.md has a training."""
    orbax = pytest.importorskip("orbax.checkpoint")
    saved: list[Any] = []
    interrupted(lambda *each: saved.extend(each), 13)
    with orbax.Checkpointer(orbax.JsonCheckpointHandler()) as checkpointer:
        checkpointer.save(tmp_path / "data", saved[1])
        batches = TRAIN.to_jax()
        batches.load_state_dict(checkpointer.restore(tmp_path / "data"))
    assert batches.epoch == 1
    np.testing.assert_array_equal(train(saved[0], batches), train(jax.numpy.zeros(4), TRAIN.to_jax()))


def test_a_state_is_one_leaf_whatever_the_place() -> None:
    """Libraries that restore a tree need one of the same structure."""
    batches = TRAIN.to_jax()
    places = [jax.tree.structure(batches.state_dict())]
    feed = iter(batches)
    places += [jax.tree.structure(batches.state_dict()) for _ in feed]
    places.append(jax.tree.structure(batches.state_dict()))
    assert set(places) == {jax.tree.structure({"asyncfeed": "text"})}
