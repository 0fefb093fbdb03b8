"""Iterates on threads over a sync iterable that a function of a `flat_map` has returned."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from contextvars import Context, copy_context
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any

from asyncfeed.engine.closing import complain
from asyncfeed.engine.constants import GROUP_SECONDS
from asyncfeed.trees import SMALL_KINDS, size_of


class ThreadedIterator:
    """Draws from an iterable on threads, a group of items at a time."""

    def __init__(
        self, iterable: Iterable[Any], name: str, loop: asyncio.AbstractEventLoop, max_bytes: int
    ) -> None:
        self._iterable = iterable
        self._max_bytes = max_bytes
        """A group ends when its items weigh more than this."""
        self._name = name
        self._loop = loop
        self._iterator: Iterator[Any] | None = None
        self._context: Context | None = None
        self._lock = threading.Lock()
        self._on_thread = False
        """Whether a thread draws now. It then has the context, which two threads cannot have at a time."""
        self._stopped = False
        self.ended = False
        """Whether there are no more items."""
        self.error: BaseException | None = None

    def draw(self, most: int) -> tuple[list[Any], float]:
        """Draw up to `most` items, fewer if they are slow or large. Return them, and the seconds it took.

        This is called on a thread.
        """
        with self._lock:
            if self._stopped:
                return [], 0.0
            self._on_thread = True
        if self._context is None:
            # All threads use one context, so a generator finds the context variables that it has set.
            self._context = copy_context()
        drawn = self._context.run(self._draw, most)
        with self._lock:
            self._on_thread = False
            stopped = self._stopped
        if stopped:
            self._context.run(self._close)
        return drawn

    def _draw(self, most: int) -> tuple[list[Any], float]:
        started = perf_counter()
        room = self._max_bytes
        children: list[Any] = []
        try:
            if self._iterator is None:
                self._iterator = iter(self._iterable)
            for child in islice(self._iterator, most):
                children.append(child)
                if type(child) not in SMALL_KINDS:
                    room -= size_of(child)
                if room < 0 or perf_counter() - started > GROUP_SECONDS:
                    break
            else:
                self.ended = len(children) < most
        except BaseException as error:  # noqa: BLE001 - the items before the error are sent first
            self.error = error
            self.ended = True
        return children, perf_counter() - started

    def stop(self, submit: Callable[[str, Callable[[], None]], object]) -> None:
        """Close the iterator if it has not ended: on the thread that draws from it now, or on another one."""
        with self._lock:
            self._stopped = True
            on_thread = self._on_thread
        if not on_thread and not self.ended and hasattr(self._iterator, "close"):
            close: Callable[[], None] = (
                self._close if self._context is None else partial(self._context.run, self._close)
            )
            try:
                submit(f"closing {self._name}", close)
            except RuntimeError:  # the loop is closed, or the interpreter is ending: there are no threads
                close()

    def _close(self) -> None:
        close = getattr(self._iterator, "close", None)
        if close is None or self.ended:
            return
        try:
            close()
        except BaseException as error:  # noqa: BLE001 - no consumer is left to get it
            complain(self._loop, self._name, error)
