"""The types by which a stage tells the engine how it runs: by number, or as steps over a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from asyncfeed.attempts.retry import Policy
from asyncfeed.attempts.skip import OnError, Skip
from asyncfeed.epoch_end import EpochEnd
from asyncfeed.errors import Failure
from asyncfeed.position import Position, Positions
from asyncfeed.reading.reader import Waits
from asyncfeed.stacking.pool import Pool
from asyncfeed.stats import SlowPaths

Concurrency = int | Literal["auto"]


class MakesArrays:
    """A function of a `Work` that makes the arrays of its results itself, and can make them in given memory."""

    __slots__ = ()

    def make_in(self, pool: Pool) -> None:
        """Make the arrays of all results in the memory of this pool."""
        raise NotImplementedError


class Chunk:
    """Consecutive items that move through the pipeline together, and the boundary or failure after them.

    `positions` has the position of each item in its stream. Consecutive positions are a `range`, which takes no
    memory for each item. `boundary` says which epochs end after these items. It is None if no epoch ends.
    `failure` is the failure that ends the stream after these items. `nbytes` is the number of bytes that the items
    are charged with in the run's memory budget.
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
        """Whether an epoch or the stream ends after these items, or the stream fails there."""
        return self.boundary is not None or self.failure is not None

    @property
    def ends_stream(self) -> bool:
        """Whether these are the last items of the stream."""
        return self.boundary is not None and self.boundary.is_end_of_stream

    def ends_epoch(self, level: int) -> bool:
        """Return whether the epoch of this level ends after these items."""
        return self.boundary is not None and self.boundary.ends(level)

    def split(self, size: int) -> Chunk:
        """Keep the first `size` items. Return the rest, with its share of the bytes, and boundary or failure."""
        nbytes = self.nbytes * (len(self.items) - size) // max(1, len(self.items))
        rest = Chunk(self.items[size:], self.positions[size:], self.boundary, self.failure, nbytes)
        del self.items[size:]
        self.positions = self.positions[:size]
        self.boundary, self.failure = None, None
        self.nbytes -= nbytes
        return rest


class Held(NamedTuple):
    """What an algorithm holds between two items: the items in an order of its own, and whatever else it counts."""

    items: list[Any]
    positions: Positions
    """The position of each item."""
    numbers: dict[str, Any]
    """Everything else, as JSON."""


class Algorithm:
    """Regroups a stream without IO: items come in and go out.

    `push` and `flush` return the items that are ready, and the position of each. `flush` is called at the end of
    each epoch that the stage can see. After it, the algorithm is in its first state again. `done` is True when the
    stage needs no more items of this epoch, as after a `take`. `flush` resets it. What ever sets it also sets it
    in `__init__`, so that the run knows that epochs may end early.

    A checkpoint has no items, only positions. So the engine keeps a second instance, the twin, which gets the same
    calls when the consumer has received the results, with stand-ins for the items. What the twin holds is the
    state of the stage. An algorithm whose decisions depend on more than positions says what they depend on: it
    sets `looks`, and `fact` and `stand_in` take that out of an item, and make a stand-in of it.

    `looks`, `inputs` and `remake` have no default, because a wrong one gives wrong data after a resume. Without
    them the stage has no state. If the results are items that came in, inherit from `Arranging`.
    """

    done = False
    looks: bool
    """Whether `push` looks at the items."""
    labels = False
    """Whether a result cannot be told from its items alone: it has a label, too."""
    starts_anywhere = False
    """Whether each item goes into one result at most, and no result depends on items before it. Then another
    process may begin with any items that have gone into no result."""

    @property
    def held(self) -> int:
        """Number of items that were pushed and have not come out."""
        return 0

    def begin(self, epoch: int) -> None:
        """Begin the epoch with this number. This is called before the first item and after each `flush`."""

    def push(self, items: list[Any], positions: Positions) -> tuple[list[Any], Positions]:
        """Add items. Return the items that are ready."""
        raise NotImplementedError

    def flush(self) -> tuple[list[Any], Positions]:
        """Return the remaining items at the end of an epoch, and start again."""
        return [], ()

    def cut_off(self) -> tuple[list[Any], Positions]:
        """Return what later stages must still look at, although the stream fails before a result is complete."""
        return [], ()

    def state(self) -> Held:
        """Return what `restore` needs to continue from here. Later calls must not change what was returned."""
        raise NotImplementedError

    def restore(self, held: Held) -> None:
        """Continue from a state."""
        raise NotImplementedError

    def fact(self, item: Any) -> Any:
        """Return what `push` looks at in an item, as JSON."""
        return None

    def stand_in(self, fact: Any = None) -> Any:
        """Return an item for the twin. Without a fact, it is only passed to `restore`, and flushed."""
        return None

    def inputs(self, position: Position) -> Positions:
        """Return the positions of the items that went into the result at this position."""
        raise NotImplementedError

    def label(self, result: Any) -> Any:
        """Return the label of a result, as JSON."""
        return None

    def remake(self, items: list[Any], position: Position, label: Any) -> Any:
        """Return the result at this position, made of the items at its `inputs`."""
        raise NotImplementedError

    @property
    def ends_early(self) -> bool:
        """Whether an epoch may end before its last item came in. What ever sets `done` has it from the start."""
        return "done" in getattr(self, "__dict__", ())

    def undeclared(self) -> list[str]:
        """Return which of the methods and flags are missing that a state needs."""
        needed = ("looks", "inputs", "remake", "state", "restore")
        given = {name for kind in type(self).__mro__ if kind is not Algorithm for name in vars(kind)}
        return [name for name in needed if name not in given and name not in getattr(self, "__dict__", ())]


