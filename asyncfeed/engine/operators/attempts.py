"""Calls an async function under the policy of its stage: for a limited time, and again if it failed or is slow.

Invariants:

* The worker of an item makes its calls, one after the other. Only a call beside a slow one has a task of its
  own. If one of them returns, the others are cancelled.
* An attempt cancels the worker at most once: at the deadline, or because a call beside it has returned. If the run
  cancels the worker, too, the worker ends.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from asyncfeed.attempts.alarms import Alarms
from asyncfeed.attempts.hedging import Hedging
from asyncfeed.attempts.retry import Policy
from asyncfeed.attempts.watched import Watched
from asyncfeed.engine.operators.step import RunContext
from asyncfeed.errors import FailedAttempt, TimedOut, tell_attempts
from asyncfeed.stats import SlowPaths


class Attempts:
    """Makes the calls of one stage. An item keeps its worker until its last attempt has ended."""

    def __init__(self, policy: Policy, name: str, context: RunContext) -> None:
        self._policy = policy
        self._name = name
        self._context = context
        self._loop = context.loop
        self._again = SlowPaths()
        """Counts the calls that were made again, or beside another."""
        context.slow_paths.append(self._again)
        self._alarms = Alarms(context.loop)
        self._hedging = None if policy.hedge is None else Hedging(policy.hedge)
        self._random = Random()  # noqa: S311 - clients should not come back at the same time; no secret is made of it

    def drop(self) -> None:
        """End the timer."""
        self._alarms.drop()

    async def call(self, fn: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        """Return the result of `fn(*args)`, or raise what the last attempt raised. `args[0]` is the item."""
        began = self._loop.time()
        seconds = math.inf if self._policy.timeout is None else self._policy.timeout
        hedging = self._hedging
        watched = seconds < math.inf or hedging is not None
        failed: list[FailedAttempt] = []
        while True:
            try:
                return await (self._watched(fn, args, seconds, hedging) if watched else fn(*args))
            except Exception as error:
                number, elapsed = len(failed) + 1, self._loop.time() - began
                delay = self._delay(error, number, elapsed)
                if delay is None:
                    tell_attempts(error, failed, elapsed)
                    raise
                failed.append(FailedAttempt(number, elapsed, f"{type(error).__name__}: {error}"))
                self._again.note(f"{self._name}, called again after {type(error).__name__}")
            await asyncio.sleep(delay)

    def _delay(self, error: Exception, attempt: int, elapsed: float) -> float | None:
        retry = self._policy.retry
        return None if retry is None else retry.delay(error, attempt, elapsed, self._random.random())

    async def _watched(
        self, fn: Callable[..., Awaitable[Any]], args: tuple[Any, ...], seconds: float, hedging: Hedging | None
    ) -> Any:
        """Await one call: until its deadline, or until one beside it has returned."""
        attempt = _Attempt(self._alarms, seconds, hedging, lambda each: self._call_beside(each, fn, args))
        try:
            result = await fn(*args)
        except asyncio.CancelledError:
            if not attempt.end():
                raise
            if attempt.is_late:
                raise TimedOut(f"no result within {seconds:.3g} s", kind="timeout") from None
            result = attempt.result
        finally:
            attempt.end()
            self._alarms.unset(attempt)
            for each in attempt.beside:
                self._context.cancel_task(each)
        attempt.returned()
        return result

    def _call_beside(
        self, attempt: _Attempt, fn: Callable[..., Awaitable[Any]], args: tuple[Any, ...]
    ) -> asyncio.Task[None]:
        """Begin a call beside another, and return its task. If it fails, the first one goes on."""

        async def call() -> None:
            try:
                result = await fn(*args)
            except Exception:  # noqa: BLE001 - the first call fails as well, or returns
                return
            attempt.end_with(result)

        self._again.note(f"{self._name}, called once more beside a slow call")
        return self._context.start(call(), f"asyncfeed {self._name}: call beside a slow one")


class _Attempt(Watched):
    """One call, awaited by the current task."""

    __slots__ = ("_begin_beside", "_cancelled", "_cancelling", "_ended", "_task", "beside", "result")

    def __init__(
        self,
        alarms: Alarms,
        seconds: float,
        hedging: Hedging | None,
        begin_beside: Callable[[_Attempt], asyncio.Task[None]],
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        """How many times others had cancelled the task when the call began."""
        self._begin_beside = begin_beside
        self.beside: list[asyncio.Task[None]] = []
        """The tasks of the calls beside it."""
        self.result: Any = None
        """What one of them returned."""
        self._cancelled = False
        """Whether this attempt has cancelled the task."""
        self._ended = False
        self.watch(alarms, seconds, hedging)

    def cancel(self) -> None:
        """Cancel the call, by its task."""
        self._cancelled = True
        self._task.cancel()

    def begin_beside(self) -> None:
        """Make the call once more, in a task of its own."""
        self.beside.append(self._begin_beside(self))

    def end_with(self, result: Any) -> None:
        """End the call with the result of one beside it, unless it has just ended."""
        if not self._ended and not self._cancelled:
            self.result = result
            self.cancel()

    def end(self) -> bool:
        """End it. Return whether the task was cancelled by this attempt, and by nothing else."""
        if self._ended:
            return False
        self._ended = True
        return self._cancelled and self._task.uncancel() <= self._cancelling
