"""`load` and the `cache` after it as one stage: each sample is decoded once, and then read from the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from asyncfeed.axes import Axes
from asyncfeed.reading.cached_samples import CachedSamples
from asyncfeed.stages.base import Node
from asyncfeed.stages.cache import Cache, decoder_name
from asyncfeed.stages.steps import Work

if TYPE_CHECKING:
    from asyncfeed.stages.load import Load


@dataclass(frozen=True)
class CachedLoad(Node):
    """The stage that `Load.absorb(cache)` returns."""

    load: Load
    cache: Cache

    method: ClassVar[str] = "load"
    makes_items: ClassVar[bool] = True

    def __post_init__(self) -> None:
        decoder_name(self.load.decoder, self.cache.version)

    def steps(self) -> Sequence[Work]:
        """Return the step that reads or decodes on threads."""
        *_, work = self.load.steps()  # a step before it reads files on the loop: here that depends on the cache
        each: Any = work.fn
        name = decoder_name(self.load.decoder, self.cache.version)
        samples = CachedSamples(each.each, name, self.cache.folder, self.cache.limit)
        fn = cast("Any", replace(each, each=samples))
        return [replace(work, fn=fn, slow_paths=samples.counts)]

    @property
    def one_to_one(self) -> bool:
        """Whether no item can be left out or overtaken: as `load` says."""
        return self.load.one_to_one

    @property
    def item_by_item(self) -> bool:
        """Whether no item can be left out or overtaken: as `load` says."""
        return self.load.item_by_item

    @property
    def only_reads(self) -> bool:
        """Whether reading has no side effect that the user relies on: as `load` says."""
        return self.load.only_reads

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return what `load` says."""
        return self.load.axes(upstream, endless=endless)

    def length(self, upstream: int) -> int | None:
        """Return what `load` says."""
        return self.load.length(upstream)

    def __str__(self) -> str:
        """Return the calls that make these stages."""
        return f"{self.load}.{self.cache}"
