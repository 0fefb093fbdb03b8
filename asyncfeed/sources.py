"""Sources of items: iterables, sequences, arrays."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, TypeVar, overload

import numpy as np

from asyncfeed.attempts.skip import OnError
from asyncfeed.axes import Axes, Fixed, Unknown
from asyncfeed.errors import PipelineError
from asyncfeed.functions.checks import check_policy, is_async
from asyncfeed.given import check_source, explain_missing
from asyncfeed.numbered import KERAS, QUICK, Mapped, Numbered, frozen, is_mapped, is_sequence, length_of, pick_from
from asyncfeed.pipeline import Pipeline
from asyncfeed.reading.leaves import reads_on_loop
from asyncfeed.stages.base import Source, show
from asyncfeed.stages.steps import Asked, Concurrency, Indexed, Opening, Reading
from asyncfeed.trees import flatten, leaf_name, unflatten

T = TypeVar("T")
K = TypeVar("K")
T_co = TypeVar("T_co", covariant=True)


class _ByNumber(Protocol[T_co]):
    """A map-style dataset."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> T_co: ...


class _AwaitedByNumber(Protocol[T_co]):
    """A map-style dataset with an async `[number]`."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Awaitable[T_co]: ...


# -- items


@dataclass(frozen=True)
class Items(Source):
    """Python objects. A sequence is read by number, other objects are iterated."""

    data: Any
    concurrency: Concurrency | None = None
    on_error: OnError = "raise"
    skip_limit: float | None = None
    _claimed: dict[str, object] = field(default_factory=dict, repr=False, compare=False)

    method: ClassVar[str] = "items"
    positional: ClassVar[tuple[str, ...]] = ("data",)
    tuning: ClassVar[tuple[str, ...]] = ("concurrency", "skip_limit")

    def __post_init__(self) -> None:
        data = self.data
        check_policy(
            self.method, 1 if self.concurrency is None else self.concurrency, self.on_error, self.skip_limit
        )
        check_source(data)
        if self.options and not is_sequence(data):
            raise PipelineError(
                f"items: {', '.join(self.options)} can do nothing for {_brief(data)}, which is drawn one item "
                "after the other; give an object with a length and [number], or do the work in a map"
            )

    @property
    def options(self) -> list[str]:
        """The options that are given, as they are written."""
        given = {"concurrency": self.concurrency, "on_error": self.on_error, "skip_limit": self.skip_limit}
        return [f"{name}={value!r}" for name, value in given.items() if value not in (None, "raise")]

    @property
    def reads_on_loop(self) -> bool:
        """Whether the first item has files of a store that is read on the loop. All others can be read, too."""
        data = self.data
        return type(data) in (list, tuple) and bool(data) and reads_on_loop(data[0])

    def indexed(self) -> Indexed | None:
        """Return the items of a sequence by number."""
        data = self.data
        if not is_sequence(data):
            return None
        if type(data).__getitem__ in QUICK:
            return Numbered(len(data), lambda places: pick_from(data, places))
        # The `[number]` of every other type may block and may fail.
        if is_async(type(data).__getitem__):
            reading = Reading(self.concurrency or "auto", self.on_error, self.skip_limit, awaits=True)
            return Numbered(len(data), lambda places: [Asked(data, place) for place in places], on_thread=reading)
        reading = Reading(self.concurrency or 1, self.on_error, self.skip_limit)
        rows = _rows(data)
        if isinstance(data, np.ndarray):
            on_thread = reading if isinstance(rows, Mapped) else None
            return Numbered(len(data), lambda places: [rows[place] for place in places], on_thread=on_thread)

        def fetch(place: int) -> Any:
            try:
                return rows[place]
            except (IndexError, KeyError) as error:
                explain_missing(error, data, place)
                raise

        together = getattr(type(rows), "__getitems__", None)
        if together is not None:
            # Torch's DataLoader calls it, too. Datasets of Hugging Face read their table once for all rows.
            reading = replace(reading, together=True)
            return Numbered(len(data), lambda places: together(rows, list(places)), on_thread=reading, one=fetch)
        return Numbered(len(data), lambda places: [fetch(each) for each in places], on_thread=reading, one=fetch)

    def size(self) -> int | None:
        """Return the number of items; None if the object does not tell it, or some may be left out."""
        if callable(self.data) or self.on_error != "raise" or self.one_shot:  # it may be partly drawn already
            return None
        return length_of(self.data)

    def open_at(self, place: int) -> Opening:
        """Return how to draw from the data. An iterable starts at its first item, so `place` items are dropped."""
        data = self.data
        if isinstance(data, Iterable | AsyncIterable):
            return Opening(lambda: data, drop=place)
        return Opening(data, call=True, drop=place)

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return `Fixed` for the rows of an array, which have one shape; `Unknown` for other items."""
        return Fixed() if isinstance(self.data, np.ndarray) else Unknown()

    @property
    def one_shot(self) -> bool:
        """Whether the data can be read only once."""
        data = self.data
        return isinstance(data, Iterator) or (hasattr(data, "__anext__") and hasattr(data, "__aiter__"))

    def check_repeatable(self) -> None:
        """Raise if the data can be read only once."""
        if self.one_shot:
            raise PipelineError(
                f"repeat: {type(self.data).__name__} can be read only once; "
                "give a function that makes a new one: items(lambda: ...), or the generator function itself"
            )

    def claim(self) -> None:
        """Note that a run draws from the data. Raise if an earlier run has, and the data can be read only once."""
        if self.one_shot:
            run = object()
            if self._claimed.setdefault("by", run) is not run:
                raise PipelineError(
                    f"items: this {type(self.data).__name__} was drawn from by an earlier run; "
                    "give a function that makes a new one: items(lambda: ...)"
                )

    def __str__(self) -> str:
        """Return the call. Data that is not short and simple is named by its type and length."""
        return f"items({', '.join([_brief(self.data), *self.options])})"


