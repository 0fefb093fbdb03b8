"""How many requests a reader has under way at a time. Decided without a clock."""

from __future__ import annotations

from typing import Final

MAX_REQUESTS: Final = 256
"""Most requests that a reader has under way. At 30 ms each, 256 are some 8,000 small objects a second, and a store
gives fewer below one prefix. Each request takes a socket. How many are needed is found while the run goes on."""
MAX_BYTES: Final = 256 << 20
"""Most bytes that the requests under way may bring together. A store sends 50 to 90 MB a second for each request.
So 32 requests of 8 MB fill a line of 20 Gbit/s. More bytes only take more memory."""


class Window:
    """The requests of one reader that are under way. At most `most` may be, and one always may."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.under_way = 0
        """Number of requests that are under way."""
        self._bytes = 0

    @property
    def is_open(self) -> bool:
        """Whether one more request may begin."""
        under_way = self.under_way
        return not under_way or (under_way < self.most and self._bytes < MAX_BYTES)

    def begin(self, nbytes: int) -> None:
        """Count a request of about `nbytes`."""
        self.under_way += 1
        self._bytes += nbytes

    def end(self, nbytes: int) -> None:
        """Count a request no more."""
        self.under_way -= 1
        self._bytes -= nbytes
