"""One iteration of a TensorFlow dataset: it fills the queue that TensorFlow takes from, and ends it.

Each call into TensorFlow releases the GIL. If another thread computes in Python, it takes 5 ms to get the GIL
back. So all items that are ready are put into the queue in one call.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext, suppress
from traceback import format_exception
from typing import TYPE_CHECKING, Any

from asyncfeed.engine.driver import EXIT
from asyncfeed.engine.pump import Pump
from asyncfeed.errors import ClosedError, Failure
from asyncfeed.trees import size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from asyncfeed.bridges.run_factory import OpenRun
    from asyncfeed.bridges.tf_layout import Layout
    from asyncfeed.engine.handoff import Handoff

MAX_SMALL_BYTES = 1 << 10
"""Size of an item that counts as small. Small items are copied into one array and enqueued by one operation.
Larger items are enqueued in place if their memory allows it, by one call of a function with one operation for each
item."""
MAX_SMALL_ITEMS = 256
"""Number of small items that are enqueued in one call, and capacity of TensorFlow's queue for small items. For
larger items the capacity is 1: the pipeline reads ahead within its memory limit, and tf.data adds some items of
its own."""
MIN_LARGE_ITEMS = 4
"""Number of larger items from which one call for all is faster than one call for each."""
MAX_LARGE_ITEMS = 16
"""Number of larger items that are enqueued in one call."""
MAX_LARGE_GROUP_BYTES = 16 << 20
"""Total size of the larger items that are enqueued in one call."""
LET_GO = "TensorFlow let go of the iterator"
CTRL_C = "Ctrl-C, while TensorFlow waited for it"
END: Any = object()
KINDS = (ValueError, TypeError, MemoryError, NotImplementedError)
"""Exception types for which TensorFlow has an error class of its own."""


class TfIteration:
    """One iteration of a dataset: its run, the queue that is filled from the run, and how the run ended."""

    def __init__(
        self,
        tf: Any,
        run: tuple[OpenRun, Iterator[Any]],
        layout: Layout,
        queue: Any,
        free: Callable[[], None],
        refuse: Callable[[], None],
        enqueues: Callable[[tuple[Any, ...], int], Callable[..., Any]],
        pending: Callable[[], bool],
        *,
        together: bool,
    ) -> None:
        self._tf = tf
        self._together = together
        self._layout = layout
        self._queue = queue
        self._free = free
        self._refuse = refuse
        self._enqueues = enqueues
        self._pending = pending
        self._lock = threading.Lock()
        self._drawing = False
        self._handoff: Handoff | None = None
        self._let_go = self._ended = self._finished = self._refused = False
        self._error: BaseException | None = None
        self._run, self._items = run

    def start(self, name: str) -> None:
        """Start the thread that fills the queue."""
        items, self._items = self._items, iter(())  # so that this object does not hold them after their end
        Pump(name, self._groups(items), self._put, self._done)

    def _groups(self, items: Iterator[Any]) -> Iterator[list[Any]]:
        """Yield the items in order, in groups: wait for one item, and add the items that are ready."""
        first = True
        while True:
            self._begin_to_draw()
            item = next(items, END)
            self._drawing = False
            if item is END:
                return
            group = [item]
            if first:
                self._handoff = self._run.handoff
                if self._handoff is not None:
                    self._handoff.ends_elsewhere = True
            # The first item goes alone, so that it arrives early. `KerasRuns` counts single items.
            if self._together and not first:
                each = size_of(item)
                if each <= MAX_SMALL_BYTES:
                    max_items, max_bytes = MAX_SMALL_ITEMS, MAX_SMALL_ITEMS * MAX_SMALL_BYTES
                else:
                    max_bytes = MAX_LARGE_GROUP_BYTES
                    max_items = min(MAX_LARGE_ITEMS, max_bytes // each)
                group += self._run.take_ready(max_items - 1, max_bytes - each)
            first = False
            del item
            yield group
            del group  # so that it is not held during the wait for the next one

    def _begin_to_draw(self) -> None:
        """End the run if Ctrl-C came while the run had items ready, and the main thread is still in TensorFlow.

        No Ctrl-C is missed. This thread sets `_drawing` before it asks for a pending Ctrl-C. The other thread
        makes the Ctrl-C pending before `interrupt` reads `_drawing`. So at least one of the two sees the other.
        """
        with self._lock:
            self._drawing = True
        if self._pending():
            self.interrupt()

    def _put(self, group: list[Any]) -> None:
        """Put items into the queue. If the queue is full, this waits in C++."""
        ops, layout = self._tf.raw_ops, self._layout
        with self._tf.device("CPU:0"):
            if len(group) > 1 and size_of(group[0]) <= MAX_SMALL_BYTES:
                stacked = layout.stacked(group)
                if stacked is not None:
                    self._enqueue(ops.QueueEnqueueManyV2, handle=self._queue, components=stacked)
                    return
                self._run.note_slow("to_tf, one by one: small items that are not alike")
            while len(group) >= MIN_LARGE_ITEMS:
                count = min(MAX_LARGE_ITEMS, 1 << len(group).bit_length() - 1)
                if sum(map(size_of, group[:count])) > MAX_LARGE_GROUP_BYTES:
                    # `take_ready` does not weigh items that the source had ready, so they may exceed the limit.
                    self._run.note_slow("to_tf, one by one: items larger than the first")
                    break
                try:
                    tensors = [tensor for item in group[:count] for tensor in layout.tensors(item)]
                except Exception:  # noqa: BLE001 - the loop below raises it at its item
                    break
                self._enqueue(self._enqueues(tuple(layout.specs), count), self._queue, *tensors)
                del group[:count]
            for item in group:
                self._enqueue(ops.QueueEnqueueV2, handle=self._queue, components=layout.tensors(item))

    def _enqueue(self, op: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        try:
            with nullcontext() if self._handoff is None else self._handoff.holding():
                op(*args, **kwargs)
        except self._tf.errors.CancelledError:
            self._let_go = True
            raise

    def _done(self, error: BaseException | None) -> None:
        """Close the queue, so that it ends after the items in it. Keep the error until `finish` asks for it."""
        if isinstance(error, ClosedError) and EXIT in str(error):
            return  # Python exits: a thread that still waits must not take this for the end of the data
        if self._handoff is not None:
            self._handoff.hold()  # the items in the queue count as held
        self._run.stop(LET_GO)
        with self._lock:
            if not self._let_go:  # else TensorFlow has closed the queue. It prints each operation that fails
                self._error = error
                with suppress(self._tf.errors.CancelledError):
                    self._tf.raw_ops.QueueCloseV2(handle=self._queue, cancel_pending_enqueues=False)
        self._end(ended=True)

    def interrupt(self) -> None:
        """End the iteration with an error, if TensorFlow may have to wait for the next item.

        A run that is putting an item into the queue is left alone: it looks for a Ctrl-C itself before it draws
        again. An item that is put meanwhile is delivered before the error, or dropped.

        It must be an error and not the end of the data. TensorFlow may ask again after an error, as `prefetch`
        does. If it then saw the end of the data, a `repeat` would start the next epoch.
        """
        tf = self._tf
        with self._lock:  # the queue is not destroyed while this lock is held
            if self._ended or self._finished or not (self._drawing or self._is_empty()):
                return
            self._let_go = self._refused = True
            self._refuse()
            tf.raw_ops.QueueCloseV2(handle=self._queue, cancel_pending_enqueues=True)
        self._run.stop(CTRL_C)
        self._run.trainer_ended()
        self._end(finished=True)

    def _is_empty(self) -> bool:
        return int(self._tf.raw_ops.QueueSizeV2(handle=self._queue)) == 0

    def finish(self) -> Exception | None:
        """Stop the run. Return the error of a failed run, if the consumer has received every item before it.

        TensorFlow calls this again after an error, at the latest when it drops the iterator.
        """
        self._run.stop(LET_GO)
        self._run.trainer_ended()
        error, self._error = self._error, None
        if error is not None and self._is_empty():
            return as_text(error, self._run.failure)
        self._end(finished=True)
        return None

    def _end(self, *, ended: bool = False, finished: bool = False) -> None:
        """Destroy the queue and free its name, once, when both sides have ended."""
        with self._lock:
            was_over = self._ended and self._finished
            self._ended |= ended
            self._finished |= finished
            over = self._ended and self._finished and not was_over
        if over:
            if self._handoff is not None:
                self._handoff.let_go()
            self._tf.raw_ops.DestroyResourceOp(resource=self._queue)
            if not self._refused:  # else an iterator that still exists would find the next queue of that name
                self._free()


def as_text(error: BaseException, failure: Failure | None) -> Exception:
    """Return an exception with the message and the traceback of `error` as text. It holds no frame.

    TensorFlow turns a Python exception into text, and keeps the exception and its frames for ever. It uses the
    type of the exception to tell an invalid argument from other errors.
    """
    if failure is not None and failure.error is error:
        error = error.with_traceback(failure.traceback)
    kind = next((each for each in KINDS if isinstance(error, each)), RuntimeError)
    return kind(f"{type(error).__name__}: {error}\n\n{''.join(format_exception(error))}")
