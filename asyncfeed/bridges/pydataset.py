"""`pydataset`: the batches of a `keras.utils.PyDataset`, or of anything like it, read by several threads.

Keras is not imported: what counts is `[number]`, a length, and the methods that Keras calls around an epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from asyncfeed.errors import PipelineError
from asyncfeed.pipeline import Pipeline
from asyncfeed.sources import Numbered
from asyncfeed.stages.base import Concurrency, Indexed, Source

HOOKS = ("on_epoch_begin", "on_epoch_end")


def pydataset(
    dataset: Any, *, shuffle: bool = False, seed: int = 0, concurrency: Concurrency = "auto"
) -> Pipeline[Any]:
    """Feed the batches of a `keras.utils.PyDataset` (a `Sequence` of Keras), as `dataset[number]` returns them.

    `dataset[number]` runs on threads of this process, as many at a time as `concurrency` says ("auto": finds it),
    so locks, open files and whatever else cannot be pickled may be in it; it must be safe to call from several.
    `shuffle` puts the batches of each epoch in an order that `seed` and the epoch decide.

    `on_epoch_begin` and `on_epoch_end` are called once an epoch where the dataset has its own: before its first
    batch is read, and when all have been taken from here. Epochs do not overlap then, and the length may change
    with them; otherwise the next epoch is read ahead while this one is used. An epoch that is broken off has no
    end.

    Raises:
        PipelineError: it has no length: give `items` a function instead.

    >>> class Squares:
    ...     num_batches = 3
    ...     def __getitem__(self, number):
    ...         return number * number
    >>> list(pydataset(Squares()).repeat(2))
    [0, 1, 4, 0, 1, 4]
    """
    count_of(dataset)
    if any(map(partial(_has_own, dataset), HOOKS)):
        return Pipeline(EpochNumbers()).flat_map(Epoch(dataset, shuffle, seed, concurrency), concurrency=1)
    return _read(dataset, shuffle, seed, concurrency)


def count_of(dataset: Any) -> int:
    """Return how many batches an epoch has now."""
    count = dataset.num_batches if hasattr(dataset, "num_batches") else len(dataset)
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise PipelineError(
            f"pydataset: {type(dataset).__name__} has {count} batches an epoch, where a number is needed; "
            "what has no end can be drawn one after the other: items(lambda: dataset)"
        )
    return count


def _has_own(dataset: Any, hook: str) -> bool:
    """Return whether a dataset defines a hook, other than Keras' own that does nothing."""
    method = getattr(dataset, hook, None)
    return method is not None and not getattr(method, "__module__", "").startswith("keras.")


def _read(dataset: Any, shuffle: bool, seed: int, concurrency: Concurrency) -> Pipeline[Any]:
    numbers: Pipeline[int] = Pipeline(BatchNumbers(dataset, count_of(dataset)))
    if shuffle:
        numbers = numbers.shuffle(seed=seed)
    return numbers.map(dataset.__getitem__, concurrency=concurrency)


@dataclass(frozen=True, eq=False)
class BatchNumbers(Source):
    """The numbers of the batches of a dataset."""

    dataset: Any
    count: int

    method: ClassVar[str] = "pydataset"

    def indexed(self) -> Indexed:
        """Return the numbers."""
        return Numbered(self.count, list, name="batch {}".format)

    def __str__(self) -> str:
        """Return the call, with the dataset's type."""
        return f"pydataset(<{type(self.dataset).__name__} of {self.count}>)"


@dataclass(frozen=True)
class EpochNumbers(Source):
    """One item an epoch: its number."""

    method: ClassVar[str] = "pydataset"

    def indexed(self) -> Indexed:
        """Return the number."""
        return _EpochNumber()


class _EpochNumber:
    on_thread = False

    def __len__(self) -> int:
        return 1

    def pick(self, epoch: int, places: Sequence[int]) -> list[int]:
        """Return the number of the epoch."""
        return [epoch for _ in places]

    def key(self, epoch: int, place: int) -> str:
        """Return what the epoch is called."""
        return f"epoch {epoch}"


@dataclass(frozen=True, eq=False)
class Epoch:
    """Makes the batches of one epoch, with what the dataset does around it."""

    dataset: Any
    shuffle: bool
    seed: int
    concurrency: Concurrency

    def __call__(self, epoch: int) -> Iterator[Any]:
        """Yield the batches of the epoch with this number."""
        dataset = self.dataset
        if hasattr(dataset, "on_epoch_begin"):
            dataset.on_epoch_begin()
        with _read(dataset, self.shuffle, self.seed, self.concurrency).open(epoch=epoch) as feed:
            yield from feed
        if hasattr(dataset, "on_epoch_end"):
            dataset.on_epoch_end()
