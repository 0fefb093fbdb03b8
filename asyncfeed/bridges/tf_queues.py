"""`to_queue_runner` and `enqueue`: a pipeline that fills a queue of TensorFlow's, for scripts with a session.

A runner is a `tf.compat.v1.train.QueueRunner` with one enqueue op, whose placeholders are fed with the items.
Two threads for each session, named after the queue:

    asyncfeed-enqueue-NAME               draws from a feed and runs the enqueue op
    asyncfeed-enqueue-NAME-close_on_stop waits for the coordinator's stop, or for the other thread to end

| what happens | the queue | the coordinator |
|---|---|---|
| the data ends | closed; its items can still be taken, then `OutOfRangeError` | is not asked to stop |
| an item fails | closed; the items before it can still be taken | is asked to stop with the exception, first |
| the coordinator is asked to stop | closed, waiting enqueues cancelled | |
| the session is closed, or other code closes the queue | cancels or refuses the enqueue | is not asked to stop |

Why there is a second thread: only an op that closes the queue can end an enqueue that waits for room. That op
cannot run inside of `request_stop`, because a signal handler may call `request_stop`. TensorFlow's second thread
waits only for a stop, so a `join` after the end of the data waits for ever. The second thread here also ends with
the data.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

from asyncfeed.bridges.run_factory import RunFactory
from asyncfeed.bridges.tf_components import Components, leaves_of
from asyncfeed.errors import ClosedError, PipelineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from asyncfeed.bridges.run_factory import OpenRun
    from asyncfeed.feed import Feed
    from asyncfeed.pipeline import Pipeline
    from asyncfeed.sizes import Size

ENQUEUES = ("QueueEnqueue", "QueueEnqueueV2", "QueueEnqueueMany", "QueueEnqueueManyV2")
CLOSED_SESSION = "closed Session"
"""Text of TensorFlow's plain RuntimeError if a session was closed before it is asked to run."""

Placeholders = Sequence[Any] | Mapping[str, Any]


def to_queue_runner(
    pipeline: Pipeline[Any],
    target: Any,
    placeholders: Placeholders | None = None,
    *,
    enqueue_many: bool | None = None,
    on_open: Callable[[Feed[Any]], None] | None = None,
    memory_limit: Size | None = None,
    method: str = "to_queue_runner",
) -> Any:
    """Return a queue runner over a pipeline; see `Pipeline.to_queue_runner`. Error messages name `method`."""
    import tensorflow as tf

    if not isinstance(target, (tf.queue.QueueBase, tf.Operation)):
        raise PipelineError(f"{method}: takes a queue of TensorFlow or an enqueue op, not {target!r}")
    handle = target.queue_ref if isinstance(target, tf.queue.QueueBase) else _handle(target, method)
    if not tf.is_symbolic_tensor(handle):
        raise PipelineError(f"{method}: needs a queue in a tf.Graph; with eager execution use .to_tf()")
    runs = QueueRuns(RunFactory(pipeline, on_open, memory_limit, method))
    first = runs.peek()
    with handle.graph.as_default():
        if isinstance(target, tf.Operation):
            if enqueue_many is not None:
                raise PipelineError(
                    f"{method}: an enqueue op decides itself whether it enqueues batches; leave out enqueue_many"
                )
            queue, op = _queue_of(target), target
            placeholders = _inputs(target, method) if placeholders is None else placeholders
        else:
            if placeholders is not None:
                raise PipelineError(
                    f"{method}: placeholders belong to an enqueue op; leave them out if you give a queue"
                )
            queue = target
            many = _many(queue, first, method) if enqueue_many is None else enqueue_many
            op, placeholders = _enqueue_op(queue, many)
        components = Components(placeholders, method)
        for item in first:
            components.feed(item)
        return _runner_class()(queue, op, components, runs)


def enqueue(
    pipeline: Pipeline[Any],
    sess: Any,
    enqueue_op: Any,
    placeholders: Placeholders | None = None,
    *,
    coord: Any = None,
    on_open: Callable[[Feed[Any]], None] | None = None,
    memory_limit: Size | None = None,
) -> list[threading.Thread]:
    """Start the threads that fill a queue; see `Pipeline.enqueue`."""
    runner = to_queue_runner(
        pipeline, enqueue_op, placeholders, on_open=on_open, memory_limit=memory_limit, method="enqueue"
    )
    threads: list[threading.Thread] = runner.create_threads(sess, coord=coord, start=True)
    return threads


