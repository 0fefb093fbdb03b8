"""Where TensorFlow and Python meet: what TensorFlow calls, and what fills its queues."""

from __future__ import annotations

import atexit
import itertools
import threading
from contextlib import suppress
from functools import cache, lru_cache, partial
from traceback import format_exception
from typing import TYPE_CHECKING, Any

from asyncfeed.bridges.interrupt import Interrupts
from asyncfeed.bridges.tf_layout import Layout
from asyncfeed.engine.pump import Pump
from asyncfeed.engine.run import EXIT
from asyncfeed.errors import ClosedError, Failure, PipelineError
from asyncfeed.trees import size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from asyncfeed.bridges.offer import Offer
    from asyncfeed.feed import Feed

SMALL = 1 << 10
"""Bytes. Up to this an item crosses together with others, as one copy; a larger one alone, in place if it
can. Each crossing lets go of the GIL, and beside a thread that computes it takes 5 ms to have it again."""
MOST = 256
"""How many small items cross together, or wait in TensorFlow's queue. Of others one waits: reading ahead is for
the pipeline, within its budget, and tf.data adds some."""
REFUSED, NONE = 64, -1
"""How many runs Ctrl-C may end at once; and the number of none."""
LET_GO = "TensorFlow let go of the iterator"
CTRL_C = "Ctrl-C, while TensorFlow waited for it"
KINDS = (ValueError, TypeError, MemoryError, NotImplementedError)
"""What TensorFlow has an error of its own for."""


class Crossing:
    """One iteration: a feed, the queue that it is pumped into, and how it ended."""

    def __init__(
        self,
        tf: Any,
        run: tuple[Feed[Any], Iterator[Any]],
        layout: Layout,
        queue: Any,
        name: str,
        free: Callable[[], None],
        refuse: Callable[[], None],
        *,
        together: bool,
    ) -> None:
        self._tf = tf
        self._together = together
        self._layout = layout
        self._queue = queue
        self._free = free
        self._refuse = refuse
        self._lock = threading.Lock()
        self._let_go = self._ended = self._finished = self._refused = False
        self._error: BaseException | None = None
        self._feed, items = run
        Pump(name, self._groups(items), self._put, self._done)

    def _groups(self, items: Iterator[Any]) -> Iterator[list[Any]]:
        """Yield the items in order: one that is waited for, and if it is small, with it those that are there."""
        for item in items:
            group = [item]
            if self._together and size_of(item) <= SMALL:
                group += self._feed._take_ready(MOST - 1, SMALL)  # noqa: SLF001 - for bridges
            del item
            yield group
            del group  # not to be held while the next one is waited for

    def _put(self, group: list[Any]) -> None:
        """Put items into the queue; waits, in C++, while it is full."""
        ops = self._tf.raw_ops
        with self._tf.device("CPU:0"):
            tensors = self._layout.stacked(group) if len(group) > 1 else None
            if tensors is not None:
                self._enqueue(ops.QueueEnqueueManyV2, tensors)
                return
            for item in group:
                self._enqueue(ops.QueueEnqueueV2, self._layout.tensors(item))

    def _enqueue(self, op: Callable[..., Any], tensors: list[Any]) -> None:
        try:
            op(handle=self._queue, components=tensors)
        except self._tf.errors.CancelledError:
            self._let_go = True
            raise

    def _done(self, error: BaseException | None) -> None:
        """Close the queue behind what is in it; what is raised then waits for `finish`."""
        if isinstance(error, ClosedError) and EXIT in str(error):
            return  # a thread that still waits for data must not take this for the end of it
        self._feed.stop(LET_GO)
        with self._lock:
            if not self._let_go:
                self._error = error
        with suppress(self._tf.errors.CancelledError):  # the other side has closed it before
            self._tf.raw_ops.QueueCloseV2(handle=self._queue, cancel_pending_enqueues=False)
        self._end(ended=True)

    def interrupt(self) -> None:
        """Fail, where the queue is empty, so that TensorFlow may wait: with an error, never as at the end.

        An item that is put meanwhile is delivered before it, or given up. TensorFlow may ask again after an error,
        as a `prefetch` does, and would take an end for one: `repeat` would begin anew.
        """
        tf = self._tf
        with self._lock:  # while it is held the queue is not given back
            if self._ended or self._finished or int(tf.raw_ops.QueueSizeV2(handle=self._queue)) > 0:
                return
            self._let_go = self._refused = True
            self._refuse()
            tf.raw_ops.QueueCloseV2(handle=self._queue, cancel_pending_enqueues=True)
        self._feed.stop(CTRL_C)
        self._end(finished=True)

    def finish(self) -> Exception | None:
        """Stop the feed; return what to raise, where the run failed and the consumer has got all before that.

        TensorFlow calls again after an error, at the latest when it drops the iterator.
        """
        self._feed.stop(LET_GO)
        error, self._error = self._error, None
        if error is not None and int(self._tf.raw_ops.QueueSizeV2(handle=self._queue)) == 0:
            return as_text(error, self._feed.failure)
        self._end(finished=True)
        return None

    def _end(self, *, ended: bool = False, finished: bool = False) -> None:
        """Give the queue back, once, when neither side uses it any more."""
        with self._lock:
            was_over = self._ended and self._finished
            self._ended |= ended
            self._finished |= finished
            over = self._ended and self._finished and not was_over
        if over:
            self._tf.raw_ops.DestroyResourceOp(resource=self._queue)
            if not self._refused:  # or else an iterator that is still there would ask for the next with its name
                self._free()


