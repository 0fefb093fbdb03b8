"""`to_jax`: the batches of a pipeline as arrays of JAX, on one device or divided among several.

The transfer of the next batch is started before the present batch is given out, if the next batch is ready. JAX
transfers in the background. On the CPU it does not copy an aligned array, but keeps it. So the pool does not give
the memory of a batch out again while a JAX array shows it, nor while a transfer reads it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncfeed.bridges.device_feed import PlacedBatches
from asyncfeed.bridges.run_factory import RunFactory
from asyncfeed.bridges.torch_tensors import FIXES, REGISTERED, NoArray, naming, to_leaf
from asyncfeed.errors import PipelineError
from asyncfeed.extras import installed
from asyncfeed.trees import flatten, unflatten

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncfeed.feed import Feed
    from asyncfeed.pipeline import Pipeline
    from asyncfeed.sizes import Size


def to_batches(
    pipeline: Pipeline[Any],
    *,
    device: Any = None,
    sharding: Any = None,
    on_open: Callable[[Feed[Any]], None] | None = None,
    memory_limit: Size | None = None,
) -> PlacedBatches:
    """Return the batches of a pipeline as arrays of JAX; see `Pipeline.to_jax`."""
    jax = installed("jax", "jax")
    if device is not None and sharding is not None:
        raise PipelineError("to_jax: give a device or a sharding, not both")
    if sharding is not None and not getattr(sharding, "is_fully_addressable", True):
        raise PipelineError(
            "to_jax: this sharding has devices of other processes: draw NumPy batches, and write "
            "jax.make_array_from_process_local_data(sharding, batch)"
        )
    given = {"device": device, "sharding": sharding}
    words = ", ".join(f"{name}={value!r}" for name, value in given.items() if value is not None)
    factory = RunFactory(pipeline, on_open, memory_limit, "to_jax")
    placer = partial(OnDevices, jax, device if sharding is None else sharding)
    return PlacedBatches(factory, placer, pipeline.size(), f"{pipeline!r}.to_jax({words})")


class OnDevices:
    """Starts the transfer of each batch when it is drawn."""

    early = True

    def __init__(self, jax: Any, target: Any) -> None:
        self._jax = jax
        self._target = target

    def start(self, batch: Any) -> Any:
        """Return the batch with arrays of JAX, which may still be on their way."""
        tree = naming("to_jax", partial(_leaf, self._jax.Array), batch)
        if isinstance(self._target, dict | list | tuple):
            return self._jax.device_put(tree, self._target)
        leaves, spec = flatten(tree)
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, np.ndarray | self._jax.Array)]
        placed = self._jax.device_put([leaves[place] for place in places], self._target)
        for place, array in zip(places, placed, strict=True):
            leaves[place] = array
        return unflatten(spec, leaves)

    def finish(self, started: Any) -> Any:
        """Return the batch. JAX waits for its arrays where they are used."""
        return started


def _leaf(own: type, leaf: Any) -> Any:
    """Return an array that JAX can take, or a leaf that stays as it is."""
    if isinstance(leaf, own):
        return leaf
    array = to_leaf(leaf)
    if isinstance(array, np.ndarray) and not _is_known(array.dtype):
        raise NoArray(f"is an array of {array.dtype}, which JAX does not have: {FIXES[array.dtype.kind]}")
    return array


def _is_known(dtype: np.dtype[Any]) -> bool:
    """Return whether JAX has numbers of this dtype: it has none that are longer than 8 bytes, or pairs of such."""
    return dtype.isbuiltin == REGISTERED or (dtype.kind in "biufc" and dtype.char not in "gG")
