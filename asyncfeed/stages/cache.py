"""Cache: keeps files in a folder of the local disk, or samples in a folder or in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from asyncfeed.axes import Axes
from asyncfeed.errors import PipelineError
from asyncfeed.formats.base import Decoder
from asyncfeed.functions.checks import is_async
from asyncfeed.reading.cache_folder import NO_LIMIT
from asyncfeed.reading.cached import CachedStore
from asyncfeed.reading.file import File
from asyncfeed.reading.reader import Store
from asyncfeed.reading.sample_storage import FolderSamples, MemorySamples
from asyncfeed.sizes import Size, parse_bytes
from asyncfeed.stages.base import Node, Source
from asyncfeed.stages.steps import Indexed, Reading, Work
from asyncfeed.stages.together import arrange
from asyncfeed.trees import map_leaves

MEMORY = "memory"
"""What is given in place of a folder to keep samples in the memory of the process."""


@dataclass(frozen=True)
class Cache(Node):
    """Keeps files before they are loaded, or the samples that the stages before it make."""

    folder: str
    max_bytes: Size | None = None
    version: str | None = None
    memory: MemorySamples | None = field(default=None, repr=False, compare=False)
    """The samples that are kept in memory, for all pipelines that are made of this one."""

    method: ClassVar[str] = "cache"
    only_tunes: ClassVar[bool] = True
    positional: ClassVar[tuple[str, ...]] = ("folder",)

    def __post_init__(self) -> None:
        limit = self.limit
        if self.version is not None and not isinstance(self.version, str):
            raise PipelineError(f"cache: version must be text, not {self.version!r}")
        if self.folder != MEMORY:
            return
        if self.max_bytes is None:
            raise PipelineError(
                'cache: say how much memory the samples may take, as in cache("memory", max_bytes="4 GB"); '
                "what does not fit is made again in each epoch"
            )
        if self.version is not None:
            raise PipelineError("cache: version is for a folder, which other programs may have written to")
        if self.memory is None:
            object.__setattr__(self, "memory", MemorySamples(limit))

    @property
    def limit(self) -> int:
        """Number of bytes that may be kept."""
        return NO_LIMIT if self.max_bytes is None else parse_bytes(self.max_bytes, "cache", "max_bytes")

    def storage(self) -> FolderSamples | MemorySamples:
        """Return where samples are kept, for one run."""
        return FolderSamples(self.folder, self.limit) if self.memory is None else self.memory

    def after(self, source: Source, stages: Sequence[Node]) -> Node:
        """Return the stage. Raise if it cannot keep what the stages make."""
        arranged = arrange(stages, merge=False)
        if self._keeps_samples(arranged):
            self.name_of(self._kept(arranged))  # raises if the samples cannot be kept
        else:
            for node in arranged:
                if node.gathers() != 1:
                    raise PipelineError(f"cache: put it before .{node}, where the items are files")
        return super().after(source, stages)

    def absorb_before(self, stages: Sequence[Node]) -> list[Node] | None:
        """Return the stages, with those whose samples it keeps as one; None if it keeps files."""
        from asyncfeed.stages.cached_work import CachedWork  # noqa: PLC0415 - only a run needs it

        if not self._keeps_samples(stages):
            return None
        kept = self._kept(stages)
        return [*stages[: len(stages) - len(kept)], CachedWork(kept, self)]

    def _keeps_samples(self, stages: Sequence[Node]) -> bool:
        """Whether it keeps samples: behind `load`, in memory, or with a version. Else the items are files."""
        return self.memory is not None or self.version is not None or any(node.method == "load" for node in stages)

    def _kept(self, stages: Sequence[Node]) -> tuple[Node, ...]:
        """Return the stages directly before it that work on each item for itself."""
        count = 0
        while count < len(stages) and stages[-1 - count].item_by_item and stages[-1 - count].makes_items:
            count += 1
        if not count and stages and stages[-1].method == "load":
            count = 1  # some samples may be left out
        if count:
            return tuple(stages[len(stages) - count :])
        if not any(node.makes_items for node in stages):
            raise PipelineError(
                "cache: samples are what load and map make, so put it behind one of them; for a dataset write "
                "items(range(len(dataset))).map(dataset.__getitem__).cache(...)"
            )
        last = stages[-1]
        why = "its random numbers are new in each epoch" if last.is_random else "it makes no sample of one item"
        raise PipelineError(f"cache: put it before .{last}: {why}")

    def name_of(self, stages: Sequence[Node]) -> str:
        """Return the name of what makes the samples. Raise if they cannot be kept."""
        for stage in stages:
            _refuse_elsewhere(stage)
        if self.memory is not None:
            return ""
        if len(stages) == 1 and stages[0].method == "load":
            decoder: Any = vars(stages[0])["decoder"]
            return decoder_name(decoder, self.version)
        if self.version is None:
            raise PipelineError(
                "cache: samples of your own functions are found by a version that you give, because their code "
                'may change: write cache(..., version="1"), and another version when a function has changed'
            )
        return f"{'.'.join(map(str, stages))} {self.version}"

    def index(self, upstream: Indexed) -> Indexed | None:
        """Return the files with the cache; None if only a stream has them, as a function is awaited for each."""
        if upstream.on_thread is not None and upstream.on_thread.awaits:
            return None
        return CachedItems(upstream, Caching(self.folder, self.limit))

    def steps(self) -> Sequence[Work]:
        """Return the step that does the same with a stream."""
        return [Work(Caching(self.folder, self.limit), "thread", inline=_always)]

    @property
    def one_to_one(self) -> bool:
        """Whether each item that comes out is made of one that goes in: True."""
        return True

    @property
    def only_reads(self) -> bool:
        """Whether reading has no side effect that the user relies on: True."""
        return True

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return `upstream`: the items stay as they are."""
        return upstream

    def length(self, upstream: int) -> int:
        """Return `upstream`: as many items come out as go in."""
        return upstream


