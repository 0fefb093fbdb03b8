"""What ties a feed to a coordinator, ours or TensorFlow's: either one stopping stops the other.

- The coordinator knows the feed weakly: dropping the last reference to a feed still stops its run.
- A tie ends once: with the coordinator's stop, with the feed's end, or when its owner lets go of the feed.
- The end of the data, `close()` and letting go ask for nothing: others may still be at work, as after the end of
  one of TensorFlow's queue runners. A failure is reported, and `stop()` asks for a clean stop.
- Nothing polls and no thread waits. Ours has `on_stop`; for TensorFlow's the `request_stop` of that one object is
  wrapped (`_Hook`) for as long as the object lives. A `request_stop` that was taken from the object before then
  goes past the wrapper.
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
    """One feed's tie to its coordinator."""

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
        """End the tie when nobody holds its owner any more."""
        self._watch = weakref.finalize(owner, self.release)
        self._watch.atexit = False
        if not self._bound:  # the coordinator had stopped before
            self._end()

    def _end(self) -> None:
        self._bound = False
        if self._watch is not None:
            # Python would keep the coordinator with it, its failure, and the frames that hold the owner.
            self._watch.detach()

    def _stop_feed(self) -> None:
        self._end()
        self.asked = True
        stop = self._stop()
        if stop is not None:
            stop(REASON)

    def release(self) -> None:
        """End the tie; from anywhere, any number of times."""
        self._end()
        self._unsubscribe()

    def stopped(self, *, running: bool) -> None:
        """Ask the coordinator to stop, as the feed was told to; before those who draw hear of it.

        TensorFlow's takes a lock, which this thread may hold where a signal's handler stops the feed. There the
        end of the run asks, if there is one.
        """
        if not self._bound:
            return
        self.release()
        if self._lock_free or not running:
            self._coord.request_stop()
        else:
            self._must_ask = True

    def over(self, error: BaseException | None, trace: TracebackType | None, *, stopped: bool) -> None:
        """Tell the coordinator how the run ended; called on its loop.

        It hears of a failure also where the feed was closed since: whoever drew may have done that first.
        """
        ask = self._bound or self._must_ask
        self.release()
        if error is None:
            if stopped and ask:
                self._coord.request_stop()
            return
        try:
            # TensorFlow's records nothing else outside of an `except` block.
            self._coord.request_stop((type(error), error, trace))
        except BaseException as raised:
            if raised is not error:  # it was joined, and raises what it cannot keep; whoever draws sees it
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
    """Stands in for the `request_stop` of one coordinator that has no `on_stop`."""

    def __init__(self, coord: Any) -> None:
        self._coord = weakref.ref(coord)  # the coordinator has this in its `__dict__`
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
    """Return the hook of a coordinator; one for all its feeds, also where two threads ask for it at once."""
    attributes = vars(coord)
    hook = attributes.get("request_stop")
    if isinstance(hook, _Hook):
        return hook
    ours = _Hook(coord)
    if hook is None:
        hook = attributes.setdefault("request_stop", ours)
    if not isinstance(hook, _Hook):  # somebody else has wrapped it
        hook = attributes["request_stop"] = ours
    return hook