class Arranging(Algorithm):
    """An algorithm that only chooses and orders items: each result is an item that came in, as it is.

    It decides by number, and looks at no item. One that chooses by what is in the items sets `looks`.
    """

    looks = False

    def inputs(self, position: Position) -> Positions:
        """Return the position itself."""
        return (position,)

    def remake(self, items: list[Any], position: Position, label: Any) -> Any:
        """Return the item itself."""
        return items[0]


@dataclass(frozen=True)
class Reading:
    """How the items of a source are read if `pick` calls the user's code. The options are those of `map`."""

    tuning: ClassVar[tuple[str, ...]] = ("concurrency", "skip_limit", "together", "awaits")
    """As of a stage."""

    concurrency: Concurrency = "auto"
    on_error: OnError = "raise"
    skip_limit: float | None = None
    together: bool = False
    """Whether picking many items at once is faster than picking each of them. The engine then calls `pick` for
    several places. If that raises, it picks them one by one, so that the failed item is known."""
    awaits: bool = False
    """Whether `pick` returns `Asked` objects instead of items. The loop then awaits the items."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Stands for an item of a dataset with an async `[number]` until the item is awaited. Tuples may hold some."""

    dataset: Any
    number: int


class Indexed(Protocol):
    """Items that can be reached by number: a source with a length, and the stages after it that only rearrange it.

    `pick(epoch, places)` returns the items at these places of the given epoch, in this order. Consecutive places
    are a `range`. It must not block. If it calls the user's code, `on_thread` says how to call it. The engine then
    calls `pick` on threads, for one place at a time or for several (see `Reading.together`). If the code is async,
    it calls `pick` on the loop (see `stages/fetch.py`).
    """

    @property
    def on_thread(self) -> Reading | None:
        """How the user's code is called. None if `pick` calls no code of the user's."""
        ...

    def __len__(self) -> int: ...

    def pick(self, epoch: int, places: Sequence[int]) -> list[Any]:
        """Return the items at these places of this epoch."""
        ...

    def key(self, epoch: int, place: int) -> str:
        """Return the name of the item at this place of this epoch."""
        ...


class Place(Protocol):
    """The place of an item, for the functions of a `Work` with `placed`."""

    @property
    def epoch(self) -> int:
        """The epoch of the item, counted from 0."""
        ...

    @property
    def ordinal(self) -> Position:
        """The number of the item in its epoch, counted from 0."""
        ...

    def name(self, member: int | None = None) -> str:
        """Return the name of the item. If the item is a batch, return the name of its `member`."""
        ...

    def member(self, number: int) -> Place:
        """Return the place of a member of a batch. It has an epoch of its own."""
        ...


class MemberError(Exception):
    """A function failed that is not called for itself: for one member of a group, or in a chain.

    `member` is the number of the member in the group, and None for the item itself. Users never see this.
    """

    def __init__(self, member: int | None, stage: str, error: BaseException) -> None:
        super().__init__(member, stage, error)
        self.member = member
        self.stage = stage
        self.error = error


@dataclass(frozen=True, slots=True)
class Turns:
    """Send the children of several items in turns: `block` children of each of the `cycle` items that are open."""

    cycle: int
    block: int


