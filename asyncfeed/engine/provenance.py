"""Where items come from: the ordinal of an item tells its epoch, its place in it, and its name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from asyncfeed.errors import Failure, note
from asyncfeed.stages.steps import MemberError
from asyncfeed.trees import find_files

_CONTROL = (StopIteration, StopAsyncIteration, asyncio.CancelledError, GeneratorExit)
"""What Python takes for the end of a loop or a task: an item's error must not pass for that."""
UNSIZED = 1 << 48
"""How many ordinals an epoch has if the number of its items is not known: more than anybody can read."""


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
    """The places of one source: one number for each item of all its epochs, and the way back from it.

    Items carry one number each, which all else is derived from. Each epoch has as many numbers as the source has
    items, or `UNSIZED` if that is not known, so a division finds the epoch.
    """

    def __init__(self, size: int | None, name: Callable[[int, int], str] | None) -> None:
        self._size = size or UNSIZED
        self._name = name

    def start(self, epoch: int) -> int:
        """Return the ordinal of the first item of an epoch."""
        return epoch * self._size

    def locate(self, ordinal: Any) -> tuple[int, Any]:
        """Return the epoch of an item and its ordinal within it."""
        if type(ordinal) is int:
            return divmod(ordinal, self._size)
        if isinstance(ordinal, tuple):  # (the parent's ordinal, the child's): out of a flat_map
            epoch, place = self.locate(ordinal[0])
            return epoch, (place, *ordinal[1:])
        if isinstance(ordinal, Sequence):  # a batch: its members' ordinals
            places = [self.locate(member) for member in ordinal]
            return (places[0][0], [place for _, place in places]) if places else (0, [])
        epoch, place = divmod(ordinal, self._size)
        return epoch, place

    def name(self, ordinal: Any) -> str:
        """Return what the item of this ordinal is called."""
        if isinstance(ordinal, tuple):
            return f"{self.name(ordinal[0])}[{ordinal[1]}]"
        if isinstance(ordinal, Sequence):
            return f"batch of {self.name(ordinal[0])} to {self.name(ordinal[-1])}" if ordinal else "empty batch"
        epoch, place = self.locate(ordinal)
        return self._name(epoch, place) if self._name else f"number {place}"

    def failure(self, error: BaseException, stage: str, ordinal: Any, item: Any = None) -> Failure:
        """Return what is known about a failed item, and note it on the exception."""
        if isinstance(error, MemberError):
            member, stage, error = error.member, error.stage, error.error
            ordinal, item = ordinal[member], item[member]
        if isinstance(error, _CONTROL):
            # As itself it would end the consumer's loop or task in silence; PEP 479 does the same.
            cause, error = error, RuntimeError(f"{stage} raised {type(error).__name__} of its own")
            error.__cause__ = cause
        files = find_files(item)
        epoch, place = self.locate(ordinal)
        key = ", ".join(files) if files else self.name(ordinal)
        failure = Failure(error, stage, key, place, epoch, traceback=error.__traceback__)
        note(error, failure.note())
        return failure


class ItemPlace:
    """Where one item stands, for functions that ask: a `Place`. Nothing is worked out before it is asked."""

    __slots__ = ("_ordinal", "_provenance")

    def __init__(self, provenance: Provenance, ordinal: Any) -> None:
        self._provenance = provenance
        self._ordinal = ordinal

    @property
    def epoch(self) -> int:
        """The epoch of the item, counted from 0."""
        return self._provenance.locate(self._ordinal)[0]

    @property
    def ordinal(self) -> Any:
        """The place of the item in its epoch."""
        return self._provenance.locate(self._ordinal)[1]

    def name(self, member: int | None = None) -> str:
        """Return what the item is called or, for a batch, what its `member` is called."""
        return self._provenance.name(self._ordinal if member is None else self._ordinal[member])
