"""`to_tf()` where TensorFlow builds a graph, and datasets without elements."""

from __future__ import annotations

import gc
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

import asyncfeed as af  # noqa: E402

NUMBERS = af.items(range(4))
SCALAR = tf.TensorSpec((), tf.int64)
VIAS = pytest.mark.parametrize("via", ["queue", "from_generator"])


def drawn(dataset: Any) -> list[int]:
    gc.collect()  # what nothing but the graph holds
    return [int(item) for item in dataset]


@VIAS
@pytest.mark.parametrize("method", ["flat_map", "interleave"])
def test_a_dataset_is_made_within_one(method: str, via: Any) -> None:
    """Each element of the outer one is a run of its own."""
    outer = tf.data.Dataset.range(3)
    options = {"cycle_length": 1} if method == "interleave" else {}
    dataset = getattr(outer, method)(lambda _: NUMBERS.to_tf(via=via), **options)
    assert drawn(dataset) == 3 * [0, 1, 2, 3]
    assert drawn(dataset) == 3 * [0, 1, 2, 3]


def test_each_run_within_a_map_is_the_next_epoch() -> None:
    """As that of a dataset that was made outside: it has the order of that epoch."""
    shuffled = NUMBERS.shuffle(seed=1)

    def digits(_: Any) -> Any:
        data = shuffled.to_tf(output_signature=SCALAR)
        return data.reduce(tf.constant(0, tf.int64), lambda found, item: 10 * found + item)

    orders = [int("".join(map(str, shuffled.open(epoch=epoch)))) for epoch in range(3)]
    assert len(set(orders)) == 3
    assert drawn(tf.data.Dataset.range(3).map(digits)) == orders


def test_a_function_may_make_one() -> None:
    """It is made once, when the function is traced, and iterated in each call."""

    @tf.function
    def total() -> Any:
        found = tf.constant(0, tf.int64)
        for item in NUMBERS.to_tf():
            found += item
        return found

    assert [int(total()), gc.collect() >= 0, int(total())] == [6, True, 6]


def test_what_a_graph_made_is_let_go_with_it() -> None:
    """The offer of a dataset lives as long as the function that has it."""
    from asyncfeed.bridges.tf_bridge import bridge  # noqa: PLC0415

    bridge()
    gc.collect()
    before = len(bridge()._factories)
    dataset = tf.data.Dataset.range(3).flat_map(lambda _: NUMBERS.to_tf())
    assert len(bridge()._factories) == before + 1
    del dataset
    gc.collect()
    assert len(bridge()._factories) == before


@VIAS
@pytest.mark.parametrize("empty", [af.items([]), NUMBERS.take(0), NUMBERS.filter(lambda _: False)])
def test_a_source_without_items_is_an_empty_dataset(empty: Any, via: Any) -> None:
    """Where the signature is given; otherwise the error asks for it."""
    assert drawn(empty.to_tf(output_signature=SCALAR, via=via)) == []
    with pytest.raises(af.PipelineError, match="give output_signature"):
        empty.to_tf(via=via)


@VIAS
def test_no_repeat_is_an_empty_dataset(via: Any) -> None:
    """In TensorFlow's hands."""
    assert drawn(NUMBERS.to_tf(via=via).repeat(0)) == []
    assert drawn(NUMBERS.to_tf(via=via).take(0)) == []
