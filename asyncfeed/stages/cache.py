"""Cache: keeps what is read in a folder of the local disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from asyncfeed.axes import Axes
from asyncfeed.errors import PipelineError
from asyncfeed.formats.base import Decoder
from asyncfeed.functions.checks import is_async
from asyncfeed.reading.cache_folder import NO_LIMIT
from asyncfeed.reading.cached import CachedStore
from asyncfeed.reading.file import File
from asyncfeed.reading.reader import Store
from asyncfeed.sizes import Size, parse_bytes
from asyncfeed.stages.base import Node, Source
from asyncfeed.stages.steps import Indexed, Reading, Work
from asyncfeed.trees import map_leaves


@dataclass(frozen=True)
class Cache(Node):
    """Replaces each file in the items by the same file of a store with a cache."""

    folder: str
    max_bytes: Size | None = None
    version: str | None = None

    method: ClassVar[str] = "cache"
    positional: ClassVar[tuple[str, ...]] = ("folder",)

    def __post_init__(self) -> None:
        _ = self.limit  # raises if it is no size
        if self.version is not None and not isinstance(self.version, str):
            raise PipelineError(f"cache: version must be text, not {self.version!r}")

    @property
    def limit(self) -> int:
        """Number of bytes that the folder may have."""
        return NO_LIMIT if self.max_bytes is None else parse_bytes(self.max_bytes, "cache", "max_bytes")

    def after(self, source: Source, stages: Sequence[Node]) -> Node:
        """Return the stage. Raise if it stands behind stages that make something else of the files."""
        at = next((at for at, node in enumerate(stages) if node.method == "load"), None)
        if at is None:
            for node in stages:
                if node.gathers() != 1:
                    raise PipelineError(f"cache: put it before .{node}, where the items are files")
        elif at < len(stages) - 1:
            raise PipelineError(f"cache: put it directly behind .{stages[at]}, or before it to keep the files")
        else:
            stages[at].absorb(self)  # raises if the samples cannot be kept
        if at is None and self.version is not None:
            raise PipelineError("cache: version is for the samples of load; a file has a version of its own")
        return super().after(source, stages)

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


def decoder_name(decoder: Any, version: str | None) -> str:
    """Return the name of a decoder in the cache. Raise if it cannot be told from another one."""
    if not isinstance(decoder, Decoder) and is_async(decoder):
        raise PipelineError(
            "cache: put it before load: the samples of an async decoder are not kept, but its files"
        )
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
                f"cache takes files, or trees of them, and what load makes of them, not {type(item).__name__}: "
                "put it directly behind files(...), or directly behind load(...)"
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
