"""Zip and Concat: several pipelines become the source of one pipeline."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, ClassVar

from asyncfeed.axes import AllOf, Axes, Unknown
from asyncfeed.errors import PipelineError
from asyncfeed.stages.base import Source
from asyncfeed.stages.steps import Indexed, Picking, Reading, Zipping, leaves_out
from asyncfeed.stages.together import axes_of, is_endless


@dataclass(frozen=True)
class Zip(Source):
    """One item of each input at a time, as a tuple."""

    pipelines: tuple[Any, ...]
    strict: bool = True

    method: ClassVar[str] = "zip"

    def __post_init__(self) -> None:
        check_inputs("zip", self.pipelines)
        inputs = [pipeline.indexed() for pipeline in self.pipelines]
        readings = [each.on_thread for each in inputs if each is not None and each.on_thread is not None]
        if len({(each.on_error, each.skip_limit) for each in readings}) > 1:
            raise PipelineError(
                "zip: a tuple is left out as a whole, so all inputs that are read by number must have the same "
                "on_error and skip_limit"
            )
        sizes = [
            pipeline.size() if indexed is None else len(indexed)
            for pipeline, indexed in zip(self.pipelines, inputs, strict=True)
        ]
        if self.strict and len({size for size in sizes if size is not None}) > 1:
            raise PipelineError(
                f"zip: the inputs have {', '.join(map(str, sizes))} items; "
                "write zip(..., strict=False) to stop at the shortest"
            )

    @property
    def inputs(self) -> tuple[Any, ...]:
        """The zipped pipelines."""
        return self.pipelines

    @property
    def has_no_end(self) -> bool:
        """Whether no input has an end."""
        return all(is_endless(each.source, each.stages) for each in self.pipelines)

    def size(self) -> int | None:
        """Return the number of tuples; None if an input does not know its number of items."""
        sizes = [pipeline.size() for pipeline in self.pipelines]
        return None if None in sizes else min(sizes)

    def indexed(self) -> Indexed | None:
        """Return tuples by number; None if an input cannot be reached by number."""
        inputs = [pipeline.indexed() for pipeline in self.pipelines]
        return None if None in inputs or read_apart(inputs) else Zipped(inputs)

    def merging(self) -> Zipping:
        """Return `Zipping`: each stream gives one item at a time."""
        return Zipping(self.strict)

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return the axes that hold in all inputs."""
        return AllOf(tuple(axes_of(each.source, each.stages) for each in self.pipelines))

    def __str__(self) -> str:
        """Return the call that makes this source."""
        strict = "" if self.strict else ", strict=False"
        return f"zip({', '.join(map(repr, self.pipelines))}{strict})"


class Zipped:
    """The items of several sources at the same place, as tuples."""

    def __init__(self, inputs: Sequence[Indexed]) -> None:
        self._inputs = inputs
        self.on_thread = read_together(inputs)

    def __len__(self) -> int:
        return min(map(len, self._inputs))

    def pick(self, epoch: int, places: Sequence[int]) -> list[Any]:
        """Return the tuples at these places."""
        return list(zip(*[each.pick(epoch, places) for each in self._inputs], strict=True))

    def key(self, epoch: int, place: int) -> str:
        """Return the names of the items of the tuple."""
        return ", ".join(each.key(epoch, place) for each in self._inputs)


