"""Finds where the records of files are, and reads no more than is needed for that. Knows the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from asyncfeed.errors import PipelineError
from asyncfeed.formats.records import Edges, RecordDecoder
from asyncfeed.reading.compression import HEAD
from asyncfeed.reading.file import File
from asyncfeed.reading.reader import AsyncReader, Range, Reader, value
from asyncfeed.reading.scope import new_reader

LOCAL: Final = 1 << 12, 1 << 18
"""Bytes of a local file that are read at a time: if most of it is skipped, and if nothing is."""
REMOTE: Final = 1 << 20, 1 << 26
"""Bytes of an object that are asked for at a time. Its reader asks for large ranges in parts, side by side."""


def scanned(files: Sequence[File], decoder: RecordDecoder[Any]) -> Iterator[Edges]:
    """Yield the edges of the records in each file. This blocks, and must not be called on the thread of a loop."""
    for file in files:
        reader = new_reader(file.store)
        if isinstance(reader, AsyncReader):
            with suppress(RuntimeError):
                asyncio.get_running_loop()
                raise PipelineError(
                    f"{decoder.name}: to make an index takes requests, which would block this event loop: "
                    "describe the pipeline on a thread, as in await asyncio.to_thread(describe)"
                )
            yield asyncio.run(_scan_on_loop(file, reader, decoder))
        else:
            yield _scan(file, reader, decoder)


def _scan(file: File, reader: Reader, decoder: RecordDecoder[Any]) -> Edges:
    try:
        size = value(*reader.look((file,))).size or 0
        ranges = _ranges(file.path, size, decoder, *LOCAL)
        data = None
        while True:
            wanted = ranges.send(data) if data is not None else next(ranges)
            data = value(*reader.read_ranges(file, (wanted,))).data
    except StopIteration as end:
        return _result(end)
    finally:
        reader.close()


async def _scan_on_loop(file: File, reader: AsyncReader, decoder: RecordDecoder[Any]) -> Edges:
    try:
        await reader.open()
        size = value(*await reader.look((file,))).size or 0
        ranges = _ranges(file.path, size, decoder, *REMOTE)
        data = None
        while True:
            try:
                wanted = ranges.send(data) if data is not None else next(ranges)
            except StopIteration as end:
                return _result(end)
            data = value(*await reader.read_ranges(file, (wanted,))).data
    finally:
        await reader.close()


def _ranges(
    path: str, size: int, decoder: RecordDecoder[Any], least: int, most: int
) -> Generator[Range, memoryview, Edges]:
    """Yield the ranges of a file that a scan needs, and be sent their bytes. Return the edges.

    A range is as long as the one before, or longer, if less than that was skipped. Else it is short.
    """
    start, held, window = 0, memoryview(b""), least
    if size:
        held = yield 0, min(size, max(HEAD, least))
    found = decoder.magic.format(bytes(held[:HEAD]), path)
    if found is not None:
        raise PipelineError(
            f"{decoder.name}: {path} is compressed ({found}), so its records cannot be reached by number: leave "
            "out indexed="
        )
    scan = decoder.scan(path, size)
    try:
        at, count = next(scan)
        while True:
            stop = start + len(held)
            if at < start or (at + count > stop and stop < size and at < size):
                window = min(2 * window, most) if start <= at <= stop + window else least
                start = at
                held = yield at, min(size, at + max(count, window))
            at, count = scan.send(held[at - start :])
    except StopIteration as end:
        return _result(end)


def _result(end: StopIteration) -> Edges:
    edges: Edges = end.value
    return edges
