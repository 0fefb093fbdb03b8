"""A list of items of which a chain makes one batch, while threads call its functions for the members.

Invariants:

* A member is untaken, or with one thread, or done. Only the loop takes members and puts them back.
* The thread that finishes the last member makes the batch. No thread waits for another. So a slow member holds up
  its own batch, and no other member of it.
* If a member fails, no later member is needed, and the earlier ones are called all the same. So the earliest
  member that fails is the one that is reported, whatever the timing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from time import perf_counter, thread_time
from typing import Any, NamedTuple

from asyncfeed.engine.limits.group_size import GroupSize
from asyncfeed.stages.batch import Unfinished
from asyncfeed.stages.chain import UNREAD, Chain, NoBatch
from asyncfeed.stages.steps import MemberError, Place
from asyncfeed.trees import size_of


class Members(NamedTuple):
    """Members that follow each other, and what they have become so far."""

    start: int
    values: Sequence[Any]
    first: int
    """The number of the function that is called for them next, or `UNREAD`."""

    def cut(self, count: int) -> tuple[Members, list[Members]]:
        """Return the first members, and the others. There may be none of these."""
        if count >= len(self.values):
            return self, []
        rest = Members(self.start + count, self.values[count:], self.first)
        return Members(self.start, self.values[:count], self.first), [rest]


class Called(NamedTuple):
    """What a call for some members has done."""

    called: int
    """Number of members for which the functions were called."""
    rest: list[Members]
    """The other members."""
    over: bool
    """Whether all members of the list are done now, and this call has done the last one."""
    read_seconds: float
    read_cpu: float
    """The time in which files were read, by the clock and by that of the processor."""


class Gathering:
    """The members of one list."""

    __slots__ = (
        "_bad",
        "_done",
        "_lock",
        "_needed",
        "_over",
        "_rows",
        "_unfinished",
        "_untaken",
        "count",
        "read_bytes",
    )

    def __init__(self, items: Sequence[Any]) -> None:
        self.count = self._needed = len(items)
        """Number of members. `_needed` is less if a later one has failed."""
        self._unfinished = type(items) is Unfinished
        self.read_bytes = 0
        """The most bytes that were read together."""
        self._untaken = [Members(0, items, UNREAD)]
        self._rows: list[Any] = [None] * self.count
        self._done = bytearray(self.count)
        """1 for each member that is done."""
        self._bad: MemberError | None = None
        self._over = False
        """Whether all members that are needed are done."""
        self._lock = Lock()
        """For what threads change: all but `_untaken`."""

    # -- on the loop

    @property
    def has_untaken(self) -> bool:
        """Whether members that are needed wait for a thread."""
        return bool(self._untaken) and self._untaken[0].start < self._needed

    def take(self, size: GroupSize, *, reads: bool) -> Members:
        """Take the members that a thread calls next. If it `reads` before, it takes all that can be read."""
        first = self._untaken[0]
        whole = reads and first.first == UNREAD
        some, rest = first.cut(len(first.values) if whole else size.share(len(first.values)))
        self._untaken[:1] = rest
        return some

    def put_back(self, members: list[Members]) -> None:
        """Put members back that a thread has not called."""
        self._untaken = sorted(self._untaken + members, key=lambda each: each.start)

    # -- on threads

    def call(
        self, members: Members, chain: Chain, place: Place, late: Callable[[], bool], *, only_read: bool
    ) -> Called:
        """Call the functions for members until it is late, but for one of them at least.

        Files are read together before. If `only_read`, that is all.
        """
        read, first = members.values, members.first
        seconds = cpu = 0.0
        if first == UNREAD and chain.read is not None:
            seconds, cpu = perf_counter(), thread_time()
            read, first = chain.read_some(members.values)
            seconds, cpu = perf_counter() - seconds, thread_time() - cpu
            self.read_bytes = max(self.read_bytes, len(read) * size_of(read[0]))
            if only_read:
                rest = [Members(members.start, read, max(first, 0)), *members.cut(len(read))[1]]
                return Called(0, rest, over=False, read_seconds=seconds, read_cpu=cpu)
        first = max(first, 0)
        count, bad = 0, None
        weigh = len(read) > 1 or chain.peak.due()
        for value in read:
            number = members.start + count
            try:
                self._rows[number] = chain.member(value, first, place, number, weigh=weigh and not count)
            except MemberError as error:
                bad = error
            count += 1
            if bad is not None or late():
                break
        rest = Members(members.start, read, first).cut(count)[1] + members.cut(len(read))[1]
        if bad is not None:
            rest = []
        return Called(count, rest, self._note(members.start, count, bad), seconds, cpu)

    def batch(self, chain: Chain, place: Place) -> Any:
        """Return the batch, or `NoBatch`. Whoever has finished the last member calls this.

        Raises the error of the first member that has failed.
        """
        if self._bad is not None:
            raise self._bad
        return NoBatch() if self._unfinished else chain.join(self._rows, place)

    def _note(self, start: int, count: int, bad: MemberError | None) -> bool:
        with self._lock:
            self._done[start : start + count] = b"\1" * count
            if bad is not None and start + count <= self._needed:
                self._bad, self._needed = bad, start + count
            self._over, before = self._done.find(0, 0, self._needed) < 0, self._over
            return self._over and not before
