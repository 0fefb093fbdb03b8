"""`items` over a `keras.utils.PyDataset` or a similar object: its batches, read by several threads.

Keras is not imported. The dataset needs `[number]` and a length. It may have the hooks that Keras calls around an
epoch.

Stages that change the order apply to the numbers of the batches, before the batches are read:

    items(dataset).shuffle(seed=7).repeat(2)     is     numbers.shuffle(seed=7).repeat(2), then read()

A dataset with its own hooks is a stream of epochs. Each epoch is a run over the numbers, inside the outer run. The
next epoch begins when the hook has returned.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from asyncfeed.attempts.skip import OnError, skip_of
from asyncfeed.axes import Axes, Unknown
from asyncfeed.errors import PipelineError
from asyncfeed.functions.checks import check_policy, is_async
from asyncfeed.numbered import KERAS, Numbered
from asyncfeed.pipeline import Pipeline
from asyncfeed.stages.base import Node, Source
from asyncfeed.stages.steps import Concurrency, Indexed, Opening, Reading, Work

HOOKS = ("on_epoch_begin", "on_epoch_end")


def pydataset(
    dataset: Any,
    *,
    concurrency: Concurrency = "auto",
    on_error: OnError = "raise",
    skip_limit: float | None = None,
) -> Pipeline[Any]:
    """Feed the batches of a dataset as `items(dataset)` does, and read several at a time.

    `items` knows a `keras.utils.PyDataset` or `Sequence`, and an object with an `on_epoch_end`. This takes any
    object with `[number]` and a length. Order and hooks are those of `items`.

    Args:
        dataset: The dataset.
        concurrency: Number of batches that are read at a time. "auto" finds the number. Use 1 for a dataset that
            must be called by one thread at a time.
        on_error: "raise" or "skip", as for `items`.
        skip_limit: Number of batches that "skip" may leave out. It counts over the whole run, all epochs together.

    Raises:
        PipelineError: The length is not a number, or `on_error` is "skip" and the dataset has hooks.

    Memory:
        If the dataset has hooks, each epoch is a run of its own with the default `memory_limit`.

    Example:
        >>> class Squares:
        ...     num_batches = 3
        ...     def __getitem__(self, number):
        ...         return number * number
        >>> list(pydataset(Squares(), concurrency=1).repeat(2))
        [0, 1, 4, 0, 1, 4]
    """
    check_policy("items", concurrency, on_error, skip_limit)
    if on_error != "raise" and _has_hooks(dataset):
        raise PipelineError(
            f"items: {type(dataset).__name__} has hooks, so each of its epochs is a run of its own, and the "
            "skipped items would not be reported; leave out on_error, and catch the error in [number]"
        )
    return Batches(dataset, numbers_of(dataset), Reading(concurrency, on_error, skip_limit))


def numbers_of(dataset: Any) -> Pipeline[int]:
    """Return the numbers of the batches that an epoch has now."""
    return Pipeline(Numbers(dataset, count_of(dataset)))


def count_of(dataset: Any) -> int | None:
    """Return how many batches an epoch has at this time. None if it has no end."""
    try:
        count = dataset.num_batches if hasattr(dataset, "num_batches") else len(dataset)
    except (NotImplementedError, TypeError) as error:
        raise PipelineError(
            f"items: {type(dataset).__name__} does not say how many batches it has; give it a __len__, or a "
            "num_batches, which is None if there is no end"
        ) from error
    if count is None:
        return None
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise PipelineError(
            f"items: the number of batches of {type(dataset).__name__} must be a whole number or None, "
            f"not {count!r}"
        )
    return count


def has_own(dataset: Any, hook: str) -> bool:
    """Return whether a dataset defines a hook. Keras' own hook does nothing and does not count."""
    method = getattr(dataset, hook, None)
    return method is not None and getattr(method, "__module__", "").partition(".")[0] not in KERAS


def _has_hooks(dataset: Any) -> bool:
    return any(map(partial(has_own, dataset), HOOKS))


