"""Provenance: how the position of an item becomes its epoch, its ordinal in the epoch, and its name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from asyncfeed.errors import Failure, note
from asyncfeed.position import Position, Positions, first_number, in_epoch, member, name, parts
from asyncfeed.reading.listing import FileSpan
from asyncfeed.stages.steps import MemberError
from asyncfeed.trees import find_files

_CONTROL = (StopIteration, StopAsyncIteration, asyncio.CancelledError, GeneratorExit)
"""Exceptions that mean to Python the end of a loop or a task. The error of an item must not be taken for that."""
UNSIZED = 1 << 48
"""How many numbers an epoch is given if its number of items is not known: more items than any run can read."""


def is_own_cancellation(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Return whether an exception was thrown into `task` from outside, and not raised by code that it called."""
    if isinstance(error, GeneratorExit):
        # The task's coroutine is being closed. Only other code can do that: a task cannot close its own coroutine.
        try:
            return asyncio.current_task() is not task
        except RuntimeError:  # no loop runs
            return True
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def raise_if_cancelled() -> None:
    """Raise `CancelledError` if the current task was cancelled and a function that it awaited swallowed that.

    Such a function must not keep the run from stopping. `asyncio.wait_for` of Python 3.11 sometimes is one.
    """
    try:
        task = asyncio.current_task()
    except RuntimeError:  # the loop is closed, and the run cancels the task's coroutine without the loop
        raise asyncio.CancelledError from None
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class Provenance:
    """The numbers of one source: one for each item of all its epochs.

    Each item carries only its position. Each epoch has as many numbers as the source has items, or `UNSIZED` if
    that is not known. So a division of the position gives the epoch and the ordinal.
    """

    def __init__(self, size: int | None, name: Callable[[int, int], str] | None) -> None:
        self._size = size or UNSIZED
        self._name = name

    def start(self, epoch: int) -> int:
        """Return the number of the first item of an epoch."""
        return epoch * self._size

    def epoch(self, position: Position) -> int:
        """Return the epoch of an item. For a group, this is the epoch of its first member."""
        return first_number(position) // self._size

    def epochs(self, positions: Positions) -> tuple[int, ...] | None:
        """Return the epochs of several items. None if all are of one."""
        some = (positions[0], positions[-1]) if isinstance(positions, range) else positions
        if len({self.epoch(each) for each in some}) < 2:
            return None
        return tuple(map(self.epoch, positions))

    def ordinal(self, position: Position) -> Position:
        """Return the place of an item in its epoch."""
        return in_epoch(position, self._size)

    def name(self, position: Position) -> str:
        """Return the name of the item at this position."""
        return name(position, self._name_number)

    def _name_number(self, number: int) -> str:
        epoch, place = divmod(number, self._size)
        return self._name(epoch, place) if self._name else f"number {place}"

    def failure(self, error: BaseException, stage: str, position: Position, item: Any = None) -> Failure:
        """Return the `Failure` of an item, and add it to the exception as a note."""
        if isinstance(error, MemberError):
            if error.member is not None:
                position, item = member(position, error.member), item[error.member]
            elif isinstance(item, list | FileSpan):
                item = None  # the position names the first and the last file
            stage, error = error.stage, error.error
        if isinstance(error, _CONTROL):
            # Raised as it is, it would end the consumer's loop or task silently. PEP 479 wraps it in the same way.
            cause, error = error, RuntimeError(f"{stage} raised {type(error).__name__}: catch it in the function")
            error.__cause__ = cause
        files = find_files(item)
        key = ", ".join(files) if files else self.name(position)
        failure = Failure(
            error, stage, key, self.ordinal(position), self.epoch(position), traceback=error.__traceback__
        )
        note(error, failure.note())
        if isinstance(error, ValueError) and "read-only" in str(error):
            note(
                error, "asyncfeed: rows of an array are views of your data; write item.copy() and change the copy"
            )
        return failure


class ItemPlace:
    """The `Place` of one item, for functions that need it. Epoch, ordinal and name are computed when asked for."""

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

    def member(self, number: int) -> ItemPlace:
        """Return the place of a member of a batch."""
        return ItemPlace(self._provenance, member(self._position, number))

    def epochs(self) -> tuple[int, ...] | None:
        """Return the epochs of the members of a batch. None if all are of one."""
        return self._provenance.epochs(parts(self._position))

    def name(self, number: int | None = None) -> str:
        """Return the name of the item, or of the member with this number in a batch."""
        return self._provenance.name(self._position if number is None else member(self._position, number))
