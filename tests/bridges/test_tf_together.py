"""Items that cross together: the same elements in the same order as one by one, and the same errors."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import ml_dtypes  # noqa: E402 - comes with TensorFlow

import asyncfeed as af  # noqa: E402
from asyncfeed.axes import Unknown  # noqa: E402
from asyncfeed.bridges import tf_bridge, tf_iteration  # noqa: E402
from asyncfeed.bridges.tf_layout import Layout, infer  # noqa: E402
from asyncfeed.stacking.aligned import aligned_empty  # noqa: E402

Pair = namedtuple("Pair", "x y")  # noqa: PYI024 - the plain kind is what is tested
COUNT = 5
MAX_SMALL_BYTES = tf_iteration.MAX_SMALL_BYTES


def array(number: int, dtype: Any, shape: tuple[int, ...] = (3, 2)) -> np.ndarray:
    return (np.arange(np.prod(shape)).reshape(shape) % 5 + number).astype(dtype)


ALIKE: dict[str, Any] = {
    "int": lambda n: n - 2,
    "float": lambda n: n / 3,
    "bool": lambda n: n % 2 == 0,
    "complex": lambda n: n * 1j,
    "text": "item {}".format,
    "bytes": lambda n: b"%d" % n,
    "a numpy scalar": np.float32,
    "a small numpy scalar": np.uint8,
    "a tuple": lambda n: (n, array(n, "f4"), f"{n}"),
    "a dict": lambda n: {"b": array(n, "f4"), "a": n, "c": {"z": 1, "y": n}},
    "a named tuple": lambda n: Pair(n, array(n, "u2")),
    "None in it": lambda n: (None, n),
    "an array that is not contiguous": lambda n: array(n, "f4").T,
    "an array of no axis": lambda n: np.array(n, "f4"),
    **{f"arrays of {d}": lambda n, d=d: array(n, d) for d in ["?", "i1", "u4", "i8", "f2", "f8", "c8"]},
}
OTHERS: dict[str, Any] = {
    "empty arrays": lambda n: array(n, "f4", (0, 2)),
    "bfloat16": lambda n: array(n, ml_dtypes.bfloat16),
    "int4": lambda n: array(n % 3, ml_dtypes.int4),
    "swapped bytes": lambda n: array(n, ">f4"),
    "tensors": tf.constant,
    "arrays that are contiguous and not": lambda n: array(n, "f4") if n % 2 == 0 else array(n, "f4", (2, 3)).T,
    "ragged": lambda n: array(n, "f4", (n + 1, 2)),
}


def values(tensors: list[Any]) -> list[Any]:
    return [None if tensor is None else np.asarray(tensor).tolist() for tensor in tensors]


@pytest.mark.parametrize("kind", ALIKE)
def test_a_group_has_the_tensors_of_its_items(kind: str) -> None:
    items = [ALIKE[kind](number) for number in range(COUNT)]
    layout = Layout(infer(items[0], Unknown()))
    stacked = layout.stacked(items)
    assert stacked is not None
    assert [tensor.dtype for tensor in stacked] == [spec.dtype for spec in layout.specs]
    for number, item in enumerate(items):
        assert values([tensor[number] for tensor in stacked]) == values(layout.tensors(item))


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_not_alike_or_not_plain_crosses_one_by_one(kind: str) -> None:
    items = [OTHERS[kind](number) for number in range(COUNT)]
    assert Layout(infer(items[0], Unknown())).stacked(items) is None


@pytest.mark.parametrize("kind", [*ALIKE, *OTHERS])
def test_a_dataset_has_the_same_elements_whatever_crosses_together(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elements() -> list[Any]:
        make = (ALIKE | OTHERS)[kind]
        dataset = af.items(list(range(200))).map(lambda n: make(n % COUNT)).to_tf()
        return [values(tf.nest.flatten(element)) for element in dataset]

    together = elements()
    monkeypatch.setattr(tf_iteration, "MAX_SMALL_BYTES", 0)
    in_place = elements()
    monkeypatch.setattr(tf_iteration, "MIN_LARGE_ITEMS", 10**6)
    assert together == in_place == elements()
    assert len(together) == 200


def test_small_items_do_cross_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as are there; a slow reader gets each as it comes."""
    groups = []
    stacked = Layout.stacked
    monkeypatch.setattr(Layout, "stacked", lambda self, items: groups.append(len(items)) or stacked(self, items))
    dataset = af.items(range(5_000)).to_tf()
    assert [int(element) for element in dataset] == list(range(5_000))
    assert max(groups) > 8
    assert max(groups) <= tf_iteration.MAX_SMALL_ITEMS


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many items each call of a function of several operations takes across."""
    found: list[int] = []
    enqueues = tf_iteration.TfIteration._enqueue

    def enqueue(self: Any, op: Any, *args: Any, **kwargs: Any) -> None:
        found.extend([len(args) - 1] if args else [])
        enqueues(self, op, *args, **kwargs)

    monkeypatch.setattr(tf_iteration.TfIteration, "_enqueue", enqueue)
    monkeypatch.setattr(Layout, "stacked", lambda self, items: pytest.fail(f"{len(items)} copied"))
    return found


def test_larger_items_cross_together_in_place(calls: list[int]) -> None:
    """In fours, eights and sixteens, by one call each, and without a copy."""
    items = [aligned_empty((1024,), np.dtype("f4")) for _ in range(500)]
    for number, element in enumerate(af.items(items).to_tf()):
        assert np.shares_memory(np.asarray(memoryview(element)), items[number])
    assert max(calls) == tf_iteration.MAX_LARGE_ITEMS
    assert set(calls) <= {4, 8, 16}


@pytest.mark.parametrize(("enough", "most"), [(2**15 - 1, 4), (2**14 - 1, 0), (1, 0)])
def test_larger_items_that_cross_together_have_few_bytes(
    enough: int, most: int, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tf_iteration, "MAX_LARGE_GROUP_BYTES", enough)
    items = [np.full(1024, number, "f4") for number in range(200)]
    assert [int(element[0]) for element in af.items(items).to_tf()] == list(range(200))
    assert max(calls, default=0) == most


def test_items_of_uneven_size_do_not_cross_together_where_they_are_too_many_bytes(
    calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a source has ready is not counted, so a small one says nothing of those behind it."""
    monkeypatch.setattr(tf_iteration, "MAX_LARGE_GROUP_BYTES", 2**15)
    items = [np.full(1024 * (1 + 15 * (number % 2)), number, "f4") for number in range(200)]
    assert [int(element[0]) for element in af.items(items).to_tf()] == list(range(200))
    assert calls == []


