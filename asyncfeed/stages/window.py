"""Window: overlapping runs of samples as arrays, for time series."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, ClassVar, Literal

import numpy as np

from asyncfeed.axes import Axes, Batched, Fixed
from asyncfeed.errors import PipelineError
from asyncfeed.numbered import Numbered
from asyncfeed.position import Position, Positions, first_number, join, members, parts
from asyncfeed.stacking.collate import collate
from asyncfeed.stages.base import Node, Source, check_count
from asyncfeed.stages.collating import collating, maker
from asyncfeed.stages.steps import Algorithm, Held, Indexed, Reading, Step, Work


@dataclass(frozen=True)
class Window(Node):
    """Stacks each `size` consecutive samples. A window begins every `stride` samples."""

    size: int
    stride: int = 1
    drop_remainder: bool = True
    within: Callable[[Any], Any] | Literal["file"] | None = None

    method: ClassVar[str] = "window"
    positional: ClassVar[tuple[str, ...]] = ("size",)
    makes_items: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("window", "size", self.size, 1)
        check_count("window", "stride", self.stride, 1)
        if not (self.within is None or self.within == "file" or callable(self.within)):
            raise PipelineError(
                f'window: within must be "file", or a function that returns the series of a sample, '
                f"not {self.within!r}"
            )

    def after(self, source: Source, stages: Sequence[Node]) -> Node:
        """Return this stage. Raise if its samples are unread files, or if no stage makes samples of files."""
        maker(self, source, stages)
        made = any(isinstance(step, Work) and step.shape == "flat" for each in stages for step in each.steps())
        if self.within == "file" and (source.inputs or not made):
            raise PipelineError(
                'window: within="file" needs a flat_map or an interleave before it, which makes samples of files; '
                "for other samples pass a function that returns the series of one"
            )
        return self

    def index(self, upstream: Indexed) -> Indexed | None:
        """Return the windows by number, or None.

        If your code reads the samples, each would be read `size` times. And only the samples tell where a series
        ends.
        """
        return Windowed(upstream, self) if upstream.on_thread is None and self.within is None else None

    def steps(self) -> Sequence[Step]:
        """Return two steps: one groups samples, one stacks each group. One that tells series may come first."""
        stack = collating(None)
        if self.within is None:
            return [Windows(self.size, self.stride, self.drop_remainder), stack]
        if self.within == "file":
            return [WindowsOfFiles(self.size, self.stride, self.drop_remainder), stack]
        series = Work(Series(self.within), "thread")
        return [series, WindowsOfSeries(self.size, self.stride, self.drop_remainder), stack]

    def gathers(self) -> int:
        """Return how many samples make a window."""
        return self.size

    def length(self, upstream: int) -> int | None:
        """Return the number of windows. It is not known if they stay within a series."""
        if self.within is not None:
            return None
        if self.drop_remainder:
            return max(0, (upstream - self.size) // self.stride + 1)
        return -(-upstream // self.stride)

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return the axis of the window, and those of the samples."""
        # A window of several samples has compared their axes. A window of one sample has not.
        alike = self.size > 1 and not isinstance(upstream, Batched)
        return Batched(self.drop_remainder or endless, Fixed() if alike else upstream)


class Windowed:
    """The windows over upstream by number. A window of arrays in memory is a view of them.

    A thread stacks other windows when they are asked for.
    """

    def __init__(self, upstream: Indexed, window: Window) -> None:
        self._run = upstream.run if isinstance(upstream, Numbered) else None
        self.on_thread = Reading() if self._run is None else None
        self._upstream = upstream
        self._window = window
        self._length = window.length(len(upstream)) or 0

    def __len__(self) -> int:
        return self._length

    def pick(self, epoch: int, places: Sequence[int]) -> list[Any]:
        """Return the windows at these places."""
        size, stride, run = self._window.size, self._window.stride, self._run
        if run is not None:
            return [run(place * stride, place * stride + size) for place in places]
        return [self._stack(epoch, place * stride) for place in places]

    def _stack(self, epoch: int, start: int) -> Any:
        run = range(start, min(start + self._window.size, len(self._upstream)))
        name = partial(self._name, epoch, start)
        return collate(self._upstream.pick(epoch, run), name)

    def _name(self, epoch: int, start: int, member: int) -> str:
        return self._upstream.key(epoch, start + member)

    def key(self, epoch: int, place: int) -> str:
        """Return the names of the samples of this window."""
        start = place * self._window.stride
        last = min(start + self._window.size, len(self._upstream)) - 1
        return f"window of {self._upstream.key(epoch, start)} to {self._upstream.key(epoch, last)}"


