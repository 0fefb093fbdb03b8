"""`flat_map`: replaces each item by the elements that a function returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from asyncfeed.attempts.skip import OnError, skip_of
from asyncfeed.axes import Axes, Unknown
from asyncfeed.errors import PipelineError
from asyncfeed.formats.base import in_groups
from asyncfeed.functions.checks import check_policy, is_async
from asyncfeed.stages.base import Node
from asyncfeed.stages.steps import Concurrency, Work


@dataclass(frozen=True)
class FlatMap(Node):
    """Calls `fn(item)` and sends the elements that it returns or yields, one by one.

    The function is sync (on threads) and returns an iterable, or async (on the loop) and returns an iterable
    or is an async generator.
    """

    method = "flat_map"
    positional = ("fn",)
    makes_items = True

    fn: Callable[..., Any]
    concurrency: Concurrency = "auto"
    ordered: bool = True
    on_error: OnError = "raise"
    skip_limit: float | None = None

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise PipelineError(f"flat_map: the function must be callable, not {self.fn!r}")
        check_policy(self.method, self.concurrency, self.on_error, self.skip_limit)

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return `Unknown`: the function decides the elements."""
        return Unknown()

    def steps(self) -> Sequence[Work]:
        """Return one step, which calls the function for each item."""
        groups = in_groups(self.fn)
        fn = groups or self.fn
        return [
            Work(
                fn,
                "async" if is_async(fn) else "thread",
                shape="flat",
                grouped=groups is not None,
                concurrency=self.concurrency,
                ordered=self.ordered,
                skip=skip_of(self.on_error, self.skip_limit),
            )
        ]
