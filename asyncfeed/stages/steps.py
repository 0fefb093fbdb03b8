"""How a stage runs: by number, or as steps over a stream. All that an engine has to know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from asyncfeed.epoch_end import EpochEnd
from asyncfeed.errors import Failure
from asyncfeed.position import Position, Positions
from asyncfeed.stats import SlowPaths

Concurrency = int | Literal["auto"]
OnError = Literal["raise", "skip"]


class Chunk:
    """A run of items that moves through the pipeline together, with what happens after them.

    `positions` has one entry for each item: where it stands in its stream. It is a `range` if positions follow
    each other, which costs nothing. `boundary` says which epochs end after these items; it is
    None if none ends. `failure` says that the stream broke after these items.
    `nbytes` is what the items are charged with in the run's memory budget.
    """

    __slots__ = ("boundary", "failure", "items", "nbytes", "positions")

    def __init__(
        self,
        items: list[Any],
        positions: Positions,
        boundary: EpochEnd | None = None,
        failure: Failure | None = None,
        nbytes: int = 0,
    ) -> None:
        self.items = items
        self.positions = positions
        self.boundary = boundary
        self.failure = failure
        self.nbytes = nbytes

    @property
    def ends(self) -> bool:
        """Whether something ends after these items: an epoch or the stream, or it breaks."""
        return self.boundary is not None or self.failure is not None

    @property
    def ends_stream(self) -> bool:
        """Whether these are the last items of the stream."""
        return self.boundary is not None and self.boundary.is_end_of_stream

    def ends_epoch(self, level: int) -> bool:
        """Return whether the epoch of this level ends after these items."""
        return self.boundary is not None and self.boundary.ends(level)

    def split(self, size: int) -> Chunk:
        """Keep the first `size` items; return the rest, with its part of the bytes and what happens after it."""
        nbytes = self.nbytes * (len(self.items) - size) // len(self.items)
        rest = Chunk(self.items[size:], self.positions[size:], self.boundary, self.failure, nbytes)
        del self.items[size:]
        self.positions = self.positions[:size]
        self.boundary, self.failure = None, None
        self.nbytes -= nbytes
        return rest


class Algorithm:
    """Regroups a stream, without IO: items in, items out, in the order of arrival.

    `push` and `flush` return the items that are ready and, for each of them, its position. `flush` is called
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

    def push(self, items: list[Any], positions: Positions) -> tuple[list[Any], Positions]:
        """Take items in, return those that are ready."""
        raise NotImplementedError

    def flush(self) -> tuple[list[Any], Positions]:
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
    awaits: bool = False
    """Whether `pick` returns `Asked` in the place of items, which are to be awaited; on the loop then."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Stands for an item of a dataset with an async `[number]` until it is awaited; tuples may hold some."""

    dataset: Any
    number: int


class Indexed(Protocol):
    """Items that can be reached by number: what a sized source and the stages that rearrange it amount to.

    `pick(epoch, places)` returns the items at these places of the given epoch, in this order; a run of places
    that follow each other comes as a `range`. It must not block. If it calls the user's code, `on_thread` says
    how: the engine then calls `pick` on threads, or on the loop if that code is async, for one place at a time
    (see `stages/fetch.py`).
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
    def ordinal(self) -> Position:
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
class Turns:
    """Children of several items by turns: `block` of each of `cycle` items that are open at a time."""

    cycle: int
    block: int


@dataclass(frozen=True, slots=True)
class Work:
    """How to call a function for each item of a stream.

    `kind` is "async" (awaited on the loop), "thread" (called on a thread, several items per group) or "process"
    (the same in another process, for shape "map" only; the function and what it takes and returns can be
    pickled). `shape` says what becomes of the result: "map" puts it in the item's place, "filter" keeps the item
    where it is true, "flat" puts the elements of the returned iterable (or async iterable) in its place.
    """

    fn: Callable[..., Any]
    kind: Literal["async", "thread", "process"]
    shape: Literal["map", "filter", "flat"] = "map"
    placed: bool = False
    """Whether the function takes the item's `Place` as a second argument."""
    concurrency: Concurrency = "auto"
    ordered: bool = True
    turns: Turns | None = None
    """For shape "flat": how the children of several items take turns; None sends all of one item together."""
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


@dataclass(frozen=True, slots=True)
class Queue:
    """Lets so many items wait, ready for the next step; after the last stage, for the consumer."""

    room: int


@dataclass(frozen=True, slots=True)
class Passes:
    """Begins everything before it anew, `count` times, or for ever if that is None. The source ends each."""

    count: int | None


Step = Algorithm | Work | Queue | Passes


@dataclass(frozen=True, slots=True)
class Opening:
    """How to go through one epoch of a source from one of its items on, if items cannot be reached by number."""

    make: Callable[[], Any]
    """Returns an iterable or async iterable, or an awaitable of one."""
    call: bool = False
    """Whether `make` is the user's code, which may block. It is then called on a thread."""
    drop: int = 0
    """How many items of the iterable come before the item to start at. They are drawn and dropped."""


class Choice(Protocol):
    """Says from which input of a merge the next items come, without IO."""

    def begin(self, epoch: int) -> None:
        """Note that the epoch that comes has this number."""
        ...

    def next(self) -> tuple[int, int] | None:
        """Return an input and how many of its items come next at most; None if the epoch ends here."""
        ...

    def took(self, count: int) -> None:
        """Note that so many of these items came."""
        ...

    def ended(self) -> None:
        """Note that the input that `next` named has no more items in this epoch."""
        ...


@dataclass(frozen=True, slots=True)
class Zipping:
    """One item of each input at a time, as a tuple; `strict` says that none may have more than the others."""

    strict: bool


@dataclass(frozen=True, slots=True)
class Picking:
    """Items of the inputs as a `Choice` says; `choose` makes one for a run."""

    choose: Callable[[], Choice]


def leaves_out(indexed: Indexed) -> bool:
    """Return whether items that cannot be read are left out, so that a place is not the number of an item."""
    return indexed.on_thread is not None and indexed.on_thread.on_error == "skip"
