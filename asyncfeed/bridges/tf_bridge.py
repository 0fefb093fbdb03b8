"""The functions that TensorFlow calls, and the graphs that call them."""

from __future__ import annotations

import atexit
import itertools
import threading
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any

from asyncfeed.bridges.interrupt import Interrupts
from asyncfeed.bridges.tf_exit import ExitGuard
from asyncfeed.bridges.tf_iteration import CTRL_C, LET_GO, MAX_SMALL_BYTES, MAX_SMALL_ITEMS, TfIteration, as_text
from asyncfeed.bridges.tf_layout import Layout
from asyncfeed.errors import PipelineError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from asyncfeed.bridges.run_factory import RunFactory

MAX_REFUSED_RUNS = 64
"""Number of runs that Ctrl-C can end before TensorFlow has asked about the first of them."""
NO_RUN = -1
"""Marks a free slot in the list of runs that Ctrl-C has ended."""


class Bridge:
    """Holds the Python functions that TensorFlow calls. There is one in a process.

    TensorFlow keeps each Python function that it may call for ever. So it gets the same two functions for all
    datasets. They find the dataset and the run by their numbers, and the user's objects live no longer than their
    dataset.
    """

    def __init__(self) -> None:
        import tensorflow as tf

        self._tf = tf
        self._guard = ExitGuard(tf)
        self.interrupts = Interrupts(lambda: list(self._iterations.values()))
        self._numbers = itertools.count()
        self._names: list[int] = []
        self._lock = threading.Lock()
        self._factories: dict[int, RunFactory] = {}
        self._iterations: dict[int, TfIteration] = {}
        with tf.device("CPU:0"):
            # The runs that Ctrl-C has ended. TensorFlow raises their error without Python, because Python's
            # handler for Ctrl-C could run inside of a Python call.
            self._refused = tf.Variable([NO_RUN] * MAX_REFUSED_RUNS, dtype=tf.int64, trainable=False)
        resource, number = tf.TensorSpec(None, tf.resource), tf.TensorSpec((), tf.int64)
        signature = [number, resource, resource]
        trace = tf.function(self._trace_start, autograph=False, input_signature=signature)
        self._start = trace.get_concrete_function()
        signature = [resource, number, resource, resource, resource]
        trace = tf.function(self._trace_finish, autograph=False, input_signature=signature)
        self._finish = trace.get_concrete_function()
        # Datasets of one signature share their functions, because tracing one takes 10 ms.
        self._next = lru_cache(maxsize=64)(self._trace_next)
        self._enqueues = lru_cache(maxsize=64)(self._trace_enqueues)
        atexit.register(self._guard.close)

    # -- datasets

    def forget(self, token: int) -> None:
        """Drop the run factory of a dataset that cannot be iterated any more."""
        self._factories.pop(token).withdraw()

    def queued(self, factory: RunFactory, layout: Layout) -> tuple[int, Any]:
        """Return a dataset over queues, and its number."""
        tf, token = self._tf, next(self._numbers)
        variant = tf.raw_ops.GeneratorDataset(
            init_func_other_args=[tf.constant(token, tf.int64), self._guard.open_gate, self._guard.token],
            next_func_other_args=[],
            finalize_func_other_args=[self._refused.handle, self._guard.open_gate, self._guard.token],
            init_func=self._start,
            next_func=self._next(tuple(layout.specs)),
            finalize_func=self._finish,
            output_types=[spec.dtype for spec in layout.specs],
            # Lists, because TensorFlow's C++ asks a TensorShape for its length in Python, and loses a Ctrl-C
            # there.
            output_shapes=[None if spec.shape.rank is None else spec.shape.as_list() for spec in layout.specs],
        )
        dataset = tf.data.experimental.from_variant(variant, layout.signature)
        self._factories[token] = factory
        return token, dataset

    def generated(self, factory: RunFactory, layout: Layout) -> tuple[int, Any]:
        """Return a dataset over `from_generator`, and its number."""
        if None in layout.leaves:
            raise PipelineError("to_tf: from_generator takes no None in an item; leave the None out with .map()")
        token = next(self._numbers)
        dataset = self._tf.data.Dataset.from_generator(
            self._generate, args=(token,), output_signature=layout.signature
        )
        self._factories[token] = factory
        return token, dataset

    # -- what TensorFlow calls

    def _trace_start(self, dataset: Any, open_gate: Any, token: Any) -> Any:
        tf = self._tf

        def start() -> Any:
            return tf.py_function(self._open, [dataset], [tf.resource, tf.int64])

        def fail() -> Any:
            failed = tf.raw_ops.Assert(condition=False, data=["to_tf: Python exits"])
            with tf.control_dependencies([failed]):
                return [tf.identity(open_gate), tf.constant(0, tf.int64)]

        return self._guard.guarded(open_gate, token, start, fail)

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

    def _trace_enqueues(self, specs: tuple[Any, ...], count: int) -> Any:
        tf = self._tf

        def enqueue(queue: Any, *tensors: Any) -> None:
            for place in range(0, len(tensors), len(specs)):
                tf.raw_ops.QueueEnqueueV2(handle=queue, components=list(tensors[place : place + len(specs)]))

        signature = [tf.TensorSpec(None, tf.resource), *count * specs]
        return tf.function(enqueue, autograph=False, input_signature=signature).get_concrete_function()

    def _trace_finish(self, queue: Any, run: Any, refused: Any, open_gate: Any, token: Any) -> Any:
        tf = self._tf

        def fail() -> Any:
            failed = tf.raw_ops.Assert(condition=False, data=[f"the feed was stopped: {CTRL_C}"])
            with tf.control_dependencies([failed]):
                return tf.constant(0, tf.int64)

        def close() -> Any:
            closed = tf.raw_ops.QueueCloseV2(handle=queue, cancel_pending_enqueues=True)
            with tf.control_dependencies([closed]):
                return tf.numpy_function(self._close, [run], tf.int64)

        def finish() -> Any:
            # At exit the queue stays open, too: closing it would wake a thread that waits for it and needs Python.
            return self._guard.guarded(open_gate, token, close, lambda: tf.constant(0, tf.int64))

        runs = tf.raw_ops.ReadVariableOp(resource=refused, dtype=tf.int64)
        return tf.cond(tf.reduce_any(runs == run), fail, finish)

    def _open(self, token: Any) -> tuple[Any, int]:
        marker = self._guard.enter()
        try:
            return self._open_run(int(token))
        finally:
            del marker

    def _open_run(self, token: int) -> tuple[Any, int]:
        tf, number = self._tf, next(self._numbers)
        factory, error = self._factory(token), None
        layout = Layout(factory.signature, factory.method)
        try:
            run = factory.open()
        except Exception as raised:  # noqa: BLE001 - it is raised below
            error = as_text(raised, None)
        if error is not None:
            del factory  # TensorFlow keeps this frame with the exception
            raise error
        with self._lock:
            name = self._names.pop() if self._names else number
        together = factory.method == "to_tf"  # `KerasRuns` counts single items
        with tf.device("CPU:0"):
            capacity = MAX_SMALL_ITEMS if together and 0 < layout.nbytes <= MAX_SMALL_BYTES else 1
            queue = self._new_queue(str(name), [spec.dtype for spec in layout.specs], capacity)
        free = partial(self._names.append, name)
        refuse = partial(self._refuse, number)
        iteration = TfIteration(
            tf, run, layout, queue, free, refuse, self._enqueues, self.interrupts.pending, together=together
        )
        self._iterations[number] = iteration  # before it starts, because Ctrl-C may end and remove it at once
        iteration.start(f"asyncfeed-tf-{number}-pump")
        return queue, number

    def _close(self, run: Any) -> int:
        marker = self._guard.enter()
        try:
            error = self._iterations[int(run)].finish()
            if error is not None:
                raise error
            self._iterations.pop(int(run), None)  # Ctrl-C may have removed it just now
            return 0
        finally:
            del marker

    def _refuse(self, number: int) -> None:
        """Make this run end with an error when TensorFlow asks for its end. Only one thread calls this."""
        self._iterations.pop(number, None)
        runs = self._refused.numpy()
        runs[number % MAX_REFUSED_RUNS] = number
        self._refused.assign(runs)

    def _generate(self, token: Any) -> Iterator[Any]:
        factory = self._factory(int(token))
        layout = Layout(factory.signature, factory.method)
        run, items = factory.open()
        error: Exception | None = None
        try:
            for item in items:
                yield layout.arranged(item)
                del item
        except Exception as raised:  # noqa: BLE001 - it is raised below
            error = as_text(raised, run.failure)
        finally:
            run.stop(LET_GO)
        if error is not None:
            del factory, layout, run, items  # TensorFlow keeps this frame with the exception
            raise error

    def _factory(self, token: int) -> RunFactory:
        if token not in self._factories:
            raise PipelineError("to_tf: the dataset was dropped; keep a reference to it while it is iterated")
        return self._factories[token]

    def _new_queue(self, name: str, dtypes: list[Any], capacity: int) -> Any:
        # TensorFlow keeps 33 KB for each name that a queue ever had, so names are reused.
        return self._tf.raw_ops.FIFOQueueV2(
            component_types=dtypes,
            shapes=[],
            capacity=capacity,
            container="",
            shared_name=f"asyncfeed-{id(self):x}-{name}",
        )


_made = cache(Bridge)
_making = threading.RLock()  # reentrant, because a garbage collection inside of it may call `bridge`


def bridge() -> Bridge:
    """Return the bridge of this process. Any thread may call this first."""
    with _making:
        return _made()
