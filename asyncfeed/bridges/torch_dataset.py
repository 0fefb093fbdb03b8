"""`to_torch_dataset`: a pipeline as an `IterableDataset`, for `DataLoader(batch_size=None)`.

A pipeline reads ahead by itself, so the loader needs no workers. If it has some, each worker runs the pipeline
with the batches that are its turn. The loader takes batches from its workers in turns, too. So their order is that
of a loader without workers.

The workers must agree on the number of the epoch, and the process that made the dataset must not start again at 0.
So the dataset keeps the number in shared memory (`EpochSlots`).

`torchdata`'s `StatefulDataLoader` saves the dataset and the iterator, in the process that draws, which may be a
worker. It restores the dataset, asks for an iterator, and restores that. It may ask for an iterator and
never draw from it. So an iterator takes the number of its epoch at its first draw.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Self

from asyncfeed.bridges.run_factory import OpenRun
from asyncfeed.bridges.run_places import RunPlaces, one_leaf
from asyncfeed.bridges.share import share_size, shared
from asyncfeed.bridges.torch_tensors import ToTensors, check_dtype
from asyncfeed.errors import PipelineError, StateError
from asyncfeed.extras import installed
from asyncfeed.ranks import torch_rank
from asyncfeed.sizes import Size, parse_bytes
from asyncfeed.state.envelope import opened

if TYPE_CHECKING:
    from asyncfeed.pipeline import Pipeline
    from asyncfeed.running import State

Ranks = Literal["split", "same"]
SLOTS = 1024
"""Number of workers of a loader that the memory of the epochs has room for. A slot takes 8 bytes."""
MASK = (1 << 31) - 1


def to_dataset(
    pipeline: Pipeline[Any], *, ranks: Ranks | None = None, dtype: Any = None, memory_limit: Size | None = None
) -> Any:
    """Return a pipeline as an `IterableDataset`; see `Pipeline.to_torch_dataset`."""
    torch = installed("torch", "torch")
    if ranks not in (None, "split", "same"):
        raise PipelineError(f"to_torch_dataset: ranks must be 'split' or 'same', not {ranks!r}")
    limit = None if memory_limit is None else parse_bytes(memory_limit, "to_torch_dataset")
    check_dtype("to_torch_dataset", torch, dtype)
    return dataset_class()(pipeline, ranks, ToTensors(dtype), limit, EpochSlots.new())


class EpochSlots:
    """The number of the next epoch, for a process and the workers that it starts later.

    Each worker has a slot, so none waits for another. A slot holds a tag and the number of the epoch after the one
    that the worker began. All workers of one iteration of a loader have the same tag. So the first one begins the
    next epoch, and the others find its tag and begin the same epoch.
    """

    def __init__(self, memory: Any) -> None:
        self.memory = memory

    @classmethod
    def new(cls) -> EpochSlots:
        """Return slots that begin with epoch 0."""
        torch = installed("torch", "torch")
        return cls(torch.zeros(SLOTS, dtype=torch.int64).share_memory_())

    def peek(self, tag: int) -> int:
        """Return the epoch of this tag, if it begins now."""
        seen = self.memory.numpy().copy()
        following = seen & MASK
        same = seen >> 31 == tag
        return int(following[same].max()) - 1 if tag and same.any() else int(following.max())

    def begin(self, slot: int, tag: int) -> int:
        """Return the epoch of this tag."""
        epoch = self.peek(tag)
        self.memory.numpy()[slot % SLOTS] = tag << 31 | epoch + 1
        return epoch

    def set(self, epoch: int) -> None:
        """Make this the next epoch."""
        self.memory.fill_(epoch)

    @property
    def used_by_workers(self) -> bool:
        """Whether a worker has begun an epoch since the last `set`."""
        return bool((self.memory.numpy() >> 31).any())


class SlotNumbers:
    """The numbers of the epochs that one process begins: `RunNumbers` over its slot."""

    def __init__(self, slots: EpochSlots, slot: int) -> None:
        self.tag = 0
        """The tag of the iteration that this process is in; 0 if it is no worker."""
        self._slots = slots
        self._slot = slot

    def peek(self) -> int:
        """Return the number of the next epoch."""
        return self._slots.peek(self.tag)

    def begin(self) -> int:
        """Return the number of the next epoch, and count on."""
        return self._slots.begin(self._slot, self.tag)

    def set(self, number: int) -> None:
        """Make this the number of the next epoch, for all processes."""
        self._slots.set(number)


class Own:
    """What a process has of a dataset: its part of the pipeline, and where it is in it."""

    def __init__(self, part: Pipeline[Any], slots: EpochSlots, worker: int) -> None:
        self.part = part
        self.numbers = SlotNumbers(slots, worker)
        self.places = RunPlaces(part, self.numbers)


class DatasetFeed(Iterator[Any]):
    """One iteration over a dataset. It takes the number of its epoch at its first draw."""

    def __init__(self, own: Own, convert: ToTensors, limit: int | None) -> None:
        self._own = own
        self._convert = convert
        self._limit = limit
        self._run: OpenRun | None = None
        self._numbers = itertools.count(1)

    def __iter__(self) -> Self:
        """Return the iterator itself."""
        return self

    def __next__(self) -> Any:
        """Return the next batch."""
        run = self._open()
        try:
            drawn = next(run.feed)
            number = next(self._numbers)
            batch = self._convert(drawn)
            run.acknowledge(number)
        except StopIteration:
            run.place.over = True
            raise
        else:
            return batch
        finally:
            del self, run  # an exception holds this frame, which would hold the feed and so the run

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last batch, as JSON. At the end, nothing of this epoch is left."""
        return one_leaf(self._own.places.state() if self._run is None else self._run.place.state())

    def load_state_dict(self, state: State) -> None:
        """Go on from a state. Raise `StateError` if this iterator has begun."""
        self._own.places.load_run(self._open().place, state)

    def _open(self) -> OpenRun:
        if self._run is None:
            places = self._own.places
            epoch, state = places.claim()
            feed = self._own.part.open(memory_limit=self._limit, epoch=epoch, state=state)
            self._run = OpenRun(feed, places.add(feed, epoch))
            self._run.acknowledge(0)
        return self._run


