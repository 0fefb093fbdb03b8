"""Functions that combine several pipelines into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, overload

from asyncfeed.pipeline import Pipeline
from asyncfeed.stages.merge import Concat, Zip
from asyncfeed.stages.mix import Mix, Stop

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")


@overload
def zip(only: Pipeline[A], /, *, strict: bool = ...) -> Pipeline[tuple[A]]: ...
@overload
def zip(first: Pipeline[A], second: Pipeline[B], /, *, strict: bool = ...) -> Pipeline[tuple[A, B]]: ...
@overload
def zip(
    first: Pipeline[A], second: Pipeline[B], third: Pipeline[C], /, *,
    strict: bool = ...,
) -> Pipeline[tuple[A, B, C]]: ...  # fmt: skip
@overload
def zip(
    first: Pipeline[A], second: Pipeline[B], third: Pipeline[C], fourth: Pipeline[D], /, *,
    strict: bool = ...,
) -> Pipeline[tuple[A, B, C, D]]: ...  # fmt: skip
@overload
def zip(
    first: Pipeline[A], second: Pipeline[B], third: Pipeline[C], fourth: Pipeline[D], fifth: Pipeline[E], /, *,
    strict: bool = ...,
) -> Pipeline[tuple[A, B, C, D, E]]: ...  # fmt: skip
@overload
def zip(
    first: Pipeline[Any], second: Pipeline[Any], third: Pipeline[Any], fourth: Pipeline[Any], fifth: Pipeline[Any],
    sixth: Pipeline[Any], /, *more: Pipeline[Any], strict: bool = ...,
) -> Pipeline[tuple[Any, ...]]: ...  # fmt: skip
def zip(*pipelines: Pipeline[Any], strict: bool = True) -> Pipeline[tuple[Any, ...]]:
    """Feed tuples with one item of each pipeline, like Python's `zip`.

    Args:
        *pipelines: The inputs.
        strict: True raises an error if one input has more items than another. False stops at the shortest.

    Example:
        >>> from asyncfeed.sources import items
        >>> list(zip(items([1, 2]), items("ab".upper)))
        [(1, 'A'), (2, 'B')]
    """
    return Pipeline(Zip(pipelines, strict=strict))


def mix(
    *pipelines: Pipeline[T], weights: Sequence[float] | None = None, seed: int = 0, stop: Stop = "all"
) -> Pipeline[T]:
    """Feed items of several pipelines, each from one that is drawn at random.

    This is TensorFlow's `sample_from_datasets`.

    Args:
        *pipelines: The inputs.
        weights: How often each input is drawn, relative to the others. None draws all equally often.
        seed: Decides which input each item comes from.
        stop: "all" ends the epoch when every input has ended. Inputs that have ended are not drawn any more.
            "first" ends the epoch when an input is drawn that has ended.

    Raises:
        PipelineError: The number of weights is not the number of pipelines, or no weight is above 0.
        Exception: While the pipeline runs, the exception of an item that fails. A note has the place of the item
            in its own pipeline.

    Order:
        `seed` decides from which inputs the items come. The draws are the same in each epoch. Each input keeps its
        own order. If the items of all inputs can be reached by number, and are at most 67 million, the items of
        the mix can be reached by number too. An exact `shuffle` may then follow.

    Example:
        >>> from asyncfeed.sources import items
        >>> list(mix(items(range(4)), items(range(10, 14)), seed=2))
        [10, 11, 0, 12, 13, 1, 2, 3]
    """
    return Pipeline(Mix(pipelines, None if weights is None else tuple(weights), seed=seed, stop=stop))


def concat(*pipelines: Pipeline[T]) -> Pipeline[T]:
    """Feed all items of the first pipeline, then all items of the second one, and so on.

    Args:
        *pipelines: The inputs. All of them read ahead at the same time.

    Example:
        >>> from asyncfeed.sources import items
        >>> list(concat(items([1, 2]), items([3])))
        [1, 2, 3]
    """
    return Pipeline(Concat(pipelines))
