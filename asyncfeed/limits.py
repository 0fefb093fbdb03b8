"""What the feeds of a process share: its memory limit, the number of threads that compute, that of requests.

Feeds without a limit of their own share that of the process.

A feed may use what the others do not use, but for an eighth of the limit. That is kept for feeds which have less
than their fair part: the limit divided by their number and one more. So

* the feeds together hold no more than the limit, beside the item that is next in each of them, and `STEP` of it;
* one that begins beside others which hold all they may, and whose trainers sleep, does not go item by item; and
* feeds whose trainers draw come to equal parts, if they all need that much: who has more waits until it has less.

A feed that waits for room is not woken when another one gives memory back. Its own consumer wakes it, and the item
that is next needs no room. So a feed never waits for another one.
"""

from __future__ import annotations

import os
import threading
from typing import Literal

from asyncfeed.errors import PipelineError
from asyncfeed.machine import default_memory_limit, usable_cores
from asyncfeed.sizes import Size, parse_bytes

KEPT = 8
"""The part of the limit that is kept for feeds which have little: one of so many."""
STEP = 1024
"""A feed says what it uses in steps of one of so many parts of the limit, because that takes a lock."""


class Part:
    """What one feed uses of the limit of the process. Only that feed calls `note` and asks for `limit`."""

    __slots__ = ("_memory", "least", "most", "told")

    def __init__(self, memory: ProcessMemory) -> None:
        self._memory = memory
        self.told = 0
        """How many bytes the others believe that it uses."""
        self.least = self.most = 0
        """Between these, what it uses is not worth telling."""

    @property
    def limit(self) -> int:
        """How many bytes the feed may use now."""
        memory = self._memory
        free = memory.whole - memory.used + self.told
        return max(0, free - memory.kept, min(free, memory.fair))

    def note(self, used: int) -> None:
        """Note how many bytes the feed uses."""
        if not self.least < used < self.most:
            self._memory.use(self, used)


class ProcessMemory:
    """Knows how much the feeds use together. Any thread may use it."""

    def __init__(self, limit: int | None = None) -> None:
        self._lock = threading.RLock()
        """Reentrant, because the garbage collector may end a run of a closed loop on a thread that has it."""
        self._limit = limit
        self._parts: set[Part] = set()
        self.used = self.whole = self.kept = self.fair = 0
        """What the feeds use, the limit, what of it is kept, and the fair part of a feed: in bytes."""

    @property
    def limit(self) -> int:
        """The limit in bytes. The default is computed when it is needed first, because that reads files."""
        if self._limit is None:
            self._limit = default_memory_limit()
        return self._limit

    def set_limit(self, nbytes: int | None) -> None:
        """Set the limit, or the default."""
        with self._lock:
            self._limit = nbytes
            self._divide()

    def _divide(self) -> None:
        self.whole = self.limit
        self.kept, self.fair = self.whole // KEPT, self.whole // (len(self._parts) + 1)

    def join(self) -> Part:
        """Return the part of a feed that begins. `leave` must be called at its end."""
        part = Part(self)
        with self._lock:
            self._parts.add(part)
            self._divide()
        return part

    def use(self, part: Part, nbytes: int) -> None:
        """Count what a feed uses."""
        with self._lock:
            if part in self._parts:  # else it has ended, or began before a fork
                self.used += nbytes - part.told
                step = self.whole // STEP
                part.told, part.least, part.most = nbytes, nbytes - step, nbytes + step

    def leave(self, part: Part) -> None:
        """Count nothing of a feed that has ended."""
        self.use(part, 0)
        with self._lock:
            self._parts.discard(part)
            self._divide()

    def forget(self) -> None:
        """Forget the feeds of the process that was forked."""
        self._lock = threading.RLock()  # another thread may have had it
        self._parts, self.used = set(), 0


process_memory = ProcessMemory()

if hasattr(os, "register_at_fork"):  # a system without this function cannot fork
    os.register_at_fork(after_in_child=process_memory.forget)


class ProcessThreads:
    """Knows how many threads compute at a time for all feeds together."""

    def __init__(self) -> None:
        self.most = usable_cores()

    def set_most(self, count: int | None) -> None:
        """Set the number, or the default."""
        self.most = usable_cores() if count is None else count


process_threads = ProcessThreads()


class ProcessRequests:
    """Knows how many requests all feeds together may have under way for a store."""

    def __init__(self) -> None:
        self.most: int | None = None
        """None for the default."""


process_requests = ProcessRequests()

Count = int | Literal["default"] | None


def limits(*, memory: Size | None = None, threads: Count = None, requests: Count = None) -> None:
    """Set what all feeds of this process share: memory, threads that compute, and requests to object stores.

    A feed may use the memory that the others do not use, but for an eighth of the limit. That is kept for feeds
    that have little. Feeds whose trainers draw come to equal parts, if all of them need that much. A feed never
    waits for the memory of another one. Calls that compute take turns, fair by processor time. New limits hold at
    once, for feeds that run, too.

    Args:
        memory: Limit of the data in flight in all feeds without a `memory_limit` of their own, in bytes or as text
            such as "4GiB". "default" is a quarter of the memory of the machine or the container, at most 1 GiB.
            None leaves it as it is.
        threads: Number of calls that compute at a time without the GIL. One more may compute with it. Calls that
            wait for something do not count, nor do those of a stage with `concurrency=` above 1. Calls that waited
            so far, or seemed to, count after some that did not. "default" is the number of cores that this process
            may use. None leaves it as it is.
        requests: Number of requests that may be under way for one object store: a bucket, a host, or the server of
            an `endpoint`. A feed that has none under way may always begin one. Feeds that ask for more come to
            equal parts. "default" is 256, or `max_requests` of the store if that is more. None leaves it as it is.

    Raises:
        PipelineError: `memory` is no size, or `threads` or `requests` no whole number of at least 1.

    Memory:
        Beside the limit, each feed may hold the item that its consumer waits for.

    Example:
        >>> import asyncfeed as af
        >>> af.limits(memory="2GiB", threads=4)
        >>> af.limits(memory="default", threads="default")
    """
    nbytes = None if memory is None or memory == "default" else parse_bytes(memory, "limits", "memory")
    for name, count in (("threads", threads), ("requests", requests)):
        if count is not None and count != "default" and (type(count) is not int or count < 1):
            raise PipelineError(
                f'limits: {name} must be a whole number of at least 1, or "default", not {count!r}'
            )
    if memory is not None:
        process_memory.set_limit(nbytes)
    if threads is not None:
        process_threads.set_most(None if threads == "default" else threads)
    if requests is not None:
        process_requests.most = None if requests == "default" else requests
