"""Chain: the functions of neighbouring stages, called one after the other without a hand-over between them.

A chain is called for an item, or for the list of items of which `batch` makes one. For a list it does four things:

1. It reads the files of several members with one call.
2. It calls the functions for each member. Each member has its own place, so its epoch and its random numbers are
   those that it has without a chain.
3. It stacks the results.
4. It says which member failed, and in which stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from asyncfeed.functions.checks import refuse_awaitable
from asyncfeed.stacking.pool import Pool
from asyncfeed.stages.batch import Unfinished
from asyncfeed.stages.steps import MakesArrays, MemberError, Place
from asyncfeed.trees import size_of

Read = Callable[[Sequence[Any]], tuple[Sequence[Any], int]]
"""Reads the first of some items together, as many as it likes. Returns what it made of them, and the number of the
function of the chain that is called for these next."""
NO_MEMBER = -1
"""The number that stands for no member of a list."""
UNREAD = -1
"""Stands for that number before anything was read."""


MUCH = 1 << 20
"""Bytes of an item that are worth a look at each: as many as a group has."""
EACH = 16
"""Otherwise each so many items one is measured. It costs half a microsecond for each function."""


class Peak:
    """The most memory that an item needs while a chain works on it: what goes into a function, and what comes out.

    It is measured for some items, and for all that need much. It follows at once if items need more, and slowly if
    they need less.
    """

    __slots__ = ("_calls", "nbytes", "result_bytes")

    def __init__(self) -> None:
        self.nbytes = 0
        self.result_bytes = 0
        """Bytes of the last result that was measured."""
        self._calls = 0

    def due(self) -> bool:
        """Return whether to measure the next item. Threads may disagree about its number."""
        self._calls += 1
        return self.nbytes > MUCH or self._calls % EACH == 1

    def learn(self, nbytes: int, result_bytes: int) -> None:
        """Learn what an item needed, and how large its result is."""
        self.nbytes, self.result_bytes = max(nbytes, int(0.9 * self.nbytes)), result_bytes

    def of_list(self, count: int) -> int:
        """Return what a list of items needs: all results, the batch of them, and one item in work."""
        return 2 * count * self.result_bytes + self.nbytes


class NamesNeeded(Exception):
    """In a worker process, a function asks for the name of an item, to raise an error.

    The group ends here. The item must be sent again, with its names.
    """


class NoBatch:
    """What a chain returns for a list of which no batch is made. Nobody sees this."""


class NotWanted(Exception):
    """In a worker process, a list was not finished, because its run stops. Nobody sees this."""


class Call(NamedTuple):
    """One function of a chain."""

    fn: Callable[..., Any]
    stage: str
    placed: bool


@dataclass(frozen=True, slots=True)
class Chain(MakesArrays):
    """Calls one function after the other."""

    calls: tuple[Call, ...]
    batch: Call | None = None
    """Makes a batch of a list of results. None if the chain is called for single items."""
    read: Read | None = None
    _begins: Callable[[int], bool] | None = field(default=None, compare=False)
    """In a worker process, is told the number of each member before it is called, and `NO_MEMBER` before files are
    read and before the batch is made. Returns whether the batch is not wanted."""
    _plain: set[type] = field(default_factory=set, compare=False)
    """Types of results that are known to be no awaitables."""
    peak: Peak = field(default_factory=Peak, compare=False)
    placed: bool = field(init=False, compare=False)
    """Whether a function takes the place of its item."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "placed", any(call.placed for call in self.calls))

    def __reduce__(self) -> tuple[Any, ...]:
        return Chain, (self.calls, self.batch, self.read)

    def make_in(self, pool: Pool) -> None:
        """Make all batches in the memory of this pool."""
        if self.batch is not None and hasattr(self.batch.fn, "pool"):
            made = replace(self.batch.fn, pool=pool)  # type: ignore[type-var]  # `Collate`
            object.__setattr__(self, "batch", self.batch._replace(fn=made))

    def tell(self, begins: Callable[[int], bool]) -> None:
        """Tell the number of each member before it is called. Stop if the answer is that no batch is wanted."""
        object.__setattr__(self, "_begins", begins)

    @property
    def fn(self) -> Callable[..., Any]:
        """The last function, by which processes know the chain."""
        return self.calls[-1].fn

    def __call__(self, item: Any, place: Place | None = None) -> Any:
        """Return the result of an item, or the batch of a list of items."""
        if self.batch is None:
            return self.result(item, 0, place, weigh=self.peak.due())
        assert place is not None  # it gives the members their places, and messages their names
        rows: list[Any] = []
        begins = self._begins
        while len(rows) < len(item):
            if begins is not None:
                begins(NO_MEMBER)
            values, first = self.read_some(item[len(rows) :] if rows else item)
            for value in values:
                if begins is not None and begins(len(rows)):
                    raise NotWanted
                rows.append(self.member(value, first, place, len(rows)))
        if begins is not None:
            begins(NO_MEMBER)
        return NoBatch() if type(item) is Unfinished else self.join(rows, place)

    def read_some(self, items: Sequence[Any]) -> tuple[Sequence[Any], int]:
        """Read the first of some items together: see `Read`. What fails is read again, for each item alone."""
        if self.read is None:
            return items, 0
        try:
            return self.read(items)
        except Exception:  # noqa: BLE001 - the call for the item that fails raises again
            return items, 0

    def member(self, value: Any, first: int, place: Place, number: int, *, weigh: bool = False) -> Any:
        """Return the result of a member of a list, beginning with the function of this number."""
        try:
            return self.result(value, first, place.member(number) if self.placed else None, weigh=weigh)
        except MemberError as error:
            error.member = number
            raise

    def result(self, value: Any, first: int, place: Place | None, *, weigh: bool = False) -> Any:
        """Return the result of an item, beginning with the function of this number.

        If `weigh`, learn how much memory that takes. Raises `MemberError` with the stage that failed.
        """
        plain = self._plain
        before, most = size_of(value) if weigh else 0, 0
        for fn, stage, placed in self.calls[first:] if first else self.calls:
            try:
                value = fn(value, place) if placed else fn(value)
                if type(value) not in plain:
                    refuse_awaitable(stage, value)
                    plain.add(type(value))
            except BaseException as error:  # noqa: BLE001 - the consumer gets it
                raise MemberError(None, stage, error) from None
            if weigh:
                after = size_of(value)
                before, most = after, max(most, before + after)
        if weigh:
            self.peak.learn(most, before)
        return value

    def join(self, rows: list[Any], place: Place) -> Any:
        """Return the batch of the results of all members."""
        assert self.batch is not None
        fn, stage, placed = self.batch
        try:
            batch = fn(rows, place) if placed else fn(rows)
            refuse_awaitable(stage, batch)
        except NamesNeeded:
            raise
        except BaseException as error:  # noqa: BLE001 - the consumer gets it
            raise MemberError(None, stage, error) from None
        return batch