# -- the enqueue op


def _handle(op: Any, method: str) -> Any:
    if op.type not in ENQUEUES:
        raise PipelineError(
            f"{method}: {op.name!r} is {op.type}, not an enqueue op; give the result of queue.enqueue(...)"
        )
    return op.inputs[0]


def _queue_of(op: Any) -> Any:
    """Return the queue of an enqueue op."""
    import tensorflow as tf

    dtypes = [each.dtype for each in op.inputs[1:]]
    return tf.queue.QueueBase(dtypes=dtypes, shapes=None, names=None, queue_ref=op.inputs[0])


def _inputs(op: Any, method: str) -> list[Any]:
    """Return the placeholders that an enqueue op puts into its queue unchanged."""
    inputs = list(op.inputs[1:])
    for each in inputs:
        if each.op.type != "Placeholder":
            raise PipelineError(
                f"{method}: {op.name!r} enqueues {each.op.name!r}, which is {each.op.type} and not a "
                "placeholder; give the placeholders of the items: placeholders=[...]"
            )
    return inputs


def _many(queue: Any, first: list[Any], method: str) -> bool:
    """Return whether an item has one axis more than an element of the queue, so that it is a batch of elements."""
    ranks = [shape.rank for shape in queue.shapes]
    more = {
        len(getattr(leaf, "shape", ())) - rank
        for item in first
        for leaf, rank in zip(leaves_of(item, queue.names, method), ranks, strict=False)
        if rank is not None
    }
    return more == {1}


def _enqueue_op(queue: Any, many: bool) -> tuple[Any, Placeholders]:
    import tensorflow as tf

    placeholders = []
    for number, (dtype, shape) in enumerate(zip(queue.dtypes, queue.shapes, strict=True)):
        row = tf.TensorShape([None]).concatenate(shape) if many else shape
        name = f"asyncfeed_{queue.name.rpartition('/')[2]}_{number}"
        placeholders.append(tf.compat.v1.placeholder(dtype, row, name=name))
    put = queue.enqueue_many if many else queue.enqueue
    if queue.names is None:
        return put(placeholders), placeholders
    named = dict(zip(queue.names, placeholders, strict=True))
    return put(named), named


# -- the runner


class QueueRuns:
    """The runs of a pipeline, one for each session. The first begins early, because its first item is needed."""

    def __init__(self, factory: RunFactory) -> None:
        self._factory = factory
        self._begun: list[tuple[OpenRun, Iterator[Any]]] = []

    def peek(self) -> list[Any]:
        """Begin the first run. Return a list with its first item; an empty list if the run has no item."""
        run, items = self._factory.open()
        run.begin()  # not by `next`, which is refused in a coroutine: a coroutine may make a runner
        try:
            first = [next(items)]
        except StopIteration:
            first = []
        self._begun.append((run, chain(first, items)))
        return first

    def open(self) -> tuple[OpenRun, Iterator[Any]]:
        """Return the next run, and an iterator of all its items."""
        if not self._begun:
            return self._factory.open()
        run, items = self._begun.pop()
        if run.handoff is not None:
            run.handoff.restart()
        return run, items


