"""`map`: replaces each item by the result of a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from asyncfeed.attempts.retry import Hedge, Policy, Retry, policy
from asyncfeed.attempts.skip import OnError, skip_of
from asyncfeed.axes import Axes
from asyncfeed.errors import PipelineError
from asyncfeed.functions.checks import check_fn, check_policy, is_async
from asyncfeed.functions.sending import On, check_on
from asyncfeed.machine import usable_cores
from asyncfeed.randomness import WORD, stage_seed
from asyncfeed.stages.base import Node, check_count
from asyncfeed.stages.steps import Concurrency, Work


@dataclass(frozen=True)
class Map(Node):
    """Calls `fn(item)` for each item, sync (on threads) or async (on the loop).

    `on="process"` calls a sync function in worker processes. It is for functions that hold the GIL.
    With `rng`, `fn(item, generator)` gets random numbers that depend only on `seed` and the item's place. They are
    the same at any concurrency, on any machine, and after a resume.
    """

    method = "map"
    positional = ("fn",)
    functions = ("fn",)
    tuning = ("concurrency", "skip_limit", "on", "retry", "timeout", "hedge")
    makes_items = True

    fn: Callable[..., Any]
    concurrency: Concurrency = "auto"
    ordered: bool = True
    rng: bool = False
    seed: int = 0
    on_error: OnError = "raise"
    skip_limit: float | None = None
    on: On = "thread"
    retry: Retry | None = None
    timeout: float | None = None
    hedge: Hedge = None
    stream: int = field(default=0, repr=False)
    """Number of random stages before this one; see `randomness`."""

    def __post_init__(self) -> None:
        check_fn(self.method, self.fn)
        check_on(self.method, self.on, self.fn, self.fn)
        check_policy(self.method, self.concurrency, self.on_error, self.skip_limit)
        self._policy()
        check_count(self.method, "seed", self.seed, 0)
        if self.seed > WORD:  # one word of the key of Philox
            raise PipelineError(f"map: seed must be less than 2**64, not {self.seed}")
        if self.seed and not self.rng:
            raise PipelineError("map: seed does nothing without rng=True, which calls fn(item, generator)")

    @property
    def is_random(self) -> bool:
        """Whether it draws random numbers."""
        return self.rng

    def with_stream(self, stream: int) -> Map:
        """Return this map with the random numbers that it draws after `stream` random stages."""
        return replace(self, stream=stream)

    def steps(self) -> Sequence[Work]:
        """Return one step, which calls the function for each item."""
        waits = is_async(self.fn)
        fn = self.fn
        if self.rng:
            from asyncfeed.randomness.generator import AwaitDrawing, CallDrawing  # noqa: PLC0415 - 8 ms to import

            seed = stage_seed(self.seed, self.stream)
            fn = AwaitDrawing(fn, seed) if waits else CallDrawing(fn, seed)
        concurrency = self.concurrency
        if self.on == "process" and concurrency == "auto":
            concurrency = usable_cores()
        return [
            Work(
                fn,
                "async" if waits else self.on,
                placed=self.rng,
                concurrency=concurrency,
                ordered=self.ordered,
                skip=skip_of(self.on_error, self.skip_limit),
                policy=self._policy(),
            )
        ]

    def _policy(self) -> Policy | None:
        return policy(self.method, self.retry, self.timeout, self.hedge, waits=is_async(self.fn))

    @property
    def one_to_one(self) -> bool:
        """Whether no item can be left out or overtaken."""
        return self.on_error == "raise" and self.ordered

    @property
    def item_by_item(self) -> bool:
        """Whether it calls a function of the item alone. Random numbers depend on the place, too."""
        return self.one_to_one and not self.rng

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return `Unknown`: the function decides the axes."""
        return upstream.mapped()

    def length(self, upstream: int) -> int | None:
        """Return the number of items; None if some may be skipped."""
        return upstream if self.on_error == "raise" else None
