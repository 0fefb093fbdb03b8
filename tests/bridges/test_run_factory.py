"""What all bridges share: the feed of each run is shown to `on_open`, and an error names the method that was called."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import make_dataclass
from typing import Any

import numpy as np
import pytest

import asyncfeed as af

tf = pytest.importorskip("tensorflow")

from asyncfeed.axes import Unknown  # noqa: E402
from asyncfeed.bridges.run_factory import RunFactory  # noqa: E402
from asyncfeed.bridges.tf_layout import Layout, infer  # noqa: E402
from asyncfeed.bridges.tf_queues import enqueue, to_queue_runner  # noqa: E402

v1 = tf.compat.v1
TWO = tf.TensorSpec([2], tf.float32)


@pytest.fixture
def graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


def opened(start: Callable[..., Any], sess: Any, queue: Any, **options: Any) -> list[Any]:
    """Fill a queue with 0, 1, 2 and return what comes out of it."""
    place = v1.placeholder(tf.int64, [])
    coord, fetch = af.Coordinator(), queue.dequeue()
    if start is enqueue:
        threads = enqueue(af.items(range(3)), sess, queue.enqueue(place), coord=coord, **options)
    else:
        runner = to_queue_runner(af.items(range(3)), queue, **options)
        threads = runner.create_threads(sess, coord, start=True)
    got = []
    with pytest.raises(tf.errors.OutOfRangeError):
        while True:
            got.append(int(sess.run(fetch)))
    coord.join(threads)
    return got


@pytest.mark.parametrize("start", [to_queue_runner, enqueue])
def test_on_open_gets_the_feed_that_fills_a_queue(graph: None, start: Callable[..., Any]) -> None:
    feeds: list[af.Feed[Any]] = []
    with v1.Session() as sess:
        assert opened(start, sess, tf.queue.FIFOQueue(9, [tf.int64], [()]), on_open=feeds.append) == [0, 1, 2]
    assert [feed.stats().batches for feed in feeds] == [3]


def test_on_open_gets_a_feed_for_each_session(graph: None) -> None:
    feeds: list[af.Feed[Any]] = []
    runner = to_queue_runner(af.items(range(3)), tf.queue.FIFOQueue(9, [tf.int64], [()]), on_open=feeds.append)
    for _ in range(2):
        with v1.Session() as sess:
            (thread,) = runner.create_threads(sess, start=True)
            thread.join()
    assert [feed.stats().batches for feed in feeds] == [3, 3]


def test_a_failure_is_in_the_feed_too(graph: None) -> None:
    def bad(number: int) -> int:
        raise KeyError("mine")

    feeds: list[af.Feed[Any]] = []
    queue = tf.queue.FIFOQueue(9, [tf.int64], [()])
    pipeline = af.concat(af.items([1]), af.items([2]).map(bad))
    runner = to_queue_runner(pipeline, queue, on_open=feeds.append)
    coord = af.Coordinator()
    with v1.Session() as sess:
        runner.create_threads(sess, coord, start=True)
        with pytest.raises(KeyError, match="mine"):
            coord.join()
    assert isinstance(feeds[0].failure.error, KeyError)  # type: ignore[union-attr]


# -- names in errors


@pytest.mark.parametrize("method", ["to_tf", "to_keras"])
def test_an_empty_pipeline_is_reported_by_the_method_that_was_called(method: str) -> None:
    with pytest.raises(af.PipelineError, match=rf"^{method}: items\(\[\]\) has no items.*; give output_signature"):
        RunFactory(af.items([]), None, None, method).peek()


@pytest.mark.parametrize(
    "item",
    [
        np.zeros(3, np.float32),
        np.zeros(2),
        "text",
        2.5,
        (np.zeros(2, np.float32),) * 2,
        None,
    ],
    ids=str,
)
def test_a_misfit_is_reported_by_the_method_that_was_called(item: Any) -> None:
    """Both take a signature, and say so."""
    for method in ("to_tf", "to_keras"):
        with pytest.raises(ValueError, match=f"^{method}: "):
            Layout(TWO, method).tensors(item)


@pytest.mark.parametrize("item", [make_dataclass("Pair", ["x"])(1), object()], ids=["dataclass", "object"])
def test_what_no_tensor_can_be_made_of_is_reported_by_the_method_that_was_called(item: Any) -> None:
    for method in ("to_tf", "to_keras"):
        with pytest.raises(af.PipelineError, match=f"^{method}: "):
            infer(item, Unknown(), method)


@pytest.mark.parametrize(
    ("item", "make"),
    [
        (0.5, lambda queue, place: queue.enqueue(place)),
        ((1, 2), lambda queue, place: queue.enqueue(place)),
        ({"x": 1}, lambda queue, place: queue.enqueue(place)),
        (1, lambda queue, place: queue.enqueue(place * 2)),
        (1, lambda queue, place: place.op),
        (1, lambda queue, place: "queue"),
    ],
    ids=["dtype", "count", "dict", "derived", "no op", "nothing"],
)
def test_enqueue_is_what_its_errors_say(graph: None, item: Any, make: Callable[..., Any]) -> None:
    target = make(tf.queue.FIFOQueue(9, [tf.int64], [()]), v1.placeholder(tf.int64, []))
    with v1.Session() as sess, pytest.raises(af.PipelineError, match="^enqueue: "):
        enqueue(af.items([item]), sess, target)
    with pytest.raises(af.PipelineError, match="^to_queue_runner: "):
        to_queue_runner(af.items([item]), target)


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        (af.items([]), "has no items to infer a signature from; give output_signature$"),
        (af.items([object()]), "TensorFlow has no tensor for it"),
        (af.items([np.zeros(2), np.zeros(2, np.int64)]), "int64 of shape"),
    ],
    ids=["empty", "no tensor", "misfit"],
)
def test_to_keras_is_what_its_errors_say(pipeline: Any, message: str) -> None:
    with pytest.raises((af.PipelineError, tf.errors.OpError), match=rf"to_keras: .*{message}") as caught:
        list(pipeline.to_keras().get_tf_dataset())
    assert "to_tf" not in str(caught.value).partition("\n")[0]


def test_a_limit_is_text_or_a_number() -> None:
    """A wrong one raises where the method is called, and names it."""
    factory = RunFactory(af.items(range(3)), None, "1.5MB")
    assert factory.memory_limit == 1_500_000
    run, _ = factory.open()
    with run.feed as feed:
        assert feed.stats().memory_limit == 1_500_000
    with pytest.raises(af.PipelineError, match="to_keras: memory_limit must be a number of bytes"):
        RunFactory(af.items(range(3)), None, "1.5 G", "to_keras")


def test_a_coroutine_may_make_a_dataset() -> None:
    """It is handed to a thread that trains; to look at the first item waits for it, as the frameworks do."""

    async def service() -> int:
        return int(RunFactory(af.items(range(3)), None, None).peek())

    assert asyncio.run(service()) == 0