@dataclass(frozen=True, slots=True)
class Work:
    """How to call a function for each item of a stream.

    `kind` is one of:

    * "async": the function is awaited on the loop.
    * "thread": it is called on a thread, for several items in a group.
    * "process": it is called in another process, for several items in a group. This is for shape "map" only. The
      function, its items and its results must be picklable.

    `shape` says how the result is used. "map" puts the result in the place of the item. "filter" keeps the item if
    the result is true. "flat" puts the elements of the result, an iterable or async iterable, in the place of the
    item.
    """

    fn: Callable[..., Any]
    kind: Literal["async", "thread", "process"]
    shape: Literal["map", "filter", "flat"] = "map"
    many: Callable[[list[Any]], Sequence[Any]] | None = None
    """For kind "thread": returns the results of many items, faster than one call for each. If it raises, the
    function is called for each of these items."""
    read: Callable[[Sequence[Any]], tuple[Sequence[Any], int]] | None = None
    """For functions that may be called in a chain: reads the files of several items together (`chain.Read`)."""
    waits: Callable[[], Waits] | None = None
    """For kind "thread": returns what the last call waited for. If it waited for all items of a group at the same
    time, a group is as large as its work allows, however long it waits. None if only the clock can tell."""
    placed: bool = False
    """Whether the function takes the item's `Place` as a second argument."""
    concurrency: Concurrency = "auto"
    ordered: bool = True
    carries: bool = False
    """Whether the function carries something from item to item. A run that resumes calls it from the start of its
    epoch, and drops the results that were received."""
    turns: Turns | None = None
    """For shape "flat": how the children of several items take turns. None sends all children of an item
    together."""
    grouped: bool = False
    """For shape "flat": whether the function is an async generator that yields lists of children, not children."""
    skip: Skip | Callable[[Failure], bool] | None = None
    """What decides whether a failed item is left out. If it is None, a failure ends the run."""
    cost: Callable[[Any], int | None] | None = None
    """Returns the bytes that the result of an item needs. It returns None if only `measure` can tell."""
    grows: bool = False
    """Whether results may weigh far more than `cost` says, because functions of the user's make them."""
    measure: Callable[[Any], int] | None = None
    """Returns the same by looking at files. It may block, and never raises. For kind "thread"."""
    packed: bool = False
    """Whether `cost` may be far too low, as for packed files. `measure` is then called as long as the two
    differ."""
    policy: Policy | None = None
    """For kind "async": how long a call may take, and when it is made again."""
    requests: int = 1
    """For kind "async": how many requests a call makes at the same time."""
    members: int = 0
    """How many members a list has of which the function, a `Chain`, makes a batch. 0 for other functions."""
    inline: Callable[[Any], bool] | None = None
    """Returns whether an item is so small that the loop itself may call the function. For asyncfeed's
    functions."""
    slow_paths: SlowPaths | None = None
    """Counts the calls that took a slower path. For asyncfeed's functions."""


@dataclass(frozen=True, slots=True)
class Queue:
    """Holds up to `room` ready items for the next step. After the last stage it holds them for the consumer."""

    room: int


@dataclass(frozen=True, slots=True)
class Passes:
    """Runs all steps before it `count` times, or without end if `count` is None. The source ends each pass."""

    count: int | None


@dataclass(frozen=True, slots=True)
class Timed:
    """An `Algorithm` whose items wait at most `seconds` for others: then it is flushed, and the epoch goes on."""

    algorithm: Algorithm
    seconds: float


Step = Algorithm | Timed | Work | Queue | Passes


@dataclass(frozen=True, slots=True)
class Opening:
    """How to iterate over one epoch of a source from a given item on, if items cannot be reached by number."""

    make: Callable[[], Any]
    """Returns an iterable or async iterable, or an awaitable of one."""
    call: bool = False
    """Whether `make` is the user's code, which may block. It is then called on a thread."""
    drop: int = 0
    """Number of items at the start of the iterable that are drawn and dropped."""


class Choice(Protocol):
    """Decides which input of a merge gives the next items. It does no IO."""

    def begin(self, epoch: int) -> None:
        """Begin the epoch with this number."""
        ...

    def next(self) -> tuple[int, int] | None:
        """Return the next input, and the largest number of items to take from it. None ends the epoch."""
        ...

    def took(self, count: int) -> None:
        """Note that `count` items were taken from the input that `next` returned."""
        ...

    def ended(self) -> None:
        """Note that the input that `next` returned has no more items in this epoch."""
        ...

    def state(self) -> Any:
        """Return the place in this epoch, as JSON."""
        ...

    def restore(self, state: Any) -> None:
        """Go on in this epoch from a state."""
        ...


@dataclass(frozen=True, slots=True)
class Zipping:
    """One item of each input at a time, as a tuple. With `strict`, inputs of different length are an error."""

    strict: bool

    @property
    def ends_early(self) -> bool:
        """Whether an epoch may end before the last item of an input."""
        return not self.strict


@dataclass(frozen=True, slots=True)
class Picking:
    """The items of the inputs in the order of a `Choice`. `choose` makes the `Choice` of a run."""

    choose: Callable[[], Choice]
    ends_early: bool = False
    """Whether an epoch may end before the last item of an input."""


def leaves_out(indexed: Indexed) -> bool:
    """Return whether items that cannot be read are left out. Then the place of an item is not its ordinal."""
    return indexed.on_thread is not None and indexed.on_thread.on_error != "raise"
