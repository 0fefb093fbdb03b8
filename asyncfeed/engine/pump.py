"""A thread that takes batches out of a feed and puts them where another framework waits for them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Pump:
    """Calls `put(batch)` for each batch, on a daemon thread of its own, then `done(error)`.

    `put` may block outside Python. `done` gets None at the end of the batches, or else what taking or putting
    one raised; it runs on the thread and is the last thing there, so it must not raise. The thread ends when
    the batches do, so whoever has no more use for it stops the feed, and makes a `put` that blocks raise.
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
                del batch  # not to be held while the next one is waited for
        except BaseException as raised:  # noqa: BLE001 - it is handed on, whatever it is
            error = raised
        try:
            self._done(error)
        finally:
            del error, self._batches, self._put, self._done
