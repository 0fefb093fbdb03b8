"""Worker processes that are kept between runs: the next run of the same function need not start them.

Starting a worker takes 0.2 s, and importing the function's module takes seconds if that imports torch. Invariants:

* A kept worker has answered everything it was asked, and holds no function, no item and no result.
* It is kept for `WORKER_IDLE_SECONDS`, and there are at most two for each core. The one kept longest goes first.
* There is a thread only while workers are kept. It waits for the next deadline on a condition; it never looks
  whether anything has changed.
* Workers end when the interpreter exits. A fork of this process closes its copies of their sockets, and has none.
* `take` and `keep` never wait for a worker.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from time import monotonic
from typing import NamedTuple

from asyncfeed.engine.constants import WORKER_EXIT_SECONDS, WORKER_IDLE_SECONDS
from asyncfeed.engine.processes.process import Worker
from asyncfeed.machine import usable_cores


class _Resting(NamedTuple):
    key: Hashable
    worker: Worker
    until: float


class KeptWorkers:
    """Workers without a run, any thread may put them in and take them out."""

    def __init__(
        self,
        *,
        idle_seconds: float = WORKER_IDLE_SECONDS,
        most: int | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._idle_seconds = idle_seconds
        self._most = most
        self._clock = clock
        self.generation = 0
        """Counts the calls of `end_all`: what was started before is not kept after it."""
        self.forget()

    def forget(self) -> None:
        """Start anew without workers: after a fork, when those that were kept are the parent's."""
        # The lock may have been held by a thread that did not come along.
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._leaving: list[Worker] = []
        for each in getattr(self, "_resting", ()):
            each.worker.forget()
        self._resting: list[_Resting] = []
        """The one kept longest first."""

    def __len__(self) -> int:
        """Return how many workers are kept."""
        return len(self._resting)

    def take(self, key: Hashable) -> Worker | None:
        """Return a worker that was kept under this key, the one used last; None where there is none."""
        with self._changed:
            for place in range(len(self._resting) - 1, -1, -1):
                if self._resting[place].key == key:
                    worker = self._resting.pop(place).worker
                    if not self._resting:
                        self._changed.notify_all()
                    return worker
        return None

    def keep(self, key: Hashable, worker: Worker, generation: int) -> bool:
        """Keep a worker of a run that began in a `generation`; return False if the caller has to end it."""
        with self._changed:
            if generation != self.generation:
                return False
            if self._thread is None:
                thread = threading.Thread(target=self._watch, name="asyncfeed-kept-processes", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the interpreter ends, or the system has no more threads
                    return False
                self._thread = thread
            self._resting.append(_Resting(key, worker, self._clock() + self._idle_seconds))
            if self._most is None:  # asked here, on a thread: the answer may be in files
                self._most = 2 * usable_cores()
            if len(self._resting) > self._most:
                self._leaving.append(self._resting.pop(0).worker)
            self._changed.notify_all()
        return True

    def look(self) -> None:
        """Let the thread look at the clock again: it does so by itself when the next deadline has come."""
        with self._changed:
            self._changed.notify_all()

    def end_all(self) -> None:
        """End all workers that are kept, and wait until they are gone; runs that have begun keep none."""
        with self._changed:
            self.generation += 1
            workers = [*self._leaving, *(each.worker for each in self._resting)]
            self._leaving, self._resting = [], []
            self._changed.notify_all()
        _end(workers)
        with self._changed:
            while self._thread is not None and not self._resting:
                self._changed.wait()  # it may have some that it is just ending

    def _watch(self) -> None:
        try:
            while workers := self._due():
                _end(workers)
        except BaseException:
            with self._changed:
                self._thread = None
                self._changed.notify_all()
            raise

    def _due(self) -> list[Worker]:
        """Wait for workers whose time has come; return none if none is left to wait for."""
        with self._changed:
            while True:
                now = self._clock()
                while self._resting and self._resting[0].until <= now:
                    self._leaving.append(self._resting.pop(0).worker)
                if self._leaving:
                    due, self._leaving = self._leaving, []
                    return due
                if not self._resting:
                    self._thread = None
                    self._changed.notify_all()
                    return []
                self._changed.wait(self._resting[0].until - now)


def _end(workers: Sequence[Worker]) -> None:
    """Tell workers to end, wait for them, and kill those that take too long."""
    for worker in workers:
        worker.finish()
    deadline = monotonic() + WORKER_EXIT_SECONDS
    for worker in workers:
        if not worker.over(deadline - monotonic()):
            worker.kill()
        worker.end()


kept = KeptWorkers()
"""Those of this process."""
atexit.register(kept.end_all)
with suppress(AttributeError):  # not every system can fork
    os.register_at_fork(after_in_child=kept.forget)
