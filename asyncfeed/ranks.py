"""Which of the processes that train together this one is: its rank, and how many ranks there are.

Frameworks and launchers say it in different places. `find_rank` looks at all of them. It imports no framework: a
framework that is not imported does not know the rank. Invariants:

* It never guesses. If nothing says how many ranks there are, it raises. If each of 8 processes took itself for the
  only one, all of them would train on all of the data, and nothing would show it.
* If two answers disagree, it raises an error that names both. One case is no disagreement: a launcher that starts
  another launcher.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from asyncfeed.errors import PipelineError

LAUNCHERS = (
    ("SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
    ("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",)),
)
"""The variables of launchers that start a process for each task: the rank, and the number of ranks. A SLURM job
may have more tasks than the step that this process belongs to, so the number of the step goes first."""
TRAINERS = ("chief", "master", "worker")
"""The tasks of a TensorFlow cluster that train, in the order of their ranks."""


@dataclass(frozen=True, slots=True)
class Rank:
    """One answer: rank `index` of `count`, and who said so."""

    index: int
    count: int
    said: str

    def __str__(self) -> str:
        """Return the answer for messages."""
        return f"rank {self.index} of {self.count} ({self.said})"


def given_or_found(index: int | None, count: int | None) -> tuple[int, int]:
    """Return both numbers, or the rank of this process and the number of ranks if there are none."""
    if index is not None and count is not None:
        return index, count
    if index is not None or count is not None:
        raise PipelineError("shard: give both index and count, as in shard(3, 8), or neither of them")
    found = find_rank()
    logging.getLogger("asyncfeed").info("shard: this process is %s", found)
    return found.index, found.count


def find_rank() -> Rank:
    """Return the rank of this process. Raise if nobody says it, or if two answers do not fit together."""
    found = [*_of_frameworks(), *_of_variables()]
    started = [*_of_launchers()]
    answers = [*found, *started]
    if not answers:
        raise PipelineError(
            "shard: nothing says which rank this process is. These were asked: tf.distribute, TF_CONFIG, "
            "torch.distributed, RANK and WORLD_SIZE, jax.distributed, SLURM_PROCID and SLURM_NTASKS, "
            "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE. Call shard() after the framework is initialised, or "
            "write shard(index, count). If this process trains alone, write shard(0, 1), or set RANK=0 and "
            "WORLD_SIZE=1"
        )
    best = answers[0]
    for other in answers[1:]:
        fits = (
            _may_have_started(other, best)
            if other in started
            else (best.index, best.count) == (other.index, other.count)
        )
        if not fits:
            raise PipelineError(f"shard: {best} and {other} do not agree: write shard(index, count)")
    return best


def torch_rank() -> Rank | None:
    """Return what torch's process group says, or the variables of torchrun. None if neither says anything."""
    return _process_group() or _pair("RANK", ("WORLD_SIZE",))


def _of_frameworks() -> Iterator[Rank]:
    """Yield what TensorFlow says: the strategy, or else the variable that strategies are made of."""
    found = _strategy() or _tf_config()
    if found is not None:
        yield found


def _of_variables() -> Iterator[Rank]:
    for found in (torch_rank(), _jax()):
        if found is not None:
            yield found


def _of_launchers() -> Iterator[Rank]:
    for rank, counts in LAUNCHERS:
        found = _pair(rank, counts)
        if found is not None:
            yield found


def _may_have_started(launcher: Rank, inner: Rank) -> bool:
    """Return whether a launcher's tasks can have started the ranks: each of them as many, or each one itself.

    `srun torchrun --nproc-per-node 8` has 8 ranks for each task of SLURM. torchrun numbers its ranks by itself.
    """
    if inner.count == launcher.count and "TORCHELASTIC_RUN_ID" not in os.environ:
        return inner.index == launcher.index
    return inner.count % launcher.count == 0


def _rank(index: Any, count: Any, said: str) -> Rank:
    try:
        found = Rank(int(index), int(count), said)
    except (TypeError, ValueError):
        raise PipelineError(f"shard: {said} says {index!r} of {count!r}, which are no numbers") from None
    if not 0 <= found.index < found.count:
        raise PipelineError(f"shard: {found}: ranks are counted from 0 to {found.count - 1}")
    return found


def _pair(rank: str, counts: tuple[str, ...]) -> Rank | None:
    """Return what two variables say. None unless both are set."""
    count = next((name for name in counts if os.environ.get(name)), None)
    if count is None or not os.environ.get(rank):
        return None
    return _rank(os.environ[rank], os.environ[count], f"{rank} and {count}")


# -- torch and JAX


def _process_group() -> Rank | None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return _rank(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")


def _jax() -> Rank | None:
    jax = sys.modules.get("jax")
    # Without `jax.distributed` each process takes itself for the only one. To ask would start JAX's devices.
    if jax is None or not _is_initialized(jax):
        return None
    return _rank(jax.process_index(), jax.process_count(), "jax.distributed")


def _is_initialized(jax: Any) -> bool:
    asked = getattr(getattr(jax, "distributed", None), "is_initialized", None)
    if asked is not None:
        return bool(asked())
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)  # before JAX 0.5
    return getattr(state, "client", None) is not None


# -- TensorFlow


def _strategy() -> Rank | None:
    """Return what the strategy says in whose scope this is called."""
    distribute = getattr(sys.modules.get("tensorflow"), "distribute", None)
    if distribute is None or not distribute.has_strategy():
        return None
    resolver = getattr(distribute.get_strategy(), "cluster_resolver", None)
    if resolver is None or resolver.task_type not in TRAINERS:
        return None
    return _in_cluster(
        resolver.cluster_spec().as_dict(), resolver.task_type, resolver.task_id, "the strategy of tf.distribute"
    )


def _tf_config() -> Rank | None:
    text = os.environ.get("TF_CONFIG")
    if not text:
        return None
    try:
        config = json.loads(text)
        cluster, task = config.get("cluster") or {}, config.get("task") or {}
        if not cluster or not task:  # a program for one machine
            return None
        return _in_cluster(cluster, task["type"], task["index"], "TF_CONFIG")
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise PipelineError(f"shard: TF_CONFIG is not as TensorFlow defines it: {error!r}") from None


def _in_cluster(cluster: Mapping[str, Any], kind: str, index: Any, said: str) -> Rank | None:
    """Return the rank of a task. The chief is the first, and the workers follow it."""
    if not any(cluster.get(each) for each in TRAINERS):
        return None
    if kind not in TRAINERS:
        raise PipelineError(
            f"shard: {said} says that this process is {kind} {index}, which has no part of the training: write "
            "shard(index, count), or leave out shard"
        )
    before = sum(len(cluster.get(each, ())) for each in TRAINERS[: TRAINERS.index(kind)])
    return _rank(before + int(index), sum(len(cluster.get(each, ())) for each in TRAINERS), said)