class Batches(Pipeline[Any]):
    """The batches of a dataset. A later stage that changes their order is inserted before the reading stage."""

    __slots__ = ("_dataset", "_numbers", "_reading")

    _dataset: Any
    _numbers: Pipeline[int]
    _reading: Reading

    def __init__(self, dataset: Any, numbers: Pipeline[int], reading: Reading) -> None:
        if _has_hooks(dataset):
            super().__init__(EpochNumbers(dataset), (ReadEpochs(dataset, numbers.stages, reading),))
        else:
            super().__init__(numbers.source, (*numbers.stages, Read(dataset, reading)))
        object.__setattr__(self, "_dataset", dataset)
        object.__setattr__(self, "_numbers", numbers)
        object.__setattr__(self, "_reading", reading)

    def then(self, node: Node) -> Pipeline[Any]:
        """Add a stage.

        A stage that changes the order of the batches is inserted before the stage that reads them.
        """
        # If batches may be left out, `take` and `skip` count the remaining ones.
        counts_what_is_left = node.counts and self._reading.on_error != "raise"
        begins_epochs = node.begins_epochs and isinstance(self.source, EpochNumbers)
        if node.arranges and not counts_what_is_left and not begins_epochs:
            return Batches(self._dataset, self._numbers.then(node), self._reading)
        return super().then(node)

    def split(self, *shares: float, seed: int = 0, key: Callable[[Any], Any] | None = None) -> Any:
        """Return parts that share no batch: see `Pipeline.split`."""
        if key is not None:
            return super().split(*shares, seed=seed, key=key)
        parts = self._numbers.split(*shares, seed=seed)
        return tuple(Batches(self._dataset, numbers, self._reading) for numbers in parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return Batches, (self._dataset, self._numbers, self._reading)


# -- the numbers


@dataclass(frozen=True)
class Numbers(Source):
    """The numbers of the batches of a dataset."""

    dataset: Any
    count: int | None

    method: ClassVar[str] = "items"

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return `Unknown`: numbers have no axes."""
        return Unknown()

    def indexed(self) -> Indexed | None:
        """Return the numbers; None if they have no end."""
        return None if self.count is None else Numbered(self.count, list, name="batch {}".format)

    @property
    def has_no_end(self) -> bool:
        """Whether the dataset says that it has no last batch."""
        return self.count is None

    def open_at(self, place: int) -> Opening:
        """Return a function that counts from `place` on, without end."""
        return Opening(partial(itertools.count, place))

    def __str__(self) -> str:
        """Return the call, with the dataset's type."""
        return f"items({_brief(self.dataset, self.count)})"


@dataclass(frozen=True)
class EpochNumbers(Source):
    """A source with one item for each epoch: the number of the epoch."""

    dataset: Any

    method: ClassVar[str] = "items"

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return `Unknown`: numbers have no axes."""
        return Unknown()

    def indexed(self) -> Indexed:
        """Return the number."""
        return _EpochNumber()

    def __str__(self) -> str:
        """Return the call, with the dataset's type."""
        return f"items({_brief(self.dataset, count_of(self.dataset))})"


class _EpochNumber:
    on_thread = None

    def __len__(self) -> int:
        return 1

    def pick(self, epoch: int, places: Sequence[int]) -> list[int]:
        """Return the number of the epoch."""
        return [epoch for _ in places]

    def key(self, epoch: int, place: int) -> str:
        """Return the name of the epoch."""
        return f"epoch {epoch}"


def _brief(dataset: Any, count: int | None) -> str:
    return f"<{type(dataset).__name__}{'' if count is None else f' of {count}'}>"


# -- reading the batches


@dataclass(frozen=True)
class Read(Node):
    """Replaces numbers by the batches."""

    dataset: Any
    reading: Reading

    method: ClassVar[str] = "read"

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return `Unknown`: the dataset decides the axes."""
        return Unknown()

    def steps(self) -> Sequence[Work]:
        """Return one step, which calls the dataset once for each batch."""
        how, fn = self.reading, self.dataset.__getitem__
        return [
            Work(
                fn,
                "async" if is_async(fn) else "thread",
                concurrency=how.concurrency,
                skip=skip_of(how.on_error, how.skip_limit),
            )
        ]

    @property
    def one_to_one(self) -> bool:
        """Whether no batch can be left out."""
        return self.reading.on_error == "raise"

    def length(self, upstream: int) -> int | None:
        """Return the number of batches; None if some may be skipped."""
        return upstream if self.one_to_one else None

    def __str__(self) -> str:
        """Return a call, as other stages do."""
        return "read()"


@dataclass(frozen=True)
class ReadEpochs(Node):
    """Replaces the number of an epoch by its batches, in an `order`.

    Calls the dataset's hooks before and after.
    """

    dataset: Any
    order: tuple[Node, ...]
    reading: Reading

    method: ClassVar[str] = "read"

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return `Unknown`: the dataset decides the axes."""
        return Unknown()

    def steps(self) -> Sequence[Work]:
        """Return one step, which reads one epoch at a time."""
        return [Work(self.batches, "thread", shape="flat", concurrency=1)]

    def batches(self, epoch: int) -> Iterator[Any]:
        """Yield the batches of the epoch with this number."""
        dataset = self.dataset
        if hasattr(dataset, "on_epoch_begin"):
            dataset.on_epoch_begin()
        numbers = numbers_of(dataset)
        one: Pipeline[Any] = Pipeline(numbers.source, (*self.order, Read(dataset, self.reading)))
        with one.open(epoch=epoch) as feed:
            yield from feed
        if hasattr(dataset, "on_epoch_end"):
            dataset.on_epoch_end()

    def __str__(self) -> str:
        """Return the calls."""
        return ".".join(map(str, (*self.order, "read()")))
