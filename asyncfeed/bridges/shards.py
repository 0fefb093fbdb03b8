"""`to_shards`: converts a pipeline into a few large files. Some formats have an index for each.

Each shard is written under another name and then renamed, so a shard that is there is whole. What is there is
written down in a hidden file. So a conversion that was interrupted goes on behind its last shard.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from asyncfeed.errors import Corrupt, PipelineError
from asyncfeed.extras import installed
from asyncfeed.reading.record_index import index_beside
from asyncfeed.sizes import Size, parse_bytes
from asyncfeed.stages.base import check_count
from asyncfeed.writing.encoder import Encoder, encoder_of
from asyncfeed.writing.whole import WholeFile, write_whole

if TYPE_CHECKING:
    from asyncfeed.pipeline import Pipeline

LIST: Final = ".shards.json"
"""The hidden file that says which shards are there."""
Progress = bool | Literal["auto"]


@dataclass
class Shards:
    """The shards in a folder: their paths, and what they hold together."""

    paths: list[str] = field(default_factory=list)
    items: int = 0
    """Number of samples."""
    nbytes: int = 0
    """Size of all shards in bytes."""


def to_shards(
    pipeline: Pipeline[Any],
    folder: str | os.PathLike[str],
    *,
    format: str,  # noqa: A002 - the word of the field
    name: str,
    max_items: int | None,
    max_bytes: Size,
    progress: Progress,
    memory_limit: Size | None,
) -> Shards:
    """Write the samples of a pipeline into shards; see `Pipeline.to_shards`."""
    encoder = encoder_of(format)
    if max_items is not None:
        check_count("to_shards", "max_items", max_items, 1)
    limits = max_items, parse_bytes(max_bytes, "to_shards", "max_bytes")
    _check_name(name)
    if pipeline.size() is None and _has_no_end(pipeline):
        raise PipelineError("to_shards: this pipeline has no end: put take(n) before it")
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    asked = f"{pipeline!r} {pipeline.size()} {format} {name} {limits}"
    writing = _Writing(place, name, encoder, limits, blake2b(asked.encode(), digest_size=16).hexdigest())
    if not writing.is_complete:
        with _shown(progress, pipeline.size(), writing.found.items) as advance:
            rest = pipeline.skip(writing.found.items) if writing.found.items else pipeline
            with rest.open(memory_limit=memory_limit) as feed:
                writing.write(feed, advance)
    return writing.found


class _Writing:
    """Writes shards into a folder, behind those that are there."""

    def __init__(
        self, folder: Path, name: str, encoder: Encoder, limits: tuple[int | None, int], asked: str
    ) -> None:
        self._folder = folder
        self._name = name
        self._encoder = encoder
        self._limits = limits
        self._asked = asked
        self.is_complete = False
        self._shards: list[tuple[str, int, int]] = []
        """The name, the number of samples and the size of each shard."""
        self._read()
        if self._shards:
            encoder.resume(folder / self._shards[0][0])

    @property
    def found(self) -> Shards:
        """The shards that are there."""
        paths = [str(self._folder / name) for name, _, _ in self._shards]
        return Shards(paths, sum(items for _, items, _ in self._shards), sum(size for _, _, size in self._shards))

    def write(self, samples: Iterator[Any], advance: Callable[[int], object]) -> None:
        """Write all samples."""
        most_items, most_bytes = self._limits
        most_bytes -= self._encoder.overhead
        records = self._encoded(samples)
        record: Any = None  # one that did not fit into the last shard
        has_more = True
        while has_more:
            name = f"{self._name.format(len(self._shards))}{self._encoder.suffix}"
            with WholeFile(self._folder / name) as out:
                edges, taken = [0], 0
                while len(edges) - 1 != most_items:  # a shard with all its samples does not wait for one more
                    record = next(records, None) if record is None else record
                    has_more = record is not None
                    if record is None or (taken and taken + self._encoder.size(record) > most_bytes):
                        break
                    taken += self._encoder.size(record)
                    out.write(self._encoder.add(record))
                    edges.append(out.size)
                    advance(1)
                    record = None
                if len(edges) > 1 or not self._shards:
                    self._finish(out, edges)
        self.is_complete = True
        self._note()

    def _encoded(self, samples: Iterator[Any]) -> Iterator[Any]:
        for number, sample in enumerate(samples, self.found.items):
            try:
                record = self._encoder.encode(sample, number)
            except Exception as error:
                error.add_note(f"asyncfeed: in to_shards, sample {number}")
                raise
            yield record

    def _finish(self, out: WholeFile, edges: list[int]) -> None:
        start, end = self._encoder.finish()
        out.write(end)
        out.replace_start(start)
        out.done()
        if self._encoder.kind is not None:
            index_beside(out.place, self._encoder.kind, np.array(edges, np.uint64))
        self._shards.append((out.place.name, len(edges) - 1, out.size))
        self._note()

    def _note(self) -> None:
        known = {"of": self._asked, "complete": self.is_complete, "shards": self._shards}
        write_whole(self._folder / LIST, json.dumps(known).encode())

    def _read(self) -> None:
        """Look for the shards of an earlier conversion."""
        place = self._folder / LIST
        if not place.exists():
            return
        try:
            known = json.loads(place.read_bytes())
            asked, self.is_complete = known["of"], known["complete"] is True
            shards = [(str(name), int(items), int(size)) for name, items, size in known["shards"]]
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(f"{place} does not say which shards are there: remove it to begin anew") from error
        if asked != self._asked:
            raise PipelineError(
                f"to_shards: {self._folder} has shards of another pipeline, or of other options: give another "
                f"folder, or remove {place}"
            )
        for name, items, size in shards:
            shard = self._folder / name
            if not shard.exists() or shard.stat().st_size != size:  # it was removed: it and all behind it are made
                self.is_complete = False
                break
            self._shards.append((name, items, size))


def _check_name(name: object) -> None:
    try:
        made = {name.format(0), name.format(1)} if isinstance(name, str) else set()
    except (IndexError, KeyError, ValueError):
        made = set()
    if len(made) < 2 or any("/" in each or each.startswith(".") for each in made):
        raise PipelineError(f'to_shards: name must have a place for the number, as in "{{:06}}", not {name!r}')


def _has_no_end(pipeline: Pipeline[Any]) -> bool:
    from asyncfeed.stages.together import is_endless

    return is_endless(pipeline.source, pipeline.stages)


@contextmanager
def _shown(progress: Progress, total: int | None, begun: int) -> Iterator[Callable[[int], object]]:
    """Show a bar of tqdm. Yield the function that moves it."""
    if progress not in (True, False, "auto"):
        raise PipelineError(f'to_shards: progress must be True, False or "auto", not {progress!r}')
    if progress is False or (progress == "auto" and find_spec("tqdm") is None):
        yield _show_nothing
        return
    tqdm = installed("tqdm.auto", "progress").tqdm
    with tqdm(total=total, initial=begun, unit=" samples", disable=None if progress == "auto" else False) as bar:
        yield bar.update


def _show_nothing(count: int) -> None:
    """Take the place of the function that moves a bar."""
