"""Worker processes that are kept between runs, so that the next run of the same function need not start them.

Starting a worker takes 0.2 s. Importing the function's module may take seconds, for example if it imports torch.

Invariants:

* A kept worker has answered all orders, and holds no function, no item and no result. It keeps some free blocks of
  shared memory for the results of the next run.
* A worker is kept for `WORKER_IDLE_SECONDS`. At most two are kept per core. The one kept longest is ended first.
* A thread exists only while workers are kept. It waits on a condition for the next deadline, and does not poll.
* Kept workers end when the interpreter exits. A fork of this process closes its copies of their sockets, and keeps
  no workers.
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


class _KeptWorker(NamedTuple):
    key: Hashable
    worker: Worker
    until: float


class KeptWorkers:
    """The workers that belong to no run. Any thread may put workers in and take them out."""

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
        """Number of calls of `end_all`. Workers that were started before such a call are not kept after it."""
        self.forget()

    def forget(self) -> None:
        """Start anew without workers. This is for a fork, where the kept workers belong to the parent."""
        # A thread of the parent, which does not exist in the fork, may have held the lock.
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._leaving: list[Worker] = []
        for each in getattr(self, "_workers", ()):
            each.worker.forget()
        self._workers: list[_KeptWorker] = []
        """In the order of their deadlines."""

    def __len__(self) -> int:
        """Return the number of kept workers."""
        return len(self._workers)

    def take(self, key: Hashable) -> Worker | None:
        """Return the last worker that was kept under this key, or None."""
        with self._changed:
            for place in range(len(self._workers) - 1, -1, -1):
                if self._workers[place].key == key:
                    worker = self._workers.pop(place).worker
                    if not self._workers:
                        self._changed.notify_all()
                    return worker
        return None

    def keep(self, key: Hashable, worker: Worker, generation: int) -> bool:
        """Keep a worker of a run that began in this `generation`. Return False if the caller must end it."""
        with self._changed:
            if generation != self.generation:
                return False
            if self._thread is None:
                thread = threading.Thread(target=self._watch, name="asyncfeed-kept-processes", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the interpreter is ending, or the system has no more threads
                    return False
                self._thread = thread
            self._workers.append(_KeptWorker(key, worker, self._clock() + self._idle_seconds))
            if self._most is None:  # looked up here, because this runs on a thread and may read files
                self._most = 2 * usable_cores()
            if len(self._workers) > self._most:
                self._leaving.append(self._workers.pop(0).worker)
            self._changed.notify_all()
        return True

    def look(self) -> None:
        """Let the thread look at the clock now. By itself it does so only at the next deadline."""
        with self._changed:
            self._changed.notify_all()

    def end_all(self) -> None:
        """End all kept workers, and wait until they are gone. Runs that have begun keep no workers after this."""
        with self._changed:
            self.generation += 1
            workers = [*self._leaving, *(each.worker for each in self._workers)]
            self._leaving, self._workers = [], []
            self._changed.notify_all()
        _end(workers)
        with self._changed:
            while self._thread is not None and not self._workers:
                self._changed.wait()  # the thread may be ending workers that it has taken

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
        """Wait for workers whose deadline has passed, and return them. Return none if no workers are kept."""
        with self._changed:
            while True:
                now = self._clock()
                while self._workers and self._workers[0].until <= now:
                    self._leaving.append(self._workers.pop(0).worker)
                if self._leaving:
                    due, self._leaving = self._leaving, []
                    return due
                if not self._workers:
                    self._thread = None
                    self._changed.notify_all()
                    return []
                self._changed.wait(self._workers[0].until - now)


def _end(workers: Sequence[Worker]) -> None:
    """Tell workers to end, and wait for them. Kill those that take longer than `WORKER_EXIT_SECONDS`."""
    for worker in workers:
        worker.finish()
    deadline = monotonic() + WORKER_EXIT_SECONDS
    for worker in workers:
        if not worker.over(deadline - monotonic()):
            worker.kill()
        worker.end()


kept = KeptWorkers()
"""The kept workers of this process."""
atexit.register(kept.end_all)
with suppress(AttributeError):  # not every system can fork
    os.register_at_fork(after_in_child=kept.forget)