class Windows(Algorithm):
    """Cuts a stream into lists that overlap; the position of a list is that of each of its items."""

    looks = False

    def __init__(self, size: int, stride: int, drop_remainder: bool) -> None:
        self._size = size
        self._stride = stride
        self._drop = drop_remainder
        self._start()

    def _start(self) -> None:
        self._items: list[Any] = []
        self._positions: Positions = ()
        self._gap = 0
        """Number of items before the next window begins."""

    @property
    def held(self) -> int:
        """Number of items that wait until a window is full."""
        return len(self._items)

    def push(self, items: list[Any], positions: Positions) -> tuple[list[Any], Positions]:
        """Return the windows that are full."""
        gap = min(self._gap, len(items))
        self._gap -= gap
        items, positions = self._items + items[gap:], join(self._positions, positions[gap:])
        starts = range(0, len(items) - self._size + 1, self._stride)
        after = len(starts) * self._stride
        self._gap += max(0, after - len(items))
        self._items, self._positions = items[after:], positions[after:]
        size = self._size
        return [items[at : at + size] for at in starts], [members(positions[at : at + size]) for at in starts]

    def flush(self) -> tuple[list[Any], Positions]:
        """Return the windows that begin in the remaining items, unless they are dropped."""
        items, positions = self._items, self._positions
        self._start()
        starts = range(0) if self._drop else range(0, len(items), self._stride)
        return [items[at:] for at in starts], [members(positions[at:]) for at in starts]

    def state(self) -> Held:
        """Return the items that wait, and the number of items before the next window."""
        return Held(list(self._items), self._positions, {"gap": self._gap})

    def restore(self, held: Held) -> None:
        """Continue from a state."""
        self._items, self._positions, self._gap = list(held.items), held.positions, held.numbers["gap"]

    def inputs(self, position: Position) -> Positions:
        """Return the positions of the items of a window."""
        return parts(position)

    def remake(self, items: list[Any], position: Position, label: Any) -> list[Any]:
        """Return the window of these items."""
        return items


class WindowsOfFiles(Windows):
    """Cuts windows that hold samples of one item of the source, such as a file, which their positions tell."""

    def _start(self) -> None:
        super()._start()
        self._series: Any = None
        """The series of the samples that wait. None at the start of an epoch."""

    def _series_of(self, item: Any, position: Position) -> Any:
        return first_number(position)

    def push(self, items: list[Any], positions: Positions) -> tuple[list[Any], Positions]:
        """Return the windows that are full, and the last ones of each series that has ended."""
        made: list[Any] = []
        places: Positions = ()
        series = list(map(self._series_of, items, positions))
        for key, group in groupby(range(len(items)), series.__getitem__):
            numbers = list(group)
            if self._series is not None and key != self._series:
                rest, at = self.flush()
                made, places = made + rest, join(places, at)
            self._series = key
            full, at = super().push(items[numbers[0] : numbers[-1] + 1], positions[numbers[0] : numbers[-1] + 1])
            made, places = made + full, join(places, at)
        return made, places

    def state(self) -> Held:
        """Return the same as `Windows`, and the series."""
        held = super().state()
        return held._replace(numbers={**held.numbers, "series": self._series})

    def restore(self, held: Held) -> None:
        """Continue from a state."""
        super().restore(held)
        self._series = held.numbers["series"]


class WindowsOfSeries(WindowsOfFiles):
    """The same for pairs (series, sample)."""

    looks = True

    def _series_of(self, item: Any, position: Position) -> Any:
        return item[0]

    def push(self, items: list[Any], positions: Positions) -> tuple[list[Any], Positions]:
        """Return the windows, without the series of their samples."""
        return self._samples(super().push(items, positions))

    def flush(self) -> tuple[list[Any], Positions]:
        """Return the same of the remaining items."""
        return self._samples(super().flush())

    def _samples(self, made: tuple[list[Any], Positions]) -> tuple[list[Any], Positions]:
        windows, positions = made
        return [[each[1] if type(each) is Sample else each for each in window] for window in windows], positions

    def fact(self, item: Any) -> Any:
        """Return the series."""
        return item[0]

    def stand_in(self, fact: Any = None) -> Sample:
        """Return a pair without a sample."""
        return Sample((fact, None))

    def remake(self, items: list[Any], position: Position, label: Any) -> list[Any]:
        """Return the window of these pairs."""
        return [sample for _, sample in items]


class Sample(tuple[Any, Any]):
    """A pair (series, sample)."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Series:
    """Makes a sample a pair with its series."""

    series_of: Callable[[Any], Any]

    def __call__(self, sample: Any) -> Sample:
        """Return (series, sample)."""
        series = self.series_of(sample)
        if isinstance(series, np.generic):
            series = series.item()
        if not isinstance(series, str | int | float):
            raise TypeError(f"window: within must return a text or a number, the name of a series, not {series!r}")
        return Sample((series, sample))
