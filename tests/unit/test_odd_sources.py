"""What is no source, or an odd one: the message says what to write, and what can be read is read."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncfeed as af


class Lies:
    """Its length is more than it has."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, number: int) -> int:
        return [10, 20, 30][number]


class AsyncLies(Lies):
    async def __getitem__(self, number: int) -> int:  # type: ignore[override]
        return super().__getitem__(number)


class NoLength:
    def __getitem__(self, number: int) -> int:
        return number


class HalfLength(NoLength):
    def __len__(self) -> Any:
        return 2.5


class Broken(NoLength):
    def __len__(self) -> int:
        raise OSError("the index is gone")


class ByKey:
    def __len__(self) -> int:
        return 2

    def keys(self) -> list[str]:
        return ["a", "b"]

    def __getitem__(self, key: str) -> int:
        return {"a": 1, "b": 2}[key]


class Frame(ByKey):
    """A table whose `[...]` takes labels, as pandas has them."""

    iloc = None


class Next:
    def __next__(self) -> int:
        return 1


class Anext:
    async def __anext__(self) -> int:
        return 1


class Loader:
    """Batches as a `DataLoader` gives them: with a length, and without `[number]`."""

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[int]:
        return iter([1, 2])


class Cursor:
    """Something to await or to iterate, as drivers of databases have."""

    def __await__(self) -> Any:
        raise NotImplementedError

    async def __aiter__(self) -> AsyncIterator[int]:
        yield 1
        yield 2


async def fetch() -> list[int]:
    return [1, 2]


def numbers(count: int, *, start: int = 0) -> Iterator[int]:
    yield from range(start, count)


async def async_numbers() -> AsyncIterator[int]:
    yield 1
    yield 2


def supplied(fn: Callable[..., Any]) -> Callable[[], Any]:
    """Call a function with its argument; what wraps it looks as if it needed one."""

    @functools.wraps(fn)
    def call(*args: Any) -> Any:
        return fn(3, *args)

    return call


async def awaited(source: Any) -> list[Any]:
    return [item async for item in af.items(source)]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("data/*.npy", r"str is one object.*wrap it in a list.*files\(\.\.\.\) reads"),
        (b"ab", "bytes is one object.*wrap it in a list"),
        (Path("a.npy"), r"PosixPath is one object.*wrap it in a list.*files\(\.\.\.\) reads"),
        ({"a": 1}, r"say which: items\(data\.items\(\)\)"),
        (Frame(), r"rows by label.*items\(frame\.to_dict\('records'\)\).*items\(series\.to_numpy\(\)\)"),
        (np.array(3), r"an array without axes is one sample: items\(\[array\]\)"),
        (np.float32(3), r"an array without axes is one sample"),
        (Lies, r"Lies is a class: give one of its objects, items\(Lies\(\.\.\.\)\)"),
        (numbers, r"numbers is called without arguments.*'count'.*items\(lambda: numbers\(\.\.\.\)\)"),
        (lambda x: [x], r"called without arguments.*'x'"),
        (functools.partial(numbers, start=1), r"called without arguments.*'count'"),
        (NoLength(), r"NoLength has \[number\] but no length: give it a __len__"),
        (HalfLength(), r"HalfLength has \[number\] but no length.*__len__ raised TypeError.*'float'"),
        (Next(), r"Next has a __next__ but no __iter__"),
        (Anext(), r"Anext has an __anext__ but no __aiter__"),
        (5, r"not 5: items\(range\(5\)\) counts"),
        (None, r"needs an iterable, an async iterable, or a function returning one, not None$"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_is_no_source_says_what_to_write(source: Any, message: str) -> None:
    with pytest.raises(af.PipelineError, match=f"^items: .*{message}"):
        af.items(source)


def test_a_coroutine_says_to_give_the_function() -> None:
    """Nobody has to await it any more."""

    async def main() -> None:
        for made in (fetch(), asyncio.ensure_future(fetch())):
            with pytest.raises(
                af.PipelineError, match=r"^items: .*give the async function itself: items\(fetch\)"
            ):
                af.items(made)

    asyncio.run(main())


@pytest.mark.parametrize(
    "source",
    [
        {1, 2}, {1: "a", 2: "b"}.keys(), map(int, "12"), (x for x in (1, 2)), Loader(), lambda: Loader(), fetch,
        async_numbers, functools.partial(numbers, 3, start=1), supplied(lambda n, start=1: range(start, n)),
        Cursor(), Cursor,
    ],
    ids=lambda each: type(each).__name__,
)  # fmt: skip
def test_what_can_be_gone_through_is_a_source(source: Any) -> None:
    assert list(af.items(source)) == [1, 2]


@pytest.mark.parametrize("kind", [Lies, AsyncLies])
def test_an_index_error_before_the_length_says_that_it_ends_nothing(kind: type[Lies]) -> None:
    with pytest.raises(IndexError, match="list index out of range") as caught:
        list(af.items(kind()))
    assert any(
        f"len() says that this {kind.__name__} has 5 items, so an IndexError is a failure" in note
        for note in caught.value.__notes__
    )


def test_a_key_error_of_what_has_keys_says_what_is_asked_for() -> None:
    with pytest.raises(KeyError) as caught:
        list(af.items(ByKey()))
    assert any("items(data.items())" in note for note in caught.value.__notes__)


def test_a_length_that_fails_is_told_with_what_was_asked() -> None:
    with pytest.raises(OSError, match="the index is gone") as caught:
        af.items(Broken())
    assert any("raised by the __len__ of this Broken" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("merge", [af.zip, af.concat])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([af.items([1]), af.items([2])], r"takes each pipeline by itself: {}\(\*pipelines\)"),
        ({"a": af.items([1])}, r"takes each pipeline by itself: {}\(\*pipelines\.values\(\)\)"),
        ([1], r"takes pipelines, not list; wrap it: items\(\.\.\.\)"),
    ],
)
def test_pipelines_in_a_list_are_given_one_by_one(merge: Any, given: Any, message: str) -> None:
    with pytest.raises(af.PipelineError, match=message.format(merge.__name__)):
        merge(given)


@pytest.mark.parametrize("given", [5, None])
def test_files_of_what_is_no_path_says_what_it_takes(given: Any) -> None:
    with pytest.raises(af.PipelineError, match=f"files: takes a path, a pattern, or a list of them, not {given}"):
        af.files(given)


def test_arrays_of_an_iterator_says_what_takes_it() -> None:
    with pytest.raises(
        af.PipelineError, match=r"not generator: use items\(\.\.\.\) for an object that can only be iterated"
    ):
        af.arrays(x for x in (1, 2))
