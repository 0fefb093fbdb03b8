"""Scan: a function that carries a state from item to item."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

from asyncfeed.axes import Axes
from asyncfeed.functions.checks import check_fn, is_async
from asyncfeed.position import Position, Positions
from asyncfeed.stages.base import Node
from asyncfeed.stages.steps import Algorithm, Held, Step, Work


@dataclass(frozen=True)
class Scan(Node):
    """Calls `fn(state, item)`, which returns the next state and a result, for one item after the other."""

    fn: Callable[[Any, Any], Any]
    initial: Any

    method: ClassVar[str] = "scan"
    positional: ClassVar[tuple[str, ...]] = ("fn", "initial")
    makes_items: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fn(self.method, self.fn)

    @property
    def one_to_one(self) -> bool:
        """Whether no item can be left out or overtaken."""
        return True

    def steps(self) -> Sequence[Step]:
        """Return two steps: one marks the first item of an epoch, one calls the function."""
        if is_async(self.fn):
            return [MarkFirst(), Work(AwaitScan(self.fn, self.initial), "async", concurrency=1, carries=True)]
        return [MarkFirst(), Work(CallScan(self.fn, self.initial), "thread", concurrency=1, carries=True)]

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return the rule for the results of a function."""
        return upstream.mapped()

    def length(self, upstream: int) -> int:
        """Return the number of items, which stays as it is."""
        return upstream


class MarkFirst(Algorithm):
    """Makes each item a pair that says whether it is the first of its epoch."""

    looks = False

    def __init__(self) -> None:
        self._first = True

    def push(self, items: list[Any], positions: Positions) -> tuple[list[Any], Positions]:
        """Return a pair for each item."""
        marked = [(False, item) for item in items]
        if self._first and items:
            marked[0] = (True, items[0])
            self._first = False
        return marked, positions

    def flush(self) -> tuple[list[Any], Positions]:
        """Begin a new epoch."""
        self._first = True
        return [], ()

    def state(self) -> Held:
        """Return that nothing is held."""
        return Held([], [], {"first": self._first})

    def restore(self, held: Held) -> None:
        """Go on from a state."""
        self._first = held.numbers["first"]

    def inputs(self, position: Position) -> Positions:
        """Return the position of the item."""
        return (position,)

    def remake(self, items: list[Any], position: Position, label: Any) -> tuple[bool, Any]:
        """Return a pair. `scan` calls its function from the start of the epoch, so it asks for none of these."""
        return False, items[0]


class CallScan:
    """Calls the function for one pair of `MarkFirst` after the other, and keeps the state of one run."""

    def __init__(self, fn: Callable[[Any, Any], Any], initial: Any) -> None:
        self._fn = fn
        self._initial = initial
        self._state: Any = None

    def __call__(self, marked: tuple[bool, Any]) -> Any:
        """Return the result for the item."""
        first, item = marked
        state = deepcopy(self._initial) if first else self._state
        self._state, result = _pair(self._fn(state, item))
        return result


class AwaitScan(CallScan):
    """The same for an async function."""

    async def __call__(self, marked: tuple[bool, Any]) -> Any:
        """Return the result for the item."""
        first, item = marked
        state = deepcopy(self._initial) if first else self._state
        self._state, result = _pair(await self._fn(state, item))
        return result


def _pair(made: Any) -> tuple[Any, Any]:
    if not isinstance(made, tuple) or len(made) != 2:
        raise TypeError(f"scan: the function must return (next state, result), not {made!r}")
    return made
