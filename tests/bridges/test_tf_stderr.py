"""A loop that is left early prints nothing on stderr: TensorFlow prints each operation that ends with an error."""

from __future__ import annotations

import os
import subprocess
import sys

LEAVES = """
import sys, threading
import ml_dtypes, numpy as np, tensorflow as tf
import asyncfeed as af

def numbers(kind):
    return af.items(range(10**6)).map(kind)

QUIET = {
    "scalars": af.items(range(10**6)),
    "small arrays": numbers(lambda n: np.full(10, n, "f4")),
    "large batches": numbers(lambda n: np.full(5000, n, "f4")).batch(4),
    "bfloat16": numbers(lambda n: np.full(5000, n, tf.bfloat16.as_numpy_dtype)),
    "pairs": numbers(lambda n: (np.full(5000, n), f"{n}")),
    "ragged": numbers(lambda n: np.zeros(n % 7 + 1)),
}
OTHERS = {
    "small batches": numbers(lambda n: np.full(10, n, "f4")).batch(4),
    "text": numbers(str),
    "int4": numbers(lambda n: np.full(5000, n % 3, ml_dtypes.int4)),
}
alone = tf.data.Options()  # nothing is read ahead, so nothing waits when the loop is left
alone.autotune.enabled = False
alone.experimental_optimization.inject_prefetch = False
for name, pipeline in {**QUIET, **OTHERS}.items():
    for ahead in (0, 2):
        dataset = pipeline.to_tf().with_options(alone)
        if ahead:
            dataset = dataset.prefetch(ahead)
        for count in (0, 2, 40, 400):
            print(f"{name}, prefetch({ahead}), {count}", file=sys.stderr, flush=True)
            for number, _ in enumerate(dataset):
                if number == count:
                    break
            for each in threading.enumerate():
                if each.name.endswith("-pump"):
                    each.join(20)
                    assert not each.is_alive()
print("the end", flush=True)
"""
WAITED = "Skipping cancelled dequeue attempt with queue not closed"
"""TensorFlow prints this if it waits for an item when its iterator is dropped: see docs/tensorflow.md."""


def test_a_loop_that_is_left_early_prints_nothing_of_a_cancellation() -> None:
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", LEAVES],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.stdout == "the end\n", done.stderr
    quiet, others = done.stderr.split("small batches, prefetch(0), 0")
    assert "CANCELLED" not in quiet
    for each in quiet.split(", prefetch(0), ")[1:]:
        assert WAITED not in each.split(", prefetch(2), ")[0]
    assert "int4, prefetch(2), 400" in others
