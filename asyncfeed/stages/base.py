"""A stage is a node of the description. It declares how it runs.

A node is a frozen dataclass. It validates itself when it is made. It declares how it runs in one way or in both:

* `index(upstream)`: it rearranges items that can be reached by number (shuffle, take, enumerate, ...).
* `steps()`: it is a sequence of steps over a stream. An `Algorithm` regroups items without any IO (batch, shuffle
  with a buffer, ...). A `Work` calls a function for each item, many at a time (load, map, filter, ...). In a
  `Queue` items wait. `Passes` run the stages before it once more for each epoch.

A stage also declares everything else that other code needs (`length`, `axes`, `one_to_one`, ...). So no other code
checks the class of a stage. No stage imports asyncio or the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar

from asyncfeed.axes import Axes, Unknown
from asyncfeed.errors import PipelineError
from asyncfeed.functions.resources import Resource
from asyncfeed.reading.listing import FileList
from asyncfeed.stages.steps import Indexed, Opening, Picking, Step, Zipping
from asyncfeed.state.counted import counted
from asyncfeed.trees import same


@dataclass(frozen=True)
class Node:
    """One stage of a description. Subclasses add validated fields. Nodes with equal fields are equal."""

    method: ClassVar[str]
    """The method of `Pipeline` that makes this node."""
    positional: ClassVar[tuple[str, ...]] = ()
    """The fields that the repr shows without their name."""

    arranges: ClassVar[bool] = False
    """Whether it only chooses and orders items. Then it may run before the stage that reads them."""
    counts: ClassVar[bool] = False
    """Whether it counts items. Then it must run after items that could not be read are left out."""
    begins_epochs: ClassVar[bool] = False
    """Whether the stages before it see several epochs, and the stages after it see one stream."""
    shards: ClassVar[bool] = False
    """Whether it deals out the items to several processes."""
    is_queue: ClassVar[bool] = False
    """Whether it only holds items that wait."""
    makes_items: ClassVar[bool] = False
    """Whether this stage makes its items. Errors about the kind of an item then name this stage."""
    pads: ClassVar[bool] = False
    """Whether the samples of a batch decide the size of an axis. Then equal sizes in two batches prove nothing."""
    functions: ClassVar[tuple[str, ...]] = ()
    """The fields with functions of the user's. They may ask for what `using` opens."""
    reads_rows: ClassVar[bool] = False
    """Whether it reads local files straight into the rows of batches."""
    hidden: ClassVar[bool] = False
    """Whether it is a part of another node. Then errors and `explain` show the other node."""
    tuning: ClassVar[tuple[str, ...]] = ()
    """The fields that decide neither which items come nor in which order, such as `concurrency`. A saved state
    fits whatever they are. All other fields that are compared count."""
    regroups: ClassVar[tuple[str, ...]] = ()
    """The fields that decide only which items go together, such as the size of a batch. Behind `shard`, merged
    states fit whatever they are: each number of processes has its own size of batches."""
    only_tunes: ClassVar[bool] = False
    """Whether the stage decides nothing of this: the same items come without it. A saved state fits both."""

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

    def deciding(self) -> dict[str, object]:
        """Return what decides which items come and in which order, by name. A saved state fits only the same.

        Override it if a field counts only in part.
        """
        return counted(self)

    def index(self, upstream: Indexed) -> Indexed | None:
        """Return `upstream` rearranged, or None if this stage needs more than the places of items."""
        return None

    def steps(self) -> Sequence[Step]:
        """Return fresh steps for one run, in order."""
        raise NotImplementedError

    def length(self, upstream: int) -> int | None:
        """Return how many items come out if `upstream` go in; None if that depends on the items."""
        return None

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return which axes have one size in all items that come out.

        `upstream` says the same of the items that go in. `endless` says whether the items that go in have no end.
        """
        raise NotImplementedError

    def after(self, source: Source, stages: Sequence[Node]) -> Node:
        """Return the stage as it is after these stages. Raise if it cannot stand there."""
        return self.with_stream(random_stages(source, stages)) if self.is_random else self

    def endless(self, *, upstream: bool) -> bool:
        """Return whether the items that come out have no end. `upstream` says the same of the items that go in."""
        return upstream

    @property
    def leaves_out_first(self) -> int:
        """Number of items that the stage leaves out at the start of each epoch. 0 if it does anything else.

        If such a stage follows a source that can only be iterated, the source is opened after these items.
        """
        return 0

    def gathers(self) -> int:
        """Return how many items make one item that comes out; 0 if the stage takes items apart."""
        return 1

    @property
    def one_to_one(self) -> bool:
        """Whether the n-th item that comes out is made from the n-th item that goes in.

        Then `take` may run before.
        """
        return False

    @property
    def only_reads(self) -> bool:
        """Whether the same item gives the same result, and reading has no side effect that the user relies on."""
        return False

    @property
    def item_by_item(self) -> bool:
        """Whether it is one to one, and its result depends on the item alone, and on no other item and no place.

        Then an exact `shuffle` that follows may run before.
        """
        return False

    @property
    def exact(self) -> bool:
        """Whether the stage needs all items by number."""
        return False

    @property
    def deals(self) -> tuple[int, int]:
        """The number of the part that it keeps, and how many parts there are. Only `shard` has more than one."""
        return 0, 1

    def absorb_before(self, stages: Sequence[Node]) -> list[Node] | None:
        """Return these stages, which are before this one, with it as one stage together with some. None if not."""
        return None

    def may_precede(self, other: Node) -> bool:
        """Return whether it may run before `other`, which it follows: same items, and no needless reads."""
        return False

    @property
    def is_random(self) -> bool:
        """Whether the stage draws random numbers. They depend on the number of random stages before it."""
        return False

    def with_stream(self, stream: int) -> Node:
        """Return this stage with the random numbers that it draws after `stream` random stages."""
        return self

    @property
    def opens(self) -> tuple[Resource, ...]:
        """What a run opens before its steps begin, for the functions of later stages."""
        return ()

    def absorb(self, following: Node) -> Node | None:
        """Return one node that does the work of this node and of the following one, or None."""
        return None

    def over(self, files: FileList) -> Node | None:
        """Return this stage as it takes the numbers of files in a list, and not the files. None if it cannot."""
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
    """Return `value` as source code: the name of a function, the repr of everything else."""
    name = getattr(value, "__name__", None)
    if isinstance(name, str) and name != "<lambda>":
        return name
    if isinstance(value, partial):  # its arguments may be the user's whole data
        return f"partial({show(value.func)}, ...)"
    return "..." if name else repr(value)


def check_count(stage: str, name: str, value: object, least: int) -> None:
    """Raise if `value` is not a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        fix = ": write int(...)" if hasattr(value, "__index__") and not isinstance(value, bool) else ""
        raise PipelineError(f"{stage}: {name} must be a whole number, not {value!r}{fix}")
    if value < least:
        raise PipelineError(f"{stage}: {name} must be at least {least}, not {value}")


