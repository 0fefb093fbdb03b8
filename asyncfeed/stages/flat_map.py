"""`flat_map`: replaces each item by the elements that a function returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from asyncfeed.attempts.skip import OnError, skip_of
from asyncfeed.axes import Axes, Unknown
from asyncfeed.errors import PipelineError
from asyncfeed.formats.base import in_groups
from asyncfeed.formats.records import RecordDecoder
from asyncfeed.functions.checks import check_policy, is_async
from asyncfeed.stages.base import Node, Source
from asyncfeed.stages.steps import Concurrency, Indexed, Reading, Work

if TYPE_CHECKING:
    from asyncfeed.stages.records import Records


@dataclass(frozen=True)
class FlatMap(Node):
    """Calls `fn(item)` and sends the elements that it returns or yields, one by one.

    The function is sync (on threads) and returns an iterable, or async (on the loop) and returns an iterable
    or is an async generator.
    """

    method = "flat_map"
    positional = ("fn",)
    functions = ("fn",)
    tuning = ("concurrency", "skip_limit")
    makes_items = True

    fn: Callable[..., Any]
    concurrency: Concurrency = "auto"
    ordered: bool = True
    on_error: OnError = "raise"
    skip_limit: float | None = None
    records: Records | None = field(default=None, repr=False, compare=False)
    """The records by number, if the decoder has an index."""

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise PipelineError(f"flat_map: the function must be callable, not {self.fn!r}")
        check_policy(self.method, self.concurrency, self.on_error, self.skip_limit)

    def after(self, source: Source, stages: Sequence[Node]) -> Node:
        """Return the stage as it is after this source. With an index, it is read or made here."""
        decoder = self.fn
        if not isinstance(decoder, RecordDecoder) or decoder.indexed is False or self.records is not None:
            return self
        from asyncfeed.stages.records import records_of  # noqa: PLC0415 - only few need it

        return replace(self, records=records_of(decoder, source, stages))

    def index(self, upstream: Indexed) -> Indexed | None:
        """Return the records by number, if they are those of the files of `upstream`."""
        records = self.records
        if records is None or upstream.pick(0, range(len(upstream))) != records.files:
            return None
        reading = Reading(self.concurrency, self.on_error, self.skip_limit, awaits=records.reads_on_loop)
        return records.by_number(reading)

    def length(self, upstream: int) -> int | None:
        """Return the number of records, if they are reached by number and none may be left out."""
        records = self.records
        known = records is not None and upstream == len(records.files) and self.on_error == "raise"
        return len(records) if records is not None and known else None

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
