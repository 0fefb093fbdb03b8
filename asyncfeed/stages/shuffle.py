"""Shuffle: an exact permutation if items can be reached by number, else a buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from asyncfeed.axes import Axes
from asyncfeed.errors import PipelineError
from asyncfeed.position import Position, Positions
from asyncfeed.randomness import stage_seed
from asyncfeed.randomness.permutation import Permutation
from asyncfeed.stages.base import Node, Source, check_count
from asyncfeed.stages.steps import Arranging, Held, Indexed, Step
from asyncfeed.stages.together import arrange, fold

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK = 4096
"""Number of places that are permuted at once, in 50 ns each. With fewer, NumPy's cost per call would count."""

DRAWS = 1024
"""Number of random numbers that are drawn at once, in 10 ns each. One draw for each item would take 2 us."""


@dataclass(frozen=True)
class Shuffle(Node):
    """Puts the items of each epoch in a random order: a new one for each epoch, or that of epoch 0 for all."""

    seed: int = 0
    buffer: int | None = None
    reshuffle: bool = True
    stream: int = field(default=0, repr=False)
    """Number of random stages before this one; see `randomness`."""

    method: ClassVar[str] = "shuffle"
    arranges: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("shuffle", "seed", self.seed, 0)
        if not isinstance(self.reshuffle, bool):
            raise PipelineError(f"shuffle: reshuffle must be True or False, not {self.reshuffle!r}")
        if self.buffer is not None:
            check_count("shuffle", "buffer", self.buffer, 1)

    @property
    def is_random(self) -> bool:
        """Whether it draws random numbers."""
        return True

    def with_stream(self, stream: int) -> Shuffle:
        """Return this shuffle with the random numbers of another place in the description."""
        return replace(self, stream=stream)

    @property
    def exact(self) -> bool:
        """Whether the stage needs all items by number."""
        return self.buffer is None

    def after(self, source: Source, stages: Sequence[Node]) -> Node:
        """Return this shuffle with its random numbers. Raise if it is exact and the items are a stream."""
        if self.exact:
            indexed, rest = fold(source, arrange((*stages, self)))
            if indexed is None or any(node is self for node in rest):
                raise _needs_buffer(source.unnumbered if indexed is None else "")
        return super().after(source, stages)

    def index(self, upstream: Indexed) -> Indexed | None:
        """Return upstream in an exact permutation. None if the user asked for a buffer."""
        if self.buffer is not None:
            return None
        return Permuted(upstream, stage_seed(self.seed, self.stream), reshuffle=self.reshuffle)

    def may_precede(self, other: Node) -> bool:
        """Return whether it may run before a stage: if it is exact, and the other works on each item for itself.

        The same items come out in the same order, and each is made once. Only the order of the calls is another
        one.
        """
        return self.exact and other.item_by_item

    def steps(self) -> Sequence[Step]:
        """Return the buffer. A stream cannot be shuffled without one."""
        if self.buffer is None:
            raise _needs_buffer()
        seed = stage_seed(self.seed, self.stream)
        return [BufferShuffle(self.buffer, seed, reshuffle=self.reshuffle)]

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return `upstream`: the items stay as they are."""
        return upstream

    def length(self, upstream: int) -> int:
        """Return `upstream`: as many items come out as go in."""
        return upstream


def _needs_buffer(fix: str = "") -> PipelineError:
    fix = fix or "or put it next to the source, before the stage that makes it a stream"
    return PipelineError(
        "shuffle: items of a stream cannot be reached by number, so it needs a buffer: "
        f".shuffle(buffer=10_000); {fix}"
    )


class Permuted:
    """Upstream in the order of a permutation: a new one for each epoch, or that of epoch 0 for all."""

    def __init__(self, upstream: Indexed, seed: int, *, reshuffle: bool = True) -> None:
        self.on_thread = upstream.on_thread
        self._upstream = upstream
        self._reshuffle = reshuffle
        # The cached functions do not refer to self, so there is no reference cycle.
        self._permutation = lru_cache(maxsize=4)(partial(Permutation, len(upstream), seed))
        self._block = lru_cache(maxsize=2)(partial(_block, self._permutation))

    def __len__(self) -> int:
        return len(self._upstream)

    def pick(self, epoch: int, places: Sequence[int]) -> list[Any]:
        """Return the items at these places of the permuted order."""
        return self._upstream.pick(epoch, self._permuted(epoch, places))

    def key(self, epoch: int, place: int) -> str:
        """Return the name of the item that was put at this place."""
        return self._upstream.key(epoch, self._permuted(epoch, range(place, place + 1))[0])

    def _permuted(self, epoch: int, places: Sequence[int]) -> list[int]:
        epoch = epoch if self._reshuffle else 0
        if not isinstance(places, range) or places.step != 1:
            return self._permutation(epoch).numbers(np.asarray(places, np.uint64))
        first, last = places.start // BLOCK, (places.stop - 1) // BLOCK
        if first == last:
            offset = first * BLOCK
            return self._block(epoch, first)[places.start - offset : places.stop - offset]
        whole = [place for number in range(first, last + 1) for place in self._block(epoch, number)]
        return whole[places.start - first * BLOCK : places.stop - first * BLOCK]


def _block(permutation: Callable[[int], Permutation], epoch: int, number: int) -> list[int]:
    of_epoch = permutation(epoch)
    start = number * BLOCK
    return of_epoch.numbers(np.arange(start, min(start + BLOCK, of_epoch.n), dtype=np.uint64))


class BufferShuffle(Arranging):
    """Shuffles a stream with a buffer: each item that enters pushes a random item out.

    This is TensorFlow's `Dataset.shuffle(buffer_size)`. The first item leaves when the buffer is full. An item can
    come early by at most the size of the buffer. At the end of an epoch the buffer is emptied in a random order.
    """

    starts_anywhere = True

    def __init__(self, size: int, seed: int, *, reshuffle: bool = True) -> None:
        self._size = size
        self._seed = seed
        self._reshuffle = reshuffle
        self._held: list[tuple[Any, Any]] = []
        self._start(0)

    def begin(self, epoch: int) -> None:
        """Begin with the random numbers of this epoch."""
        if epoch != self._epoch:
            self._start(epoch)

    @property
    def held(self) -> int:
        """Number of items in the buffer."""
        return len(self._held)

    def push(self, items: list[Any], positions: Positions) -> tuple[list[Any], Positions]:
        """Add items. Return as many random items as the buffer has no room for."""
        held = self._held
        room = self._size - len(held)
        if room:
            held.extend(zip(items[:room], positions[:room], strict=True))
            items, positions = items[room:], positions[room:]
        out = []
        # The slots come last, because zip stops at the end of the items before it takes one number too many.
        for item, position, slot in zip(items, positions, self._slots, strict=False):
            out.append(held[slot])
            held[slot] = (item, position)
        self._drawn += len(items)
        return _apart(out)

    def flush(self) -> tuple[list[Any], Positions]:
        """Return the items of the buffer in a random order, and continue with the next epoch's random numbers."""
        held = self._held
        random = np.random.PCG64([self._seed, self._random_epoch, 1])
        out = []
        for slot in _below(random, np.arange(len(held), 0, -1, dtype=np.uint64)):
            out.append(held[slot])
            held[slot] = held[-1]
            held.pop()
        self._start(self._epoch + 1)
        return _apart(out)

    def state(self) -> Held:
        """Return the items in the buffer, the epoch, and the number of draws."""
        items, positions = _apart(self._held)
        return Held(items, positions, {"epoch": self._epoch, "drawn": self._drawn})

    def restore(self, held: Held) -> None:
        """Continue from a state."""
        self._held = list(zip(held.items, held.positions, strict=True))
        self._start(held.numbers["epoch"], held.numbers["drawn"])

    def _start(self, epoch: int, drawn: int = 0) -> None:
        self._epoch = epoch
        self._drawn = drawn
        self._slots = _slots(np.random.PCG64([self._seed, self._random_epoch, 0]).advance(drawn), self._size)

    @property
    def _random_epoch(self) -> int:
        """The epoch whose random numbers are drawn."""
        return self._epoch if self._reshuffle else 0


def _slots(random: np.random.PCG64, size: int) -> Iterator[int]:
    """Yield random numbers below `size`, without end."""
    bounds = np.full(DRAWS, size, np.uint64)
    while True:
        yield from _below(random, bounds)


def _below(random: np.random.PCG64, bounds: NDArray[np.uint64]) -> list[int]:
    """Return one random number below each bound."""
    # NumPy guarantees the raw bits in all later versions, but not the numbers that a Generator makes of them.
    raw = random.random_raw(len(bounds)) >> np.uint64(32)
    numbers: list[int] = (raw * bounds >> np.uint64(32)).tolist()
    return numbers


def _apart(pairs: list[tuple[Any, Position]]) -> tuple[list[Any], Positions]:
    return [item for item, _ in pairs], [position for _, position in pairs]
