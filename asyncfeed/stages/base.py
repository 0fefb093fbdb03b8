"""What a stage is: a node of the description, and how it runs.

A node is a frozen dataclass. It validates itself when it is made and says how it runs by overriding one
method:

* `index(upstream)`: it rearranges items that can be reached by number (shuffle, take, enumerate, ...);
* `steps()`: what it does to a stream, as a sequence of two kinds of step. An `Algorithm` regroups items
  without any IO (batch, shuffle with a buffer, ...); a `Work` calls a function for each item, many at a
  time (load, map, filter, ...).

Nothing in here, or in any stage, imports asyncio or the engine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar, Literal, Protocol

from asyncfeed.errors import Failure, PipelineError
from asyncfeed.stats import SlowPaths
from asyncfeed.trees import same

NO_MARK = -1
"""The `mark` of a span after which no epoch ends."""
END = sys.maxsize
"""The `mark` of the last span of a stream: every stage flushes at it."""


Concurrency = int | Literal["auto"]
OnError = Literal["raise", "skip"]


class Span:
    """A run of items that moves through the pipeline together, with what happens after them.

    `ordinals` has one entry for each item: its place in the stream of its source. It is a `range` where
    places follow each other, which costs nothing. `mark` is the level of the epoch that ends after these
    items (`NO_MARK`: none, `END`: the stream). `failure` says that the stream broke after these items.
    `nbytes` is what the items are charged with in the run's memory budget.
    """

    __slots__ = ("failure", "items", "mark", "nbytes", "ordinals")

    def __init__(
        self,
        items: list[Any],
        ordinals: Sequence[Any],
        mark: int = NO_MARK,
        failure: Failure | None = None,
        nbytes: int = 0,
    ) -> None:
        self.items = items
        self.ordinals = ordinals
        self.mark = mark
        self.failure = failure
        self.nbytes = nbytes

    @property
    def last(self) -> bool:
        """Whether nothing comes after this span."""
        return self.mark == END or self.failure is not None

    def split(self, size: int) -> Span:
        """Keep the first `size` items; return the rest, with its part of the bytes and what happens after it."""
        nbytes = self.nbytes * (len(self.items) - size) // len(self.items)
        rest = Span(self.items[size:], self.ordinals[size:], self.mark, self.failure, nbytes)
        del self.items[size:]
        self.ordinals = self.ordinals[:size]
        self.mark, self.failure = NO_MARK, None
        self.nbytes -= nbytes
        return rest


class Algorithm:
    """Regroups a stream, without IO: items in, items out, in the order of arrival.

    `push` and `flush` return the items that are ready and, for each of them, its ordinal. `flush` is called
    where an epoch ends that the stage can see; afterwards the algorithm is as new. `done` turns true when
    the stage wants nothing more of this epoch (`take`), and `flush` resets it.
    """

    done = False

    @property
    def held(self) -> int:
        """How many of the items pushed it still holds."""
        return 0

    def begin(self, epoch: int) -> None:
        """Note that the epoch that comes has this number; called before the first item and after each `flush`."""

    def push(self, items: list[Any], ordinals: Sequence[Any]) -> tuple[list[Any], Sequence[Any]]:
        """Take items in, return those that are ready."""
        raise NotImplementedError

    def flush(self) -> tuple[list[Any], Sequence[Any]]:
        """Return what is left at the end of an epoch, and start anew."""
        return [], ()

    def state(self) -> dict[str, Any]:
        """Return what `restore` needs to go on from here, as plain data."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""


@dataclass(frozen=True)
class Reading:
    """How the items of a source are read if `pick` calls the user's code: as the options of `map` say."""

    concurrency: Concurrency = "auto"
    on_error: OnError = "raise"
    skip_limit: float | None = None


class Indexed(Protocol):
    """Items that can be reached by number: what a sized source and the stages that rearrange it amount to.

    `pick(epoch, places)` returns the items at these places of the given epoch, in this order; a run of places
    that follow each other comes as a `range`. It must not block. If it calls the user's code, `on_thread` says
    how: the engine then calls `pick` on threads, for one place at a time (see `stages/fetch.py`).
    """

    @property
    def on_thread(self) -> Reading | None:
        """How the user's code is called, if picking calls it."""
        ...

    def __len__(self) -> int: ...

    def pick(self, epoch: int, places: Sequence[int]) -> list[Any]:
        """Return the items at these places of this epoch."""
        ...

    def key(self, epoch: int, place: int) -> str:
        """Return what the item at this place of this epoch is called."""
        ...


