"""The handoff: the last queue of a run, from which consumers take batches.

The loop of the run puts items. Any number of consumers take them, on other threads or on that loop. Each item goes
to exactly one consumer. Threads and tasks take from the same queue under the same lock. They differ only in how
they wait.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress
from itertools import repeat
from typing import Any

from asyncfeed.engine.checkpoint.track import Track
from asyncfeed.engine.constants import AHEAD_FEWEST, READY_BYTES
from asyncfeed.engine.consumers import Delivered, EpochGate, Queue, Waiters
from asyncfeed.engine.coroutines import refuse_own_loop
from asyncfeed.engine.failed import Failed
from asyncfeed.engine.limits.budget import Budget
from asyncfeed.engine.meter import ASKED, NEITHER, READY, Metered, clock_of
from asyncfeed.engine.operators.step import Gate
from asyncfeed.errors import ClosedError, Failure
from asyncfeed.machine import runs_python_in_parallel
from asyncfeed.stages.steps import Chunk


class Handoff(Metered):
    """The last queue of a run. It holds at most `room` items, and ends once.

    Unless the bound is `fixed`, the queue holds fewer items if they are large: two, and more only up to 1 MB
    together. All queued items are delivered, and then the failure or the end. A stop ends the queue at once.

    A consumer may ask for the items of one epoch (`asyncfeed/epochs.py`). Then the ends of epochs are queued, too:

    * An item is only given to a consumer of its own epoch.
    * The end of an epoch stays in front until `go_to` a later epoch. So all consumers of that epoch see it.
    * No item of an epoch before the one of `go_to` is queued.
    * A failure ends the run only when a consumer asks for the failed item. Until then all consumers may leave the
      epoch of that item.

    Most items are taken while more are ready behind them. Taking such an item changes only the counts: no consumer
    is woken or begins to wait, no epoch ends, and the loop need not be told. `_easy` is at most the number of such
    items in front. Each change of the queue must keep it so. Small ones leave the queue together (`Ahead`), and a
    thread draws them without the lock. Nothing is taken from the queue before these are drawn or queued again.
    """

    def __init__(self, room: int, loop: asyncio.AbstractEventLoop, budget: Budget, *, fixed: bool = True) -> None:
        super().__init__(clock_of(loop))
        self.failure: Failure | None = None
        self.stopped: str | None = None
        self.ended = False
        self.over: asyncio.Future[None] = loop.create_future()
        """Done when the queue has ended, so that the run may stop."""
        self.delivered = Delivered()
        self.track: Track | None = None
        """Notes what is put, so that a checkpoint can be taken."""
        self.epoch_level: int | None = None
        """The level of the epochs that the consumer asks for; None if it asks for none."""
        self._epochs = EpochGate()
        self._waiters = Waiters()
        self._most = room
        self._fixed = fixed
        self._loop = loop
        self._budget = budget
        self._needy = budget.waiting
        """The waits for memory, of which the loop must be told what consumers have freed."""
        self._items: Queue = deque()
        self._easy = 0
        """Number of items in front that can be taken without further checks: see above."""
        self._in_parallel = runs_python_in_parallel()
        self._gate = Gate()
        self._full = False
        self._waking = False
        self._low = room // 2
        """The low-water mark: when this few items are left in a full queue, the loop is woken to put more."""

    def __len__(self) -> int:
        """Return the number of items and ends of epochs that are queued."""
        return len(self._items)

    @property
    def waiting(self) -> bool:
        """Whether a consumer waits for an item."""
        return bool(self._waiters)

    # -- the run's side, on its loop

    async def put(self, chunk: Chunk) -> None:
        """Queue the items of a chunk as room permits, and then its end or failure."""
        items = chunk.items
        share = chunk.nbytes // max(1, len(items))
        room = self._most if self._fixed else max(2, min(self._most, READY_BYTES // max(1, share)))
        place, unwanted = 0, False
        if self.track is not None:
            self.track.note_put(chunk, self.gone)
        while place < len(items):
            with self._lock:
                if self._epochs.coming < self._epochs.wanted:
                    unwanted = True
                    self.delivered.left += len(items) - place
                    break
                self._low = room // 2
                fits = max(0, room - len(self._items))
                fitting = items[place : place + fits]
                self._items.extend(zip(fitting, repeat(share), repeat(False), strict=False))
                items[place : place + fits] = [None] * len(fitting)
                place += len(fitting)
                self._full = place < len(items) or (
                    len(self._items) >= room and not chunk.ends_stream and chunk.failure is None
                )
                self._count_easy()
                if fitting:
                    self._meter.turn(READY)
                    self._waiters.wake(len(fitting))
                del fitting
            await self._wait_for_room()
        self._budget.charge(share * place - chunk.nbytes)
        if unwanted:
            await asyncio.sleep(0)  # the only chance for the loop to tell the source to skip the rest of the epoch
        if chunk.ends_stream or (chunk.failure is not None and await self._comes_to_end()):
            self.finish(chunk.failure)
        elif self.epoch_level is not None and chunk.ends_epoch(self.epoch_level):
            await self._put_end(room)

    async def _comes_to_end(self) -> bool:
        """Wait until a consumer asks for the failed item. Return False if all have left its epoch before that."""
        while self.epoch_level is not None:
            with self._lock:
                if self._epochs.coming < self._epochs.wanted:
                    return False
                if self.waiting and not self._items:
                    break
                self._low, self._full = 0, True  # so a consumer that takes the last item, or waits, wakes the loop
                self._count_easy()
            await self._gate.wait()
        return True

    async def _wait_for_room(self) -> None:
        if self._full:
            await self._gate.wait()
        self.settle()

    async def _put_end(self, room: int) -> None:
        """Queue the end of an epoch. It takes up room, so that epochs without items do not fill the memory."""
        with self._lock:
            if self._epochs.coming < self._epochs.wanted:
                self._epochs.front += 1
            else:
                self._items.append((None, 0, True))
                self._epochs.queued_ends += 1
                self._full = len(self._items) >= room
                self._count_easy()
            self._epochs.coming += 1
            self._waiters.wake(None)
        await self._wait_for_room()

    def finish(self, failure: Failure | None = None, stopped: str | None = None) -> None:
        """End the queue, once: after the items that it holds, or at once if `stopped` says why it was stopped."""
        with self._lock:
            if self.ended:
                return
            self.ended = True
            self.failure = failure
            if stopped is not None:
                self.cut(stopped)
                self._clear()
            self._waiters.wake(None)
        if not self.over.done():
            with suppress(RuntimeError):  # the loop is closed, so no task waits for it
                self.over.set_result(None)

    def cut(self, reason: str) -> None:
        """Give out no more items, not even those already queued. `finish` then wakes the consumers that wait.

        This takes no lock, because the garbage collector or a signal handler may call it on a thread that holds
        the lock.
        """
        if self.stopped is None:
            self._cut_at = self._meter.now()
            self.stopped = reason
            self.delivered.ahead.withdraw()

    def clear(self, *, wait: bool = True) -> None:
        """Drop the queued items after a `cut`. Without `wait`, only if the lock is free."""
        if self._lock.acquire(blocking=wait):
            try:
                self._clear()
            finally:
                self._lock.release()

    def _clear(self) -> None:
        self._take_back()
        self.delivered.drop([nbytes for _, nbytes, is_end in self._items if not is_end])
        self._items.clear()
        self._easy = self._epochs.queued_ends = 0
        self._end_seen()

    def _gone(self, woken: bool) -> None:
        """Forget a consumer whose coroutine was closed. If it had been woken for an item, wake another one."""
        with self._lock:
            if woken:
                self._waiters.wake(1)
            self._waiters.forget_done()
            self._turn()

    def freed(self) -> int:
        """Return how many bytes consumers have freed since the last call."""
        with self._lock:
            return self.delivered.book()

    def in_flight(self, known: int) -> int:
        """Return how many of the `known` bytes of the budget are still in flight. Any thread may call this."""
        with self._lock:
            return max(0, known - self.delivered.unbooked)

    def settle(self) -> None:
        """Tell the budget what consumers have freed, and wake `put` if there is room again."""
        with self._lock:
            self._waking = False
            room = self._full and len(self._items) <= self._low
            self._full = self._full and not room
            self._count_easy()
        self._budget.charge(-self.freed())
        if self._needy:
            self._budget.wake_waiters()
        if room and self._gate.waiting:
            self._gate.open()

    def gone(self) -> tuple[int, int]:
        """Return how many items, and how many epochs, the consumers have taken or left. Any thread may call."""
        with self._lock:
            return self._left()

    def _left(self) -> tuple[int, int]:
        return self.delivered.count + self.delivered.left, max(self._epochs.wanted, self._epochs.seen)

    # -- the consumers' side

    def _turn(self) -> None:
        ready = self._held or (self._items and (len(self._items) > 1 or not self._items[0][2]))
        self._meter.turn(READY if ready else ASKED if self._waiters else NEITHER)

    def _pop(self, epoch: int | None) -> tuple[bool, Any]:
        """Take an item, under the lock. Return (True, item), or (False, None) if none is ready."""
        if epoch is not None and epoch < self._epochs.wanted:
            raise StopIteration
        if self.stopped is not None:
            raise ClosedError(f"the feed was stopped: {self.stopped}")
        if not self._meter.running:
            self._meter.begin()
        while self._items and self._items[0][2]:
            if epoch is not None:
                self._epochs.seen = self._epochs.front + 1
                raise StopIteration
            self._items.popleft()  # a consumer of all epochs goes on to the next one
            self._epochs.enter_next()
        if self._items:
            item = self._pop_item()
            if not self._easy:
                self._count_easy()
            return True, item
        if self.ended:
            self._end_seen()
        if self.failure is not None:
            raise Failed
        if self.ended:
            raise StopIteration
        return False, None

    def _pop_item(self) -> Any:
        self._easy = max(0, self._easy - 1)
        item, nbytes, _ = self._items.popleft()
        self.delivered.deliver(nbytes)
        if not self._items or self._items[0][2]:
            self._turn()
        return item

    def go_to(self, epoch: int) -> bool:
        """Give out no more items of epochs before `epoch`. Return whether more of these items are on the way.

        Any thread may call this. Consumers that wait for an item of an earlier epoch get the end of their epoch.
        """
        with self._lock:
            self._take_back()
            epochs = self._epochs
            epochs.wanted = max(epochs.wanted, epoch)
            while self._items and epochs.front < epoch:
                _, nbytes, is_end = self._items.popleft()
                self.delivered.left_bytes += nbytes
                self.delivered.left += not is_end
                if is_end:
                    epochs.pass_end()
            self._count_easy()
            self._turn()
            self._waiters.wake(None)
            more = epochs.front < epoch
        self._call_settle()
        return more

    def _count_easy(self) -> None:
        """Set `_easy`, after a change of the queue."""
        count = len(self._items) - (self._low + 1 if self._full and not self._waking else 1)
        if count > 0 and self._epochs.queued_ends:
            first = next(place for place, each in enumerate(self._items) if each[2])
            count = min(count, first - 1)
        self._easy = max(0, count) if self._meter.running else 0

    def _must_settle(self) -> bool:
        """Return whether the loop must be told what a consumer has just freed. To be called under the lock."""
        if self._waking:
            return False
        self._waking = (self._full and len(self._items) <= self._low) or bool(self._needy)
        return self._waking

    def take(self, epoch: int | None = None) -> Any:
        """Take the next item, on any thread except the loop's.

        Raises `StopIteration` at the end of the stream, or of the `epoch`. The wait has no time-out. On the main
        thread Ctrl-C interrupts it.
        """
        with self._lock:
            if self._is_easy(epoch):
                if self._easy >= AHEAD_FEWEST and not self._in_parallel and self.delivered.ahead.over:
                    self._put_ahead()
                with suppress(IndexError):
                    return self.delivered.ahead.items.popleft()
                if self.stopped is None:  # else `cut` may have withdrawn what comes before the queue
                    self._easy -= 1
                    item, nbytes, _ = self._items.popleft()
                    self.delivered.deliver(nbytes)
                    return item
        return self._wait_and_take(epoch)

    def _is_easy(self, epoch: int | None) -> bool:
        """Return whether the next item can be taken without further checks."""
        ready = self._easy and self.stopped is None and not self._needy
        return bool(ready) and (epoch is None or epoch == self._epochs.front)

    def _put_ahead(self) -> None:
        """Let the next draws take small items without the lock, under which this is called."""
        most, self._easy = self._easy, 0  # until it is counted, also if Ctrl-C comes
        self.delivered.put_ahead(self._epochs.front, self._items, most)
        if self.stopped is not None:  # `cut`, which takes no lock, may have come before that
            self.delivered.ahead.withdraw()
        self._count_easy()

    def _take_back(self) -> None:
        """Queue again what lies ahead. The lock is held."""
        if self.delivered.take_back(self._items):
            self._count_easy()

    def _wait_and_take(self, epoch: int | None) -> Any:
        waiter: Any = None
        try:
            while True:
                with self._lock:
                    self._take_back()
                    found, item = self._pop(epoch)
                    if found:
                        wake = self._must_settle()
                        break
                    # Taking the end of an epoch may have made room. And in an earlier call, Ctrl-C may have come
                    # between setting `_waking` and waking the loop.
                    again = self._must_settle() or self._waking
                    refuse_own_loop(self._loop)
                    waiter = threading.Lock()
                    waiter.acquire()
                    self._waiters.threads.append(waiter)
                    self._turn()
                if again:
                    self._call_settle()
                waiter.acquire()
        except BaseException:
            if waiter is not None:
                with self._lock:
                    self._waiters.leave(waiter, self._waiters.threads)
                    self._turn()
            raise
        if wake:
            self._call_settle()
        return item

    def take_ready(self, most: int, nbytes: int) -> list[Any]:
        """Take up to `most` items that are ready, and up to `nbytes` bytes together, without waiting.

        The bytes are at most a sixteenth of the memory limit, because items that were taken are no longer counted.
        Any thread except the loop's may call this. The next `take` gets the end, the failure or the stop.
        """
        taken: list[Any] = []
        nbytes = min(nbytes, self._budget.limit // 16)
        with self._lock:
            self._take_back()
            while len(taken) < most and self._items and self.stopped is None:
                _, weight, is_end = self._items[0]
                if weight > nbytes or is_end:
                    break
                nbytes -= weight
                taken.append(self._pop_item())
            wake = bool(taken) and self._must_settle()
        if wake:
            self._call_settle()
        return taken

    def _call_settle(self) -> None:
        with suppress(RuntimeError):  # the loop is closed, so no step waits for room
            self._loop.call_soon_threadsafe(self.settle)

    async def take_async(self, epoch: int | None = None) -> Any:
        """Take the next item, on the loop of the run.

        Raises `StopAsyncIteration` at the end of the stream, or of the `epoch`. The item is taken in the same step
        of the task that returns it, so a wait that is cancelled loses no item.
        """
        while True:
            with self._lock:
                if self._is_easy(epoch):
                    return self._pop_item()
                try:
                    found, item = self._pop(epoch)
                except StopIteration:
                    raise StopAsyncIteration from None
            if found:
                break
            sleeper: asyncio.Future[None] = self._loop.create_future()
            with self._lock:
                self._waiters.sleepers.append(sleeper)
                self._turn()
            if self._must_settle():  # taking the end of an epoch may have made room
                self.settle()
            try:
                await sleeper
            except asyncio.CancelledError:
                with self._lock:
                    if sleeper in self._waiters.sleepers or not sleeper.cancelled():
                        self._waiters.leave(sleeper, self._waiters.sleepers)
                        self._turn()
                raise
            except BaseException:
                # The coroutine is being closed, perhaps by the garbage collector on a thread that holds the lock.
                # So the loop does the rest.
                woken = not sleeper.cancel()
                with suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._gone, woken)
                raise
        if self._must_settle():
            self.settle()
        return item
