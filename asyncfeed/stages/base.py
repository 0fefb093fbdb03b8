"""What a stage is: a node of the description, and how it runs.

A node is a frozen dataclass. It validates itself when it is made. It says how it runs in one of two ways, or both:

* `index(upstream)`: it rearranges items that can be reached by number (shuffle, take, enumerate, ...);
* `steps()`: what it does to a stream, as a sequence of steps. An `Algorithm` regroups items without any IO (batch,
  shuffle with a buffer, ...). A `Work` calls a function for each item, many at a time (load, map, filter, ...). A
  `Queue` lets items wait. `Passes` begin everything before it anew.

Whatever else somebody wants to know of a stage, it declares (`length`, `axes`, `one_to_one`, ...): nobody outside
asks which stage it is. Nothing in here, or in any stage, imports asyncio or the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar

from asyncfeed.axes import Axes, Unknown
from asyncfeed.errors import PipelineError
from asyncfeed.stages.steps import Indexed, Picking, Step, Zipping
from asyncfeed.trees import same


@dataclass(frozen=True)
class Node:
    """One stage of a description. Subclasses add validated fields; equal fields make equal nodes."""

    method: ClassVar[str]
    """The method of `Pipeline` that makes this node."""
    positional: ClassVar[tuple[str, ...]] = ()
    """The fields that are written without their name."""

    arranges: ClassVar[bool] = False
    """Whether it only chooses and orders items, so that it may stand before what reads them."""
    counts: ClassVar[bool] = False
    """Whether it counts items: those that could not be read must be gone by then."""
    begins_epochs: ClassVar[bool] = False
    """Whether stages before it see epochs that stages after it do not."""
    is_queue: ClassVar[bool] = False
    """Whether items only wait in it."""
    absorbed_over_queues: ClassVar[bool] = False
    """Whether a stage before may absorb it though queues stand between: these are then not needed."""
    makes_items: ClassVar[bool] = False
    """Whether what comes out is made here: errors about the kind of an item then name this stage."""
    pads: ClassVar[bool] = False
    """Whether the size of an axis depends on which samples share a batch, so that equal sizes say nothing."""
    hidden: ClassVar[bool] = False
    """Whether it is a part of another node, which has its name."""

    def __init_subclass__(cls) -> None:
        if cls.axes is Node.axes:
            raise TypeError(
                f"{cls.__qualname__} must say which axes of its items have one size: define "
                "axes(self, upstream, *, endless), and return upstream if the items stay as they are, or Unknown()"
            )
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

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return which axes have one size in all items that come out.

        `upstream` says it of those that go in, and `endless` whether these have no end.
        """
        raise NotImplementedError

    def after(self, source: Source, stages: Sequence[Node]) -> Node:
        """Return this stage as it is after these; raise if it cannot stand there."""
        return self.with_stream(random_stages(source, stages)) if self.is_random else self

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
    def only_reads(self) -> bool:
        """Whether the same item gives the same result, and nobody misses what is not read."""
        return False

    @property
    def exact(self) -> bool:
        """Whether it needs all items by number."""
        return False

    def may_precede(self, other: Node) -> bool:
        """Return whether it may run before `other`, which it follows: the same items, and none read in vain."""
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
    `inputs` (other pipelines, merged as `merging` says).
    """

    delivers_files: ClassVar[bool] = False
    """Whether its items are files, of which no batch can be made before they are read."""

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

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return which axes have one size in all items; nothing goes in."""
        return Unknown()

    def merging(self) -> Zipping | Picking:
        """Return how the inputs are merged if they cannot be reached by number."""
        raise NotImplementedError

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


def random_stages(source: Source, stages: Sequence[Node]) -> int:
    """Return how many stages that draw random numbers an item of a description has passed at most."""
    before = max((random_stages(each.source, each.stages) for each in source.inputs), default=0)
    return before + source.is_random + sum(node.is_random for node in stages)
