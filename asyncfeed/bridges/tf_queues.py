"""`to_queue_runner` and `enqueue`: a pipeline that fills a queue of TensorFlow's, for scripts with a session.

A runner is a `tf.compat.v1.train.QueueRunner` with one enqueue op, whose placeholders are fed with the items.
Two threads for each session, named after the queue:

    asyncfeed-enqueue-NAME               draws from a feed and runs the enqueue op
    asyncfeed-enqueue-NAME-close_on_stop waits for the coordinator's stop, or for the other thread to end

| what happens | the queue | the coordinator |
|---|---|---|
| the data ends | closed behind what is in it: `OutOfRangeError` once it is empty | is not asked to stop |
| an item fails | closed behind what came before it | is asked to stop with the exception, first |
| the coordinator is asked to stop | closed, waiting enqueues cancelled | |
| the session is closed, or somebody closes the queue | cancels or refuses the enqueue | is not asked to stop |

The second thread exists because an enqueue that waits for room can be ended only by an op that closes the queue,
which is nothing to run inside of `request_stop`: a signal's handler may call that. TensorFlow's own waits for a
stop only, so that a `join` after the end of the data waits for ever; ours ends with the data.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

from asyncfeed.bridges.offer import Offer
from asyncfeed.bridges.tf_components import Components, leaves_of
from asyncfeed.errors import ClosedError, PipelineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from asyncfeed.bridges.offer import OpenRun
    from asyncfeed.feed import Feed
    from asyncfeed.pipeline import Pipeline
    from asyncfeed.sizes import Size

ENQUEUES = ("QueueEnqueue", "QueueEnqueueV2", "QueueEnqueueMany", "QueueEnqueueManyV2")
CLOSED_SESSION = "closed Session"
"""What TensorFlow's plain RuntimeError says where a session was closed before it is asked to run."""

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
    """Return a queue runner over a pipeline; see `Pipeline.to_queue_runner`. `method` is what errors name."""
    import tensorflow as tf

    if not isinstance(target, (tf.queue.QueueBase, tf.Operation)):
        raise PipelineError(f"{method}: takes a queue of TensorFlow's or an enqueue op, not {target!r}")
    handle = target.queue_ref if isinstance(target, tf.queue.QueueBase) else _handle(target, method)
    if not tf.is_symbolic_tensor(handle):
        raise PipelineError(f"{method}: needs a queue in a tf.Graph; with eager execution use .to_tf()")
    runs = Runs(Offer(pipeline, on_open, memory_limit, method))
    first = runs.peek()
    with handle.graph.as_default():
        if isinstance(target, tf.Operation):
            if enqueue_many is not None:
                raise PipelineError(f"{method}: the enqueue op that was given says enqueue_many itself")
            queue, op = _queue_of(target), target
            placeholders = _inputs(target, method) if placeholders is None else placeholders
        else:
            if placeholders is not None:
                raise PipelineError(f"{method}: placeholders belong to an enqueue op; a queue gets its own")
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
    """Start to fill a queue; see `Pipeline.enqueue`."""
    runner = to_queue_runner(
        pipeline, enqueue_op, placeholders, on_open=on_open, memory_limit=memory_limit, method="enqueue"
    )
    threads: list[threading.Thread] = runner.create_threads(sess, coord=coord, start=True)
    return threads


# -- the enqueue op


def _handle(op: Any, method: str) -> Any:
    if op.type not in ENQUEUES:
        raise PipelineError(f"{method}: {op.name!r} is {op.type}, no enqueue op; give what queue.enqueue returned")
    return op.inputs[0]


def _queue_of(op: Any) -> Any:
    """Return the queue that an op puts into."""
    import tensorflow as tf

    dtypes = [each.dtype for each in op.inputs[1:]]
    return tf.queue.QueueBase(dtypes=dtypes, shapes=None, names=None, queue_ref=op.inputs[0])


def _inputs(op: Any, method: str) -> list[Any]:
    """Return the placeholders that an op puts into its queue as they are."""
    inputs = list(op.inputs[1:])
    for each in inputs:
        if each.op.type != "Placeholder":
            raise PipelineError(
                f"{method}: {op.name!r} enqueues {each.op.name!r}, which is {each.op.type} and no "
                "placeholder; say which placeholders the items are for: placeholders=[...]"
            )
    return inputs


def _many(queue: Any, first: list[Any], method: str) -> bool:
    """Return whether an item has one axis more than the queue's elements: then it is a batch of them."""
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


class Runs:
    """The runs of a pipeline, one for each session; the first is begun early, to see its first item."""

    def __init__(self, offer: Offer) -> None:
        self._offer = offer
        self._begun: list[tuple[OpenRun, Iterator[Any]]] = []

    def peek(self) -> list[Any]:
        """Begin the first run; return its first item, or nothing where it has none."""
        run, items = self._offer.open()
        run.begin()  # a coroutine may make a runner: see `Offer.peek`
        try:
            first = [next(items)]
        except StopIteration:
            first = []
        self._begun.append((run, chain(first, items)))
        return first

    def open(self) -> tuple[OpenRun, Iterator[Any]]:
        """Return the next run, and its items from the first."""
        if not self._begun:
            return self._offer.open()
        run, items = self._begun.pop()
        if run.handoff is not None:
            run.handoff.restart()
        return run, items


