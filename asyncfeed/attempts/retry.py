"""When a call that failed is made again: decided without a clock."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Final, Literal

from asyncfeed.errors import PipelineError, Unavailable

Hedge = float | Literal["auto"] | None
"""After how many seconds a slow call is made a second time; "auto" finds it."""

TRANSIENT = (Unavailable, ConnectionError, TimeoutError)
"""What is worth another attempt if nothing else is said: the same call may succeed later."""


@dataclass(frozen=True, repr=False)
class Retry:
    """How many times, and when, a call that failed is made again.

    The delay before attempt n is a random share of `first_delay * 2**(n - 2)`, and of `max_delay` at most. So many
    clients that failed together do not come back together.

    Args:
        attempts: Number of calls for one item, the first one included. At least 1.
        seconds: Time since the first call began after which no further attempt begins.
        first_delay: Longest delay before the second attempt, in seconds.
        max_delay: Longest delay before any attempt, in seconds.
        on: Types of exceptions that are worth another attempt. Any other exception is raised at once.

    Raises:
        PipelineError: A value is out of range.

    Example:
        >>> import asyncfeed as af
        >>> calls = []
        >>> async def fetch(x):
        ...     calls.append(x)
        ...     if len(calls) == 1:
        ...         raise ConnectionError("reset")
        ...     return x
        >>> list(af.items([7]).map(fetch, retry=af.Retry(first_delay=0.001)))
        [7]
        >>> calls
        [7, 7]

    The delays are "full jitter" as in AWS' article "Exponential Backoff And Jitter".
    """

    attempts: int = 6
    seconds: float = 60.0
    first_delay: float = 0.1
    max_delay: float = 5.0
    on: tuple[type[BaseException], ...] = TRANSIENT

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 1:
            raise PipelineError(f"Retry: attempts must be a whole number of at least 1, not {self.attempts!r}")
        for name in ("seconds", "first_delay", "max_delay"):
            check_seconds("Retry", name, getattr(self, name))
        on = self.on
        if not isinstance(on, tuple) or not all(isinstance(e, type) and issubclass(e, Exception) for e in on):
            raise PipelineError(f"Retry: on must be a tuple of exception types, as in on=(OSError,), not {on!r}")

    def __repr__(self) -> str:
        """Return the call that makes it, with what differs from the defaults."""
        words = []
        for each in fields(self):
            value = getattr(self, each.name)
            if value != each.default:
                shown = f"({', '.join(kind.__name__ for kind in value)},)" if each.name == "on" else repr(value)
                words.append(f"{each.name}={shown}")
        return f"Retry({', '.join(words)})"

    def delay(self, error: BaseException, attempt: int, elapsed: float, share: float) -> float | None:
        """Return for how many seconds to wait before the next attempt; None if there is none.

        Args:
            error: What attempt number `attempt` raised.
            attempt: Number of the attempt that failed, counted from 1.
            elapsed: Seconds since the first attempt began.
            share: A random number between 0 and 1.
        """
        if not isinstance(error, self.on) or attempt >= self.attempts:
            return None
        longest = min(self.max_delay, self.first_delay * 2 ** min(attempt - 1, 60))
        delay = max(share * longest, getattr(error, "retry_after", None) or 0.0)
        return delay if elapsed + delay <= self.seconds else None


@dataclass(frozen=True, slots=True)
class Policy:
    """How the async calls of a stage are made: how long each may take, and when it is made again."""

    retry: Retry | None = None
    throttled: Retry | None = None
    """How a call is made again if too many were made. None is as `retry` says."""
    timeout: float | None = None
    """Seconds that an attempt may take; None for any time."""
    hedge: Hedge = None
    """After how many seconds an item whose call has not returned is called once more."""
    hedged_bytes: int = 1 << 20
    """The largest result, as far as `cost` tells, that is worth a call beside a slow one."""
    bytes_per_second: float = math.inf
    """How fast a result must come at least: an attempt may take longer for a large one."""

    def seconds(self, nbytes: int) -> float:
        """Return how many seconds an attempt may take that brings so many bytes."""
        return math.inf if self.timeout is None else self.timeout + nbytes / self.bytes_per_second


AUTO: Final = "auto"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a `load` wants of the reads of its files. "auto" leaves it to the store."""

    retry: Retry | Literal["auto"] | None = AUTO
    timeout: float | Literal["auto"] | None = AUTO
    hedge: Hedge = AUTO

    def check(self, stage: str) -> None:
        """Raise if a value is not valid."""
        retry = None if self.retry == AUTO else self.retry
        timeout = None if self.timeout == AUTO else self.timeout
        policy(stage, retry, timeout, self.hedge, waits=True)

    def over(self, store: Policy) -> Policy:
        """Return the policy of a store, with what is wanted in its place."""
        return replace(
            store,
            retry=store.retry if self.retry == AUTO else self.retry,
            throttled=store.throttled if self.retry == AUTO else None,
            timeout=store.timeout if self.timeout == AUTO else self.timeout,
            hedge=store.hedge if self.hedge == AUTO else self.hedge,
        )


def policy(stage: str, retry: Retry | None, timeout: float | None, hedge: Hedge, *, waits: bool) -> Policy | None:
    """Return the policy for the options of a stage, None if there are none; raise if they are not valid.

    `waits` says whether the function is async.
    """
    if retry is not None and not isinstance(retry, Retry):
        raise PipelineError(f"{stage}: retry must be an asyncfeed.Retry(...) or None, not {retry!r}")
    if timeout is not None:
        check_seconds(stage, "timeout", timeout)
    if hedge is not None and hedge != "auto":
        check_seconds(stage, "hedge", hedge, or_else=', or "auto",')
    options = {"retry": retry, "timeout": timeout, "hedge": hedge}
    given = [name for name, value in options.items() if value is not None]
    if not given:
        return None
    if not waits:
        raise PipelineError(
            f"{stage}: {given[0]} is for async functions: a call on a thread cannot be cancelled. Write the "
            "function as async, or put the attempts into it"
        )
    return Policy(retry, timeout=timeout, hedge=hedge)


def check_seconds(stage: str, name: str, value: object, *, or_else: str = ",") -> None:
    """Raise if `value` is not a positive number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise PipelineError(f"{stage}: {name} must be a number of seconds above 0{or_else} not {value!r}")