def _brief(data: Any) -> str:
    simple = isinstance(data, list | tuple) and len(data) <= 12 and all(type(each) in _SIMPLE for each in data)
    if isinstance(data, range) or simple or (callable(data) and hasattr(data, "__name__")):
        return show(data)
    length = length_of(data)
    return f"<{type(data).__name__}>" if length is None else f"<{type(data).__name__} of {length}>"


_SIMPLE = frozenset({int, float, bool, str, type(None)})


def _is_dataset(data: object) -> bool:
    """Return whether `data` is made for Keras: it has batches by number, and hooks between epochs."""
    kind = type(data)
    if not hasattr(kind, "__getitem__"):
        return False
    return hasattr(kind, "on_epoch_end") or any(
        base.__name__ in ("PyDataset", "Sequence") and base.__module__.partition(".")[0] in KERAS
        for base in kind.__mro__
    )


@overload
def items(data: Callable[[], AsyncIterable[T]]) -> Pipeline[T]: ...
@overload
def items(data: Callable[[], Iterable[T]]) -> Pipeline[T]: ...
@overload
def items(data: AsyncIterable[T]) -> Pipeline[T]: ...
@overload
def items(
    data: Iterable[T],
    *,
    concurrency: Concurrency | None = ...,
    on_error: OnError = ...,
    skip_limit: float | None = ...,
) -> Pipeline[T]: ...
@overload
def items(
    data: _AwaitedByNumber[T],
    *,
    concurrency: Concurrency | None = ...,
    on_error: OnError = ...,
    skip_limit: float | None = ...,
) -> Pipeline[T]: ...
@overload
def items(
    data: _ByNumber[T],
    *,
    concurrency: Concurrency | None = ...,
    on_error: OnError = ...,
    skip_limit: float | None = ...,
) -> Pipeline[T]: ...
def items(
    data: Any,
    *,
    concurrency: Concurrency | None = None,
    on_error: OnError = "raise",
    skip_limit: float | None = None,
) -> Pipeline[Any]:
    """Feed Python objects: from a sequence, an iterable, an async iterable, or a function that returns one.

    Data with a length and `[number]` (lists, ranges, arrays, datasets) is reached by number, so it can be shuffled
    exactly. It must not change while it is read. The `[number]` of a dataset is called on a thread, only for the
    items that are needed; an `async def __getitem__` is awaited on the loop. Other iterables are drawn on a
    thread, async ones on the loop, from the start in each epoch.

    The items of a `keras.utils.PyDataset` or `Sequence`, or of any object with `[number]` and an `on_epoch_end`,
    are its batches. Several threads read them at a time unless `concurrency=1`. The object is not pickled. Its own
    `on_epoch_begin` is called before the first batch of an epoch is read, and its own `on_epoch_end` when all
    batches of the epoch have left this source. If an epoch is left early, `on_epoch_end` is not called. With
    hooks, epochs do not overlap, and the length is not known, because it may change with each epoch. Without
    hooks, the next epoch is read ahead.

    Args:
        data: The data, or a function without arguments that returns it, such as a generator function.
        concurrency: Number of `[number]` calls at a time, 1 by default. "auto" finds the number; several threads
            then call the dataset. The default is "auto" for an `async def __getitem__`.
        on_error: "raise" ends the run at an item that fails, "skip" leaves the item out. See `map`.
        skip_limit: Number of items that "skip" may leave out, or a rate if it is below 1. It counts over the whole
            run, all epochs together.

    Raises:
        PipelineError: An option is given, but the data can only be iterated.
        Exception: While the pipeline runs, the exception of an item that fails, after all items before it. A note
            has its number in the dataset.

    Order:
        The order of the data.

    Example:
        >>> def squares():
        ...     for number in range(3):
        ...         yield number * number
        >>> list(items(squares).repeat(2))
        [0, 1, 4, 0, 1, 4]
    """
    if _is_dataset(data):
        from asyncfeed.bridges.pydataset import pydataset  # noqa: PLC0415 - only datasets need it

        return pydataset(
            data,
            concurrency="auto" if concurrency is None else concurrency,
            on_error=on_error,
            skip_limit=skip_limit,
        )
    return Pipeline(Items(data, concurrency, on_error, skip_limit))