class Filling:
    """One run of a pipeline, put into the queue of one session."""

    def __init__(self, runner: Any, components: Components, run: tuple[OpenRun, Iterator[Any]], sess: Any) -> None:
        import tensorflow as tf

        self._ends = (tf.errors.CancelledError, tf.errors.OutOfRangeError)
        self._ignored = (tf.errors.OpError, RuntimeError)
        self._runner = runner
        self._components = components
        self._drawn, self._items = run
        self._sess = sess
        self._over = threading.Event()
        self._tie: Any = None
        self._coord: Any = None

    def tie(self, coord: Any) -> None:
        """Stop when the coordinator does."""
        from asyncfeed.coordinator import Tie

        self._coord = coord
        self._tie = Tie(coord, weakref.WeakMethod(self._stop))

    def _stop(self, reason: str) -> None:
        self._drawn.stop(reason)
        self._over.set()

    def fill(self) -> None:
        """Put all items into the queue, and close it; what the first thread does."""
        try:
            for item in self._items:
                # TensorFlow's runner looks before each element, too.
                if (self._coord is not None and self._coord.should_stop()) or not self._put(item):
                    return
                del item  # not to be held while the next one is waited for
            self._run(self._runner.close_op)
        except BaseException as error:
            if isinstance(error, ClosedError) and self._drawn.failure is None:
                return  # asked to stop; at exit, what waits must not take it for the end of the data
            self._report(error)
            self._run(self._runner.close_op)
            if self._coord is None:
                raise  # nobody else hears of it: Python prints it, as with TensorFlow's runner
        finally:
            if self._tie is not None:
                self._tie.release()
            self._over.set()
            self._drawn.feed.close()
            del self._items
            self._runner.ended(self._sess)

    def _put(self, item: Any) -> bool:
        """Put an item into the queue, waiting while it is full; return False where nobody wants it any more."""
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
        """Tell of a failure, before the trainer sees that the queue is closed."""
        if self._coord is None:
            self._runner.exceptions_raised.append(error)
            return
        if isinstance(error, self._ends):  # a coordinator takes it for the end of the data
            loud = RuntimeError(f"the pipeline failed with {type(error).__name__}: {error}")
            loud.__cause__ = error
            error = loud
        try:
            # TensorFlow's records nothing else outside of an `except` block.
            self._coord.request_stop((type(error), error, error.__traceback__))
        except BaseException as raised:
            if raised is not error:  # it was joined, and raises what it cannot keep
                raise

    def close_on_stop(self) -> None:
        """Close the queue when the coordinator is asked to stop; what the second thread does."""
        self._over.wait()
        if self._tie.asked:
            self._run(self._runner.cancel_op)

    def _run(self, op: Any) -> None:
        with suppress(*self._ignored):  # the queue or the session has been closed before
            self._sess.run(op)


@cache
def _runner_class() -> Any:
    import tensorflow as tf

    class PipelineQueueRunner(tf.compat.v1.train.QueueRunner):  # type: ignore[misc]
        """TensorFlow's queue runner, with threads that put a pipeline's items into the queue."""

        def __init__(self, queue: Any, op: Any, components: Components, runs: Runs) -> None:
            super().__init__(queue, [op])
            self._components = components
            self._runs = runs
            self._of_ours = threading.Lock()
            self._running: weakref.WeakSet[Any] = weakref.WeakSet()
            self._raised: list[BaseException] = []

        @property
        def exceptions_raised(self) -> list[BaseException]:
            """What the threads failed with, where no coordinator was told of it."""
            return self._raised

        def create_threads(
            self, sess: Any, coord: Any = None, daemon: bool = True, start: bool = False
        ) -> list[threading.Thread]:
            """Return the threads for a session: none where they exist and run.

            Each call after that is another run of the pipeline, and its next epoch.
            """
            with self._of_ours:
                if sess in self._running:
                    return []
                self._running.add(sess)
                self._raised = []
            try:
                filling = Filling(self, self._components, self._runs.open(), sess)
                if coord is not None:
                    filling.tie(coord)
            except BaseException:
                self.ended(sess)
                raise
            name = f"asyncfeed-enqueue-{self.name}"
            threads = [threading.Thread(target=filling.fill, name=name, daemon=daemon)]
            if coord is not None:
                closer = threading.Thread(
                    target=filling.close_on_stop, name=f"{name}-close_on_stop", daemon=daemon
                )
                threads.append(closer)
            for thread in threads:
                if coord is not None:
                    coord.register_thread(thread)
                if start:
                    thread.start()
            return threads

        def ended(self, sess: Any) -> None:
            """Let the next call for this session create threads again."""
            with self._of_ours:
                self._running.discard(sess)

    return PipelineQueueRunner
