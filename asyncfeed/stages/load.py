"""`load`: reads the files in an item, and decodes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from asyncfeed.attempts.retry import Hedge, Retry, Wanted
from asyncfeed.attempts.skip import OnError, skip_of
from asyncfeed.axes import Axes, Unknown
from asyncfeed.errors import PipelineError
from asyncfeed.formats.base import Decoder
from asyncfeed.functions.checks import check_fn, check_policy, is_async
from asyncfeed.functions.sending import On, check_on
from asyncfeed.machine import usable_cores
from asyncfeed.reading.scope import NOT_IN_PROCESS
from asyncfeed.stages.base import Node, Source
from asyncfeed.stages.cache import Cache
from asyncfeed.stages.loading import (
    Await,
    Call,
    Decode,
    ForEachFile,
    Measure,
    Read,
    ReadOnLoop,
    RowSize,
    listed_size,
)
from asyncfeed.stages.steps import Concurrency, Work


@dataclass(frozen=True)
class Load(Node):
    """Replaces each file by its sample.

    Items are files, or trees with files among their leaves. Other leaves stay as they are. The decoder is a
    `Decoder`, or a function of the file's `bytes`: sync (it runs on a thread) or async (it runs on the loop).
    `on="process"` reads and decodes in worker processes.
    """

    method = "load"
    positional = ("decoder",)
    functions = ("decoder",)
    tuning = ("concurrency", "skip_limit", "retry", "timeout", "hedge", "on")
    makes_items = True

    decoder: Decoder[Any] | Callable[[bytes], Any]
    concurrency: Concurrency = "auto"
    ordered: bool = True
    on_error: OnError = "raise"
    skip_limit: float | None = None
    retry: Retry | Literal["auto"] | None = "auto"
    timeout: float | Literal["auto"] | None = "auto"
    hedge: Hedge = "auto"
    on: On = "thread"
    on_loop: bool = field(default=False, repr=False, compare=False)
    """Whether files are read on the loop, before the step that decodes them."""

    def __post_init__(self) -> None:
        check_policy(self.method, self.concurrency, self.on_error, self.skip_limit)
        self.wanted.check(self.method)
        decoder = self.decoder
        if isinstance(decoder, Decoder):
            check_on(self.method, self.on, decoder.decode, decoder)
            return
        if not callable(decoder) or (isinstance(decoder, type) and issubclass(decoder, Decoder)):
            raise PipelineError(
                "load: the decoder must be one of asyncfeed's, as in load(npy) or load(raw('float32')), "
                f"or a function of the file's bytes, not {decoder!r}"
            )
        check_fn(self.method, decoder)
        _check_takes_bytes(decoder)
        check_on(self.method, self.on, decoder, decoder)

    @property
    def wanted(self) -> Wanted:
        """What it wants of the reads of its files."""
        return Wanted(self.retry, self.timeout, self.hedge)

    def steps(self) -> Sequence[Work]:
        """Return one step that reads and decodes on threads or in processes.

        Whatever runs on the loop is a step of its own.
        """
        decoder, wanted = self.decoder, self.wanted
        read = [self.read_on_loop()] if self.on_loop else []
        if isinstance(decoder, Decoder):
            decode = ForEachFile(Decode(decoder, wanted))
            if decoder.row is not None:
                return [*read, self._work(decode, self.on, cost=RowSize(decoder.row.nbytes))]
            unpacks = decoder if decoder.packs else None
            return [*read, self._work(decode, self.on, cost=listed_size, measure=Measure(unpacks))]
        if not is_async(decoder):
            decode = ForEachFile(Call(decoder, wanted))
            return [*read, self._work(decode, self.on, cost=listed_size, measure=Measure(None))]
        others = self._work(Read(wanted), "thread", cost=listed_size, measure=Measure(None))
        return [*read, replace(others, skip=None), self._work(Await(decoder), "async")]

    def after(self, source: Source, stages: Sequence[Node]) -> Node:
        """Return the stage as it is after this source, whose store may be read on the loop."""
        if self.on == "process" and source.reads_on_loop:
            raise PipelineError(f"load: {NOT_IN_PROCESS}")
        cached = any(isinstance(node, Cache) for node in stages)  # a cache is read on threads
        return replace(self, on_loop=source.reads_on_loop and not cached)

    @property
    def one_to_one(self) -> bool:
        """Whether no item can be left out or overtaken."""
        return self.on_error == "raise" and self.ordered

    @property
    def item_by_item(self) -> bool:
        """Whether no item can be left out or overtaken."""
        return self.one_to_one

    @property
    def only_reads(self) -> bool:
        """Whether no item can be left out or overtaken. A decoder makes the same sample of the same bytes."""
        return self.one_to_one

    @property
    def fuses(self) -> bool:
        """Whether files can be read straight into the rows of a batch: the decoder can tell what is in a file."""
        decoder = self.decoder
        return isinstance(decoder, Decoder) and (decoder.probes or decoder.lays_out or decoder.row is not None)

    def read_on_loop(self, group: int | None = None) -> Work:
        """Return the step that reads files on the loop, one at a time or in groups of `group`."""
        read = ReadOnLoop(self.wanted, groups=group is not None)
        return replace(self._work(read, "async", cost=read.cost), requests=group or 1, skip=None)

    def _reads_together(self) -> Any:
        from asyncfeed.stages.read_together import ReadTogether  # noqa: PLC0415 - only a run needs it

        return ReadTogether(self.decoder if isinstance(self.decoder, Decoder) else None, self.wanted)

    def _work(
        self,
        fn: Callable[[Any], Any],
        kind: Literal["async", "thread", "process"],
        *,
        cost: Callable[[Any], int | None] | None = None,
        measure: Measure | None = None,
    ) -> Work:
        return Work(
            fn,
            kind,
            read=None if kind == "async" else self._reads_together(),
            concurrency=usable_cores() if kind == "process" and self.concurrency == "auto" else self.concurrency,
            ordered=self.ordered,
            skip=skip_of(self.on_error, self.skip_limit),
            cost=cost,
            measure=measure,
            packed=measure is not None and measure.decoder is not None,
        )

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return `Unknown`: the files decide the axes."""
        return Unknown()

    def length(self, upstream: int) -> int | None:
        """Return the number of items; None if some may be skipped."""
        return upstream if self.on_error == "raise" else None


