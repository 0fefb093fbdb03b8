"""`to_tf` inside of what TensorFlow makes of datasets; Ctrl-C; and very many datasets."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.searching import SEARCH

if TYPE_CHECKING:
    from collections.abc import Callable

tf = pytest.importorskip("tensorflow")
import ml_dtypes  # noqa: E402 - comes with TensorFlow

import asyncfeed as af  # noqa: E402
from asyncfeed.testing import Leaks  # noqa: E402

SOAK = max(200, int(200 * SEARCH))
"""How many datasets are built, iterated and dropped."""


def values(dataset: Any) -> list[Any]:  # noqa: ANN401
    return [tf.nest.map_structure(lambda leaf: leaf.numpy().tolist(), item) for item in dataset]


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of its own: for what is said before TensorFlow starts, and for signals."""
    return subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


# -- in graphs


@pytest.mark.parametrize(
    ("sample", "dtype"),
    [
        (np.float64(1 / 3), tf.float64),
        (np.full(3, 1 / 3), tf.float64),
        (np.arange(3, dtype=ml_dtypes.bfloat16), tf.bfloat16),
        (np.array([2**63 - 1]), tf.int64),
        ("Grüße", tf.string),
        (np.array([b"a\0", b"b"], object), tf.string),
    ],
    ids=["float64", "float64 array", "bfloat16", "int64", "text", "bytes"],
)
def test_no_value_is_narrowed_on_its_way_through_a_graph(sample: Any, dtype: Any) -> None:  # noqa: ANN401
    (got,) = af.items([sample]).to_tf().map(tf.identity).prefetch(1)
    assert got.dtype == dtype
    assert np.array_equal(got.numpy(), tf.constant(sample, dtype).numpy())


def test_a_given_signature_does_not_narrow_either() -> None:
    dataset = af.items([np.zeros(2)]).to_tf(output_signature=tf.TensorSpec([2], tf.float32))
    with pytest.raises(tf.errors.InvalidArgumentError, match="float64 of shape"):
        list(dataset)


def test_dictionaries_cross_functions_by_their_keys() -> None:
    samples = [{"b": np.full(2, n, np.float32), "a": n, "text": str(n)} for n in range(4)]
    dataset = af.items(samples).batch(2).to_tf()
    mapped = dataset.map(
        lambda item: {"text": item["text"], "sum": item["a"] + tf.cast(item["b"][:, 0], tf.int64)}
    )
    assert values(mapped) == [
        {"text": [b"0", b"1"], "sum": [0, 2]},
        {"text": [b"2", b"3"], "sum": [4, 6]},
    ]


def test_samples_of_unequal_shape_become_ragged_or_padded_batches() -> None:
    samples = [np.arange(n, dtype=np.float32) for n in (2, 0, 3)]
    dataset = af.items(samples).to_tf()
    assert dataset.element_spec == tf.TensorSpec([None], tf.float32)
    (ragged,) = dataset.ragged_batch(3)
    assert ragged.to_list() == [[0, 1], [], [0, 1, 2]]
    (padded,) = dataset.padded_batch(3)
    assert padded.numpy().tolist() == [[0, 1, 0], [0, 0, 0], [0, 1, 2]]


def test_an_unknown_rank_is_known_in_each_element() -> None:
    dataset = af.items([np.zeros((1, 2)), np.zeros(3)]).to_tf(output_signature=tf.TensorSpec(None, tf.float64))
    assert values(dataset.map(tf.rank)) == [2, 1]


def test_repeat_after_a_map_and_a_prefetch_begins_a_run_each_time() -> None:
    feeds: list[af.Feed[Any]] = []
    dataset = af.items(range(4)).batch(2).to_tf(on_open=feeds.append)
    assert values(dataset.map(lambda batch: batch + 1).prefetch(2).repeat(3)) == [[1, 2], [3, 4]] * 3
    assert len(feeds) == 3


def test_interleaved_runs_do_not_share() -> None:
    dataset = af.items(range(5)).to_tf()
    both = tf.data.Dataset.range(3).interleave(
        lambda n: dataset.map(lambda item: n * 10 + item), cycle_length=3, num_parallel_calls=3
    )
    assert sorted(values(both)) == sorted(n * 10 + item for n in range(3) for item in range(5))


def test_a_zip_of_a_dataset_with_itself_is_two_runs() -> None:
    dataset = af.items(range(3)).to_tf()
    assert values(tf.data.Dataset.zip(dataset, dataset)) == [(0, 0), (1, 1), (2, 2)]


def test_mixing_by_weight_takes_all_of_each_in_order() -> None:
    parts = [af.items(range(start, start + 20)).to_tf() for start in (0, 100)]
    mixed = values(tf.data.Dataset.sample_from_datasets(parts, weights=[0.7, 0.3], seed=1))
    assert [n for n in mixed if n < 100] == list(range(20))
    assert [n for n in mixed if n >= 100] == list(range(100, 120))
    assert mixed != sorted(mixed)


def test_a_cache_in_tensorflow_reads_once() -> None:
    reads: list[int] = []
    dataset = af.items(range(3)).map(lambda n: reads.append(n) or n).to_tf().cache()
    assert values(dataset) == values(dataset) == [0, 1, 2]
    assert reads == [0, 1, 2]


DISTRIBUTE = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
import asyncfeed as af

cpu, = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
feeds = []
dataset = af.items(range(11)).batch(4).to_tf(on_open=feeds.append)
spread = strategy.experimental_distribute_dataset(dataset)
total = tf.function(lambda batch: strategy.reduce("SUM", strategy.run(tf.reduce_sum, (batch,)), axis=None))
for epoch in range(2):
    for batch in spread:
        parts = [part.numpy().tolist() for part in strategy.experimental_local_results(batch)]
        print(parts, int(total(batch)))
print(len(feeds))
"""


def test_a_distributed_dataset_splits_each_batch_among_the_replicas() -> None:
    done = run(DISTRIBUTE)
    epoch = ["[[0, 1], [2, 3]] 6", "[[4, 5], [6, 7]] 22", "[[8, 9], [10]] 27"]
    assert done.stdout.splitlines() == [*epoch, *epoch, "2"], done.stderr


# -- nothing left


def resident() -> int:
    """Return how many bytes of memory the process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def graph_functions() -> int:
    """Return how many functions TensorFlow's runtime knows."""
    from tensorflow.python.eager import context  # noqa: PLC0415 - not public

    return len(context.context().list_function_names())


def measure(use: Callable[[], None]) -> tuple[float, int, list[str]]:
    """Return bytes per dataset, graph functions and threads that many uses leave behind, after some to warm up."""
    for _ in range(50):
        use()
    gc.collect()
    before, functions, leaks = resident(), graph_functions(), Leaks(tasks=False)
    for number in range(SOAK):
        use()
        if number % 10 == 0:
            gc.collect()
    gc.collect()
    return (resident() - before) / SOAK, graph_functions() - functions, leaks.threads("asyncfeed")


@pytest.mark.timeout(600)
def test_many_datasets_leave_no_threads_functions_or_memory() -> None:
    """At most 16 KB each, and no graph function."""

    def use() -> None:
        data = np.zeros((4, 64 * 1024), np.float32)
        for _ in af.arrays(data).batch(2).to_tf():
            pass

    nbytes, functions, threads = measure(use)
    print(f"{SOAK} datasets: {nbytes:.0f} bytes each, {functions} functions")
    assert threads == []
    assert functions <= 0
    assert nbytes <= 16 * 1024