@dataclass(frozen=True)
class Concat(Source):
    """The items of the inputs, one input after the other."""

    pipelines: tuple[Any, ...]

    method: ClassVar[str] = "concat"

    def __post_init__(self) -> None:
        check_inputs("concat", self.pipelines)

    @property
    def inputs(self) -> tuple[Any, ...]:
        """The pipelines in their order."""
        return self.pipelines

    @property
    def has_no_end(self) -> bool:
        """Whether an input has no end."""
        return any(is_endless(each.source, each.stages) for each in self.pipelines)

    def size(self) -> int | None:
        """Return the number of items; None if an input does not know its number."""
        sizes = [pipeline.size() for pipeline in self.pipelines]
        return None if None in sizes else sum(sizes)

    def indexed(self) -> Indexed | None:
        """Return the items by number; None if an input cannot be reached by number."""
        inputs = [pipeline.indexed() for pipeline in self.pipelines]
        if None in inputs or read_apart(inputs):
            return None
        # The `skip_limit` of an input counts the items of that input, not of the others.
        shared = any(map(leaves_out, inputs)) and sum(each.on_thread is not None for each in inputs) > 1
        return None if shared else Concatenated(inputs)

    def merging(self) -> Picking:
        """Return the choice for streams: one stream after the other."""
        return Picking(partial(OneByOne, len(self.pipelines)))

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return `Unknown`: the inputs have not been compared with each other."""
        return Unknown()

    def __str__(self) -> str:
        """Return the call that makes this source."""
        return f"concat({', '.join(map(repr, self.pipelines))})"


class OneByOne:
    """The `Choice` of `concat`: all items of an input, then all items of the next one."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._current = 0

    def begin(self, epoch: int) -> None:
        """Begin with the first input."""
        self._current = 0

    def next(self) -> tuple[int, int] | None:
        """Return the current input, of which all items are wanted."""
        return (self._current, sys.maxsize) if self._current < self._count else None

    def took(self, count: int) -> None:
        """Do nothing: the remaining items are wanted, too."""

    def ended(self) -> None:
        """Go on to the next input."""
        self._current += 1

    def state(self) -> int:
        """Return the number of the input."""
        return self._current

    def restore(self, state: int) -> None:
        """Go on with this input."""
        self._current = state


class Concatenated:
    """The items of several sources, numbered through."""

    def __init__(self, inputs: Sequence[Indexed]) -> None:
        self._inputs = inputs
        self._ends = list(accumulate(map(len, inputs)))
        self.on_thread = read_together(inputs)

    def __len__(self) -> int:
        return self._ends[-1]

    def _find(self, place: int) -> tuple[int, int]:
        which = bisect_right(self._ends, place)
        return which, place - (self._ends[which] - len(self._inputs[which]))

    def pick(self, epoch: int, places: Sequence[int]) -> list[Any]:
        """Return the items at these places. Each input is asked once for places that follow each other."""
        if isinstance(places, range) and places.step == 1:
            items: list[Any] = []
            start = places.start
            while start < places.stop:
                which, offset = self._find(start)
                length = min(places.stop, self._ends[which]) - start
                items += self._inputs[which].pick(epoch, range(offset, offset + length))
                start += length
            return items
        found = [self._find(place) for place in places]
        columns = {
            which: iter(self._inputs[which].pick(epoch, [offset for each, offset in found if each == which]))
            for which in {which for which, _ in found}
        }
        return [next(columns[which]) for which, _ in found]

    def key(self, epoch: int, place: int) -> str:
        """Return the name of the item at this place."""
        which, offset = self._find(place)
        return self._inputs[which].key(epoch, offset)


def read_apart(inputs: Sequence[Indexed]) -> bool:
    """Return whether some inputs are read on threads and others on the loop. Then each input is its own stream."""
    return len({each.on_thread.awaits for each in inputs if each.on_thread is not None}) > 1


def read_together(inputs: Sequence[Indexed]) -> Reading | None:
    """Return how the items of several inputs are read. The smallest concurrency of the inputs holds for all."""
    readings = [each.on_thread for each in inputs if each.on_thread is not None]
    if not readings:
        return None
    limits = [each.concurrency for each in readings if each.concurrency != "auto"]
    together = all(each.together for each in readings)
    return replace(readings[0], concurrency=min(limits, default="auto"), together=together)


def check_inputs(stage: str, pipelines: tuple[Any, ...]) -> None:
    """Raise if there are no inputs, or if one is no pipeline."""
    if not pipelines:
        raise PipelineError(f"{stage}: give at least one pipeline")
    for each in pipelines:
        if not hasattr(each, "stages"):
            inner = each.values() if isinstance(each, dict) else each if isinstance(each, list | tuple) else ()
            if inner and all(hasattr(one, "stages") for one in inner):
                values = ".values()" if isinstance(each, dict) else ""
                raise PipelineError(f"{stage} takes each pipeline by itself: {stage}(*pipelines{values})")
            raise PipelineError(f"{stage} takes pipelines, not {type(each).__name__}; wrap it: items(...)")