OPENERS = {
    ("numpy", "load"): "load(npy), or load(npz) for .npz files",
    ("numpy", "fromfile"): "load(raw('float32')), or another dtype",
    ("json", "load"): "load(json) with asyncfeed's json",
    ("io", "open"): "load(text)",
    ("_io", "open"): "load(text)",
    ("pickle", "load"): "load(pickle.loads)",
    ("_pickle", "load"): "load(pickle.loads)",
}
"""Functions that take a path or an open file, by module and name, with the call to write instead."""
PATH_TAKERS = {
    ("numpy", "loadtxt"), ("numpy", "genfromtxt"), ("PIL.Image", "open"), ("torch.serialization", "load"),
    ("pandas.io.parsers.readers", "read_csv"),
}  # fmt: skip
"""Other functions that take a path. `map` can call them with the path."""


def _check_takes_bytes(decoder: Any) -> None:
    """Raise for functions that do not take the bytes of a file. The most common ones are known by name."""
    module, name = getattr(decoder, "__module__", ""), getattr(decoder, "__qualname__", "")
    if (module, name) == ("asyncfeed.formats.raw", "raw"):
        raise PipelineError("load: raw makes a decoder of a dtype: write load(raw('float32')), or another dtype")
    fix = OPENERS.get((module, name))
    if fix is None and (module, name) in PATH_TAKERS:
        fix = f"map(lambda file: {name}(file.path)), or load(lambda data: {name}(io.BytesIO(data)))"
    if fix is not None:
        raise PipelineError(
            f"load: the decoder gets the bytes of a file, which {module}.{name} does not take: write {fix}"
        )
