"""How many requests a second a store gets once it has refused some.

A store says "too many" by an error (429, 503), and nothing else tells its limit. So the rate is lowered after such
an answer, and raised while there is none, first slowly and then faster and faster. A request that must wait gets a
time at which it begins. So nothing that waits needs another reader to wake it.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from typing import Final

LOWERED_FACTOR: Final = 0.92
"""After a refusal the rate is multiplied by this. A lower factor leaves more of the store unused, a higher one
needs more refusals until the rate is right."""
LEAST_FACTOR: Final = 0.5
"""It is lowered further if the first request after that is refused, too. The answers to those before tell what
the store takes. They are few, so it is by no less than this."""
TOLERATED: Final = 0.02
"""This share of refusals lowers nothing."""
CALM_SECONDS: Final = 1.0
CALM_PERIODS: Final = 3
CALM_REQUESTS: Final = 16
CALM_FACTOR: Final = 2.0
"""Some stores refuse a few requests whatever the rate is. So more is tolerated if requests are refused soon after
the rate was lowered, each of the last times: the smallest of these shares, times this factor. A time counts if so
many requests began in it."""
MOST_TOLERATED: Final = 0.2
WEIGHT: Final = 1 / 64
"""How much of the share of refusals is due to the last answer."""
GROWTH: Final = 0.01
GROWTH_SECONDS: Final = 0.9
"""After t seconds the rate has grown by `GROWTH` * (exp(t / `GROWTH_SECONDS`) - 1) times what it was. So a limit
is tried again after two seconds, and a store that allows four times as much is used after five."""
RETURN_FACTOR: Final = 8
"""It grows so many times as fast while it is less than half of what it was before refusals began. So a store that
refused everything for a while is used again two seconds later."""
FREE_FACTOR: Final = 10.0
"""Nothing waits any more if the rate is so many times what is asked for."""
LEAST: Final = 5.0
"""Requests a second that a store gets at least, however many it refuses."""
MEASURED: Final = 64
"""Number of requests from whose times the rate is measured."""
SLACK_SECONDS: Final = 0.01
"""A request that comes too late for its time, because the loop was busy, takes this much from the next ones."""
AHEAD_SECONDS: Final = 0.25
"""A time that is farther away is not given: until then the rate may be another one."""
NO_TICKET: Final = -1


class Answers:
    """What a store has said to the last requests. Threads may lose some of it."""

    __slots__ = ("_calm", "_calm_refused", "_calm_shares", "_share", "answered", "refused")

    def __init__(self) -> None:
        self.answered = self.refused = 0
        """Their numbers since the rate was lowered."""
        self._calm = self._calm_refused = 0
        """Number of requests that began soon after that, and how many of them were refused."""
        self._calm_shares: deque[float] = deque(maxlen=CALM_PERIODS)
        """The shares of refusals of them, the last times that the rate was lowered."""
        self._share = 0.0
        """The share of refusals, of late."""

    def note_answer(self, *, calm: bool) -> None:
        """Note that the store has answered a request. It is `calm` if it began soon after the rate was lowered."""
        self.answered += 1
        self._calm += calm
        self._share *= 1 - WEIGHT

    def note_refusal(self, *, calm: bool) -> None:
        """Note that it has refused one."""
        self.refused += 1
        self._calm += calm
        self._calm_refused += calm
        self._share += WEIGHT * (1 - self._share)

    @property
    def are_bad(self) -> bool:
        """Whether more requests are refused than at a lower rate."""
        usual = min(self._calm_shares) if len(self._calm_shares) == CALM_PERIODS else 0.0
        return self._share > min(MOST_TOLERATED, TOLERATED + CALM_FACTOR * usual)

    def take_share(self) -> float:
        """Return the share that was answered since the rate was lowered, and begin anew."""
        share = self.answered / (self.answered + self.refused)
        if self._calm >= CALM_REQUESTS:
            self._calm_shares.append(self._calm_refused / self._calm)
        self.answered = self.refused = self._calm = self._calm_refused = 0
        return share


class Pace:
    """The rate of all requests of a store, whichever feeds make them. Any thread may use it.

    Of the requests that were under way at the same time, only one refusal lowers the rate.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        """Reentrant, because the garbage collector may end a run of a closed loop on a thread that has it."""
        self.rate = math.inf
        """Requests a second. Infinite if none need to wait."""
        self._lowered = -math.inf
        """When the rate was lowered last."""
        self._times_lowered = 0
        self._base = self._before = self._known = math.inf
        """The rate after that, before that, and the last one at which some were refused and others answered."""
        self._answers = Answers()
        self._next = -math.inf
        """When the next request may begin."""
        self._begun: deque[float] = deque(maxlen=MEASURED)
        """When the last requests began."""

    @property
    def holds(self) -> bool:
        """Whether requests need a time at which they begin."""
        return self.rate < math.inf

    def ask(self, now: float) -> tuple[float, int]:
        """Return after how many seconds to go on, and a ticket for `admits`."""
        with self._lock:
            self._grow(now)
            if not self.holds:
                return 0.0, self._times_lowered
            at = max(self._next, now - SLACK_SECONDS)
            if at - now > AHEAD_SECONDS:
                return AHEAD_SECONDS, NO_TICKET
            self._next = at + 1 / self.rate
            return max(0.0, at - now), self._times_lowered

    def admits(self, ticket: int) -> bool:
        """Return whether a request may begin, after that time. Else ask again: the rate may have been lowered."""
        return ticket == self._times_lowered or not self.holds

    def note_begin(self, now: float) -> None:
        """Note that a request begins."""
        self._begun.append(now)

    def note_answer(self, began: float) -> None:
        """Note that the store has answered a request that began at that time."""
        self._answers.note_answer(calm=began - self._lowered <= CALM_SECONDS)

    def note_refusal(self, began: float, now: float) -> None:
        """Note that the store has refused such a request."""
        with self._lock:
            after = began - self._lowered
            follows = after <= now - began
            self._answers.note_refusal(calm=not follows and after <= CALM_SECONDS)
            if after <= 0 or not self._answers.are_bad:
                return
            self._grow(now)
            used = self._measured(now)
            if self.holds:  # what was used for a moment says little, if readers waited for something else
                used = min(self.rate, max(used, self._base))
            if self.holds and self._answers.answered and not follows:
                self._known = used
            lowered, share = LOWERED_FACTOR * used, self._answers.take_share()
            if follows:  # what was answered since then has begun before
                lowered = min(lowered, max(LEAST_FACTOR * used, share * self._before))
            self._before = used
            self._base = self.rate = max(LEAST, lowered)
            self._lowered = now
            self._next = now + 1 / self.rate  # at once, it would be refused, too
            self._times_lowered += 1

    def _grow(self, now: float) -> None:
        if not self.holds:
            return
        seconds, base, half = max(0.0, now - self._lowered), self._base, self._known / 2
        if base < half < math.inf:
            quick = _seconds_to_grow(half / base) / RETURN_FACTOR
            if seconds < quick:
                self.rate = base * _grown(seconds * RETURN_FACTOR)
                return
            seconds, base = seconds - quick, half
        self.rate = base * _grown(seconds)
        if self.rate > FREE_FACTOR * max(LEAST, self._measured(now)):
            self.rate = math.inf

    def _measured(self, now: float) -> float:
        """Return how many requests a second have begun of late."""
        begun = tuple(self._begun)
        return len(begun) / max(1e-3, now - begun[0]) if begun else 0.0


def _grown(seconds: float) -> float:
    """Return how many times as much a rate is after so many seconds."""
    return 1 + GROWTH * (math.exp(min(100.0, seconds / GROWTH_SECONDS)) - 1)  # not more, or it overflows


def _seconds_to_grow(times: float) -> float:
    """Return after how many seconds a rate is so many times as much."""
    return GROWTH_SECONDS * math.log(1 + (times - 1) / GROWTH)
