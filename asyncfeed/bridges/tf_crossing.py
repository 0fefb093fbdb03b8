"""What fills the queues that TensorFlow takes from: one iteration of a dataset, and how it ends.

Each crossing lets go of the GIL, and beside a thread that computes it takes 5 ms to have it again. So items that
are ready cross together.
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

    from asyncfeed.bridges.offer import OpenRun
    from asyncfeed.bridges.tf_layout import Layout
    from asyncfeed.engine.handoff import Handoff

SMALL = 1 << 10
"""Bytes. Up to this items cross as one copy, with one operation; larger ones in place if they can, with one call
of a function that has an operation for each."""
MOST = 256
"""How many small items cross together, or wait in TensorFlow's queue. Of others one waits there: reading ahead is
for the pipeline, within its budget, and tf.data adds some."""
LEAST, FEW, ENOUGH = 4, 16, 16 << 20
"""How many larger items cross together: two take longer so than one by one. And how many bytes these may have."""
LET_GO = "TensorFlow let go of the iterator"
CTRL_C = "Ctrl-C, while TensorFlow waited for it"
END: Any = object()
KINDS = (ValueError, TypeError, MemoryError, NotImplementedError)
"""What TensorFlow has an error of its own for."""


class Crossing:
    """One iteration: a run, the queue that it is pumped into, and how it ended."""

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
        items, self._items = self._items, iter(())  # not to be held when they have ended
        Pump(name, self._groups(items), self._put, self._done)

    def _groups(self, items: Iterator[Any]) -> Iterator[list[Any]]:
        """Yield the items in order: one that is waited for, and with it those that are there."""
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
            # The first goes at once. Keras' bridge counts what may be on its way to nobody.
            if self._together and not first:
                each = size_of(item)
                most, enough = (MOST, MOST * SMALL) if each <= SMALL else (min(FEW, ENOUGH // each), ENOUGH)
                group += self._run.take_ready(most - 1, enough - each)
            first = False
            del item
            yield group
            del group  # not to be held while the next one is waited for

    def _begin_to_draw(self) -> None:
        """End the run at a Ctrl-C that came while it had items ready, if the main thread is still in TensorFlow.

        `_drawing` is set before the question, and a Ctrl-C is pending before `interrupt` reads it: so one of the
        two sees the other.
        """
        with self._lock:
            self._drawing = True
        if self._pending():
            self.interrupt()

    def _put(self, group: list[Any]) -> None:
        """Put items into the queue; waits, in C++, while it is full."""
        ops, layout = self._tf.raw_ops, self._layout
        with self._tf.device("CPU:0"):
            if len(group) > 1 and size_of(group[0]) <= SMALL:
                stacked = layout.stacked(group)
                if stacked is not None:
                    self._enqueue(ops.QueueEnqueueManyV2, handle=self._queue, components=stacked)
                    return
                self._run.note_slow("to_tf, one by one: small items that are not alike")
            while len(group) >= LEAST:
                count = min(FEW, 1 << len(group).bit_length() - 1)  # few functions, as each takes 10 ms to trace
                if sum(map(size_of, group[:count])) > ENOUGH:
                    # The first was smaller than the others, which nothing counts if the source had them.
                    self._run.note_slow("to_tf, one by one: items larger than the first")
                    break
                try:
                    tensors = [tensor for item in group[:count] for tensor in layout.tensors(item)]
                except Exception:  # noqa: BLE001 - below it is raised at its place
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
        """Close the queue behind what is in it; what is raised then waits for `finish`."""
        if isinstance(error, ClosedError) and EXIT in str(error):
            return  # a thread that still waits for data must not take this for the end of it
        if self._handoff is not None:
            self._handoff.hold()  # what is in the queue
        self._run.stop(LET_GO)
        with self._lock:
            if not self._let_go:
                self._error = error
        with suppress(self._tf.errors.CancelledError):  # the other side has closed it before
            self._tf.raw_ops.QueueCloseV2(handle=self._queue, cancel_pending_enqueues=False)
        self._end(ended=True)

    def interrupt(self) -> None:
        """Fail, if TensorFlow may have to wait for the next item: with an error, never as at the end.

        While the run has an item on its way into TensorFlow's queue, it is left alone: it asks again after that.
        An item that is put meanwhile is delivered before it, or given up. TensorFlow may ask again after an error,
        as a `prefetch` does, and would take an end for one: `repeat` would begin anew.
        """
        tf = self._tf
        with self._lock:  # while it is held the queue is not given back
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
        """Stop the run; return what to raise, where the run failed and the consumer has got all before that.

        TensorFlow calls again after an error, at the latest when it drops the iterator.
        """
        self._run.stop(LET_GO)
        self._run.trainer_ended()
        error, self._error = self._error, None
        if error is not None and self._is_empty():
            return as_text(error, self._run.failure)
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
            if self._handoff is not None:
                self._handoff.let_go()
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
