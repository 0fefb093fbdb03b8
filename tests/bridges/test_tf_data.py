"""`to_tf`: order, epochs, errors, stopping; the same for both ways across."""

from __future__ import annotations

import gc
import threading
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

tf = pytest.importorskip("tensorflow")

import asyncfeed as af  # noqa: E402
from asyncfeed.bridges.run_factory import RunFactory  # noqa: E402
from asyncfeed.bridges.tf_bridge import bridge  # noqa: E402
from asyncfeed.bridges.tf_iteration import TfIteration  # noqa: E402
from asyncfeed.testing import Leaks  # noqa: E402
from tests.engine.inside import Run  # noqa: E402
from tests.engine.outside import loop_threads, threads_ended  # noqa: E402


@pytest.fixture(params=["queue", "from_generator"])
def via(request: pytest.FixtureRequest) -> str:
    """Return a way across."""
    return str(request.param)


@pytest.fixture
def feeds() -> list[af.Feed[Any]]:
    """Return a list for `on_open`."""
    return []


def values(dataset: Any) -> list[Any]:  # noqa: ANN401
    return [tf.nest.map_structure(lambda leaf: leaf.numpy().tolist(), item) for item in dataset]


def ended(feed: af.Feed[Any]) -> bool:
    """Wait until the threads of the only feed have ended; return whether they did."""
    assert "not started" not in repr(feed)
    return threads_ended()


def numbers(count: int) -> Iterator[int]:
    yield from range(count)


# -- what is delivered


def test_the_founding_example(via: str) -> None:
    dataset = af.items(range(5)).repeat(2).batch(3, drop_remainder=True).to_tf(via=via)
    assert values(dataset) == [[0, 1, 2], [3, 4, 0], [1, 2, 3]]
    assert dataset.element_spec == tf.TensorSpec([3], tf.int64)


def test_a_smaller_last_batch_fits_the_inferred_signature(via: str) -> None:
    dataset = af.items(range(5)).repeat(2).batch(3).to_tf(via=via)
    assert dataset.element_spec == tf.TensorSpec([None], tf.int64)
    assert values(dataset) == [[0, 1, 2], [3, 4, 0], [1, 2, 3], [4]]


def test_ragged_samples_fit_the_inferred_signature(via: str) -> None:
    ragged = af.items([np.ones(n, np.float32) for n in (2, 3, 1, 4, 2)])
    dataset = ragged.batch(2).pad(lengths=True).to_tf(via=via)
    batch, lengths = dataset.element_spec
    assert (batch.shape.as_list(), lengths.shape.as_list()) == ([None, None], [None])
    assert [item[1].numpy().tolist() for item in dataset] == [[2, 3], [1, 4], [2]]
    assert [item.shape.as_list() for item in ragged.to_tf(via=via)] == [[2], [3], [1], [4], [2]]


def test_nested_trees_of_batches(via: str) -> None:
    samples = [{"x": np.full((2, 2), n, np.float32), "y": (n, f"no {n}")} for n in range(3)]
    dataset = af.items(samples).batch(2).to_tf(via=via)
    assert dataset.element_spec == {
        "x": tf.TensorSpec([None, 2, 2], tf.float32),
        "y": (tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.string)),
    }
    assert [item["y"] for item in values(dataset)] == [([0, 1], [b"no 0", b"no 1"]), ([2], [b"no 2"])]


def test_the_item_that_the_signature_came_from_is_delivered_and_read_once(
    via: str, feeds: list[af.Feed[Any]]
) -> None:
    reads: list[int] = []
    source = af.items(range(6)).map(lambda n: reads.append(n) or n, concurrency=1)
    dataset = source.batch(2).to_tf(via=via, on_open=feeds.append)
    assert len(feeds) == 1
    assert values(dataset) == [[0, 1], [2, 3], [4, 5]]
    assert reads == [0, 1, 2, 3, 4, 5]
    assert len(feeds) == 1