class QueueFill:
    """Puts the items of one run into the queue of one session."""

    def __init__(self, runner: Any, components: Components, run: tuple[OpenRun, Iterator[Any]], sess: Any) -> None:
        import tensorflow as tf

        self._ends = (tf.errors.CancelledError, tf.errors.OutOfRangeError)
        self._ignored = (tf.errors.OpError, RuntimeError)
        self._runner = runner
        self._components = components
        self._drawn, self._items = run
        self._sess = sess
        self._over = threading.Event()
        self._binding: Any = None
        self._coord: Any = None

    def bind(self, coord: Any) -> None:
        """Stop when the coordinator does."""
        from asyncfeed.coordinator import CoordinatorBinding

        self._coord = coord
        self._binding = CoordinatorBinding(coord, weakref.WeakMethod(self._stop))

    def _stop(self, reason: str) -> None:
        self._drawn.stop(reason)
        self._over.set()

    def put_all(self) -> None:
        """Put all items into the queue, and close it. The first thread runs this."""
        try:
            for item in self._items:
                # As TensorFlow's runner does, ask before each element.
                if (self._coord is not None and self._coord.should_stop()) or not self._put(item):
                    return
                del item  # so that it is not held during the wait for the next one
            self._run(self._runner.close_op)
        except BaseException as error:
            if isinstance(error, ClosedError) and self._drawn.failure is None:
                # The run was stopped. The queue stays open: at exit, a waiting thread must not see the end of
                # data.
                return
            self._report(error)
            self._run(self._runner.close_op)
            if self._coord is None:
                raise  # without a coordinator Python prints it, as with TensorFlow's runner
        finally:
            if self._binding is not None:
                self._binding.release()
            self._over.set()
            self._drawn.feed.close()
            del self._items
            self._runner.ended(self._sess)

    def _put(self, item: Any) -> bool:
        """Put an item into the queue, waiting while it is full. Return False if the queue or session is closed."""
        fed = self._components.feed(item)
        handoff = self._drawn.handoff
        try:
            with nullcontext() if handoff is None else handoff.holding():
                self._sess.run(self._runner.enqueue_ops[0], fed)
        except self._ends:
            return False
        except RuntimeError as error:
            if CLOSED_SESSION not in str(error):
                raise
            return False
        return True

    def _report(self, error: BaseException) -> None:
        """Report a failure, before the trainer sees that the queue is closed."""
        if self._coord is None:
            self._runner.exceptions_raised.append(error)
            return
        if isinstance(error, self._ends):  # for a coordinator this type means the end of the data
            loud = RuntimeError(f"the pipeline failed with {type(error).__name__}: {error}")
            loud.__cause__ = error
            error = loud
        try:
            # TensorFlow's coordinator records only such a tuple outside of an `except` block.
            self._coord.request_stop((type(error), error, error.__traceback__))
        except BaseException as raised:
            if raised is not error:  # a coordinator that was joined raises the exception and does not record it
                raise

    def close_on_stop(self) -> None:
        """Close the queue when the coordinator is asked to stop. The second thread runs this."""
        self._over.wait()
        if self._binding.asked:
            self._run(self._runner.cancel_op)

    def _run(self, op: Any) -> None:
        with suppress(*self._ignored):  # the queue or the session is closed already
            self._sess.run(op)


@cache
def _runner_class() -> Any:
    import tensorflow as tf

    class PipelineQueueRunner(tf.compat.v1.train.QueueRunner):  # type: ignore[misc]
        """TensorFlow's queue runner, with threads that put a pipeline's items into the queue."""

        def __init__(self, queue: Any, op: Any, components: Components, runs: QueueRuns) -> None:
            super().__init__(queue, [op])
            self._components = components
            self._runs = runs
            self._of_ours = threading.Lock()
            self._running: weakref.WeakSet[Any] = weakref.WeakSet()
            self._raised: list[BaseException] = []

        @property
        def exceptions_raised(self) -> list[BaseException]:
            """The exceptions of the threads that were not reported to a coordinator."""
            return self._raised

        def create_threads(
            self, sess: Any, coord: Any = None, daemon: bool = True, start: bool = False
        ) -> list[threading.Thread]:
            """Return the threads for a session; an empty list if they exist and run.

            A call after they have ended starts another run of the pipeline, with its next epoch.
            """
            with self._of_ours:
                if sess in self._running:
                    return []
                self._running.add(sess)
                self._raised = []
            try:
                fill = QueueFill(self, self._components, self._runs.open(), sess)
                if coord is not None:
                    fill.bind(coord)
            except BaseException:
                self.ended(sess)
                raise
            name = f"asyncfeed-enqueue-{self.name}"
            threads = [threading.Thread(target=fill.put_all, name=name, daemon=daemon)]
            if coord is not None:
                closer = threading.Thread(target=fill.close_on_stop, name=f"{name}-close_on_stop", daemon=daemon)
                threads.append(closer)
            for thread in threads:
                if coord is not None:
                    coord.register_thread(thread)
                if start:
                    thread.start()
            return threads

        def ended(self, sess: Any) -> None:
            """Note that the threads of this session have ended. The next call for it creates new ones."""
            with self._of_ours:
                self._running.discard(sess)

    return PipelineQueueRunner
