"""`to_jax`: trees of arrays of JAX, which on the CPU share their memory with the batches."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.bridges.device_feed import PlacedFeed
from asyncfeed.bridges.jax_feed import OnDevices
from asyncfeed.stacking.pool import LEAST

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.tensorflow


def one(leaf: Any) -> Any:
    """Return the only item of a pipeline, as `to_jax` gives it."""
    (got,) = af.items([leaf]).to_jax()
    return got


# -- leaves


def test_each_array_of_a_tree_becomes_an_array_of_jax() -> None:
    item = {"a": [np.ones(2, np.float32), np.float32(3)], "b": ("text", 5, None), "c": np.array(["x", "y"])}
    got = one(item)
    assert [type(each).__name__ for each in got["a"]] == ["ArrayImpl", "ArrayImpl"]
    assert got["a"][1].shape == ()
    assert got["b"] == ("text", 5, None)
    assert got["c"] == ["x", "y"]


@pytest.mark.parametrize(
    "dtype", ["?", "i1", "u1", "i2", "u2", "i4", "u4", "f2", "f4", "F", "bfloat16", "float8_e5m2"]
)
def test_numbers_keep_their_dtype(dtype: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.ones(3, getattr(ml_dtypes, dtype, dtype))
    assert one(array).dtype == array.dtype


def test_numbers_of_8_bytes_become_shorter_as_everywhere_in_jax() -> None:
    assert (one(np.ones(2)).dtype, one(np.ones(2, np.int64)).dtype) == (np.float32, np.int32)


@pytest.mark.parametrize("array", [np.arange(3, dtype=">f4"), np.arange(3.0)[::-1], np.frombuffer(bytes(8), "f4")])
def test_arrays_of_any_layout_are_taken(array: Any) -> None:
    np.testing.assert_array_equal(one(array), array)


def test_arrays_of_jax_and_torch_are_taken() -> None:
    torch = pytest.importorskip("torch")
    assert one((jax.numpy.ones(2), torch.ones(2)))[1].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(2, "M8[s]"), r"astype\('int64'\)"),
        (np.zeros(2, np.longdouble), r"astype\('float64'\)"),
        (np.zeros(2, [("a", "f4")]), "dict of its fields"),
        (np.array([None], object), "with .map()"),
        (np.ma.masked_array([1]), "masked"),
    ],
)
def test_an_array_without_a_dtype_of_jax_is_an_error_that_says_what_to_write(array: Any, message: str) -> None:
    with pytest.raises(af.PipelineError, match=r"to_jax: the leaf \[1\] is an? .*" + message):
        one((1, array))


# -- memory


@pytest.fixture
def batches(tmp_path: Path) -> af.Pipeline[Any]:
    for number in range(48):
        np.save(tmp_path / f"{number:02}.npy", np.full(LEAST // 8, number, np.float32))
    return af.files(f"{tmp_path}/*.npy").repeat(4).load(af.npy).batch(4)


def rows(number: int) -> list[float]:
    return [(4 * number + row) % 48 for row in range(4)]


def test_arrays_that_are_kept_stay_as_they_were(batches: af.Pipeline[Any]) -> None:
    """Each fourth batch is kept, while the memory of the others goes round. Two are in flight at a time."""
    kept, places = [], set()
    for number, array in enumerate(batches.to_jax(memory_limit=64 * LEAST)):
        places.add(array.unsafe_buffer_pointer())
        if number % 4 == 0:
            kept.append((number, array))
        np.testing.assert_array_equal(array[:, -1], rows(number))
    assert len(kept) == 12
    assert len(places) < 48, "no memory was used twice, so this shows nothing"
    for number, array in kept:
        assert (np.asarray(array) == np.array(rows(number))[:, None]).all(), f"batch {number}"


def test_batches_are_not_copied(batches: af.Pipeline[Any]) -> None:
    seen: list[Any] = []

    def look(batch: Any) -> Any:
        seen.append(batch.__array_interface__["data"][0])
        return batch

    for number, array in enumerate(batches.map(look).to_jax()):
        assert array.unsafe_buffer_pointer() == seen[number]


def test_what_is_computed_with_donated_arrays_stays_as_it_was(batches: af.Pipeline[Any]) -> None:
    """JAX may write its result to the memory of an argument that is donated."""
    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    kept = [add(array) for array in batches.to_jax(memory_limit=64 * LEAST)]
    for number, array in enumerate(kept):
        assert (np.asarray(array) == np.array(rows(number))[:, None] + 1).all(), f"batch {number}"


# -- transfers


class ReadyRun:
    """A run whose batches are all ready."""

    def __init__(self, count: int) -> None:
        self.batches = [np.full(2, each, np.float32) for each in range(count)]
        self.feed: Any = (self.batches.pop(0) for _ in iter(int, 1))

    def take_ready(self, most: int, nbytes: int) -> list[Any]:
        return [self.batches.pop(0)] if self.batches else []

    def acknowledge(self, received: int) -> None:
        self.received = received


def test_the_next_transfer_starts_before_the_present_batch_is_given_out() -> None:
    started: list[int] = []

    class Fake:
        Array = jax.Array

        @staticmethod
        def device_put(arrays: Any, target: Any) -> Any:
            started.append(int(arrays[0][0]))
            return arrays

    run: Any = ReadyRun(4)
    feed = PlacedFeed(run, OnDevices(Fake, None), None)
    given = [(int(next(feed)[0]), list(started)) for _ in range(4)]
    assert given == [(0, [0, 1]), (1, [0, 1, 2]), (2, [0, 1, 2, 3]), (3, [0, 1, 2, 3])]


def test_the_order_is_that_of_the_pipeline() -> None:
    data = af.items([np.int32(each) for each in range(100)]).to_jax()
    assert [int(each) for each in data] == list(range(100))
    assert len(data) == 100


def test_each_iteration_is_the_next_epoch_also_with_async_for() -> None:
    data = af.items(range(20)).shuffle(seed=3).batch(20).to_jax()
    seen = [next(iter(data)).tolist()]

    async def main() -> None:
        async for batch in data:
            seen.append(batch.tolist())

    asyncio.run(main())
    assert seen == [next(each).tolist() for each in af.items(range(20)).shuffle(seed=3).batch(20).epochs(2)]


# -- devices


def test_a_device_and_a_sharding_exclude_each_other() -> None:
    device = jax.devices()[0]
    sharding = jax.sharding.SingleDeviceSharding(device)
    with pytest.raises(af.PipelineError, match="a device or a sharding"):
        af.items([1]).to_jax(device=device, sharding=sharding)
    assert repr(af.items([1]).to_jax(device=device)) == f"items([1]).to_jax(device={device!r})"


def test_a_sharding_over_processes_is_an_error_that_says_what_to_write() -> None:
    class Global:
        is_fully_addressable = False

    with pytest.raises(af.PipelineError, match="make_array_from_process_local_data"):
        af.items([1]).to_jax(sharding=Global())


DEVICES = """
import jax, numpy as np, asyncfeed as af
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
assert len(jax.devices()) == 8
LEAST = 1 << 18
source = [np.full(LEAST // 8, each, np.float32) for each in range(64)]

def expected(number):
    return np.arange(8 * number, 8 * number + 8, dtype=np.float32)[:, None]

def check(number, array):
    assert (np.asarray(array) == expected(number)).all(), number

sharding = NamedSharding(Mesh(np.array(jax.devices()), "d"), P("d"))
data = af.items(source).repeat(4).batch(8)
kept, places = [], set()
for number, array in enumerate(data.to_jax(sharding=sharding, memory_limit=64 * LEAST)):
    assert len(array.addressable_shards) == 8 and array.sharding == sharding
    places.add(array.addressable_shards[0].data.unsafe_buffer_pointer())
    if number % 4 == 0:
        kept.append((number % 8, array.addressable_shards[5].data if number % 8 else array))
assert len(kept) == 8 and len(places) < 32, len(places)
for number, array in kept:
    if array.shape[0] == 1:
        assert (np.asarray(array) == 8 * number + 5).all()
    else:
        check(number, array)

for number, array in enumerate(data.take(4).to_jax(device=jax.devices()[3])):
    assert array.devices() == {jax.devices()[3]}
    check(number, array)

tree = {"x": sharding, "y": NamedSharding(sharding.mesh, P())}
pairs = af.arrays({"x": np.arange(16.0), "y": np.arange(16.0)}).batch(8)
for batch in pairs.to_jax(sharding=tree):
    assert batch["x"].sharding == sharding and batch["y"].sharding == tree["y"]

try:
    list(af.items(source[:9]).batch(8).to_jax(sharding=sharding))
except ValueError as error:
    assert "divi" in str(error), error
else:
    raise AssertionError
"""


def test_batches_are_divided_among_devices() -> None:
    """Each device shows its rows in the memory of the batch, which is not used again meanwhile."""
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", DEVICES], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_missing_jax_is_an_error_that_names_the_extra() -> None:
    code = (
        "import sys, asyncfeed as af\n"
        "assert 'jax' not in sys.modules\n"
        "sys.modules['jax'] = None\n"
        "try: af.items([1]).to_jax()\n"
        "except af.PipelineError as error: assert \"pip install 'asyncfeed[jax]'\" in str(error), error\n"
        "else: raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
