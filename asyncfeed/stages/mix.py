"""Mix: one stream from several inputs. Each item comes from an input that is drawn at random."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from asyncfeed.errors import PipelineError
from asyncfeed.randomness import stage_seed
from asyncfeed.stages.base import Source, check_count, random_stages
from asyncfeed.stages.merge import check_inputs, read_apart, read_together
from asyncfeed.stages.steps import Indexed, Picking, leaves_out
from asyncfeed.stages.together import is_endless

if TYPE_CHECKING:
    from numpy.typing import NDArray

Stop = Literal["first", "all"]
BLOCK = 4096
"""Number of draws that are made at once. One draw then takes 10 ns."""
LARGEST = 1 << 26
"""Largest number of items that a mix gives by number. To find the input of each item, all draws are made once,
which takes 1 s for this number. A larger mix is a stream."""


@dataclass(frozen=True)
class Mix(Source):
    """Items of the inputs. Each item comes from a random input. The draws are the same in each epoch."""

    pipelines: tuple[Any, ...]
    weights: tuple[float, ...] | None = None
    seed: int = 0
    stop: Stop = "all"
    _table: dict[str, Mixed] = field(default_factory=dict, repr=False, compare=False)
    """A cache of `indexed`. It is empty before the items by number were first asked for."""

    method: ClassVar[str] = "mix"

    def __post_init__(self) -> None:
        check_inputs("mix", self.pipelines)
        check_count("mix", "seed", self.seed, 0)
        if self.stop not in ("first", "all"):
            raise PipelineError(f'mix: stop must be "first" or "all", not {self.stop!r}')
        if self.weights is None:
            return
        weights = tuple(self.weights)
        object.__setattr__(self, "weights", weights)
        if len(weights) != len(self.pipelines):
            raise PipelineError(
                f"mix: {len(self.pipelines)} inputs need one weight each, and {len(weights)} were given"
            )
        if not all(isinstance(each, int | float) and 0 <= each < math.inf for each in weights) or not any(weights):
            raise PipelineError(f"mix: weights must be numbers of at least 0, and one above 0, not {weights}")

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_table": {}}  # it is made again; it holds functions, which cannot be pickled

    @property
    def inputs(self) -> tuple[Any, ...]:
        """The mixed pipelines."""
        return self.pipelines

    @property
    def is_random(self) -> bool:
        """Whether it draws random numbers."""
        return True

    @property
    def has_no_end(self) -> bool:
        """Whether the mix has no end: with stop="first" if all inputs have none, with "all" if one has none."""
        endless = [is_endless(each.source, each.stages) for each, _ in self._drawn()]
        return all(endless) if self.stop == "first" else any(endless)

    def size(self) -> int | None:
        """Return the number of items. None if it is not known."""
        indexed = self.indexed()
        if indexed is not None:
            return len(indexed)
        sizes = [pipeline.size() for pipeline, _ in self._drawn()]
        return None if None in sizes or self.stop == "first" else sum(sizes)

    def indexed(self) -> Indexed | None:
        """Return the items by number; None if an input cannot be reached by number."""
        if "by number" not in self._table:
            inputs = [pipeline.indexed() for pipeline in self.pipelines]
            apart = None in inputs or any(map(leaves_out, inputs)) or read_apart(inputs)
            if apart or sum(map(len, inputs)) > LARGEST:
                return None
            self._table["by number"] = Mixed(inputs, Draws(self._random_seed, self._weights), self.stop)
        return self._table["by number"]

    def merging(self) -> Picking:
        """Return the choice for streams: each item comes from the input that is drawn."""
        return Picking(partial(Drawn, Draws(self._random_seed, self._weights), self.stop), self.stop == "first")

    @property
    def _random_seed(self) -> int:
        return stage_seed(self.seed, max(random_stages(each.source, each.stages) for each in self.pipelines))

    @property
    def _weights(self) -> tuple[float, ...]:
        return self.weights or (1.0,) * len(self.pipelines)

    def _drawn(self) -> list[tuple[Any, float]]:
        """Return the inputs that are ever drawn from, with their weights."""
        return [each for each in zip(self.pipelines, self._weights, strict=True) if each[1]]

    def __str__(self) -> str:
        """Return the call that makes this source."""
        options = "" if self.weights is None else f", weights={list(self.weights)}"
        options += f", seed={self.seed}" if self.seed else ""
        options += "" if self.stop == "all" else f', stop="{self.stop}"'
        return f"mix({', '.join(map(repr, self.pipelines))}{options})"


class Draws:
    """The random draws: number p decides from which input the item at place p of an epoch comes."""

    def __init__(self, seed: int, weights: Sequence[float]) -> None:
        self._seed = seed
        self._weights = weights
        self.everything = frozenset(which for which, weight in enumerate(weights) if weight)
        self._edges = lru_cache(maxsize=None)(self._find_edges)
        self._numbers = lru_cache(maxsize=2)(partial(_numbers, seed))

    def block(self, number: int, live: frozenset[int]) -> NDArray[np.int64]:
        """Return the input for each place of a block, if only the inputs in `live` are drawn."""
        which, edges = self._edges(live)
        return which[np.searchsorted(edges, self._numbers(number), side="right")]

    def _find_edges(self, live: frozenset[int]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        which = sorted(live)
        sums = list(accumulate(self._weights[each] for each in which))
        return np.array(which, np.int64), np.array(sums[:-1], np.float64) / sums[-1]


def _numbers(seed: int, block: int) -> NDArray[np.float64]:
    raw = np.random.PCG64([seed, 2]).advance(block * BLOCK).random_raw(BLOCK)
    return np.asarray((raw >> np.uint64(11)) * 2.0**-53, np.float64)


class Drawn:
    """The `Choice` of `mix`, for streams."""

    def __init__(self, draws: Draws, stop: Stop) -> None:
        self._draws = draws
        self._stop = stop
        self.begin(0)

    def begin(self, epoch: int) -> None:
        """Begin with the first draw. The draws are the same in each epoch."""
        self._place = 0
        self._live = self._draws.everything
        self._over = False
        self._look()

    def next(self) -> tuple[int, int] | None:
        """Return the input that is drawn, and how many times in a row it is drawn."""
        if self._over:
            return None
        runs = self._runs
        at = self._place % BLOCK
        end = runs[bisect_right(runs, at)]
        return self._block[at], end - at

    def took(self, count: int) -> None:
        """Advance by this number of draws."""
        self._place += count
        if self._place % BLOCK == 0:
            self._look()

    def ended(self) -> None:
        """Draw again from the other inputs, with the same random number. End if there are none."""
        self._live = self._live - {self._block[self._place % BLOCK]}
        self._over = self._stop == "first" or not self._live
        if not self._over:
            self._look()

    def state(self) -> list[Any]:
        """Return the number of draws, and the inputs that are drawn."""
        return [self._place, sorted(self._live), self._over]

    def restore(self, state: list[Any]) -> None:
        """Go on after this number of draws."""
        self._place, live, self._over = state
        self._live = frozenset(live)
        if self._live:
            self._look()

    def _look(self) -> None:
        block = self._draws.block(self._place // BLOCK, self._live)
        self._runs: list[int] = [*(np.flatnonzero(np.diff(block)) + 1).tolist(), BLOCK]
        """The places in the block at which a run of draws of one input ends."""
        self._block: list[int] = block.tolist()


class Mixed:
    """The items of several sources by number.

    `_starts` has the number of items of each input before each block.
    """

    def __init__(self, inputs: Sequence[Indexed], draws: Draws, stop: Stop) -> None:
        self._inputs = inputs
        self._draws = draws
        self.on_thread = read_together(inputs)
        sizes = np.array(list(map(len, inputs)), np.int64)
        self._starts: list[NDArray[np.int64]] = []
        self._changes: list[tuple[int, frozenset[int]]] = [(0, draws.everything)]
        """The inputs that are drawn, and the place from which on this holds."""
        self._length = self._go_through(sizes, stop)
        self._found = lru_cache(maxsize=4)(self._find)

    def _go_through(self, sizes: NDArray[np.int64], stop: Stop) -> int:
        taken = np.zeros(len(sizes), np.int64)
        place, live = 0, self._draws.everything
        while live:
            number, at = divmod(place, BLOCK)
            if at == 0:
                self._starts.append(taken.copy())
            block = self._draws.block(number, live)[at:]
            cut, ended = len(block), None
            for which in live:
                beyond = np.flatnonzero(block == which)[sizes[which] - taken[which] :]
                if len(beyond) and beyond[0] < cut:
                    cut, ended = int(beyond[0]), which
            taken += np.bincount(block[:cut], minlength=len(sizes))
            place += cut
            if ended is not None:
                if stop == "first":
                    break
                live = live - {ended}
                self._changes.append((place, live))
        return place

    def _find(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the input of each place of a block, and the place in that input."""
        start = number * BLOCK
        first = bisect_right(self._changes, start, key=lambda change: change[0]) - 1
        block = self._draws.block(number, self._changes[first][1]).copy()
        for place, live in self._changes[first + 1 :]:
            if place >= start + BLOCK:
                break
            if live:
                block[place - start :] = self._draws.block(number, live)[place - start :]
        block = block[: self._length - start]
        offsets = np.empty_like(block)
        for which, before in enumerate(self._starts[number]):
            here = block == which
            offsets[here] = before + np.arange(np.count_nonzero(here))
        return block, offsets

    def __len__(self) -> int:
        return self._length

    def pick(self, epoch: int, places: Sequence[int]) -> list[Any]:
        """Return the items at these places. Each input is asked once for all its items in a block."""
        if isinstance(places, range) and places.step == 1:
            items: list[Any] = []
            start = places.start
            while start < places.stop:
                number, at = divmod(start, BLOCK)
                stop = min(places.stop - number * BLOCK, BLOCK)
                block, offsets = self._found(number)
                items += self._pick(epoch, block[at:stop], offsets[at:stop])
                start = number * BLOCK + stop
            return items
        found = [self._where(place) for place in places]
        return self._pick(epoch, np.array([which for which, _ in found]), np.array([at for _, at in found]))

    def _pick(self, epoch: int, which: NDArray[np.int64], offsets: NDArray[np.int64]) -> list[Any]:
        items: list[Any] = [None] * len(which)
        for each in np.unique(which).tolist():
            at = np.flatnonzero(which == each)
            wanted = offsets[at].tolist()
            run = range(wanted[0], wanted[-1] + 1)
            picked = self._inputs[each].pick(epoch, run if wanted == list(run) else wanted)
            for place, item in zip(at.tolist(), picked, strict=True):
                items[place] = item
        return items

    def _where(self, place: int) -> tuple[int, int]:
        block, offsets = self._found(place // BLOCK)
        return int(block[place % BLOCK]), int(offsets[place % BLOCK])

    def key(self, epoch: int, place: int) -> str:
        """Return the name of the item at this place."""
        which, offset = self._where(place)
        return self._inputs[which].key(epoch, offset)