class Place(Protocol):
    """Where an item stands, for functions that ask for it."""

    @property
    def epoch(self) -> int:
        """The epoch of the item, counted from 0."""
        ...

    @property
    def ordinal(self) -> Any:
        """The place of the item in its epoch."""
        ...

    def name(self, member: int | None = None) -> str:
        """Return what the item is called or, for a batch, what its `member` is called."""
        ...


class MemberError(Exception):
    """One member of a group failed, in a function that is called with a whole group; never seen by users."""

    def __init__(self, member: int, stage: str, error: BaseException) -> None:
        super().__init__(member, stage, error)
        self.member = member
        self.stage = stage
        self.error = error


@dataclass(frozen=True, slots=True)
class Work:
    """How to call a function for each item of a stream.

    `kind` is "async" (awaited on the loop), "thread" (called on a thread, several items per hop) or "process" (the
    same in another process, for shape "map" only; the function and what it takes and returns can be pickled).
    `shape` says what becomes of the result: "map" puts it in the item's place, "filter" keeps the item where
    it is true, "flat" puts the elements of the returned iterable (or async iterable) in its place.
    """

    fn: Callable[..., Any]
    kind: Literal["async", "thread", "process"]
    shape: Literal["map", "filter", "flat"] = "map"
    placed: bool = False
    """Whether the function takes the item's `Place` as a second argument."""
    concurrency: Concurrency = "auto"
    ordered: bool = True
    on_error: OnError = "raise"
    skip_limit: float = 0
    cost: Callable[[Any], int | None] | None = None
    """How many bytes the result will need, where that is known from the item; None if only `measure` knows it."""
    measure: Callable[[Any], int] | None = None
    """The same, found out by looking at files: it may block, and never raises. For kind "thread"."""
    packed: bool = False
    """Whether what `cost` says may be far too little, so that `measure` is asked as long as they differ."""
    inline: Callable[[Any], bool] | None = None
    """Whether this item is so small that the loop itself may do it; only for functions of our own."""
    slow_paths: SlowPaths | None = None
    """Counts the calls that took a slower way; only for functions of our own."""


Step = Algorithm | Work


@dataclass(frozen=True)
class Node:
    """One stage of a description. Subclasses add validated fields; equal fields make equal nodes."""

    method: ClassVar[str]
    """The method of `Pipeline` that makes this node."""
    positional: ClassVar[tuple[str, ...]] = ()
    """The fields that are written without their name."""

    def __init_subclass__(cls) -> None:
        # `dataclass` adds a comparison that raises if a field holds an array, unless the class has one of its own.
        for name in ("__eq__", "__hash__"):
            if name not in vars(cls):
                setattr(cls, name, vars(Node)[name])

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(
            same(getattr(self, each.name), getattr(other, each.name)) for each in fields(self) if each.compare
        )

    def __hash__(self) -> int:
        return hash(type(self))  # a field may be a list, and equal fields need not have equal hashes

    def index(self, upstream: Indexed) -> Indexed | None:
        """Return `upstream` rearranged, or None where this stage cannot work on places alone."""
        return None

    def steps(self) -> Sequence[Step]:
        """Return fresh steps for one run, in order."""
        raise NotImplementedError

    def length(self, upstream: int) -> int | None:
        """Return how many items come out when `upstream` go in; None where that depends on the items."""
        return None

    def endless(self, *, upstream: bool) -> bool:
        """Return whether what comes out has no end, if `upstream` says whether what goes in has none."""
        return upstream

    def gathers(self) -> int:
        """Return how many items make one of those that come out; 0 where items are taken apart again."""
        return 1

    @property
    def one_to_one(self) -> bool:
        """Whether the n-th item out is made from the n-th item in, so that a `take` may go before."""
        return False

    @property
    def is_random(self) -> bool:
        """Whether it draws random numbers, which depend on how many random stages stand before it."""
        return False

    def with_stream(self, stream: int) -> Node:
        """Return this stage with the random numbers it has after `stream` random stages."""
        return self

    def absorb(self, following: Node) -> Node | None:
        """Return one node that does the work of this one and the following, or None."""
        return None

    def __str__(self) -> str:
        """Return the call that makes this stage, as the user wrote it."""
        words = []
        for each in fields(self):
            value = getattr(self, each.name)
            if each.repr and (each.name in self.positional or value != each.default):
                words.append(show(value) if each.name in self.positional else f"{each.name}={show(value)}")
        return f"{self.method}({', '.join(words)})"


