"""The source of files: local ones, and objects of a store."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from asyncfeed.axes import Axes, Unknown
from asyncfeed.errors import PipelineError
from asyncfeed.numbered import Numbered
from asyncfeed.pipeline import Pipeline
from asyncfeed.reading import remote
from asyncfeed.reading.file import File
from asyncfeed.reading.keys import ObjectList
from asyncfeed.reading.listing import FileList, Pattern, expand
from asyncfeed.stages.base import Source
from asyncfeed.stages.steps import Indexed


@dataclass(frozen=True)
class Files(Source):
    """Files that were listed when the pipeline was described."""

    patterns: Any
    root: str | None = None
    found: FileList | ObjectList = field(default_factory=lambda: FileList([], [], []), repr=False)

    method: ClassVar[str] = "files"
    positional: ClassVar[tuple[str, ...]] = ("patterns",)

    delivers_files: ClassVar[bool] = True

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return `Unknown`: files have no axes."""
        return Unknown()

    def indexed(self) -> Indexed:
        """Return the files by number."""
        found = self.found
        return Numbered(len(found), found.pick, name=lambda place: found[place].path)


def files(
    patterns: Pattern | Iterable[Pattern], *, root: Pattern | None = None, store: object = None, **options: Any
) -> Pipeline[File]:
    """Read from files, as `File`s to `load`: local ones, or objects of a store if the patterns are URLs.

    Call it on a thread if a loop runs: it lists the files here, once. Locally it makes a system call for the size
    of each. A store is asked for all names below the fixed part of a pattern, and must not be listed on the thread
    of a loop that runs.

    Args:
        patterns: A path, a pattern, or a list of both. Patterns (`*`, `?`, `[...]`, `{a,b}`, `**`) match files,
            never directories. URLs (`s3://bucket/train/*.npy`) must all be of one bucket or host.
        root: The folder that local files found through links must lie below. By default it is the fixed part of
            the pattern.
        store: What reads URLs. By default obstore does, for s3, gs, az, abfss and https. "fsspec", or a filesystem
            of fsspec, reads those and others.
        options: How an object store is reached: `endpoint`, `anonymous`, `verify` and more, see
            `asyncfeed.reading.ObjectStore`. With "fsspec" these are the options of its filesystem.

    Raises:
        PipelineError: A pattern matches nothing, a link leads outside, or a URL is not allowed.
        FileNotFoundError: A path does not exist.
        IsADirectoryError: A path is a directory.
        Unavailable: The store did not answer.

    Order:
        The files of a pattern are sorted. A list keeps its order.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "b.txt").write_text("B"), (folder / "a.txt").write_text("A")
        >>> list(files(f"{folder}/*.txt").map(lambda file: file.size))
        [1, 1]
    """
    if not isinstance(patterns, str | os.PathLike | Iterable):
        raise PipelineError(f"files: takes a path, a pattern, or a list of them, not {patterns!r}")
    given = patterns if isinstance(patterns, str | os.PathLike) else tuple(patterns)
    found = remote.expand(given, store, options)
    if found is None:
        return Pipeline(Files(given, None if root is None else os.fspath(root), expand(given, root)))
    if root is not None:
        raise PipelineError("files: root is for local files; a store has no links")
    return Pipeline(Files(given, None, found))
