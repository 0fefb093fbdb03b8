"""The binding between a feed and a coordinator, asyncfeed's or TensorFlow's: if either stops, the other stops.

- The coordinator holds the feed weakly: dropping the last reference to a feed still stops its run.
- A binding ends once: with the coordinator's stop, with the feed's end, or when the last reference to the feed
  goes.
- The end of the data, `close()` and dropping the feed ask for no stop. Other work may go on, as after the end of
  one of TensorFlow's queue runners. A failure is reported to the coordinator, and `stop()` asks for a clean stop.
- Nothing polls and no thread waits. asyncfeed's coordinator has `on_stop`. For a coordinator of TensorFlow, the
  `request_stop` of that one object is wrapped (`_Hook`) for as long as the object lives. Code that took the method
  from the object before then bypasses the wrapper.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from asyncfeed.coordinator.callbacks import Callbacks

if TYPE_CHECKING:
    import asyncio

REASON = "its coordinator was asked to stop"


class CoordinatorBinding:
    """The binding of one feed to its coordinator."""

    def __init__(self, coord: Any, stop: weakref.WeakMethod[Callable[[str], None]]) -> None:
        self.asked = False
        """Whether the coordinator stopped the feed."""
        self._coord = coord
        self._stop = stop
        self._bound = True
        self._must_ask = False
        self._lock_free = hasattr(coord, "on_stop")
        on_stop = coord.on_stop if self._lock_free else _hook(coord).on_stop
        self._watch: weakref.finalize[[], Any] | None = None
        self._unsubscribe: Callable[[], None] = on_stop(self._stop_feed)

    def watch(self, owner: object) -> None:
        """End the binding when the last reference to its owner goes."""
        self._watch = weakref.finalize(owner, self.release)
        self._watch.atexit = False
        if not self._bound:  # the coordinator had stopped before
            self._end()

    def _end(self) -> None:
        self._bound = False
        if self._watch is not None:
            # Else it would hold the coordinator, the coordinator's failure, and the frames that hold the owner.
            self._watch.detach()

    def _stop_feed(self) -> None:
        self._end()
        self.asked = True
        stop = self._stop()
        if stop is not None:
            stop(REASON)

    def release(self) -> None:
        """End the binding. Any code may call this, any number of times."""
        self._end()
        self._unsubscribe()

    def stopped(self, *, running: bool) -> None:
        """Ask the coordinator to stop because the feed was stopped. This comes before the consumers see the stop.

        The `request_stop` of TensorFlow's coordinator takes a lock. If a signal handler stops the feed, this
        thread may hold that lock already. So if there is a run, the end of the run asks instead.
        """
        if not self._bound:
            return
        self.release()
        if self._lock_free or not running:
            self._coord.request_stop()
        else:
            self._must_ask = True

    def over(self, error: BaseException | None, trace: TracebackType | None, *, stopped: bool) -> None:
        """Tell the coordinator how the run ended. This is called on the run's loop.

        A failure is reported even if the feed has been closed: the consumer that saw the failure may close it
        first.
        """
        ask = self._bound or self._must_ask
        self.release()
        if error is None:
            if stopped and ask:
                self._coord.request_stop()
            return
        try:
            # TensorFlow's coordinator records only such a tuple outside of an `except` block.
            self._coord.request_stop((type(error), error, trace))
        except BaseException as raised:
            if raised is not error:  # a coordinator that was joined raises the exception; the consumer sees it
                raise

    def joins(self, run: threading.Thread | asyncio.Task[None]) -> None:
        """Let the coordinator's `join` wait for the run."""
        if isinstance(run, threading.Thread):
            self._coord.register_thread(run)
        elif self._lock_free:
            self._coord.register_task(run, cancel=False)

    def cause(self) -> BaseException | None:
        """Return the exception for which the coordinator stopped the feed."""
        if self.asked:
            try:
                self._coord.raise_requested_exception()
            except BaseException as error:  # noqa: BLE001 - whatever was reported
                return error
        return None


class _Hook:
    """Replaces the `request_stop` of one coordinator that has no `on_stop`."""

    def __init__(self, coord: Any) -> None:
        self._coord = weakref.ref(coord)  # weak, because the coordinator holds this hook in its `__dict__`
        self._replaced = vars(coord).get("request_stop")
        self._method = type(coord).request_stop
        self._callbacks = Callbacks()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        coord = self._coord()
        try:
            if self._replaced is not None:
                return self._replaced(*args, **kwargs)
            return self._method(coord, *args, **kwargs)
        finally:
            if coord is not None and coord.should_stop():
                self._callbacks.call()

    def on_stop(self, callback: Callable[[], object]) -> Callable[[], None]:
        remove = self._callbacks.add(callback)
        coord = self._coord()
        if coord is not None and coord.should_stop():
            self._callbacks.call()
        return remove


def _hook(coord: Any) -> _Hook:
    """Return the hook of a coordinator. All its feeds share one, also if two threads ask for it at once."""
    attributes = vars(coord)
    hook = attributes.get("request_stop")
    if isinstance(hook, _Hook):
        return hook
    ours = _Hook(coord)
    if hook is None:
        hook = attributes.setdefault("request_stop", ours)
    if not isinstance(hook, _Hook):  # other code has wrapped it
        hook = attributes["request_stop"] = ours
    return hook