def _refuse_elsewhere(stage: Node) -> None:
    """Raise if a stage does not call its function on threads."""
    for name in ("decoder", *stage.functions):
        fn = getattr(stage, name, None)
        if fn is not None and not isinstance(fn, Decoder) and is_async(fn):
            where = (
                "load: the samples of an async decoder are not kept, but its files"
                if name == "decoder"
                else (f".{stage}: it keeps what functions make on threads, and this one is async")
            )
            raise PipelineError(f"cache: put it before {where}")
    if getattr(stage, "on", "thread") != "thread":
        raise PipelineError(f"cache: put it before .{stage}: it keeps what functions make on threads")


def decoder_name(decoder: Any, version: str | None) -> str:
    """Return the name of a decoder in the cache. Raise if it cannot be told from another one."""
    if isinstance(decoder, Decoder) and type(decoder).__module__.startswith("asyncfeed."):
        return f"{decoder!r} {version or ''}"
    if version is None:
        raise PipelineError(
            "cache: the samples of your own decoder are found by a version that you give, because its code may "
            'change: write cache(..., version="1"), and another version when the decoder has changed'
        )
    name = f"{getattr(decoder, '__module__', '')}.{getattr(decoder, '__qualname__', type(decoder).__qualname__)}"
    return f"{name} {version}"


class CachedItems:
    """Upstream's items, with a cache for their files."""

    def __init__(self, upstream: Indexed, caching: Caching) -> None:
        self._upstream = upstream
        self._caching = caching

    @property
    def on_thread(self) -> Reading | None:
        """Whether `pick` runs on a thread: as in upstream."""
        return self._upstream.on_thread

    def __len__(self) -> int:
        return len(self._upstream)

    def pick(self, epoch: int, places: Sequence[int]) -> list[Any]:
        """Return the items at these places."""
        return list(map(self._caching, self._upstream.pick(epoch, places)))

    def key(self, epoch: int, place: int) -> str:
        """Return the name of the item at this place."""
        return self._upstream.key(epoch, place)


class Caching:
    """Puts the files of an item behind a cache."""

    def __init__(self, folder: str, limit: int) -> None:
        self._folder = folder
        self._limit = limit
        self._stores: dict[Store | None, CachedStore] = {}
        """One for each store, because files of one store are read together if they have the same object."""
        self._latest: CachedStore | None = None

    def __call__(self, item: Any) -> Any:
        """Return the item."""
        if type(item) is File:
            return self._put(item)
        found = False

        def put(leaf: Any) -> Any:
            nonlocal found
            if not isinstance(leaf, File):
                return leaf
            found = True
            return self._put(leaf)

        cached = map_leaves(put, item)
        if not found:
            raise TypeError(
                f"cache takes files, or trees of them, not {type(item).__name__}: put it directly behind "
                "files(...), or give a version= to keep what a map makes"
            )
        return cached

    def _put(self, file: File) -> File:
        store = self._latest
        if store is None or store.inner is not file.store:
            made = CachedStore(file.store, self._folder, self._limit)
            store = self._latest = self._stores.setdefault(file.store, made)
        return store.file(file)


def _always(_item: object) -> bool:
    return True
