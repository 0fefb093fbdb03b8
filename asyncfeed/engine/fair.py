"""How many jobs of all runs compute at a time.

Invariants:

* Whoever queues a job then looks for a free place. If there is one, it takes the place and has a worker come.
  Whoever gives a place back then looks whether a job waits. There are more than `width` in `_taken` only for a
  moment, in `_take`.
* Only a worker that has a place takes a job.
* The place of a job that hangs is given back without it. So is one whose worker never comes, because Ctrl-C
  interrupted the thread that took it.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import current_thread, get_native_id
from time import perf_counter, thread_time
from typing import ClassVar

from asyncfeed.engine.constants import HUNG_SECONDS, HUNG_SHARE
from asyncfeed.engine.workers import Job, Owner, Worker, workers
from asyncfeed.limits import process_threads
from asyncfeed.machine import thread_activity


class Place:
    """The place of a worker among those that compute. It is taken before the worker has begun."""

    __slots__ = ("_began", "_jobs", "_last", "_thread", "limiter")

    def __init__(self, limiter: FairLimiter) -> None:
        self.limiter = limiter
        self._jobs = 0
        self._began = 0.0
        self._thread = 0
        self._last: tuple[int, float, int] | None = None

    def work(self, worker: Worker) -> Job | None:
        """Return the job that a worker does in this place."""
        self._thread = get_native_id()
        job = self.limiter.next(self)
        if job is None:
            workers.retire()
        workers.left(self)
        return job

    def begin(self, owner: Owner) -> None:
        """Note that the thread begins a job of a run."""
        self._jobs += 1
        FairLimiter.clock = max(FairLimiter.clock, owner.computed)
        self._began = thread_time()

    def end(self, owner: Owner) -> None:
        """Count how long that job has computed."""
        owner.computed += thread_time() - self._began

    @property
    def is_kept(self) -> bool:
        """Whether the worker may do another job of the same stage. Else those of others come first."""
        return not self.limiter.waiting and self.limiter.has(self)

    def stands_still(self, seconds: float) -> bool:
        """Return whether the job has not moved since the last call, which was `seconds` ago.

        A thread that computes uses processor time. One that waits for the GIL wakes at each switch interval.
        """
        before, self._last = self._last, (self._jobs, *thread_activity(self._thread))
        if before is None or before[0] != self._jobs:
            return False
        computed, woken = self._last[1] - before[1], self._last[2] - before[2]
        return computed < HUNG_SHARE * seconds and woken * sys.getswitchinterval() < HUNG_SHARE * seconds


class FairLimiter:
    """Lets at most `width()` jobs compute at a time, whichever runs they belong to.

    The next one is that of the run that has computed least. A job that hangs loses its place to the next one.
    """

    clock: ClassVar[float] = 0.0
    """Seconds that the run had computed whose job began last. A run that was idle is not owed more than that."""

    def __init__(self, width: Callable[[], int]) -> None:
        self._width = width
        self.waiting: deque[Job] = deque()
        self._taken: dict[Place, None] = {}
        self._watch = HangWatch(self)
        if hasattr(os, "register_at_fork"):  # a system without this function cannot fork
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Forget all jobs, because this process is a fork, which has no thread that does them."""
        self.waiting.clear()
        self._taken.clear()
        self._watch = HangWatch(self)

    def submit(self, job: Job) -> None:
        """Have a worker do a job when there is a place. Raises `RuntimeError` if there can be no more threads."""
        job.owner.computed = max(job.owner.computed, FairLimiter.clock)
        job.queued = perf_counter()
        self.waiting.append(job)
        place = Place(self)
        if not self._take(place):
            self._watch.begin()
            return
        try:
            workers.visit(place)
        except RuntimeError:
            del self._taken[place]
            if not self._taken:  # else the worker that has a place will do this job, too
                with suppress(ValueError):  # it has done so
                    self.waiting.remove(job)
                    raise

    def _take(self, place: Place) -> bool:
        """Take a place, if one is free. If none is, whoever gives one back will see the jobs that wait now."""
        while len(self._taken) < self._width():
            self._taken[place] = None
            if len(self._taken) <= self._width():
                return True
            del self._taken[place]  # others have come at the same moment
        return False

    def next(self, place: Place) -> Job | None:
        """Return the job that the thread with this place does next. If there is none, it gives the place back."""
        while place in self._taken:  # else another one has its place
            job = self._turn()
            if job is not None:
                job.place = place
                return job
            self._taken.pop(place, None)
            if not self.waiting or not self._take(place):
                break
        return None

    def _turn(self) -> Job | None:
        """Take the job whose turn it is."""
        while waiting := list(self.waiting):
            job = min(waiting, key=_computed)
            with suppress(ValueError):  # another worker has taken it
                self.waiting.remove(job)
                job.owner.turns_waited += perf_counter() - job.queued
                return job
        return None

    def has(self, place: Place) -> bool:
        """Return whether a place is taken, and was not given to another job."""
        return place in self._taken

    def replace(self, place: Place) -> None:
        """Let another job begin beside the one that has this place."""
        self._taken.pop(place, None)
        another = Place(self)
        if self.waiting and self._take(another):
            try:
                workers.visit(another)
            except RuntimeError:  # no more threads: the next job that ends makes room
                del self._taken[another]

    def drop(self, owner: Owner) -> list[Job]:
        """Drop the jobs of a run that wait although they were cancelled, and return them."""
        dropped = []
        for job in list(self.waiting):
            if job.owner is owner and job.future.done():
                with suppress(ValueError):  # it has just begun
                    self.waiting.remove(job)
                    dropped.append(job)
        return dropped

    def replace_those_that_hang(self, seconds: float) -> None:
        """Let another job begin beside each one that has not moved since the last call, `seconds` ago."""
        for place in list(self._taken):
            if place.stands_still(seconds):
                self.replace(place)

    def look_now(self) -> None:
        """Have the watch end at once if no job waits."""
        self._watch.look_now()


class HangWatch:
    """Finds jobs that hang, while others wait for their places. It takes a worker for that."""

    def __init__(self, limiter: FairLimiter) -> None:
        self._limiter = limiter
        self._absent = deque([None])
        """Empty while a worker watches."""
        self._wake: SimpleQueue[None] = SimpleQueue()

    def begin(self) -> None:
        """Have a worker watch, if none does."""
        if self._absent:
            with suppress(RuntimeError):  # no more threads
                workers.visit(self)

    def work(self, worker: Worker) -> None:
        """Look again and again whether a job hangs, while others wait."""
        while self._limiter.waiting:
            try:
                self._absent.pop()
            except IndexError:
                break  # another worker watches
            looked = perf_counter()
            while self._limiter.waiting:
                try:
                    self._wake.get(timeout=HUNG_SECONDS)
                except Empty:
                    now = perf_counter()
                    self._limiter.replace_those_that_hang(now - looked)
                    looked = now
            self._absent.append(None)
        workers.retire()
        workers.left(self)

    def look_now(self) -> None:
        """End at once if no job waits."""
        if not self._absent:
            self._wake.put(None)


def _computed(job: Job) -> float:
    return job.owner.computed


def wait_for_another() -> None:
    """Let another job begin beside the one whose thread calls this: it is going to wait for a feed."""
    thread = current_thread()
    if isinstance(thread, Worker) and thread.place is not None:
        thread.place.limiter.replace(thread.place)


holding = FairLimiter(lambda: 1)
"""For jobs that hold the GIL. Threads that compete for it are slower than one."""
computing = FairLimiter(lambda: process_threads.most)
"""For jobs that compute without it."""