@dataclass(frozen=True)
class Source(Node):
    """The first node of a description: the source of its items.

    A source defines one of three: `indexed` (items that can be reached by number), `open_at` (items that can only
    be iterated), or `inputs` (other pipelines, merged as `merging` says).
    """

    delivers_files: ClassVar[bool] = False
    """Whether its items are files. They must be read before a batch can be made of them."""

    @property
    def listed(self) -> FileList | None:
        """The files, if its items are those of a list. A stage may then take their numbers: see `Node.over`."""
        return None

    @property
    def unnumbered(self) -> str:
        """What to change if the items must be reached by number, as a sentence. Empty if nothing helps."""
        return ""

    def indexed(self) -> Indexed | None:
        """Return the items if they can be reached by number, else None."""
        return None

    def open_at(self, place: int) -> Opening:
        """Return how to iterate over one epoch from item `place` on.

        A source that cannot start there returns an `Opening` with `drop=place`.
        """
        raise NotImplementedError

    def mark(self, item: Any) -> str | None:
        """Return a short text that tells an item from others, if the items may be others in the next run.

        A state has that of the last item that was received. A run that goes on raises if it finds another one.
        """
        return None

    @property
    def inputs(self) -> tuple[Any, ...]:
        """The pipelines that this source merges."""
        return ()

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return which axes have one size in all items. No items go in."""
        return Unknown()

    def merging(self) -> Zipping | Picking:
        """Return how the inputs are merged if they cannot be reached by number."""
        raise NotImplementedError

    def size(self) -> int | None:
        """Return how many items an epoch has; None if that is not known."""
        indexed = self.indexed()
        return None if indexed is None else len(indexed)

    @property
    def has_no_end(self) -> bool:
        """Whether one epoch is known to have no end."""
        return False

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, by label. Empty if its items have no labels."""
        return ()

    @property
    def reads_on_loop(self) -> bool:
        """Whether its items may be files of a store that is read on the loop."""
        return any(each.source.reads_on_loop for each in self.inputs)

    def check_repeatable(self) -> None:
        """Raise if the items can be read only once."""
        for each in self.inputs:
            each.source.check_repeatable()

    def claim(self) -> None:
        """Note that a run begins. Raise if the items can be read only once, and were read before."""
        for each in self.inputs:
            each.source.claim()


def random_stages(source: Source, stages: Sequence[Node]) -> int:
    """Return the largest number of random stages that an item passes in this description."""
    before = max((random_stages(each.source, each.stages) for each in source.inputs), default=0)
    return before + source.is_random + sum(node.is_random for node in stages)
