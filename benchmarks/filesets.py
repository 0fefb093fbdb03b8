"""The files that the file benchmarks read: written by a seed, checked bit by bit, evicted from the page cache.

The first number of a file is its place in the set, so a batch tells which files are in it.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harness import Contender, Made, WrongError

BATCH = 32
SEED = 7


@dataclass(frozen=True, eq=False)
class FileSet:
    """Many .npy files of float32, all of one shape or with a first axis of `ragged[0]` to `ragged[1]`."""

    paths: Sequence[str]
    tail: tuple[int, ...]
    """The shape, without its first axis where that is ragged."""
    ragged: tuple[int, int] | None = None
    offset: int = field(default=128, kw_only=True)
    """Where the data begins in each file."""

    def take(self, items: int) -> list[str]:
        """Return that many paths, beginning anew where the set ends."""
        return (list(self.paths) * (items // len(self.paths) + 1))[:items]

    def sample(self, place: int) -> np.ndarray[Any, Any]:
        """Return what the file at this place holds."""
        random = np.random.default_rng((SEED, place))
        shape = self.tail
        if self.ragged:
            low, high = self.ragged
            shape = (int(random.integers(low, high + 1)), *shape)
        sample = random.random(shape, np.float32)
        sample.reshape(-1)[0] = place
        return sample

    @property
    def nbytes(self) -> int:
        """How many bytes of data one file holds, on average."""
        return sum(os.path.getsize(path) - self.offset for path in self.paths) // len(self.paths)

    def collate(self, samples: Sequence[Any]) -> np.ndarray[Any, Any]:
        """Make a batch as one does by hand: stacked, or padded with zeros to its longest sample."""
        if not self.ragged:
            return np.stack(samples)
        batch = np.zeros((len(samples), max(map(len, samples)), *self.tail), np.float32)
        for row, sample in zip(batch, samples, strict=True):
            row[: len(sample)] = sample
        return batch

    def warm(self) -> None:
        """Read all files, as the system may have dropped some: 10 of 40 MB within seconds, with 23 GB free."""
        for path in self.paths:
            Path(path).read_bytes()

    def evict(self) -> None:
        """Have the page cache forget the files."""
        for path in self.paths:
            fd = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


@contextmanager
def written(count: int, tail: tuple[int, ...], ragged: tuple[int, int] | None = None) -> Iterator[FileSet]:
    """Write the files into a temporary directory, and remove them afterwards."""
    with tempfile.TemporaryDirectory(prefix="asyncfeed-bench-") as folder:
        files = FileSet([str(Path(folder) / f"{place:06d}.npy") for place in range(count)], tail, ragged)
        for place, path in enumerate(files.paths):
            np.save(path, files.sample(place))
        os.sync()  # a file that is still to be written cannot be evicted, and writing it would take a core
        yield files


KINDS: dict[str, tuple[tuple[int, ...], tuple[int, int] | None]] = {
    "small": ((1000,), None),
    "large": ((512, 512), None),
    "ragged": ((40,), (20, 200)),
}


def fileset(kind: str, count: int) -> AbstractContextManager[FileSet]:
    """Write that many files of a kind."""
    return written(count, *KINDS[kind])


def keep_copy(kept: list[Any], batch: Any) -> None:
    """Keep what will be overwritten."""
    kept.append(batch.copy())


def check(contender: Contender, files: FileSet, items: int = 331) -> None:
    """Raise unless every setting delivers each file once, bit by bit, in batches of 32 and the rest."""
    for setting, run in contender.settings.items():
        batches: list[Any] = []
        # All are kept as they are, so none may share its memory with another.
        run(files, items, partial(keep_copy, batches) if contender.lends else batches.append)
        if isinstance(run, Made):
            run.drop()
        arrays = [np.asarray(batch) for batch in batches]
        if sorted(map(len, arrays), reverse=True) != [BATCH] * (items // BATCH) + [items % BATCH] * (
            items % BATCH > 0
        ):
            raise WrongError(f"{contender.name} ({setting}) made other batches: {list(map(len, arrays))}")
        seen: list[int] = []
        for array in arrays:
            places = [int(row.flat[0]) for row in array]
            if not np.array_equal(array, files.collate([files.sample(place) for place in places])):
                raise WrongError(f"{contender.name} ({setting}) changed the data")
            seen.extend(places)
        if sorted(seen) != sorted(place % len(files.paths) for place in range(items)):
            raise WrongError(f"{contender.name} ({setting}) lost or repeated files")


@contextmanager
def slow_reads(seconds: float) -> Iterator[None]:
    """Make every read of a file wait first, without the GIL, as a store far away does."""
    # Not `os.read`: event loops and queues read their own pipes with it.
    saved = {name: getattr(os, name) for name in ("readv", "preadv")}

    def slow(read: Callable[..., Any]) -> Callable[..., Any]:
        def waiting(*args: Any) -> Any:
            time.sleep(seconds)
            return read(*args)

        return waiting

    for name, read in saved.items():
        setattr(os, name, slow(read))
    try:
        yield
    finally:
        for name, read in saved.items():
            setattr(os, name, read)
