"""A thread that takes batches from a feed and puts them into a queue of another framework."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Pump:
    """Calls `put(batch)` for each batch, and then `done(error)`, on a daemon thread.

    `put` may block outside Python. `error` is None at the end of the batches, or the exception of taking or
    putting a batch. `done` is the last call on the thread, so it must not raise. The thread ends when the batches
    end. To end it earlier, stop the feed, and make a blocked `put` raise.
    """

    def __init__(
        self,
        name: str,
        batches: Iterator[Any],
        put: Callable[[Any], None],
        done: Callable[[BaseException | None], None],
    ) -> None:
        self._batches = batches
        self._put = put
        self._done = done
        self.thread = threading.Thread(target=self._drive, name=name, daemon=True)
        self.thread.start()

    def _drive(self) -> None:
        error: BaseException | None = None
        try:
            for batch in self._batches:
                self._put(batch)
                del batch  # free it before the wait for the next batch
        except BaseException as raised:  # noqa: BLE001 - `done` gets it
            error = raised
        try:
            self._done(error)
        finally:
            del error, self._batches, self._put, self._done
