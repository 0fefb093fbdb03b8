"""The common part of `batch` and `bucket`: the step that makes a batch of a list of samples, and its checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from asyncfeed.errors import PipelineError
from asyncfeed.functions.checks import check_fn, is_async
from asyncfeed.stacking.collate import INLINE, Padding, collate
from asyncfeed.stacking.pool import Pool, shared_pool
from asyncfeed.stages.base import Node, Source
from asyncfeed.stages.steps import Place, Work
from asyncfeed.trees import LEAVES, Tree, flatten, size_of, total_size


@dataclass(frozen=True, slots=True)
class Collate:
    """Makes a batch of a list of samples, as the function of a `Work`."""

    pad: Padding | None = None
    made_by: Node | str | None = None
    """The stage that called the user's function, for messages."""
    pool: Pool = field(default_factory=shared_pool, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it for another process, which has memory of its own."""
        return Collate, (self.pad, None if self.made_by is None else str(self.made_by))

    def work(self) -> Work:
        """Return the step: on a thread, or on the loop if there is little to copy."""
        return Work(self, "thread", placed=True, inline=self.fits, cost=self.size_of)

    def __call__(self, samples: list[Tree], place: Place) -> Tree:
        """Return the batch. `place` gives the names of its members in messages."""
        return collate(samples, place.name, self.pad, self.pool.empty, self.made_by)

    def size_of(self, samples: list[Tree]) -> int:
        """Return how many bytes the batch needs. If it is padded, this is an estimate."""
        if self.pad is None:
            return total_size(samples)
        return len(samples) * max(self.pad.size_of(samples[0]), *map(size_of, samples))

    def fits(self, samples: list[Tree]) -> bool:
        """Return whether the loop may make this batch: it copies little, and calls no other library's code."""
        # Converting a tensor of another library, or an array in a file, may take long.
        return self.size_of(samples) <= INLINE and LEAVES.issuperset(map(type, flatten(samples[0])[0]))


def maker(batch: Node, source: Source, stages: Sequence[Node]) -> Node | None:
    """Return the stage that makes the samples of a batch, or None. Raise if the samples are unread files."""
    made_by = next((node for node in reversed(stages) if node.makes_items), None)
    if made_by is None and source.delivers_files and getattr(batch, "collate", None) is None:
        raise PipelineError(
            f"{batch.method}: the files are not read: add .load(npy), or the decoder of their format, before it; "
            f"{batch.method}(..., collate=list) makes lists of files"
        )
    return made_by


def collating(
    function: Callable[[list[Any]], Any] | None, pad: Padding | None = None, made_by: Node | None = None
) -> Work:
    """Return the step that makes a batch of each list of samples, by the user's function if there is one."""
    if function is None:
        return Collate(pad, made_by).work()
    return Work(function, "thread", cost=total_size)


def check_collate(stage: str, function: object) -> None:
    """Raise if `function` cannot make a batch of a list of samples."""
    if function is None:
        return
    check_fn(stage, function)
    if is_async(function):  # type: ignore[arg-type] # it is callable
        raise PipelineError(
            f"{stage}: collate must be a sync function of a list of samples, which runs on a thread, not "
            f"{function!r}; await before, with .map()"
        )


def refuse_pad(stage: str) -> PipelineError:
    """Return the error for a `pad` after a batch that the user's function makes."""
    return PipelineError(
        f"pad: {stage}(collate=...) makes the batches, and pad cannot change them: pad in the collate function, "
        f"or pad each sample before, as in .pad(to=512).{stage}(...)"
    )
