"""`to_torch_dataset`: a pipeline as an `IterableDataset`, for `DataLoader(batch_size=None)`.

A pipeline reads ahead by itself, so the loader needs no workers. If it has some, each worker runs the pipeline
with the batches that are its turn. The loader takes batches from its workers in turns, too. So their order is that
of a loader without workers.

The workers must agree on the number of the epoch, and the process that made the dataset must not start again at 0.
So the dataset keeps the number in shared memory (`EpochSlots`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from asyncfeed.bridges.share import share_size, shared
from asyncfeed.bridges.torch_tensors import ToTensors, check_dtype
from asyncfeed.errors import PipelineError
from asyncfeed.extras import installed
from asyncfeed.ranks import torch_rank
from asyncfeed.sizes import Size, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from asyncfeed.pipeline import Pipeline

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

    def begin(self, slot: int, tag: int) -> int:
        """Return the epoch of this tag."""
        words = self.memory.numpy()
        seen = words.copy()
        following = seen & MASK
        same = seen >> 31 == tag
        epoch = int(following[same].max()) - 1 if tag and same.any() else int(following.max())
        words[slot % SLOTS] = tag << 31 | epoch + 1
        return epoch

    def set(self, epoch: int) -> None:
        """Make this the next epoch."""
        self.memory.fill_(epoch)


@cache
def dataset_class() -> Any:
    """Return the class of datasets, derived from torch's."""
    from torch.utils.data import IterableDataset, get_worker_info

    class PipelineDataset(IterableDataset[Any]):
        """The batches of a pipeline as tensors. Each iteration is the next epoch."""

        def __init__(
            self, pipeline: Pipeline[Any], ranks: Ranks | None, convert: ToTensors, limit: int | None,
            epochs: EpochSlots, rank: tuple[int, int] | None = None,
        ) -> None:  # fmt: skip
            self.pipeline = pipeline
            self._ranks = ranks
            self._convert = convert
            self._limit = limit
            self._epochs = epochs
            self._rank = rank
            self._begun = 0

        def __iter__(self) -> Iterator[Any]:
            """Yield the batches of the next epoch, or those of this worker and this rank."""
            rank, count = self._share()
            info = get_worker_info()
            worker, workers, tag = 0, 1, 0
            if info is not None:
                worker, workers = info.id, info.num_workers
                tag = (info.seed - info.id + self._begun * 0x9E3779B1) % MASK + 1
            self._begun += 1
            epoch = self._epochs.begin(worker, tag)
            part = shared(self.pipeline, rank=rank, ranks=count, worker=worker, workers=workers)
            return _batches(part, self._convert, self._limit, epoch)

        def __len__(self) -> int:
            """Return the number of batches of a rank. Raises `TypeError` if it is not known."""
            size = share_size(self.pipeline, self._share()[1])
            if size is None:
                raise TypeError(f"the length of {self!r} is not known, or it has no end")
            return size

        def set_epoch(self, epoch: int) -> None:
            """Make this the next epoch, for all workers."""
            self._epochs.set(epoch)

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
            given = self.pipeline, self._ranks, self._convert, self._limit, self._epochs.memory
            return _again, (*given, self._rank or _rank())

        def __repr__(self) -> str:
            """Return the call that made this dataset."""
            return f"{self.pipeline!r}.to_torch_dataset()"

    PipelineDataset.__qualname__ = "PipelineDataset"
    return PipelineDataset


def _again(pipeline: Any, ranks: Any, convert: ToTensors, limit: Any, memory: Any, rank: tuple[int, int]) -> Any:
    return dataset_class()(pipeline, ranks, convert, limit, EpochSlots(memory), rank)


def _batches(pipeline: Pipeline[Any], convert: ToTensors, limit: int | None, epoch: int) -> Iterator[Any]:
    for batch in pipeline.open(memory_limit=limit, epoch=epoch):
        yield convert(batch)


def _rank() -> tuple[int, int]:
    """Return the rank of this process, and the number of ranks: of the process group, or as torchrun says."""
    found = torch_rank()
    return (0, 1) if found is None else (found.index, found.count)
