"""How many failed items may be left out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from asyncfeed.errors import Failure, PipelineError


@dataclass(frozen=True, repr=False)
class Skip:
    """Leaves failed items out, within limits that count over the whole run, all epochs together.

    If a later `take`, `zip(strict=False)` or `mix(stop="first")` may end epochs early, each epoch is counted by
    itself. How far was read ahead depends on time, so what fails there must not count.

    Args:
        max_count: Number of items that may be left out.
        max_rate: Share of the items so far that may be left out, between 0 and 1.

    Raises:
        PipelineError: No limit is given, or one is out of range.

    Example:
        >>> import asyncfeed as af
        >>> list(af.items([1, 0, 2]).map(lambda x: 2 // x, on_error=af.Skip(max_count=1)))
        [2, 1]
    """

    max_count: int | None = None
    max_rate: float | None = None

    def __post_init__(self) -> None:
        count, rate = self.max_count, self.max_rate
        if count is None and rate is None:
            raise PipelineError("Skip: give max_count, max_rate, or both")
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            raise PipelineError(f"Skip: max_count must be a whole number of at least 1, not {count!r}")
        if rate is not None and (not isinstance(rate, float) or not 0 < rate < 1):
            raise PipelineError(f"Skip: max_rate must be a number between 0 and 1, not {rate!r}")

    def allows(self, left_out: int, seen: int) -> bool:
        """Return whether `left_out` items may be left out, beside `seen` good ones."""
        if self.max_count is not None and left_out > self.max_count:
            return False
        return self.max_rate is None or left_out <= math.ceil(self.max_rate * (seen + left_out))

    def __repr__(self) -> str:
        given = {"max_count": self.max_count, "max_rate": self.max_rate}
        words = (f"{name}={value!r}" for name, value in given.items() if value is not None)
        return f"Skip({', '.join(words)})"


OnError = Literal["raise", "skip"] | Skip | Callable[[Failure], bool]
"""What becomes of items that fail: the run ends, or they are left out within limits, or a function decides."""


def skip_of(on_error: OnError, skip_limit: float | None) -> Skip | Callable[[Failure], bool] | None:
    """Return what decides whether a failed item is left out; None if none is."""
    if on_error == "raise":
        return None
    if on_error != "skip":
        return on_error
    limit = skip_limit or 0
    return _SkipLimit(max_count=int(limit)) if limit >= 1 else _SkipLimit(max_rate=float(limit))


class _SkipLimit(Skip):
    """A limit that was written as `skip_limit`."""

    def __repr__(self) -> str:
        return f"skip_limit={self.max_rate if self.max_count is None else self.max_count}"
