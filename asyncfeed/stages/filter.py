"""`filter`: keeps the items for which a function returns a true value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from asyncfeed.attempts.skip import OnError, skip_of
from asyncfeed.axes import Axes
from asyncfeed.functions.checks import check_fn, check_policy, is_async
from asyncfeed.stages.base import Node
from asyncfeed.stages.steps import Concurrency, Work


@dataclass(frozen=True)
class Filter(Node):
    """Calls `fn(item)`, sync (on threads) or async (on the loop), and keeps the item if the result is true."""

    method = "filter"
    positional = ("fn",)
    functions = ("fn",)
    tuning = ("concurrency", "skip_limit")

    fn: Callable[..., Any]
    concurrency: Concurrency = "auto"
    ordered: bool = True
    on_error: OnError = "raise"
    skip_limit: float | None = None

    def __post_init__(self) -> None:
        check_fn(self.method, self.fn)
        check_policy(self.method, self.concurrency, self.on_error, self.skip_limit)

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return `upstream`: the items stay as they are."""
        return upstream

    def steps(self) -> Sequence[Work]:
        """Return one step, which calls the function for each item."""
        return [
            Work(
                self.fn,
                "async" if is_async(self.fn) else "thread",
                shape="filter",
                concurrency=self.concurrency,
                ordered=self.ordered,
                skip=skip_of(self.on_error, self.skip_limit),
            )
        ]
