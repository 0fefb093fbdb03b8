"""Sources that hypothesis draws, of every kind, with what they mean."""

from __future__ import annotations

import asyncio
import math
import random
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

import asyncfeed as af
from tests.engine.drawn_functions import Fails
from tests.engine.failing import Oops
from tests.engine.model import At, Bad, Case, Skips, calls, numbered, then, with_policy
from tests.searching import LONGER

concurrency = st.sampled_from(["auto", 1, 2, 3, 8, 64])


def policy(draw: st.DrawFn) -> tuple[dict[str, Any], Skips | None]:
    """Draw what becomes of items that fail: the options of a stage, and what they allow."""
    kind = draw(st.sampled_from(["raise", "raise", "all", "count", "share"]))
    if kind == "raise":
        return {}, None
    limit = {"all": 10**9, "count": draw(st.integers(1, 5)), "share": draw(st.sampled_from([0.01, 0.1, 0.5]))}[
        kind
    ]
    return {"on_error": "skip", "skip_limit": limit}, Skips(math.inf if kind == "all" else limit)


class Ledger:
    """Counts the generators that were begun, and those that were closed; of all cases together."""

    opened = closed = 0

    @classmethod
    def begin(cls) -> None:
        """Forget what was before."""
        cls.opened = cls.closed = 0

    @classmethod
    def settled(cls) -> bool:
        """Return whether all that were begun are closed."""
        return cls.opened == cls.closed


def of_list(values: list[int], bad: int | None) -> Iterator[int]:
    """Yield the values, and fail at the place `bad`."""
    Ledger.opened += 1
    try:
        for place, value in enumerate(values):
            if place == bad:
                raise Oops(place)
            yield value
    finally:
        Ledger.closed += 1


async def of_list_later(values: list[int], bad: int | None) -> Any:
    Ledger.opened += 1
    try:
        for place, value in enumerate(values):
            if value % 5 == 0:
                await asyncio.sleep(value / 10000)
            if place == bad:
                raise Oops(place)
            yield value
    finally:
        try:
            await asyncio.sleep(0.001)  # closing may wait, too; it is cancelled if the end was reached by itself
        finally:
            Ledger.closed += 1


class Dataset:
    """A map-style dataset whose `[number]` calls a function of the value."""

    def __init__(self, values: list[int], fn: Callable[[int], int] = lambda x: x) -> None:
        self.values = values
        self.fn = fn

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, place: int) -> int:
        return self.fn(self.values[place])


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="asyncfeed-model-")


def file_of(value: int) -> Path:
    """Return a file that holds a value."""
    path = Path(_folder().name, f"{value}.txt")
    if not path.exists():
        path.write_text(str(value))
    return path


def file_of_lines(values: list[int]) -> Path:
    """Return a file with a line for each value."""
    path = Path(_folder().name, f"{'-'.join(map(str, values))}.lines")
    path.write_text("".join(f"{value}\n" for value in values))
    return path


def _mixed(count: int, seed: int) -> list[int]:
    return [random.Random(seed).randrange(51) for _ in range(count)]


def numbers(most: int) -> st.SearchStrategy[list[int]]:
    """Return lists of up to this many numbers: short ones, of any, and longer ones."""
    longer = st.builds(_mixed, st.integers(0, most) | st.integers(most // 3, most), st.integers(0, 9))
    return st.lists(st.integers(0, 50), max_size=min(6, most)) | longer | longer


SEQUENCES = ["list", "range", "bare", "dataset", "array", "arrays"]
STREAMS = ["function", "generator", "async generator"]
FILES = ["files", "streamed files", "items of files", "lines"]


@st.composite
def sources(draw: st.DrawFn) -> Case:
    """Draw a source whose items are all good."""
    kind = draw(st.sampled_from(SEQUENCES + STREAMS + STREAMS + FILES))
    values = draw(numbers(12) if kind in FILES else numbers(20) | numbers(20) | numbers(150 * LONGER))
    if kind == "range":
        values = list(range(0, 3 * len(values), 3))
    pipeline = _source(kind, values, draw(concurrency))
    if kind == "lines":
        return Case(pipeline, lambda epoch: [At(value, epoch, (0, i)) for i, value in enumerate(values)])
    by_number = kind in SEQUENCES and (kind != "bare" or bool(values))
    return Case(pipeline, lambda epoch: numbered(values, epoch), by_number, by_number, renumbers=by_number)


def _source(kind: str, values: list[int], concurrency: Any) -> af.Pipeline[Any]:
    match kind:
        case "dataset":
            return af.items(Dataset(values), concurrency=concurrency)
        case "array":
            return af.items(np.array(values, np.int64))
        case "arrays":
            return af.arrays(np.array(values, np.int64))
        case "files" if values:
            return af.files([file_of(value) for value in values]).load(af.text, concurrency=concurrency).map(int)
        case "streamed files" if values:
            paths = [file_of(value) for value in values]
            return af.files(paths, listing="streamed").load(af.text, concurrency=concurrency).map(int)
        case "files" | "streamed files" | "items of files":
            files = [af.File(str(file_of(value))) for value in values]
            return af.items(files).load(af.text, concurrency=concurrency).map(int)
        case "lines":
            return af.items([file_of_lines(values)]).flat_map(af.lines).map(int)
    made: dict[str, Any] = {
        "list": values,
        "range": range(0, 3 * len(values), 3),
        "bare": set(values) and values[:],
        "function": lambda: iter(values),
        "generator": lambda: of_list(values, None),
        "async generator": lambda: of_list_later(values, None),
    }
    return af.items(made[kind])


@st.composite
def failing_sources(draw: st.DrawFn) -> Case:
    """Draw a source that fails, at a place if it is drawn from, or for a number if it is asked by number."""
    values = draw((numbers(20) | numbers(20) | numbers(150 * LONGER)).filter(bool))
    kind = draw(st.sampled_from(["generator", "async generator", "dataset"]))
    if kind == "dataset":
        fails, options, skips = (
            Fails(draw(st.sampled_from([11, 23, 60])), draw(st.integers(0, 10))),
            *policy(draw),
        )
        pipeline = af.items(Dataset(values, fails.check), concurrency=draw(concurrency), **options)
        case = Case(pipeline, lambda epoch: numbered(values, epoch))
        # Its items are read after what can be worked into the source; the filter keeps that from what follows.
        meaning = calls(lambda at: [at._replace(value=fails.check(at.value))], skips)
        read = with_policy(case, pipeline, meaning, skips, fails=skips is None or skips.limit < math.inf)
        return then(read, pipeline.filter(lambda _: True), lambda items, _: items)
    bad = draw(st.integers(0, len(values) - 1))
    make = of_list if kind == "generator" else of_list_later
    pipeline = af.items(lambda: make(values, bad))
    return Case(pipeline, lambda epoch: [*numbered(values[:bad], epoch), Bad(bad, epoch, bad)], fails=True)
