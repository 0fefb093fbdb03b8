"""Stages and the `cache` after them as one stage: each sample is made once, and then comes from the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from asyncfeed.axes import Axes
from asyncfeed.functions.checks import refuse_awaitable
from asyncfeed.reading.cached_samples import CachedSamples
from asyncfeed.stages.base import Node
from asyncfeed.stages.loading import ForEachFile
from asyncfeed.stages.steps import Concurrency, Work

if TYPE_CHECKING:
    from asyncfeed.stages.cache import Cache


@dataclass(frozen=True)
class CachedWork(Node):
    """What `Cache.absorb_before` returns."""

    stages: tuple[Node, ...]
    """The stages whose samples are kept. They call functions on threads, one for each item."""
    cache: Cache

    method: ClassVar[str] = "cache"
    makes_items: ClassVar[bool] = True

    def steps(self) -> Sequence[Work]:
        """Return the step that makes the samples on threads, or finds them."""
        works = [_last(stage) for stage in self.stages]
        storage, name = self.cache.storage(), self.cache.name_of(self.stages)
        first = works[0]
        fn: Any = first.fn
        if len(works) == 1 and isinstance(fn, ForEachFile):  # each file of an item is kept on its own
            samples = CachedSamples(fn.each, name, storage)
            fn = replace(fn, each=samples)
        else:
            fn = samples = CachedSamples(_Chain(tuple(work.fn for work in works)), name, storage)
        return [replace(first, fn=fn, concurrency=_least(works), slow_paths=samples.counts)]

    @property
    def one_to_one(self) -> bool:
        """Whether no item can be left out or overtaken."""
        return all(stage.one_to_one for stage in self.stages)

    @property
    def item_by_item(self) -> bool:
        """Whether no item can be left out or overtaken."""
        return self.one_to_one

    @property
    def only_reads(self) -> bool:
        """Whether no item can be left out or overtaken. A sample that is kept must not depend on anything else."""
        return self.one_to_one

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return what the stages say."""
        for stage in self.stages:
            upstream = stage.axes(upstream, endless=endless)
        return upstream

    def length(self, upstream: int) -> int | None:
        """Return what the stages say."""
        length: int | None = upstream
        for stage in self.stages:
            length = None if length is None else stage.length(length)
        return length

    def __str__(self) -> str:
        """Return the calls that make these stages."""
        return ".".join(map(str, (*self.stages, self.cache)))


@dataclass(frozen=True, slots=True)
class _Chain:
    """Calls one function after the other."""

    functions: tuple[Callable[[Any], Any], ...]

    def __call__(self, item: Any) -> Any:
        for fn in self.functions:
            item = fn(item)
            refuse_awaitable("map", item)  # the next function, or the cache, would say something else of it
        return item


def _last(stage: Node) -> Work:
    """Return the step that makes samples. Files are read there, too: whether they are depends on the cache."""
    *_, work = stage.steps()
    assert isinstance(work, Work)
    return work


def _least(works: Sequence[Work]) -> Concurrency:
    """Return the concurrency of all functions: the least that was asked for."""
    return min((work.concurrency for work in works if work.concurrency != "auto"), default="auto")
