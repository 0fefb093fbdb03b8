"""How many requests one store gets at a time: fewer after it was asked too much. Decided without a clock."""

from __future__ import annotations

from typing import Final

MAX_REQUESTS: Final = 256
"""Most requests that a reader has under way. At 30 ms each, 256 are some 8,000 small objects a second, and a store
gives fewer below one prefix. Each request takes a socket. How many are needed is found while the run goes on."""
THROTTLED_FACTOR: Final = 0.92
"""The number of requests is multiplied by this after an answer that says "too many". A lower factor leaves more of
the store unused, a higher one needs more such answers until the number is right."""
FIRST: Final = 32
"""The number at first. While nothing is refused it doubles in the time of a request, and then again."""
GROWTH: Final = 0.25
"""By how much the number grows while as many requests are answered as are under way, after it was lowered. With
more, a store that allows few requests refuses many of them."""
FASTER: Final = 0.1
"""By which share that growth grows in the same time: a store that allows more again is soon used again."""
MAX_BYTES: Final = 256 << 20
"""Most bytes that the requests under way may bring together. A store sends 50 to 90 MB a second for each request.
So 32 requests of 8 MB fill a line of 20 Gbit/s. More bytes only take more memory."""


class Window:
    """The number of requests of one store that may be under way, between 1 and `most`.

    Additive increase, multiplicative decrease, as TCP does it. "Too many requests" is its lost packet. Invariants:

    * Of the requests that were under way at the same time, only one answer lowers the number.
    * A request is allowed if no other one is under way.
    """

    def __init__(self, most: int, first: int = FIRST) -> None:
        self.most = most
        self._limit = float(min(most, first))
        self._growth = self._limit
        """By how much the number grows while as many requests are answered as are under way."""
        self.under_way = 0
        """Number of requests that are under way."""
        self._bytes = 0
        self._begun = 0
        """Number of requests that have begun."""
        self._lowered_at = 0
        """How many had begun when the number was last lowered."""

    @property
    def limit(self) -> int:
        """Number of requests that may be under way."""
        return int(self._limit)

    @property
    def is_open(self) -> bool:
        """Whether one more request may begin."""
        under_way = self.under_way
        return not under_way or (under_way < self._limit and self._bytes < MAX_BYTES)

    def begin(self, nbytes: int) -> int:
        """Count a request of about `nbytes`. Return its number."""
        self.under_way += 1
        self._bytes += nbytes
        self._begun += 1
        return self._begun

    def end(self, nbytes: int) -> None:
        """Count a request no more."""
        self.under_way -= 1
        self._bytes -= nbytes

    def grow(self) -> None:
        """Note that a request was answered."""
        if self._limit < self.most:
            self._limit = min(float(self.most), self._limit + self._growth / self._limit)
            self._growth *= 1 + FASTER / self._limit

    def shrink(self, number: int) -> None:
        """Note that the store says to request `number` that it gets too many."""
        if number > self._lowered_at:
            self._lowered_at = self._begun
            at_work = min(self._limit, self.under_way + 1.0)  # it was this many that were too many
            self._limit = max(1.0, THROTTLED_FACTOR * at_work)
            self._growth = GROWTH
