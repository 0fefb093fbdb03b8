"""Reads again what a store did not give, as a policy says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

from asyncfeed.attempts.retry import Retry
from asyncfeed.errors import Corrupt, FailedAttempt, Unavailable, tell_attempts
from asyncfeed.reading.file import Bytes, File
from asyncfeed.reading.reader import AsyncReader, Buffers, Range, value
from asyncfeed.stats import SlowPaths

T = TypeVar("T")

CORRUPT_ATTEMPTS = 2
"""Number of reads of a file that is not as listed. It most likely was written to, and stays as it is."""


class RetryingReader(AsyncReader):
    """Calls another reader, and calls it again for the files that failed in a way that may pass.

    Invariants:

    * An outcome that is a value is never asked for again.
    * A file is read `retry.attempts` times at most, or `throttled.attempts` times if it was refused last. Their
      `seconds` begin with its first failure, because many files may be asked for long before their turns come. The
      files of one call are read again together, after the longest of their delays. Their number only falls.
    * The last error of a file is its outcome. If it is `Unavailable`, it tells of the attempts before it.
    """

    def __init__(
        self, reader: AsyncReader, retry: Retry, again: SlowPaths, *, throttled: Retry | None = None
    ) -> None:
        self._reader = reader
        self._retry = replace(retry, on=(*retry.on, Corrupt))
        self._throttled = throttled or self._retry
        """The same for what a store refuses because it gets too many requests."""
        self._again = again
        """Counts what was read again."""
        self._random = Random()  # noqa: S311 - clients should not come back at the same time; no secret is made of it

    async def open(self) -> None:
        """Open the reader. A failure to open is final: nothing was asked of the store yet."""
        await self._reader.open()

    async def close(self) -> None:
        """Close the reader."""
        await self._reader.close()

    def abandon(self) -> None:
        """Let go of the reader, whose loop is closed."""
        self._reader.abandon()

    async def look(self, files: Sequence[File]) -> list[File | Exception]:
        """Return the files with the size and the version that they have now."""
        return await self._all(len(files), lambda left: self._reader.look([files[at] for at in left]))

    async def read(self, files: Sequence[File]) -> list[Bytes | Exception]:
        """Return whole files."""
        return await self._all(len(files), lambda left: self._reader.read([files[at] for at in left]))

    async def contents(self, files: Sequence[File]) -> list[memoryview | Exception]:
        """Return whole files, in memory that may be read-only."""
        return await self._all(len(files), lambda left: self._reader.contents([files[at] for at in left]))

    async def read_ranges(self, file: File, ranges: Sequence[Range]) -> list[Bytes | Exception]:
        """Return parts of a file."""
        return await self._all(
            len(ranges), lambda left: self._reader.read_ranges(file, [ranges[at] for at in left])
        )

    async def read_into(self, files: Sequence[File], into: Sequence[Buffers]) -> list[Exception | None]:
        """Read whole files into memory that is there."""
        return await self._all(
            len(files), lambda left: self._reader.read_into([files[at] for at in left], [into[at] for at in left])
        )

    async def stream(self, file: File, start: int = 0) -> AsyncGenerator[bytes]:
        """Yield the bytes of a file. After a failure it goes on behind the last byte that came."""
        if file.version is None:  # all attempts must see one version
            file = value(*await self.look((file,)))
        failed = _Failed(_now())
        while True:
            try:
                async with aclosing(self._reader.stream(file, start)) as blocks:
                    async for block in blocks:
                        start += len(block)
                        failed = _Failed(_now())
                        yield block
                return
            except Exception as error:
                delay = self._delay(failed, error)
                if delay is None:
                    failed.tell(error)
                    raise
                failed.add(error)
            await asyncio.sleep(delay)

    async def _all(self, count: int, read: Callable[[Sequence[int]], Awaitable[list[Any]]]) -> list[Any]:
        """Return the outcomes of `count` reads. `read` reads those with these numbers."""
        began = _now()
        outcomes = await read(range(count))
        if not any(isinstance(each, Exception) for each in outcomes):
            return outcomes
        failed = {at: _Failed(began) for at, each in enumerate(outcomes) if isinstance(each, Exception)}
        left = list(failed)
        while True:
            delays = {at: self._delay(failed[at], outcomes[at]) for at in left}
            left = [at for at in left if delays[at] is not None]
            if not left:
                break
            for at in left:
                failed[at].add(outcomes[at])
            await asyncio.sleep(max(delay for delay in delays.values() if delay is not None))
            for at, outcome in zip(left, await read(left), strict=True):
                outcomes[at] = outcome
            left = [at for at in left if isinstance(outcomes[at], Exception)]
        for at, attempts in failed.items():
            if isinstance(outcomes[at], Exception):
                attempts.tell(outcomes[at])
        return outcomes

    def _delay(self, failed: _Failed, error: Exception) -> float | None:
        """Return after how many seconds to read again; None if that is not worth it."""
        if isinstance(error, Corrupt) and not error.transient:
            failed.changed += 1
            if failed.changed == CORRUPT_ATTEMPTS:
                return None
        number = len(failed.attempts) + 1
        kind = error.kind if isinstance(error, Unavailable) else type(error).__name__
        retry = self._throttled if kind == "throttled" else self._retry
        delay = retry.delay(error, number, failed.failing(), self._random.random())
        if delay is not None:
            self._again.note(f"read again after: {kind}")
        return delay


def _now() -> float:
    return asyncio.get_running_loop().time()


class _Failed:
    """The attempts to read one file that failed."""

    def __init__(self, began: float) -> None:
        self.attempts: list[FailedAttempt] = []
        self.changed = 0
        """How many of the reads found a file that is not as listed."""
        self._began = began
        self._failed_at: float | None = None

    def elapsed(self) -> float:
        """Return the seconds since it was asked for."""
        return _now() - self._began

    def failing(self) -> float:
        """Return the seconds since it failed first. Before that, it perhaps waited for other requests."""
        if self._failed_at is None:
            self._failed_at = _now()
        return _now() - self._failed_at

    def add(self, error: Exception) -> None:
        number = len(self.attempts) + 1
        self.attempts.append(FailedAttempt(number, self.elapsed(), f"{type(error).__name__}: {error}"))

    def tell(self, error: Exception) -> None:
        """Let the last error tell of the attempts before it."""
        tell_attempts(error, self.attempts, self.elapsed())
