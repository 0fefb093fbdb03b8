"""Split: a description in parts that share no item, in any epoch."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import accumulate
from typing import Any, ClassVar, Literal

import numpy as np

from asyncfeed.axes import Axes
from asyncfeed.errors import PipelineError
from asyncfeed.functions.checks import check_fn, is_async
from asyncfeed.position import all_numbers
from asyncfeed.randomness import mix, stage_seed
from asyncfeed.stages.base import Node, Source, check_count
from asyncfeed.stages.repeat import Repeat
from asyncfeed.stages.shuffle import Permuted, Shuffle
from asyncfeed.stages.steps import Indexed, Place, Reading, Step, Work
from asyncfeed.stages.take import Slice
from asyncfeed.stages.together import fold

By = Literal["index", "list", "ordinal", "key"]
"""How the part of an item is decided:

* "index": by a permutation of all indices.
* "list": by lists of indices, made from the keys of all items when the pipeline is described.
* "ordinal" and "key": by the ordinal or the key of each item, when the item comes.
"""


@dataclass(frozen=True)
class Split(Node):
    """Keeps the items of one part. The seed and the index, ordinal or key of an item decide its part."""

    shares: tuple[float, ...]
    part: int
    seed: int = 0
    key: Callable[[Any], Any] | None = None
    by: By = field(default="index", repr=False)
    stream: int = field(default=0, repr=False)
    """Number of splits before this one, because splits of splits must not use the same numbers again."""
    _chosen: dict[int, np.ndarray[Any, np.dtype[np.int64]]] = field(
        default_factory=dict, repr=False, compare=False
    )
    """The indices of the items of each part, if they were found by their keys. All parts share it."""

    method: ClassVar[str] = "split"

    def index(self, upstream: Indexed) -> Indexed | None:
        """Return the items of the part by number; None if they are chosen in a stream."""
        if self.by == "index":
            start, stop = self._edges(len(upstream))
            seed = stage_seed(self.seed, self.stream)
            return Slice(Permuted(upstream, seed, reshuffle=False), start, stop - start)
        return Chosen(upstream, self._choose(upstream)) if self.by == "list" else None

    def steps(self) -> Sequence[Step]:
        """Return the step that chooses items of a stream."""
        share = self._share(self.part)
        if self.key is not None:
            return [Work(ByKey(share, self.key), "thread", shape="filter")]
        return [Work(ByOrdinal(share), "thread", shape="filter", placed=True, inline=_always)]

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return `upstream`: the items stay as they are."""
        return upstream

    def length(self, upstream: int) -> int | None:
        """Return the number of items of the part; None if it depends on their keys or ordinals."""
        if self.by == "index":
            start, stop = self._edges(upstream)
            return stop - start
        return len(self._chosen[self.part]) if self.part in self._chosen else None

    def _share(self, part: int) -> Share:
        # The last part gets the items that rounding leaves over.
        edges = (0.0, *accumulate(self.shares[:-1]), math.inf)
        return Share(edges[part], edges[part + 1], stage_seed(self.seed, self.stream))

    def _edges(self, count: int) -> tuple[int, int]:
        share = self._share(self.part)
        return round(share.low * count), count if share.high == math.inf else round(share.high * count)

    def _choose(self, upstream: Indexed) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the indices of the part. The first call finds the indices of all parts."""
        if self.part not in self._chosen:
            assert self.key is not None
            parts = [ByKey(self._share(part), self.key) for part in range(len(self.shares))]
            found: list[list[int]] = [[] for _ in parts]
            for start in range(0, len(upstream), CHUNK):
                places = range(start, min(start + CHUNK, len(upstream)))
                for place, item in zip(places, upstream.pick(0, places), strict=True):
                    try:
                        value = parts[0].value(item)
                    except Exception as error:
                        error.add_note(f"asyncfeed: in {self}, item {upstream.key(0, place)}")
                        raise
                    found[next(n for n, part in enumerate(parts) if part.share.holds(value))].append(place)
            self._chosen.update({part: np.array(places, np.int64) for part, places in enumerate(found)})
        return self._chosen[self.part]

    def __str__(self) -> str:
        """Return the call, and which of the parts this is."""
        options = f", seed={self.seed}" if self.seed else ""
        if self.key is not None:
            options += f", key={getattr(self.key, '__name__', '...')}"
        return f"split({', '.join(map(str, self.shares))}{options})[{self.part}]"


CHUNK = 4096
"""Number of items that are read at a time to compute their keys. A larger number saves nothing."""


class Chosen:
    """The items of upstream at these places."""

    def __init__(self, upstream: Indexed, places: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        self._upstream = upstream
        self._places = places

    @property
    def on_thread(self) -> Reading | None:
        """Whether `pick` runs on a thread: as in upstream."""
        return self._upstream.on_thread

    def __len__(self) -> int:
        return len(self._places)

    def pick(self, epoch: int, places: Sequence[int]) -> list[Any]:
        """Return the items at these places of the part."""
        run = isinstance(places, range) and places.step == 1
        chosen = self._places[places.start : places.stop] if run else self._places[list(places)]  # type: ignore[attr-defined]
        return self._upstream.pick(epoch, chosen.tolist())

    def key(self, epoch: int, place: int) -> str:
        """Return the name of the item at this place of the part."""
        return self._upstream.key(epoch, int(self._places[place]))


@dataclass(frozen=True, slots=True)
class Share:
    """A range of 64-bit numbers, given as shares of all: from `low` up to, but not including, `high`."""

    low: float
    high: float
    seed: int

    def holds(self, value: int) -> bool:
        """Return whether a 64-bit number is in this range."""
        return self.low <= value / 2**64 < self.high


@dataclass(frozen=True, slots=True)
class ByOrdinal:
    """Keeps an item by its ordinal in the epoch, as the function of a `Work`."""

    share: Share

    def __call__(self, item: object, place: Place) -> bool:
        """Return whether the item belongs to the part."""
        return self.share.holds(mix(self.share.seed, *all_numbers(place.ordinal)))


@dataclass(frozen=True, slots=True)
class ByKey:
    """Keeps an item by its key, as the function of a `Work`."""

    share: Share
    key: Callable[[Any], Any]

    def __call__(self, item: object) -> bool:
        """Return whether the item belongs to the part."""
        return self.share.holds(self.value(item))

    def value(self, item: object) -> int:
        """Return 64 bits that depend on the key and the seed, the same in every program."""
        text = _canonical(self.key(item))
        digest = blake2b(text, digest_size=8, key=mix(self.share.seed).to_bytes(8, "little")).digest()
        return int.from_bytes(digest, "little")


def _canonical(key: object) -> bytes:
    """Return a key as bytes. Equal keys give the same bytes in every program."""
    if isinstance(key, os.PathLike):
        key = os.fspath(key)
    if isinstance(key, str):
        return b"s" + key.encode("utf-8", "surrogateescape")
    if isinstance(key, bytes):
        return b"b" + key
    if isinstance(key, int | np.integer):
        return b"i%d" % int(key)
    if isinstance(key, tuple):
        parts = list(map(_canonical, key))
        return b"t" + b"".join(b"%d:" % len(part) + part for part in parts)
    raise TypeError(
        f"split: key must return text, bytes, a whole number, a path or a tuple of them, not {type(key).__name__}"
    )


def _always(_item: object) -> bool:
    return True


# -- from a description to its parts


def split_stages(
    source: Source,
    stages: tuple[Node, ...],
    shares: Sequence[float],
    seed: int,
    key: Callable[[Any], Any] | None,
) -> list[tuple[Node, ...]]:
    """Return the stages of each part of a description. Raise if an item could change its part."""
    _check(shares, seed, key)
    stream = sum(isinstance(node, Split) for node in stages)
    place, by = len(stages), _by_place(source, stages) if key is None else _by_key(source, stages)
    if by == "index":  # before the stages that read or change single items, so that no other part's items are read
        place = next(at for at in range(len(stages) + 1) if _splits_at(source, stages, at))
    first = Split(tuple(map(float, shares)), 0, seed, key, by, stream)
    parts = [replace(first, part=part) for part in range(len(shares))]
    fold(source, (*stages, first))  # asks for the keys of items that can be reached by number, once for all parts
    return [(*stages[:place], each, *stages[place:]) for each in parts]


def _check(shares: Sequence[float], seed: int, key: Callable[[Any], Any] | None) -> None:
    if len(shares) < 2:
        raise PipelineError(f"split: give at least two shares, as in split(0.8, 0.2), not {len(shares)}")
    for share in shares:
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
            raise PipelineError(f"split: each share must be between 0 and 1, not {share!r}")
    if abs(math.fsum(shares) - 1) > 1e-9:
        raise PipelineError(
            f"split: the shares must add up to 1, not {math.fsum(shares):g}; give the part that you do not need a "
            "share too, and ignore its pipeline"
        )
    check_count("split", "seed", seed, 0)
    if key is not None:
        check_fn("split", key)
        if is_async(key):
            raise PipelineError(f"split: key must be a sync function of the item, not {key!r}, which is async")


def _by_key(source: Source, stages: tuple[Node, ...]) -> By:
    indexed, rest = fold(source, stages)
    listed = indexed is not None and not rest and indexed.on_thread is None
    return "list" if listed and reshuffles(source, stages) is None else "key"


def _by_place(source: Source, stages: tuple[Node, ...]) -> By:
    """Return the way to decide the part of an item. Raise if it could differ between epochs."""
    for node in stages:
        if isinstance(node, Repeat) or node.gathers() != 1:
            raise PipelineError(
                f"split: put it before .{node}: after that stage an item has no place of its own in the epoch"
            )
    # Items keep their positions in a shuffle buffer. A merge gives its items new positions, so any shuffle in its
    # inputs counts.
    exact = [node for node in stages if not (isinstance(node, Shuffle) and not node.exact)]
    mixes = reshuffles(source, exact)
    if mixes is not None:
        raise PipelineError(
            f"split: .{mixes} before split gives an item another place in each epoch, so the parts would share "
            "items. Split first and shuffle each part, or use shuffle(reshuffle=False), or decide the parts by a "
            "key: split(..., key=...)"
        )
    return "index" if any(_splits_at(source, stages, at) for at in range(len(stages) + 1)) else "ordinal"


def reshuffles(source: Source, stages: Sequence[Node]) -> Node | None:
    """Return the first stage that changes the places of items from epoch to epoch, or None."""
    for node in stages:
        if isinstance(node, Shuffle) and node.reshuffle:
            return node
    return next(filter(None, (reshuffles(each.source, each.stages) for each in source.inputs)), None)


def _splits_at(source: Source, stages: tuple[Node, ...], place: int) -> bool:
    """Return whether the part of an item can be decided by its index before the stage at `place`."""
    indexed, rest = fold(source, stages[:place])
    return indexed is not None and not rest and all(node.one_to_one for node in stages[place:])