def show(value: object) -> str:
    """Return `value` as it stands in code: functions by their name, everything else by its repr."""
    name = getattr(value, "__name__", None)
    if isinstance(name, str) and name != "<lambda>":
        return name
    if isinstance(value, partial):  # its arguments may be the user's whole data
        return f"partial({show(value.func)}, ...)"
    return "..." if name else repr(value)


def check_count(stage: str, name: str, value: object, least: int) -> None:
    """Raise where `value` is not a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        fix = ": write int(...)" if hasattr(value, "__index__") and not isinstance(value, bool) else ""
        raise PipelineError(f"{stage}: {name} must be a whole number, not {value!r}{fix}")
    if value < least:
        raise PipelineError(f"{stage}: {name} must be at least {least}, not {value}")


@dataclass(frozen=True)
class Source(Node):
    """The first node of a description: where its items come from.

    One of three: `indexed` (items that can be reached by number), `draw` (what can only be iterated), or
    `inputs` (other pipelines, which a `zip` or `concat` merges).
    """

    def indexed(self) -> Indexed | None:
        """Return the items where they can be reached by number."""
        return None

    def draw(self) -> tuple[Callable[[], Any], bool]:
        """Return what makes an iterable or async iterable for one epoch, and whether that is the user's code."""
        raise NotImplementedError

    @property
    def inputs(self) -> tuple[Any, ...]:
        """The pipelines that this source merges."""
        return ()

    def size(self) -> int | None:
        """Return how many items an epoch has, where that is known."""
        indexed = self.indexed()
        return None if indexed is None else len(indexed)

    @property
    def has_no_end(self) -> bool:
        """Whether one epoch is known to have no end."""
        return False

    def check_repeatable(self) -> None:
        """Raise where the items can be gone through only once."""
        for each in self.inputs:
            each.source.check_repeatable()

    def claim(self) -> None:
        """Note that a run begins; raise where the items can be gone through only once, and were."""
        for each in self.inputs:
            each.source.claim()


def fold(source: Source, stages: Sequence[Node], *, whole: bool = False) -> tuple[Indexed | None, Sequence[Node]]:
    """Return what can be reached by number of a description, and the stages that are left for a stream.

    Stages next to the source that only rearrange places are worked into them, so that skipping, shuffling and
    resuming cost nothing. A `repeat` stays in the stream, where it marks epochs, unless a shuffle after it
    needs all of it by number, or the `whole` is an input of another pipeline, which does not see its epochs.
    """
    indexed = source.indexed()
    if indexed is None:
        return None, stages
    exact = [place for place, node in enumerate(stages) if getattr(node, "exact", False)]
    needed = exact[-1] if exact else -1
    for place, node in enumerate(stages):
        if node.method == "repeat" and place > needed and not whole:
            return indexed, stages[place:]
        rearranged = node.index(indexed)
        if rearranged is None:
            return indexed, stages[place:]
        indexed = rearranged
    return indexed, ()


def random_stages(source: Source, stages: Sequence[Node]) -> int:
    """Return how many stages that draw random numbers an item of a description has passed at most."""
    before = max((random_stages(each.source, each.stages) for each in source.inputs), default=0)
    return before + sum(node.is_random for node in stages)


def leaves_out(indexed: Indexed) -> bool:
    """Return whether items that cannot be read are left out, so that a place is not the number of an item."""
    return indexed.on_thread is not None and indexed.on_thread.on_error == "skip"


def is_endless(source: Source, stages: Sequence[Node]) -> bool:
    """Return whether a run over a description is known to have no end."""
    endless = source.has_no_end
    for node in stages:
        endless = node.endless(upstream=endless)
    return endless
