"""The guard of the calls from TensorFlow into Python: none begins at exit, and exit waits for those in Python.

When the interpreter exits, it ends each other thread that asks for the GIL. If TensorFlow waits for what such a
thread does, it waits for ever. Iterators are dropped at exit, so TensorFlow does wait then. Invariants:

* A call has a token from before it asks whether Python may be called until it is in Python. So nobody waits for
  the GIL while `close` has all tokens.
* A thread that has a token may run a garbage collection. That may free an iterator, and wait for its last call.
  Python runs one collection at a time, so with more than one token that call goes on.
* From there on its marker lives until the call has returned from Python to TensorFlow.
* After `close`, no graph calls Python, and all markers are gone.

No token is lost between a graph and Python: a graph that has one stops only if one of its operations fails,
and the first that can fail is the call.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


TOKENS = 8
"""Number of tokens. More calls at a time take turns to get into Python, where they take turns anyway."""


class Marker:
    """Lives as long as a call is in Python."""

    __slots__ = ("__weakref__",)


class ExitGuard:
    """Guards calls from TensorFlow into Python."""

    def __init__(self, tf: Any) -> None:
        self._tf = tf
        self._pid = os.getpid()
        with tf.device("CPU:0"):
            self.open_gate = self._filled_queue("open gate", 1)
            """Holds one element while Python may be called. Graphs get it as an argument."""
            self.token = self._filled_queue("tokens", TOKENS)
            """Holds the tokens. Graphs get it as an argument."""
        self._inside: set[weakref.ref[Marker]] = set()
        """The markers of the calls in Python, and those that nobody has taken out of `_left`."""
        self._left: SimpleQueue[weakref.ref[Marker]] = SimpleQueue()
        """The markers that are gone."""
        self._of_thread = threading.local()

    # -- in a graph

    def guarded(self, open_gate: Any, token: Any, call: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        """Return the result of `call`, which calls Python, or of `otherwise` if Python exits.

        The function in Python begins with `enter`. `open_gate` and `token` are the resources of this guard.
        """
        tf = self._tf

        def skip() -> Any:
            with tf.control_dependencies([_put_back(tf, token)]):
                return otherwise()

        taken = tf.raw_ops.QueueDequeueV2(handle=token, component_types=[tf.int64])
        with tf.control_dependencies(taken):
            may_call = tf.raw_ops.QueueSizeV2(handle=open_gate) > 0
        return tf.cond(may_call, call, skip)

    # -- in Python

    def enter(self) -> Marker:
        """Note that a call is in Python. The caller drops the marker before it returns or raises.

        TensorFlow may keep an exception for ever, with what its frames hold.
        """
        marker = Marker()
        # Without a lock: a garbage collection in here may wait for another call that is to enter.
        with suppress(Empty):
            while True:
                self._inside.discard(self._left.get_nowait())
        # `put` is no Python code, so the thread does not need the GIL once more after it.
        self._inside.add(weakref.ref(marker, self._left.put))
        if _is_of_tensorflow():
            # The state of such a thread ends when TensorFlow has returned from Python, and takes this along.
            self._of_thread.__dict__.setdefault("markers", []).append(marker)
        _put_back(self._tf, self.token)
        return marker

    def close(self) -> None:
        """Let no more calls begin, and wait for those that have begun."""
        if os.getpid() != self._pid:  # a fork has no threads of TensorFlow, and one of them may have had a token
            return
        tf = self._tf
        tf.raw_ops.QueueDequeueV2(handle=self.open_gate, component_types=[tf.int64])
        for _ in range(TOKENS):
            tf.raw_ops.QueueDequeueV2(handle=self.token, component_types=[tf.int64])
        for _ in range(TOKENS):
            _put_back(tf, self.token)
        while self._inside:
            self._inside.discard(self._left.get())

    def _filled_queue(self, name: str, count: int) -> Any:
        tf = self._tf
        queue = tf.raw_ops.FIFOQueueV2(
            component_types=[tf.int64],
            shapes=[],
            capacity=count,
            container="",
            shared_name=f"asyncfeed-{id(self):x}-{name}",
        )
        for _ in range(count):
            _put_back(tf, queue)
        return queue


def _put_back(tf: Any, queue: Any) -> Any:
    return tf.raw_ops.QueueEnqueueV2(handle=queue, components=[tf.constant(1, tf.int64)])


def _is_of_tensorflow() -> bool:
    """Return whether this thread has a Python state only for a call from TensorFlow."""
    frame = sys._getframe()  # noqa: SLF001 - there is no other way to the frames
    while frame.f_back is not None:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")).startswith("tensorflow")
