"""`to_queue_runner`, `enqueue`, `queue_dataset`: what goes in, how it ends, and how it is stopped."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

tf = pytest.importorskip("tensorflow")

import asyncfeed as af  # noqa: E402

v1 = tf.compat.v1
KINDS = {"ours": af.Coordinator, "TensorFlow's": tf.train.Coordinator}


@pytest.fixture(params=KINDS)
def coord(request: pytest.FixtureRequest) -> Any:
    return KINDS[request.param]()


@pytest.fixture
def eager() -> None:
    """Do without a graph."""


@pytest.fixture(autouse=True)
def graph(request: pytest.FixtureRequest) -> Iterator[None]:
    if "eager" in request.fixturenames:
        yield
        return
    with tf.Graph().as_default():
        yield


class Watched(v1.Session):
    """A session that counts the enqueues which were begun."""

    def __init__(self) -> None:
        super().__init__()
        self.enqueues = threading.Semaphore(0)

    def run(self, fetches: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(fetches, "type", "").startswith("QueueEnqueue"):
            self.enqueues.release()
        return super().run(fetches, *args, **kwargs)

    def filled(self, enqueues: int) -> None:
        """Wait until so many enqueues were begun."""
        for _ in range(enqueues):
            assert self.enqueues.acquire(timeout=60)


def integers(capacity: int = 100) -> Any:
    return tf.queue.FIFOQueue(capacity, [tf.int64], [()])


def drain(sess: Any, fetch: Any) -> list[Any]:
    """Fetch until the queue is closed and empty."""
    got = []
    try:
        while True:
            value = sess.run(fetch)
            got.append(
                tf.nest.map_structure(lambda leaf: leaf.tolist() if hasattr(leaf, "tolist") else leaf, value)
            )
    except tf.errors.OutOfRangeError:
        return got


def fetched(pipeline: Any, queue: Any, fetch: Any = None, **options: Any) -> list[Any]:
    """Return what comes out of a queue that a pipeline fills."""
    runner = pipeline.to_queue_runner(queue, **options)
    fetch = queue.dequeue() if fetch is None else fetch
    with v1.Session() as sess:
        coord = af.Coordinator()
        threads = runner.create_threads(sess, coord, start=True)
        got = drain(sess, fetch)
        coord.join(threads)
    return got


def bad(x: int) -> int:
    if x == 4:
        raise ValueError("item four")
    return x


async def waits(x: int) -> int:
    if x:
        await asyncio.Event().wait()
    return x


# -- what goes in


def test_an_old_script_keeps_its_loop_and_sees_the_end(coord: Any) -> None:
    queue = integers()
    runner = af.items(range(5)).repeat(2).batch(4).to_queue_runner(queue)
    assert isinstance(runner, v1.train.QueueRunner)
    v1.train.add_queue_runner(runner)
    batch = queue.dequeue_many(3)
    got = []
    with v1.Session() as sess:
        threads = v1.train.start_queue_runners(sess, coord)
        try:
            while not coord.should_stop():
                got.append(sess.run(batch).tolist())
        except tf.errors.OutOfRangeError:
            pass
        finally:
            coord.request_stop()
        coord.join(threads)
    assert got == [[0, 1, 2], [3, 4, 0], [1, 2, 3]]


@pytest.mark.parametrize("daemon", [True, False])
def test_start_queue_runners_says_whether_threads_start_and_are_daemons(coord: Any, daemon: bool) -> None:
    queue = integers()
    v1.train.add_queue_runner(af.items(range(3)).to_queue_runner(queue))
    fetch = queue.dequeue()
    with v1.Session() as sess:
        threads = v1.train.start_queue_runners(sess, coord, daemon=daemon, start=False)
        assert [(thread.daemon, thread.ident) for thread in threads] == [(daemon, None)] * 2
        for thread in threads:
            thread.start()
        assert drain(sess, fetch) == [0, 1, 2]
        coord.join(threads)


def test_whole_batches_go_in_by_enqueue_many_where_the_queue_says_what_an_element_is() -> None:
    rows = af.arrays(np.arange(6.0).reshape(3, 2))
    types = [
        pipeline.to_queue_runner(queue, enqueue_many=many).enqueue_ops[0].type
        for pipeline, queue, many in (
            (rows.batch(2), tf.queue.FIFOQueue(9, [tf.float64], [(2,)]), None),
            (rows, tf.queue.FIFOQueue(9, [tf.float64], [(2,)]), None),
            (rows.batch(2), tf.queue.PaddingFIFOQueue(9, [tf.float64], [(None, 2)]), None),
            (rows.batch(2), tf.queue.FIFOQueue(9, [tf.float64]), None),
            (rows.batch(2), tf.queue.FIFOQueue(9, [tf.float64]), True),
        )
    ]
    many, one = "QueueEnqueueManyV2", "QueueEnqueueV2"
    assert types == [many, one, one, one, many]


@settings(max_examples=15, deadline=None)
@given(count=st.integers(0, 20), size=st.integers(1, 7), capacity=st.integers(1, 9))
def test_every_row_arrives_once_in_order(count: int, size: int, capacity: int) -> None:
    with tf.Graph().as_default():
        assert fetched(af.items(range(count)).batch(size), integers(capacity)) == list(range(count))


def test_named_components_take_dicts() -> None:
    samples = af.items([{"y": 1, "x": 0.5}, {"x": 1.5, "y": 2}])
    for pipeline in (samples, samples.batch(2)):
        queue = tf.queue.FIFOQueue(9, [tf.float64, tf.int64], [(), ()], names=["x", "y"])
        assert fetched(pipeline, queue) == [{"x": 0.5, "y": 1}, {"x": 1.5, "y": 2}]


def test_a_padding_queue_pads_ragged_samples_and_a_string_stays_one() -> None:
    ragged = af.items([(np.ones(n, np.float32), f"{n}") for n in (1, 3)])
    queue = tf.queue.PaddingFIFOQueue(9, [tf.float32, tf.string], [(None,), ()])
    ((rows, texts),) = fetched(ragged, queue, queue.dequeue_many(2))
    assert rows == [[1, 0, 0], [1, 1, 1]]
    assert texts == [b"1", b"3"]


def test_an_enqueue_op_of_the_scripts_own_is_fed_through_its_placeholders(coord: Any) -> None:
    queue = tf.queue.FIFOQueue(9, [tf.float32, tf.int64])
    x, y = v1.placeholder(tf.float32, [None]), v1.placeholder(tf.int64, [])
    direct, derived = queue.enqueue([x, y]), queue.enqueue([x * 2, y])
    fetch = queue.dequeue()
    samples = af.items([(np.ones(2, np.float32), 7)])
    named = samples.map(lambda sample: dict(zip("xy", sample, strict=True)))
    for pipeline, op, placeholders, times in (
        (samples, direct, None, 1),
        (samples, derived, [x, y], 2),
        (named, derived, {"y": y, "x": x}, 2),
    ):
        with v1.Session() as sess:
            threads = pipeline.enqueue(sess, op, placeholders, coord=coord)
            assert drain(sess, fetch) == [[[times, times], 7]]
            coord.join(threads)


def test_each_session_gets_a_run_of_its_own_and_the_next_epoch() -> None:
    queue = integers()
    pipeline = af.items(range(20)).shuffle(seed=3)
    runner, fetch = pipeline.to_queue_runner(queue), queue.dequeue()
    runs = []
    for _ in range(2):
        with v1.Session() as sess:
            threads = runner.create_threads(sess, start=False)
            assert runner.create_threads(sess) == []
            threads[0].start()
            runs.append(drain(sess, fetch))
            threads[0].join()
    assert runs == [list(pipeline.open(epoch=epoch)) for epoch in (0, 1)]


def test_a_coroutine_may_make_a_runner() -> None:
    """It is handed to threads; to look at the first item waits for it, as `to_tf` does."""

    async def service() -> Any:
        return af.items(range(3)).to_queue_runner(queue)

    queue = integers()
    runner = asyncio.run(service())
    with v1.Session() as sess:
        runner.create_threads(sess, start=True)
        assert drain(sess, queue.dequeue()) == [0, 1, 2]


def test_a_monitored_session_starts_the_runner() -> None:
    queue = integers()
    v1.train.add_queue_runner(af.items(range(5)).to_queue_runner(queue))
    fetch = queue.dequeue()
    v1.train.get_or_create_global_step()
    got = []
    with v1.train.MonitoredTrainingSession(log_step_count_steps=None) as sess:
        while not sess.should_stop():
            got.append(int(sess.run(fetch)))
    assert got == list(range(5))


# -- what does not go in


def misfits() -> dict[str, tuple[Any, Any, str]]:
    row = af.items([np.ones(3)])
    return {
        "dtype": (
            row,
            lambda: tf.queue.FIFOQueue(9, [tf.float32], [(3,)]),
            "0 of an item is float64 of shape .3,.",
        ),
        "shape": (row, lambda: tf.queue.FIFOQueue(9, [tf.float64], [(4,)]), r"takes float64 of shape \(4,\)"),
        "rank": (row.batch(1).batch(1), lambda: tf.queue.FIFOQueue(9, [tf.float64], [(3,)]), r"shape \(1, 1, 3\)"),
        "fraction": (af.items([0.5]), integers, "0 of an item is float '0.5', but the queue takes int64"),
        "text": (af.items(["a"]), integers, "is str 'a'"),
        "number": (af.items([1]), lambda: tf.queue.FIFOQueue(9, [tf.string], [()]), "is int '1'"),
        "count": (af.items([(1, 2)]), integers, "an item has 2 leaves, but the queue takes 1 components"),
        "dict": (af.items([{"x": 1}]), integers, "names="),
        "keys": (
            af.items([{"x": 1}]),
            lambda: tf.queue.FIFOQueue(9, [tf.int64], [()], names=["y"]),
            r"takes a dict of \['y'\], but an item is a dict of \['x'\]",
        ),
        "other op": (af.items([1]), lambda: tf.constant(1).op, "is Const, not an enqueue op"),
        "derived": (af.items([1]), lambda: integers().enqueue(tf.constant(1, tf.int64)), "which is Const and no"),
        "nothing": (af.items([1]), lambda: "queue", "takes a queue of TensorFlow or an enqueue op"),
    }


@pytest.mark.parametrize("name", misfits())
def test_what_does_not_fit_is_said_at_once(name: str) -> None:
    pipeline, target, message = misfits()[name]
    with pytest.raises(af.PipelineError, match=message):
        pipeline.to_queue_runner(target())


def test_an_eager_queue_is_refused(eager: None) -> None:
    with pytest.raises(af.PipelineError, match=r"use .to_tf"):
        af.items([1]).to_queue_runner(integers())


def test_options_of_the_other_kind_of_target_are_refused() -> None:
    place = v1.placeholder(tf.int64, [])
    with pytest.raises(af.PipelineError, match="placeholders belong to an enqueue op"):
        af.items([1]).to_queue_runner(integers(), [place])
    with pytest.raises(af.PipelineError, match="decides itself whether it enqueues batches"):
        af.items([1]).to_queue_runner(integers().enqueue(place), enqueue_many=True)


def test_an_item_that_fits_no_more_reaches_join(coord: Any) -> None:
    queue = tf.queue.FIFOQueue(9, [tf.uint8], [()])
    runner = af.items([np.uint8(4), np.int64(300)]).to_queue_runner(queue)
    fetch = queue.dequeue()
    with v1.Session() as sess:
        threads = runner.create_threads(sess, coord, start=True)
        assert drain(sess, fetch) == [4]
        with pytest.raises(af.PipelineError, match="component 0 of an item is int64"):
            coord.join(threads)


# -- how it ends


def test_threads_say_what_they_are_and_join_returns_after_the_end_of_the_data(coord: Any) -> None:
    queue = tf.queue.FIFOQueue(9, [tf.int64], [()], name="samples")
    runner, fetch = af.items(range(3)).to_queue_runner(queue), queue.dequeue()
    with v1.Session() as sess:
        threads = runner.create_threads(sess, coord, start=True)
        assert [thread.name for thread in threads] == [
            "asyncfeed-enqueue-samples",
            "asyncfeed-enqueue-samples-close_on_stop",
        ]
        assert drain(sess, fetch) == [0, 1, 2]
        coord.join()  # no stop was asked for; TensorFlow's own runner would have it wait for ever
    assert not coord.should_stop()


def test_a_stop_ends_an_enqueue_that_waits_for_room(coord: Any) -> None:
    runner = af.items(range(1000)).to_queue_runner(integers(2))
    with Watched() as sess:
        threads = runner.create_threads(sess, coord, start=True)
        sess.filled(3)
        coord.request_stop()
        coord.join(threads)
        assert [thread.is_alive() for thread in threads] == [False, False]


def test_a_stop_ends_a_wait_for_data(coord: Any) -> None:
    queue = integers()
    runner, fetch = af.items(range(9)).map(waits).to_queue_runner(queue), queue.dequeue()
    with v1.Session() as sess:
        threads = runner.create_threads(sess, coord, start=True)
        assert sess.run(fetch) == 0
        coord.request_stop()
        coord.join(threads)
        assert drain(sess, fetch) == []


def test_a_stop_before_the_start_reads_nothing_more(coord: Any) -> None:
    queue = integers()
    runner, fetch = af.items(range(9)).map(waits).to_queue_runner(queue), queue.dequeue()
    coord.request_stop()
    with v1.Session() as sess:
        threads = runner.create_threads(sess, coord, start=True)
        coord.join(threads)
        assert drain(sess, fetch) == []  # not even the item that was read early


def test_after_a_stop_no_element_is_enqueued(coord: Any) -> None:
    """The stop comes between two items that are both ready."""
    queue = integers()
    runner, fetch = af.items(range(50)).to_queue_runner(queue), queue.dequeue()

    class Stopping(Watched):
        def run(self, fetches: Any, *args: Any, **kwargs: Any) -> Any:
            done = super().run(fetches, *args, **kwargs)
            if getattr(fetches, "type", "").startswith("QueueEnqueue"):
                coord.request_stop()
            return done

    with Stopping() as sess:
        coord.join(runner.create_threads(sess, coord, start=True))
        assert drain(sess, fetch) == [0]


def test_a_failure_reaches_join_as_itself_and_the_trainer_gets_what_came_before(coord: Any) -> None:
    queue = integers()
    runner, fetch = af.items(range(9)).map(bad).to_queue_runner(queue), queue.dequeue()
    with v1.Session() as sess:
        threads = runner.create_threads(sess, coord, start=True)
        assert drain(sess, fetch) == [0, 1, 2, 3]
        assert coord.should_stop()
        with pytest.raises(ValueError, match="^item four"):
            coord.join(threads)


def test_a_failure_that_looks_like_the_end_of_the_data_is_no_end(coord: Any) -> None:
    def looks_like_an_end(x: int) -> int:
        raise tf.errors.OutOfRangeError(None, None, "of some other queue")

    queue = integers()
    good = af.items(range(2))
    runner = af.concat(good, good.map(looks_like_an_end)).to_queue_runner(queue)
    fetch = queue.dequeue()
    with v1.Session() as sess:
        threads = runner.create_threads(sess, coord, start=True)
        assert drain(sess, fetch) == [0, 1]
        with pytest.raises(RuntimeError, match="failed with OutOfRangeError: of some other queue"):
            coord.join(threads)


def test_without_a_coordinator_a_failure_is_kept_and_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: printed.append(args.exc_value))
    queue = integers()
    runner, fetch = af.items(range(9)).map(bad).to_queue_runner(queue), queue.dequeue()
    with v1.Session() as sess:
        (thread,) = runner.create_threads(sess, start=True)
        assert drain(sess, fetch) == [0, 1, 2, 3]
        thread.join()
    assert [str(error) for error in printed] == ["item four"]
    assert runner.exceptions_raised == printed


@pytest.mark.parametrize("many", [False, True])
def test_closing_the_session_in_the_middle_is_clean(coord: Any, many: bool) -> None:
    pipeline = af.items(range(1000))
    runner = (pipeline.batch(3) if many else pipeline).to_queue_runner(integers(2))
    sess = Watched()
    threads = runner.create_threads(sess, coord, start=True)
    sess.filled(1)
    sess.close()
    coord.join(threads)
    assert not coord.should_stop()


def test_a_queue_that_somebody_else_closes_is_no_error(coord: Any) -> None:
    queue = integers(2)
    runner, close = af.items(range(1000)).to_queue_runner(queue), queue.close(cancel_pending_enqueues=True)
    with Watched() as sess:
        threads = runner.create_threads(sess, coord, start=True)
        sess.filled(3)
        sess.run(close)
        coord.join(threads)
    assert not coord.should_stop()


def test_a_failure_after_join_is_raised_nowhere_else() -> None:
    coord = tf.train.Coordinator()
    queue = integers()
    runner = af.items(range(9)).map(bad).to_queue_runner(queue)
    coord.join()
    with v1.Session() as sess:
        for thread in runner.create_threads(sess, coord, start=True):
            thread.join()
    assert coord.joined


def test_a_runner_that_nobody_starts_lets_its_run_go() -> None:
    queue = integers()
    before = threading.active_count()
    runner = af.items(range(9)).map(waits).to_queue_runner(queue)
    assert threading.active_count() > before
    del runner
    gc.collect()  # the fixture `nothing_left` looks for the threads


# -- a queue as a dataset


def test_a_queue_is_a_dataset_that_ends_when_it_is_closed(eager: None) -> None:
    queue = integers()
    queue.enqueue_many([list(range(5))])
    queue.close()
    dataset = af.queue_dataset(queue)
    assert dataset.element_spec == tf.TensorSpec((), tf.int64)
    assert [batch.numpy().tolist() for batch in dataset.batch(2)] == [[0, 1], [2, 3], [4]]
    assert list(dataset) == []


def test_elements_have_the_structure_that_dequeue_gives(eager: None) -> None:
    pair = tf.queue.FIFOQueue(9, [tf.int64, tf.string], [(), ()])
    pair.enqueue((1, "a"))
    named = tf.queue.FIFOQueue(9, [tf.int64, tf.string], [(), ()], names=["z", "a"])
    named.enqueue({"z": 1, "a": "b"})
    first = tf.queue.PriorityQueue(9, [tf.int64], [()])
    for priority in (2, 1):
        first.enqueue((tf.constant(priority, tf.int64), tf.constant(priority * 10, tf.int64)))
    for queue in (pair, named, first):
        queue.close()
    as_numpy = [list(af.queue_dataset(queue).as_numpy_iterator()) for queue in (pair, named, first)]
    assert as_numpy == [[(1, b"a")], [{"a": b"b", "z": 1}], [(1, 10), (2, 20)]]


def test_the_dataset_keeps_its_queue_and_dropping_a_waiting_iterator_does_not_close_it(eager: None) -> None:
    queue = integers()
    dataset = af.queue_dataset(queue)
    queue.enqueue(1)
    iterator = iter(dataset)
    assert int(next(iterator)) == 1
    del iterator
    queue.enqueue(2)
    queue.close()
    del queue
    gc.collect()
    assert [int(each) for each in dataset] in ([2], [])  # it may have been on its way to the iterator


def test_a_graphs_queue_is_a_dataset_of_its_graph() -> None:
    queue = integers()
    put, close = queue.enqueue_many([[1, 2, 3]]), queue.close()
    iterator = v1.data.make_initializable_iterator(af.queue_dataset(queue))
    fetch = iterator.get_next()
    with v1.Session() as sess:
        for op in (put, close, iterator.initializer):
            sess.run(op)
        assert drain(sess, fetch) == [1, 2, 3]


def test_only_queues_are_datasets() -> None:
    with pytest.raises(af.PipelineError, match="takes a queue of TensorFlow, not 3"):
        af.queue_dataset(3)