# -- arrays


@dataclass(frozen=True)
class Arrays(Source):
    """Rows of arrays of the same length."""

    tree: Any
    concurrency: Concurrency = "auto"

    method: ClassVar[str] = "arrays"
    tuning: ClassVar[tuple[str, ...]] = ("concurrency",)

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return `Fixed`: rows of an array have one shape."""
        return Fixed()

    def __post_init__(self) -> None:
        check_policy(self.method, self.concurrency, "raise", None)
        leaves, spec = flatten(self.tree)
        if not leaves:
            raise PipelineError("arrays: give at least one array")
        for place, leaf in enumerate(leaves):
            where = leaf_name(spec, place) or "the array"
            fix = _fix_for(leaf)
            if fix is not None:
                raise PipelineError(
                    f"arrays: {where} must be an array with a first axis, not {type(leaf).__name__}: {fix}"
                )
            rows, expected = leaf.shape[0], leaves[0].shape[0]
            if rows != expected:
                raise PipelineError(f"arrays: {where} has {rows} rows, but {leaf_name(spec, 0)} has {expected}")

    def indexed(self) -> Indexed:
        """Return the rows by number: read-only views of arrays in memory, copies of other arrays."""
        given, spec = flatten(self.tree)
        leaves: list[Any] = list(map(_rows, given))
        first, count = leaves[0], int(given[0].shape[0])
        reading = None if all(isinstance(leaf, np.ndarray) for leaf in leaves) else Reading(self.concurrency)
        # A copy of rows of other types has another type: numpy's text is as wide as the longest one.
        sliced = all(type(leaf) is np.ndarray and leaf.dtype.kind in "biufcmM" for leaf in leaves)
        if spec.is_leaf():
            return Numbered(
                count,
                lambda places: [first[place] for place in places],
                on_thread=reading,
                run=(lambda start, stop: first[start:stop]) if sliced else None,
            )

        def fetch(places: Sequence[int]) -> list[Any]:
            return list(zip(*[[leaf[place] for place in places] for leaf in leaves], strict=True))

        def fetch_tree(places: Sequence[int]) -> list[Any]:
            return [unflatten(spec, [leaf[place] for leaf in leaves]) for place in places]

        def run(start: int, stop: int) -> Any:
            return unflatten(spec, [leaf[start:stop] for leaf in leaves])

        flat = type(self.tree) is tuple and spec.num_leaves == spec.num_children
        return Numbered(count, fetch if flat else fetch_tree, on_thread=reading, run=run if sliced else None)

    def __str__(self) -> str:
        """Return the call, with shapes for the arrays."""
        leaves, spec = flatten(self.tree)
        shapes = unflatten(spec, [_Shape(leaf) for leaf in leaves])
        words = list(map(repr, shapes)) if type(self.tree) is tuple else [repr(shapes)]
        if self.concurrency != "auto":
            words.append(f"concurrency={self.concurrency}")
        return f"arrays({', '.join(words)})"


def _rows(data: Any) -> Any:
    """Return what has the rows of an array. Anything else is returned as it is."""
    if is_mapped(data):
        return Mapped(data)
    return frozen(data) if isinstance(data, np.ndarray) else data


def _fix_for(leaf: Any) -> str | None:
    """Return the code to write instead of an object that has no rows by number; None for an array.

    >>> _fix_for([1]), _fix_for(np.zeros(3))
    ('write arrays(numpy.array(...))', None)
    """
    if hasattr(leaf, "iloc"):  # in pandas, `[number]` looks up a label of a column or a row
        return "pandas finds rows by label: write arrays(frame.to_numpy()), or a dict of column.to_numpy()"
    if isinstance(leaf, (str, bytes, os.PathLike)):
        return "open the file, and give its array; files(...).load(npy) reads a file for each sample"
    if isinstance(leaf, Iterator):
        return "use items(...) for an object that can only be iterated"
    if not getattr(leaf, "shape", ()):
        if callable(getattr(leaf, "keys", None)):
            return "it holds arrays by name: give the arrays, as in arrays(group['x'], group['y'])"
        return (
            "an array without axes is one sample: items([...]) takes it"
            if hasattr(leaf, "shape")
            else ("write arrays(numpy.array(...))")
        )
    return None if hasattr(leaf, "dtype") and hasattr(leaf, "__getitem__") else "convert it with numpy.asarray"


class _Shape:
    """Shows an array in the repr as its shape."""

    def __init__(self, array: Any) -> None:
        kind = getattr(array, "dtype", type(array).__name__)
        self._text = f"<{kind} {'x'.join(map(str, array.shape))}>"

    def __repr__(self) -> str:
        return self._text


@overload
def arrays(columns: dict[K, T], /, *, concurrency: Concurrency = ...) -> Pipeline[dict[K, Any]]: ...
@overload
def arrays(tree: Any, /, *, concurrency: Concurrency = ...) -> Pipeline[Any]: ...
@overload
def arrays(first: Any, second: Any, /, *, concurrency: Concurrency = ...) -> Pipeline[tuple[Any, Any]]: ...
@overload
def arrays(
    first: Any, second: Any, third: Any, /, *, concurrency: Concurrency = ...
) -> Pipeline[tuple[Any, Any, Any]]: ...
@overload
def arrays(
    first: Any, second: Any, third: Any, /, *more: Any, concurrency: Concurrency = ...
) -> Pipeline[tuple[Any, ...]]: ...
def arrays(*trees: Any, concurrency: Concurrency = "auto") -> Pipeline[Any]:
    """Feed the rows of arrays: samples are rows of axis 0, in the structure given.

    Args:
        *trees: One array or tree of arrays. Several give a tuple of their rows.
        concurrency: Number of rows that are read at a time, if the arrays are not in memory. "auto" finds it. Use
            1 for an object that threads must not share.

    Order:
        The order of the rows.

    Memory:
        Rows of numpy arrays in memory are read-only views: nothing is copied before `batch`, and a function that
        changes a row makes a copy first. Any other object with a shape
        and `[number]` (memory-mapped files, HDF5, zarr) is read on threads.

    Example:
        >>> list(arrays(np.arange(3), np.array([True, False, True])).map(lambda row: int(row[0]) * bool(row[1])))
        [0, 0, 2]
    """
    return Pipeline(Arrays(trees[0] if len(trees) == 1 else trees, concurrency))