def test_a_variable_crosses_with_the_value_it_had() -> None:
    items = [tf.Variable([float(number)] * 1024) for number in range(40)]
    assert [float(element[7]) for element in af.items(items).to_tf()] == list(range(40))


@pytest.mark.parametrize("small", [MAX_SMALL_BYTES, 0], ids=["copied", "in place"])
@pytest.mark.parametrize("bad", [None, "x", 1.5, 2**70, np.zeros(2, "i8")])
def test_an_item_that_does_not_fit_is_an_error_at_its_place(
    bad: Any, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those before it arrive, those behind it do not."""
    monkeypatch.setattr(tf_iteration, "MAX_SMALL_BYTES", small)
    items: list[Any] = list(range(100))
    items[50] = bad
    seen = []
    with pytest.raises(tf.errors.OpError, match="to_tf"):
        for element in af.items(items).to_tf():
            seen.append(int(element))
    assert seen == list(range(50))


def test_an_error_of_the_pipeline_comes_after_all_before_it() -> None:
    def check(number: int) -> int:
        if number == 777:
            raise ValueError("number 777")
        return number

    seen = []
    with pytest.raises(tf.errors.InvalidArgumentError, match="number 777"):
        for element in af.items(range(2_000)).map(check).to_tf():
            seen.append(int(element))
    assert seen == list(range(777))


@pytest.mark.parametrize("small", [MAX_SMALL_BYTES, 0], ids=["copied", "in place"])
def test_an_iterator_that_is_dropped_stops_the_run_in_the_middle_of_a_group(
    small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tf_iteration, "MAX_SMALL_BYTES", small)
    feeds: list[Any] = []
    dataset = af.items(range(10**6)).to_tf(on_open=feeds.append)
    iterator = iter(dataset)
    assert [int(next(iterator)) for _ in range(3)] == [0, 1, 2]
    del iterator
    with pytest.raises(af.ClosedError, match="let go of the iterator"):
        for _ in feeds[-1]:
            pass


def test_keras_takes_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on its way to nobody must be few there: `fit` continues one stream from call to call."""
    keras = pytest.importorskip("keras")
    monkeypatch.setattr(Layout, "stacked", lambda self, items: pytest.fail(f"{len(items)} together"))
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    batches = af.arrays(np.zeros((64, 2), "f4"), np.zeros((64, 1), "f4")).batch(2)
    assert len(model.fit(batches.to_keras(), epochs=2, verbose=0).epoch) == 2


def test_a_queue_is_given_back_once_whoever_ends_with_it() -> None:
    """Ctrl-C and an iterator that is dropped may do so at the same time; a name given back twice is two runs'."""
    made = tf_bridge.bridge()
    iterator = iter(af.items(range(3)).to_tf())
    assert int(next(iterator)) == 0
    iteration = made._iterations[max(made._iterations)]
    free = len(made._names)
    assert [int(element) for element in iterator] == [1, 2]
    for _ in range(2):
        iteration._end(ended=True, finished=True)
    assert len(made._names) == free + 1


@pytest.mark.parametrize(("kind", "slow"), [("int", False), ("ragged", True)])
def test_items_that_cross_one_by_one_are_counted(kind: str, slow: bool) -> None:
    """In the feed's stats, with the reason: they take several times as long."""
    feeds: list[Any] = []
    make = {**ALIKE, **OTHERS}[kind]
    pipeline = af.items([make(number % 7) for number in range(3000)])
    signature = tf.TensorSpec([None, 2], tf.float32) if slow else tf.TensorSpec([], tf.int64)
    assert sum(1 for _ in pipeline.to_tf(output_signature=signature, on_open=feeds.append)) == 3000
    reasons = [reason for feed in feeds for reason, _ in feed.stats().slow_paths]
    assert reasons == (["to_tf, one by one: small items that are not alike"] if slow else [])
