"""`interleave`: sends the elements of several items, in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from asyncfeed.attempts.skip import OnError, skip_of
from asyncfeed.axes import Axes, Unknown
from asyncfeed.errors import PipelineError
from asyncfeed.formats.base import in_groups
from asyncfeed.formats.records import RecordDecoder
from asyncfeed.functions.checks import check_policy, is_async
from asyncfeed.stages.base import Node, check_count
from asyncfeed.stages.steps import Turns, Work

AHEAD = 2
"""Number of items that are opened before their turn. More would hold more elements in memory."""


@dataclass(frozen=True)
class Interleave(Node):
    """Calls `fn(item)` for `cycle` items at a time, and sends `block` elements of each in turn."""

    fn: Callable[..., Any]
    cycle: int = 4
    block: int = 1
    on_error: OnError = "raise"
    skip_limit: float | None = None

    method: ClassVar[str] = "interleave"
    positional: ClassVar[tuple[str, ...]] = ("fn",)
    functions: ClassVar[tuple[str, ...]] = ("fn",)
    tuning: ClassVar[tuple[str, ...]] = ("skip_limit",)
    makes_items: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise PipelineError(f"interleave: the function must be callable, not {self.fn!r}")
        if isinstance(self.fn, RecordDecoder) and self.fn.indexed is not False:
            raise PipelineError(
                "interleave: it mixes streams, so indexed= has no use here: leave it out, or write "
                f"flat_map({self.fn!r}).shuffle()"
            )
        check_count("interleave", "cycle", self.cycle, 1)
        check_count("interleave", "block", self.block, 1)
        check_policy("interleave", "auto", self.on_error, self.skip_limit)

    def steps(self) -> Sequence[Work]:
        """Return one step.

        The step makes one call for each item. Up to `cycle` items are open, and `AHEAD` more are opened ahead.
        """
        groups = in_groups(self.fn)
        fn = groups or self.fn
        return [
            Work(
                fn,
                "async" if is_async(fn) else "thread",
                shape="flat",
                grouped=groups is not None,
                concurrency=self.cycle + AHEAD,
                turns=Turns(self.cycle, self.block),
                skip=skip_of(self.on_error, self.skip_limit),
            )
        ]

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return `Unknown`: the function decides the elements."""
        return Unknown()
