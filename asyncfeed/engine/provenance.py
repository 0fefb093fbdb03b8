"""Where items come from: the position of an item tells its epoch, its ordinal in it, and its name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from asyncfeed.errors import Failure, note
from asyncfeed.position import Position, first_number, in_epoch, member, name
from asyncfeed.stages.steps import MemberError
from asyncfeed.trees import find_files

_CONTROL = (StopIteration, StopAsyncIteration, asyncio.CancelledError, GeneratorExit)
"""What Python takes for the end of a loop or a task: an item's error must not pass for that."""
UNSIZED = 1 << 48
"""How many numbers an epoch has if the number of its items is not known: more than anybody can read."""


def is_own_cancellation(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Return whether an exception was thrown into `task` from outside, not raised by what the task called."""
    if isinstance(error, GeneratorExit):
        # Its coroutine is being closed, which a step of the task itself cannot do.
        try:
            return asyncio.current_task() is not task
        except RuntimeError:  # no loop runs
            return True
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def raise_if_cancelled() -> None:
    """Raise where the current task was cancelled and what it awaited has kept that to itself.

    A function that swallows `CancelledError` (`asyncio.wait_for` does on Python 3.11, at times) must not keep
    the run from stopping.
    """
    try:
        task = asyncio.current_task()
    except RuntimeError:  # the loop is closed, and the task ends without it
        raise asyncio.CancelledError from None
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class Provenance:
    """The numbers of one source: one for each item of all its epochs, and the way back from it.

    Items carry a position, which all else is derived from. Each epoch has as many numbers as the source has
    items, or `UNSIZED` if that is not known, so a division finds the epoch.
    """

    def __init__(self, size: int | None, name: Callable[[int, int], str] | None) -> None:
        self._size = size or UNSIZED
        self._name = name

    def start(self, epoch: int) -> int:
        """Return the number of the first item of an epoch."""
        return epoch * self._size

    def epoch(self, position: Position) -> int:
        """Return the epoch of an item; for a group, that of its first member."""
        return first_number(position) // self._size

    def ordinal(self, position: Position) -> Position:
        """Return the place of an item in its epoch."""
        return in_epoch(position, self._size)

    def name(self, position: Position) -> str:
        """Return what the item of this position is called."""
        return name(position, self._name_number)

    def _name_number(self, number: int) -> str:
        epoch, place = divmod(number, self._size)
        return self._name(epoch, place) if self._name else f"number {place}"

    def failure(self, error: BaseException, stage: str, position: Position, item: Any = None) -> Failure:
        """Return what is known about a failed item, and note it on the exception."""
        if isinstance(error, MemberError):
            position, item = member(position, error.member), item[error.member]
            stage, error = error.stage, error.error
        if isinstance(error, _CONTROL):
            # As itself it would end the consumer's loop or task in silence; PEP 479 does the same.
            cause, error = error, RuntimeError(f"{stage} raised {type(error).__name__} of its own")
            error.__cause__ = cause
        files = find_files(item)
        key = ", ".join(files) if files else self.name(position)
        failure = Failure(
            error, stage, key, self.ordinal(position), self.epoch(position), traceback=error.__traceback__
        )
        note(error, failure.note())
        return failure


class ItemPlace:
    """Where one item stands, for functions that ask: a `Place`. Nothing is worked out before it is asked."""

    __slots__ = ("_position", "_provenance")

    def __init__(self, provenance: Provenance, position: Position) -> None:
        self._provenance = provenance
        self._position = position

    @property
    def epoch(self) -> int:
        """The epoch of the item, counted from 0."""
        return self._provenance.epoch(self._position)

    @property
    def ordinal(self) -> Position:
        """The place of the item in its epoch."""
        return self._provenance.ordinal(self._position)

    def name(self, number: int | None = None) -> str:
        """Return what the item is called or, for a batch, what its member of this number is called."""
        return self._provenance.name(self._position if number is None else member(self._position, number))