def test_a_given_signature_reads_nothing_ahead(via: str, feeds: list[af.Feed[Any]]) -> None:
    signature = tf.TensorSpec([None], tf.int64)
    dataset = af.items(range(3)).batch(2).to_tf(via=via, output_signature=signature, on_open=feeds.append)
    assert feeds == []
    assert values(dataset) == [[0, 1], [2]]
    assert len(feeds) == 1


def test_a_one_shot_source_is_delivered_once(via: str) -> None:
    dataset = af.items(iter(range(3))).to_tf(via=via)
    assert values(dataset) == [0, 1, 2]
    with pytest.raises(tf.errors.OpError, match="drawn from by an earlier run"):
        values(dataset)


def test_nothing_to_infer_from() -> None:
    with pytest.raises(af.PipelineError, match="no items to infer a signature from"):
        af.items([]).to_tf()
    assert values(af.items([]).to_tf(output_signature=tf.TensorSpec([], tf.int64))) == []


def test_a_failing_first_item_raises_itself_where_it_is_asked_for(via: str) -> None:
    with pytest.raises(ZeroDivisionError):
        af.items([0]).map(lambda n: 1 // n).to_tf(via=via)


def test_an_unknown_way() -> None:
    with pytest.raises(af.PipelineError, match="'queue' or 'from_generator', not 'pipe'"):
        af.items([1]).to_tf(via="pipe")  # type: ignore[arg-type]


# -- its length


@pytest.mark.parametrize(
    ("pipeline", "expected"),
    [
        (af.items(range(5)).batch(2), 3),
        (af.items(range(5)).batch(2, drop_remainder=True).repeat(3), 6),
        (af.items(range(5)).repeat(), -1),
        (af.items(range(5)).repeat().batch(2).take(4), 4),
        (af.items(range(5)).repeat().take(4).map(abs, on_error="skip", skip_limit=1), -2),
        (af.items(range(5)).filter(lambda n: n > 1), -2),
        (af.items(lambda: range(5)), -2),
    ],
    ids=str,
)
def test_cardinality(pipeline: af.Pipeline[Any], expected: int, via: str) -> None:
    assert int(pipeline.to_tf(via=via).cardinality()) == expected


# -- each iteration is a run of its own


def test_each_iteration_is_the_next_epoch(via: str) -> None:
    def draw(n: int, rng: np.random.Generator) -> tuple[int, int]:
        return n, int(rng.integers(1 << 30))

    for source in (
        af.items(range(20)).shuffle(seed=3),
        af.items(range(10)).shuffle(seed=3).repeat(2),
        af.items(lambda: numbers(20)).shuffle(buffer=8, seed=3),
    ):
        pipeline = source.map(draw, rng=True)
        dataset = pipeline.to_tf(via=via)
        epochs = [values(dataset) for _ in range(3)]
        assert list(chain(*epochs)) == list(pipeline.repeat(3))
        assert len(set(map(str, epochs))) == 3


def test_repeat_of_the_dataset_is_a_run_for_each_pass(via: str, feeds: list[af.Feed[Any]]) -> None:
    pipeline = af.items(range(8)).shuffle(seed=1).batch(3)
    assert values(pipeline.to_tf(via=via, on_open=feeds.append).repeat(2)) == [
        batch.tolist() for batch in pipeline.repeat(2)
    ]
    assert len(feeds) == 2


def test_two_iterators_at_once_do_not_share(via: str) -> None:
    dataset = af.items(range(6)).batch(2).to_tf(via=via)
    one, two = iter(dataset), iter(dataset)
    assert [int(next(each)[0]) for each in (one, two, one, two, one, two)] == [0, 0, 2, 2, 4, 4]
    for each in (one, two):
        with pytest.raises(StopIteration):
            next(each)


def test_datasets_zip_map_prefetch_and_interleave(via: str) -> None:
    dataset = af.items(range(6)).batch(2).to_tf(via=via)
    other = af.items(range(10, 16)).batch(2).to_tf(via=via)
    zipped = tf.data.Dataset.zip((dataset, other)).map(lambda a, b: b - a).prefetch(2)
    assert values(zipped) == [[10, 10]] * 3
    both = tf.data.Dataset.range(2).interleave(lambda _: dataset, cycle_length=2)
    assert sorted(values(both)) == sorted([[0, 1], [2, 3], [4, 5]] * 2)
    assert len(values(dataset.unbatch().batch(4))) == 2


def test_iterating_inside_a_function(via: str) -> None:
    dataset = af.items(range(10)).batch(3).to_tf(via=via)

    @tf.function
    def total() -> Any:  # noqa: ANN401
        result = tf.constant(0, tf.int64)
        for batch in dataset:
            result += tf.reduce_sum(batch)
        return result

    assert (int(total()), int(total())) == (45, 45)


def test_many_threads_may_draw_from_one_iterator(via: str) -> None:
    iterator = iter(af.items(range(500)).to_tf(via=via))
    got: list[int] = []

    def draw() -> None:
        got.extend(int(item) for item in iterator)

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(got) == list(range(500))


# -- errors


class OddError(Exception):
    pass


@pytest.mark.parametrize(
    "error", [OddError, ValueError, OSError, StopIteration, MemoryError, tf.errors.CancelledError]
)
def test_a_failure_comes_after_all_items_before_it(
    error: type[Exception], via: str, feeds: list[af.Feed[Any]]
) -> None:
    def fail(n: int) -> int:
        if n == 7:
            raise error(None, None, "odd one") if issubclass(error, tf.errors.OpError) else error("odd one")
        return n

    dataset = af.items(range(20)).map(fail, concurrency=4).batch(2).to_tf(via=via, on_open=feeds.append)
    got = []
    with pytest.raises(tf.errors.OpError) as caught:  # noqa: PT012
        for batch in dataset:
            got.append(batch.numpy().tolist())  # noqa: PERF401 - what comes before the error counts
    assert got == [[0, 1], [2, 3], [4, 5]]
    text = str(caught.value)
    assert error.__name__ in text
    assert "odd one" in text
    assert "in fail" in text
    assert "ordinal 7 of epoch 0" in text
    assert feeds[0].failure is not None
    assert isinstance(feeds[0].failure.error, RuntimeError if error is StopIteration else error)


def test_after_a_failure_the_next_iteration_starts_anew(via: str) -> None:
    broken = True

    def fail(n: int) -> int:
        if broken and n == 3:
            raise OddError
        return n

    dataset = af.items(range(6)).map(fail).to_tf(via=via)
    for _ in range(2):
        with pytest.raises(tf.errors.UnknownError, match="OddError"):
            values(dataset)
    broken = False
    assert values(dataset) == [0, 1, 2, 3, 4, 5]


def test_ignore_errors_ends_the_epoch(via: str) -> None:
    """Where the length is not known. TensorFlow's own `assert_cardinality` would make it wait for ever."""
    dataset = af.items(lambda: [1, 1, 0, 1]).map(lambda n: 1 // n).to_tf(via=via)
    assert values(dataset.ignore_errors()) == [1, 1]


def test_an_item_that_does_not_fit_the_signature_fails_at_its_place(via: str, feeds: list[af.Feed[Any]]) -> None:
    items = [{"x": np.zeros(n, np.float32)} for n in (2, 2, 3, 2)]
    signature = {"x": tf.TensorSpec([2], tf.float32)}
    dataset = af.items(items).to_tf(via=via, output_signature=signature, on_open=feeds.append)
    got = []
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"leaf \['x'\] is float32 of shape"):  # noqa: PT012
        for item in dataset:
            got.append(item)  # noqa: PERF402 - what comes before the error counts
    assert len(got) == 2
    assert ended(feeds[0])


def test_stopping_the_feed_is_an_error_for_the_consumer(via: str, feeds: list[af.Feed[Any]]) -> None:
    iterator = iter(af.items(range(10_000)).repeat().to_tf(via=via, on_open=feeds.append))
    next(iterator)
    feeds[0].stop("enough")
    with pytest.raises(tf.errors.OpError, match="ClosedError: the feed was stopped: enough"):
        list(iterator)


def test_an_error_in_on_open_is_the_callers(via: str) -> None:
    def refuse(_: af.Feed[Any]) -> None:
        raise OddError("no")

    with pytest.raises(OddError):
        af.items(range(3)).to_tf(via=via, on_open=refuse)
    signature = tf.TensorSpec([], tf.int64)
    with pytest.raises(tf.errors.UnknownError, match="OddError: no"):
        values(af.items(range(3)).to_tf(via=via, on_open=refuse, output_signature=signature))


def test_a_legacy_graph_is_refused(via: str) -> None:
    with tf.Graph().as_default(), pytest.raises(af.PipelineError, match="needs eager execution"):
        af.items([1]).to_tf(via=via)


# -- stopping


def test_breaking_off_stops_the_run(via: str, feeds: list[af.Feed[Any]]) -> None:
    dataset = af.items(range(100)).repeat().batch(2).to_tf(via=via, on_open=feeds.append)
    for _ in dataset:
        break
    assert ended(feeds[0])
    assert feeds[0].failure is None


def test_an_exception_in_the_consumer_stops_the_run(via: str, feeds: list[af.Feed[Any]]) -> None:
    dataset = af.items(range(100)).repeat().batch(2).to_tf(via=via, on_open=feeds.append)

    def consume() -> None:
        for _ in dataset:
            raise OddError

    with pytest.raises(OddError):
        consume()
    assert ended(feeds[0])


def test_dropping_an_iterator_while_the_source_blocks(feeds: list[af.Feed[Any]]) -> None:
    """The queue does not wait for it; `from_generator` would, as its documentation says."""
    release = threading.Event()

    def block(n: int) -> int:
        if n >= 8:
            release.wait()
        return n

    iterator = iter(af.items(range(100)).map(block).to_tf(on_open=feeds.append))
    next(iterator)
    del iterator
    try:
        with pytest.raises(af.ClosedError, match="TensorFlow let go"):
            list(feeds[0])
    finally:
        release.set()
    assert ended(feeds[0])


def test_a_dataset_that_is_never_iterated_stops_its_run(via: str, feeds: list[af.Feed[Any]]) -> None:
    dataset = af.items(range(100)).repeat().to_tf(via=via, on_open=feeds.append)
    assert not ended_at_once(feeds[0])
    del dataset
    gc.collect()
    assert ended(feeds[0])


def ended_at_once(feed: af.Feed[Any]) -> bool:
    assert "not started" not in repr(feed)
    return not loop_threads()


def test_a_signature_that_cannot_be_leaves_nothing_running(feeds: list[af.Feed[Any]]) -> None:
    with pytest.raises(af.PipelineError):
        af.items([object()]).repeat().to_tf(on_open=feeds.append)
    assert ended(feeds[0])


def test_take_of_an_endless_dataset_stops_the_run(via: str, feeds: list[af.Feed[Any]]) -> None:
    dataset = af.items(range(100)).repeat().to_tf(via=via, on_open=feeds.append)
    assert values(dataset.take(3)) == [0, 1, 2]
    assert ended(feeds[0])


# -- nothing left


def test_200_datasets_leave_nothing(via: str) -> None:
    def use(count: int) -> None:
        for number in range(count):
            dataset = af.items(range(6)).batch(2).to_tf(via=via)
            for _ in dataset:
                if number % 3 == 0:
                    break
            if number % 3 == 1:
                failing = af.items([1, 0]).map(lambda n: 1 // n).to_tf(via=via)
                with pytest.raises(tf.errors.OpError):
                    list(failing)
            del dataset
            if number % 10 == 0:
                gc.collect()  # the graphs of many datasets together take it far longer than one by one

    types = (af.Feed, af.Pipeline, Run, TfIteration, RunFactory)
    use(3)
    gc.collect()
    leaks = Leaks(types=types, tasks=False)
    use(200 if via == "queue" else 30)
    gc.collect()
    assert leaks.threads("asyncfeed") + leaks.objects() == []


def test_queues_are_used_again() -> None:
    """TensorFlow keeps something for each name that a queue ever had."""
    dataset = af.items(range(3)).to_tf()
    for _ in range(3):
        values(dataset)
    names = len(bridge()._names)
    for _ in range(20):
        values(dataset)
    assert len(bridge()._names) <= names + 1