@cache
def dataset_class() -> Any:
    """Return the class of datasets, derived from torch's."""
    from torch.utils.data import IterableDataset, get_worker_info

    class PipelineDataset(IterableDataset[Any]):
        """The batches of a pipeline as tensors. Each iteration is the next epoch."""

        def __init__(
            self, pipeline: Pipeline[Any], ranks: Ranks | None, convert: ToTensors, limit: int | None,
            epochs: EpochSlots, rank: tuple[int, int] | None = None, first: State | None = None,
        ) -> None:  # fmt: skip
            self.pipeline = pipeline
            self._ranks = ranks
            self._convert = convert
            self._limit = limit
            self._epochs = epochs
            self._rank = rank
            self._begun = 0
            self._first = first
            """The state that was loaded before the dataset was sent to this process."""
            self._known: tuple[object, Own] | None = None

        def __iter__(self) -> Iterator[Any]:
            """Return an iterator of the batches of the next epoch, or those of this worker and this rank."""
            own = self._own()
            info = get_worker_info()
            if info is not None:
                own.numbers.tag = (info.seed - info.id + self._begun * 0x9E3779B1) % MASK + 1
            self._begun += 1
            return DatasetFeed(own, self._convert, self._limit)

        def __len__(self) -> int:
            """Return the number of batches of a rank. Raises `TypeError` if it is not known."""
            size = share_size(self.pipeline, self._share()[1])
            if size is None:
                raise TypeError(f"the length of {self!r} is not known, or it has no end")
            return size

        def set_epoch(self, epoch: int) -> None:
            """Make this the next epoch, for all workers. The epoch of a state that was loaded changes nothing."""
            self._own().places.go_to_epoch(epoch)

        @property
        def epoch(self) -> int:
            """The number of the epoch of the last batch, or of the next epoch if that is over."""
            return self._own().places.epoch

        def state_dict(self) -> dict[str, Any]:
            """Return the state after the last batch that this process has drawn; see `to_torch_dataset`."""
            own = self._own()
            if get_worker_info() is None and self._epochs.used_by_workers:
                raise StateError(
                    "the workers of a DataLoader draw from this dataset, so this process does not know what was "
                    "trained on: use num_workers=0, or save the state of torchdata's StatefulDataLoader"
                )
            return one_leaf(own.places.state())

        def load_state_dict(self, state: State) -> None:
            """Go on from a state in the next iteration. Call this before its first batch is drawn."""
            self._own().places.load(state)

        def _own(self) -> Own:
            """Return what this process has. A worker that was forked makes its own."""
            rank, count = self._share()
            info = get_worker_info()
            worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
            key = rank, count, worker, workers, info is None
            if self._known is None or self._known[0] != key:
                first = self._first if self._known is None else self._known[1].places.first
                part = shared(self.pipeline, rank=rank, ranks=count, worker=worker, workers=workers)
                own = Own(part, self._epochs, worker)
                if first is not None:
                    self._continue(own, first, whole=info is None)
                self._known = key, own
            return self._known[1]

        def _continue(self, own: Own, first: State, *, whole: bool) -> None:
            """Load a state into what a process has. Raise if the process is a worker, which delivers a part."""
            if whole:
                own.places.load(first)
            elif "passes" in opened(first)["body"]:
                raise StateError(
                    "the state of this dataset is in the middle of an epoch, which a DataLoader with workers "
                    "cannot divide: use num_workers=0, or load the state of torchdata's StatefulDataLoader"
                )

        def _share(self) -> tuple[int, int]:
            """Return the rank of this process and the number of ranks, as far as they divide the batches."""
            if self._ranks == "same":
                return 0, 1
            rank, count = self._rank or _rank()
            if count > 1 and any(node.deals[1] == count for node in self.pipeline.stages):
                if self._ranks is None:
                    return 0, 1  # the pipeline is that of this rank already
                raise PipelineError(
                    f"to_torch_dataset: {self.pipeline!r} is one of {count} parts already: leave out ranks='split'"
                )
            if count > 1 and self._ranks is None:
                raise PipelineError(
                    f"to_torch_dataset: {count} ranks train together: write to_torch_dataset(ranks='split') to "
                    "give each rank its share, or ranks='same' if each rank needs all batches, or if another "
                    "library, such as Accelerate, divides them"
                )
            return rank, count

        def __reduce__(self) -> tuple[Any, ...]:
            # A worker that is spawned has no process group.
            first = self._first if self._known is None else self._known[1].places.first
            given = self.pipeline, self._ranks, self._convert, self._limit, self._epochs.memory
            return _again, (*given, self._rank or _rank(), first)

        def __repr__(self) -> str:
            """Return the call that made this dataset."""
            return f"{self.pipeline!r}.to_torch_dataset()"

    PipelineDataset.__qualname__ = "PipelineDataset"
    return PipelineDataset


def _again(
    pipeline: Any, ranks: Any, convert: ToTensors, limit: Any, memory: Any, rank: tuple[int, int], first: Any
) -> Any:
    return dataset_class()(pipeline, ranks, convert, limit, EpochSlots(memory), rank, first)


def _rank() -> tuple[int, int]:
    """Return the rank of this process, and the number of ranks: of the process group, or as torchrun says."""
    found = torch_rank()
    return (0, 1) if found is None else (found.index, found.count)
