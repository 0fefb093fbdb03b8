"""Writes the state of a run to a file while the run goes on, and once more at its end.

Invariants:

* A draw never waits for a write. It only tells the loop that enough items were received.
* One write runs at a time, on a thread of the run. The state is taken when the write begins. So a state is never
  replaced by an older one.
* An item that a consumer works on is not in a state: see `InHand`.
* A write that fails is reported, and does not end the run. The file keeps the state before it, and the next write
  comes when it is due.
* The last write frees the lock of the file at its end, on its thread. So a write that hangs keeps other feeds from
  the file.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

from asyncfeed.engine.acknowledging import AcknowledgingHandoff
from asyncfeed.engine.checkpoint.track import Track
from asyncfeed.engine.threads import Threads
from asyncfeed.state import file
from asyncfeed.state.saving import Saving

log = logging.getLogger("asyncfeed")


class Saver:
    """Writes the states of one run. All methods but `_write` are called on the loop.

    Args:
        saving: Where and how often.
        seal: Makes a state of its body.
    """

    def __init__(
        self,
        saving: Saving,
        seal: Callable[[dict[str, Any]], dict[str, Any]],
        loop: asyncio.AbstractEventLoop,
        threads: Threads,
        handoff: AcknowledgingHandoff,
        track: Track,
    ) -> None:
        self.handoff = handoff
        self._saving = saving
        self._seal = seal
        self._loop = loop
        self._threads = threads
        self._track = track
        self._lock = threading.Lock()
        self._written: tuple[int, int, bool] = 0, 0, False
        """What the last write that was tried had: items, epochs, and whether that is all."""
        self._failed = ""
        """Why that write failed. Empty if it did not."""
        self._timer: asyncio.TimerHandle | None = None
        self._ending = False
        """Whether the last write was begun, or none will be."""
        self._over = False
        """Whether nothing is written any more. The lock of the file may be another feed's then."""

    def start(self) -> None:
        """Write from now on."""
        self.handoff.reached = self._due
        self._wait()

    def _wait(self) -> None:
        """Have `_due` called when the next write is due."""
        items, seconds = self._saving.items, self._saving.seconds
        if items is not None:
            self.handoff.watch(self._written[0] + items)
        elif seconds is not None:
            self._timer = self._loop.call_later(seconds, self._watch_next)

    def _watch_next(self) -> None:
        # If nothing was received since the last write, the next item that is received calls for one.
        self.handoff.watch(self._written[0] + 1)

    def _due(self) -> None:
        if self._ending:
            return
        try:
            self._submit().add_done_callback(self._done)
        except RuntimeError as error:  # the system has no more threads; the end of the run writes the last state
            log.warning("the state of the run is not written any more to %s: %s", self._saving.path, error)

    def _done(self, _: object) -> None:
        if not self._ending:
            self._wait()

    def _submit(self, *, last: bool = False) -> asyncio.Future[Any]:
        return self._threads.submit(f"writing {self._saving.path}", self._write, last)

    def finish(self) -> None:
        """Begin the last write, unless the file is up to date. The run then waits for its threads."""
        if not self._ending:
            self._ending = True
            try:
                self._submit(last=True)
            except RuntimeError:  # no thread can be started, because the interpreter is ending
                self._write(last=True)

    def release(self) -> None:
        """Let go of the run. If its loop was closed, there was no last write, and this frees the file."""
        self.handoff.release()
        if self._timer is not None:
            self._timer.cancel()
        if not self._ending:
            self._ending = self._over = True
            self._free()

    def _free(self) -> None:
        """Free the lock of the file, unless a write goes on. That write then calls this at its end."""
        if self._lock.acquire(blocking=False):
            try:
                self._saving.lock.release()
            finally:
                self._lock.release()

    def _write(self, last: bool) -> None:
        """Write a state, on any thread. Report the first failure of several, and that of the last write."""
        with self._lock:
            if not self._over:
                if last:
                    self._over = True
                self._write_state()
        if self._over:
            self._free()

    def _write_state(self) -> None:
        place = self.handoff.received()
        if place == self._written and not self._failed:
            return
        before, self._failed = self._failed, ""
        self._written = place
        try:
            body = self._track.state(*place[:2])
            file.write(self._saving.path, self._seal({**body, "ended": True} if place[2] else body))
        except Exception as error:  # noqa: BLE001 - it is reported, and the run goes on
            self._failed = str(error) or type(error).__name__
            if not before or self._ending:
                log.warning(
                    "the state of the run could not be written to %s, which keeps the state before it: %s",
                    self._saving.path,
                    self._failed,
                )