def as_text(error: BaseException, failure: Failure | None) -> Exception:
    """Return an exception that tells what `error` was and where, and holds nothing.

    TensorFlow makes a text of what Python raises, and keeps the exception with its frames for ever. By its
    type it tells an invalid argument from other errors.
    """
    if failure is not None and failure.error is error:
        error = error.with_traceback(failure.traceback)
    kind = next((each for each in KINDS if isinstance(error, each)), RuntimeError)
    return kind(f"{type(error).__name__}: {error}\n\n{''.join(format_exception(error))}")


class Bridge:
    """What TensorFlow calls; one in a process.

    TensorFlow keeps each Python function that it may call for ever. It gets these two, which find the dataset
    and the run by their numbers, so nothing of the user's is kept longer than its dataset.
    """

    def __init__(self) -> None:
        import tensorflow as tf

        self._tf = tf
        self.interrupts = Interrupts(lambda: list(self._crossings.values()))
        self._numbers = itertools.count()
        self._names: list[int] = []
        self._lock = threading.Lock()
        self._offers: dict[int, Offer] = {}
        self._crossings: dict[int, Crossing] = {}
        with tf.device("CPU:0"):
            # Holds one element as long as Python may be called: TensorFlow drops iterators at exit too.
            self._alive = self._new_queue("alive", [tf.int64], 1)
            tf.raw_ops.QueueEnqueueV2(handle=self._alive, components=[tf.constant(1, tf.int64)])
            # The runs that Ctrl-C has ended, with an error that takes no Python: the handler would run in it.
            self._refused = tf.Variable([NONE] * REFUSED, dtype=tf.int64, trainable=False)
        resource, number = tf.TensorSpec(None, tf.resource), tf.TensorSpec((), tf.int64)
        trace = tf.function(self._trace_start, autograph=False, input_signature=[number])
        self._start = trace.get_concrete_function()
        signature = [resource, number, resource, resource]
        trace = tf.function(self._trace_finish, autograph=False, input_signature=signature)
        self._finish = trace.get_concrete_function()
        # Shared by the datasets of one signature: each function traced costs 10 ms.
        self._next = lru_cache(maxsize=64)(self._trace_next)
        atexit.register(self._at_exit)

    # -- datasets

    def forget(self, token: int) -> None:
        """Let go of a dataset that cannot be iterated any more."""
        self._offers.pop(token).withdraw()

    def queued(self, offer: Offer, layout: Layout) -> tuple[int, Any]:
        """Return a dataset over queues, and its number."""
        tf, token = self._tf, next(self._numbers)
        variant = tf.raw_ops.GeneratorDataset(
            init_func_other_args=[tf.constant(token, tf.int64)],
            next_func_other_args=[],
            finalize_func_other_args=[self._alive, self._refused.handle],
            init_func=self._start,
            next_func=self._next(tuple(layout.specs)),
            finalize_func=self._finish,
            output_types=[spec.dtype for spec in layout.specs],
            output_shapes=[spec.shape for spec in layout.specs],
        )
        dataset = tf.data.experimental.from_variant(variant, layout.signature)
        self._offers[token] = offer
        return token, dataset

    def generated(self, offer: Offer, layout: Layout) -> tuple[int, Any]:
        """Return a dataset over `from_generator`, and its number."""
        if None in layout.leaves:
            raise PipelineError("to_tf: from_generator takes no None in an item; leave it out with .map()")
        token = next(self._numbers)
        dataset = self._tf.data.Dataset.from_generator(
            self._generate, args=(token,), output_signature=layout.signature
        )
        self._offers[token] = offer
        return token, dataset

    # -- what TensorFlow calls

    def _trace_start(self, token: Any) -> Any:
        tf = self._tf
        return tf.py_function(self._open, [token], [tf.resource, tf.int64])

    def _trace_next(self, specs: tuple[Any, ...]) -> Any:
        tf = self._tf

        def dequeue(queue: Any, run: Any) -> list[Any]:  # noqa: ARG001 - TensorFlow passes what start returned
            dtypes = [spec.dtype for spec in specs]
            tensors = tf.raw_ops.QueueDequeueV2(handle=queue, component_types=dtypes)
            for tensor, spec in zip(tensors, specs, strict=True):
                tensor.set_shape(spec.shape)
            return list(tensors)

        signature = [tf.TensorSpec(None, tf.resource), tf.TensorSpec((), tf.int64)]
        return tf.function(dequeue, autograph=False, input_signature=signature).get_concrete_function()

    def _trace_finish(self, queue: Any, run: Any, alive: Any, refused: Any) -> Any:
        tf = self._tf
        runs = tf.raw_ops.ReadVariableOp(resource=refused, dtype=tf.int64)

        def fail() -> Any:
            failed = tf.raw_ops.Assert(condition=False, data=[f"the feed was stopped: {CTRL_C}"])
            with tf.control_dependencies([failed]):
                return tf.constant(0, tf.int64)

        def close() -> Any:
            closed = tf.raw_ops.QueueCloseV2(handle=queue, cancel_pending_enqueues=True)
            with tf.control_dependencies([closed]):
                return tf.numpy_function(self._close, [run], tf.int64)

        def finish() -> Any:
            return tf.cond(tf.reduce_any(runs == run), fail, close)

        return tf.cond(tf.raw_ops.QueueSizeV2(handle=alive) > 0, finish, lambda: tf.constant(0, tf.int64))

    def _open(self, token: Any) -> tuple[Any, int]:
        tf, number = self._tf, next(self._numbers)
        offer, error = self._offer(int(token)), None
        layout = Layout(offer.signature, offer.method)
        try:
            run = offer.open()
        except Exception as raised:  # noqa: BLE001 - it is handed on below
            error = as_text(raised, None)
        if error is not None:
            del offer  # the frame is kept with the exception
            raise error
        with self._lock:
            name = self._names.pop() if self._names else number
        together = offer.method == "to_tf"  # Keras' bridge counts what may be on its way to nobody
        with tf.device("CPU:0"):
            capacity = MOST if together and 0 < layout.nbytes <= SMALL else 1
            queue = self._new_queue(str(name), [spec.dtype for spec in layout.specs], capacity)
        thread = f"asyncfeed-tf-{number}-pump"
        free = partial(self._names.append, name)
        refuse = partial(self._refuse, number)
        self._crossings[number] = Crossing(tf, run, layout, queue, thread, free, refuse, together=together)
        return queue, number

    def _close(self, run: Any) -> int:
        error = self._crossings[int(run)].finish()
        if error is not None:
            raise error
        self._crossings.pop(int(run), None)  # Ctrl-C may just have taken it out
        return 0

    def _refuse(self, number: int) -> None:
        """Have the end of this run be an error, whenever TensorFlow asks; called by one thread."""
        self._crossings.pop(number, None)
        runs = self._refused.numpy()
        runs[number % REFUSED] = number
        self._refused.assign(runs)

    def _generate(self, token: Any) -> Iterator[Any]:
        offer = self._offer(int(token))
        layout = Layout(offer.signature, offer.method)
        feed, items = offer.open()
        error: Exception | None = None
        try:
            for item in items:
                yield layout.arranged(item)
                del item
        except Exception as raised:  # noqa: BLE001 - it is handed on below
            error = as_text(raised, feed.failure)
        finally:
            feed.stop(LET_GO)
        if error is not None:
            del offer, layout, feed, items  # the frame is kept with the exception
            raise error

    def _offer(self, token: int) -> Offer:
        if token not in self._offers:
            raise PipelineError("to_tf: the dataset was dropped; keep a reference to it while it is iterated")
        return self._offers[token]

    def _new_queue(self, name: str, dtypes: list[Any], capacity: int) -> Any:
        # TensorFlow keeps 33 KB for each name that a queue ever had, so names are used again.
        return self._tf.raw_ops.FIFOQueueV2(
            component_types=dtypes,
            shapes=[],
            capacity=capacity,
            container="",
            shared_name=f"asyncfeed-{id(self):x}-{name}",
        )

    def _at_exit(self) -> None:
        """Let no iterator that is dropped from here on call Python, or wake a thread that would."""
        self._tf.raw_ops.QueueDequeueV2(handle=self._alive, component_types=[self._tf.int64])


_made = cache(Bridge)
_making = threading.RLock()  # a collection of garbage in it may ask, too


def bridge() -> Bridge:
    """Return the one of this process, whichever threads ask for it first."""
    with _making:
        return _made()
