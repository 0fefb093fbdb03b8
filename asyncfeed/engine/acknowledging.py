"""The handoff of a run that writes its own state: it knows which items its consumers have finished."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from asyncfeed.engine.checkpoint.in_hand import InHand, consumer
from asyncfeed.engine.failed import Failed
from asyncfeed.engine.handoff import Handoff
from asyncfeed.engine.limits.budget import Budget
from asyncfeed.errors import Failure


class AcknowledgingHandoff(Handoff):
    """A handoff whose items count as received when their consumers have finished them: see `InHand`.

    So every draw takes the long way, which notes the consumer.
    """

    def __init__(self, room: int, loop: asyncio.AbstractEventLoop, budget: Budget, *, fixed: bool = True) -> None:
        super().__init__(room, loop, budget, fixed=fixed)
        self.told: asyncio.Future[None] = loop.create_future()
        """Done when a consumer was told of the end and all items are finished, or the queue was stopped."""
        self.reached: Callable[[], object] = _nobody_waits
        """Called on the loop when as many items were received as `watch` said."""
        self._told = False
        self._in_hand = InHand()
        self._mark: int | None = None

    def watch(self, mark: int) -> None:
        """Have `reached` called, once, when this many items were received."""
        with self._lock:
            self._mark = mark
            self._look()

    def release(self) -> None:
        """Call `reached` no more."""
        self.reached = _nobody_waits

    def finish_all(self) -> None:
        """Count all items that were drawn as received."""
        with self._lock:
            self._in_hand.finish_all()
            self._look()

    def received(self) -> tuple[int, int, bool]:
        """Return how many items and epochs were received, and whether that is all. Any thread may call this."""
        with self._lock:
            return *self._left(), self._is_finished() and self.failure is None

    @property
    def finished(self) -> bool:
        """Whether the queue was stopped or a consumer was told of its end, and all items are finished."""
        with self._lock:
            return (self._told or self.stopped is not None) and self._in_hand.first() is None

    def _is_finished(self) -> bool:
        return self._told and self._in_hand.first() is None

    def finish(self, failure: Failure | None = None, stopped: str | None = None) -> None:
        """End the queue, and note that it was stopped."""
        super().finish(failure, stopped)
        if stopped is not None:
            self._call(self._tell)

    def go_to(self, epoch: int) -> bool:
        """Give out no more items of epochs before `epoch`. The consumer that calls this has finished its item."""
        with self._lock:
            self._in_hand.asks(consumer())
            self._look()
        return super().go_to(epoch)

    def _left(self) -> tuple[int, int]:
        items, epochs = super()._left()
        first = self._in_hand.first()
        return (items, epochs) if first is None else (min(items, first[0]), min(epochs, first[1]))

    def _pop(self, epoch: int | None) -> tuple[bool, Any]:
        asking = consumer()
        self._in_hand.asks(asking)
        self._look()
        try:
            found, item = super()._pop(epoch)
        except (StopIteration, Failed):
            if self.ended and not self._items:
                self._told = True
                self._look()
            raise
        if found:
            self._in_hand.takes(asking, (super()._left()[0] - 1, self._epochs.front))
        return found, item

    def _count_easy(self) -> None:
        self._easy = 0

    def _look(self) -> None:
        if self._mark is not None and super()._left()[0] >= self._mark <= self._left()[0]:
            self._mark = None
            self._call(self._reach)
        if self._is_finished():
            self._call(self._tell)

    def _reach(self) -> None:
        self.reached()

    def _tell(self) -> None:
        if not self.told.done():
            self.told.set_result(None)

    def _call(self, fn: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop is closed, so nothing is written any more
            self._loop.call_soon_threadsafe(fn)


def _nobody_waits() -> None:
    """Replace the callback of a run that has ended."""
