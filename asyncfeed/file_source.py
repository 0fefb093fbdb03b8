"""The source of files: local ones, and objects of a store."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, ClassVar, Literal

from asyncfeed.axes import Axes, Unknown
from asyncfeed.errors import PipelineError
from asyncfeed.numbered import Numbered
from asyncfeed.pipeline import Pipeline
from asyncfeed.reading import manifest as manifests
from asyncfeed.reading import remote
from asyncfeed.reading.file import File
from asyncfeed.reading.given import Pattern
from asyncfeed.reading.keys import ObjectList
from asyncfeed.reading.listing import FileList, Listing, common_folder, expand
from asyncfeed.reading.name_list import expand_names
from asyncfeed.reading.objects import ObjectStore
from asyncfeed.reading.urls import scheme_of
from asyncfeed.stages.base import Source
from asyncfeed.stages.steps import Indexed, Opening

How = Literal["eager", "names", "streamed"]


@dataclass(frozen=True)
class Unlisted:
    """Files that each run lists for itself, by this call. It blocks."""

    expand: Callable[..., FileList | ObjectList]
    args: tuple[Any, ...] = field(repr=False)  # it may hold a secret

    def open_at(self, place: int) -> Opening:
        """Return how a run reads the files. All its epochs see the files that the first one finds."""
        if self.expand is expand:
            return Opening(Listing(*self.args).files, call=True, drop=place)
        names = getattr(self.args[0], "names", None)
        if isinstance(names, ObjectList):
            from asyncfeed.reading.obstore_listing import ObjectListing  # noqa: PLC0415 - it knows the event loop

            return Opening(ObjectListing(names).files, drop=place)
        found: list[FileList | ObjectList] = []
        lock = Lock()

        def listed() -> FileList | ObjectList:
            with lock:  # the thread of an epoch that was left early may still be at work
                if not found:
                    found.append(self.expand(*self.args))
                return found[0]

        return Opening(listed, call=True, drop=place)


@dataclass(frozen=True)
class Files(Source):
    """Files that were listed when the pipeline was described, or that each run lists."""

    patterns: Any = None
    manifest: str | None = None
    root: str | None = None
    listing: How = "eager"
    found: FileList | ObjectList | Unlisted = field(default_factory=lambda: FileList([], [], []), repr=False)

    method: ClassVar[str] = "files"
    positional: ClassVar[tuple[str, ...]] = ("patterns",)

    delivers_files: ClassVar[bool] = True

    def deciding(self) -> dict[str, object]:
        """Return the files. What each run lists for itself is known by its patterns, without their folder."""
        if not isinstance(self.found, Unlisted):
            return {"found": self.found}
        given: Any = self.manifest if self.patterns is None else self.patterns
        texts = [os.fspath(each) for each in ([given] if isinstance(given, str | os.PathLike) else given)]
        start = len(common_folder([_fixed_start(each) for each in texts]))
        return {"listed": [each[start:] for each in texts]}

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return `Unknown`: files have no axes."""
        return Unknown()

    @property
    def reads_on_loop(self) -> bool:
        """Whether some may be of a store that is read on the loop."""
        found = self.found
        if isinstance(found, Unlisted):
            return found.expand is not expand
        return isinstance(found, ObjectList) and found.reads_on_loop

    def indexed(self) -> Indexed | None:
        """Return the files by number; None if they are not listed yet."""
        found = self.found
        if isinstance(found, Unlisted):
            return None
        return Numbered(len(found), found.pick, name=lambda place: found[place].path)

    @property
    def listed(self) -> FileList | None:
        """The files, if they are local and were listed when the pipeline was described."""
        return self.found if isinstance(self.found, FileList) else None

    def open_at(self, place: int) -> Opening:
        """Return how a run lists and reads the files."""
        assert isinstance(self.found, Unlisted)
        return self.found.open_at(place)

    def mark(self, item: File) -> str | None:
        """Return a digest of the name and its folder, if each run lists the files for itself."""
        if not isinstance(self.found, Unlisted):
            return None
        name = "/".join(item.path.replace(os.sep, "/").split("/")[-2:])
        return hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:16]

    @property
    def unnumbered(self) -> str:
        """What to change if the files must be reached by number."""
        return 'files(...) without listing="streamed" knows all its files' if self.listing == "streamed" else ""

    def __str__(self) -> str:
        """Return the call. Many paths are shown as their number."""
        if type(self.patterns) is tuple and len(self.patterns) > MAX_SHOWN:
            return str(replace(self, patterns=_Paths(len(self.patterns))))
        return super().__str__().replace("files(None, ", "files(", 1)


MAX_SHOWN = 12
"""Number of paths that the text of a pipeline shows. A million of them made an error of 60 MB."""


class _Paths:
    """Shows many paths as their number."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __repr__(self) -> str:
        return f"<{self._count} paths>"


def _fixed_start(pattern: str) -> str:
    """Return the start of a pattern that has no wildcard."""
    return re.split(r"[*?\[{]", pattern, maxsplit=1)[0]


def files(
    patterns: Pattern | Iterable[Pattern] | None = None,
    *,
    manifest: Pattern | None = None,
    root: Pattern | None = None,
    store: object = None,
    listing: How = "eager",
    **options: Any,
) -> Pipeline[File]:
    """Read from files, as `File`s to `load`: local ones, or objects of a store if the patterns are URLs.

    Call it on a thread if a loop runs: it lists the files here, once. Locally it makes a system call for the size
    of each, unless `listing="names"`. A store is asked for all names below the fixed part of a pattern, and must
    not be listed on the thread of a loop that runs. With `listing="streamed"` nothing is listed here: the call
    does not block, and the first files are delivered before the last ones are listed.

    Args:
        patterns: A path, a pattern, or a list of both. Patterns (`*`, `?`, `[...]`, `{a,b}`, `**`) match files,
            never directories. Instead of paths, they may all be URLs (`s3://bucket/train/*.npy`).
        manifest: A text file that names the files, instead of patterns. It may be a URL, and packed (`.gz`). A
            `.jsonl` file has a line `{"path": ..., "size": ..., "etag": ...}` for each file. A `.csv` file has
            these columns. Any other file has a path or a URL on each line. Size and etag may be left out. A path
            is relative to the manifest. `docs/storage.md` says what a manifest may name.
        root: The folder that local files found through links must lie below. By default it is the fixed part of
            the pattern. For a manifest, the folder or URL that its paths are relative to, and must lie below.
        store: What reads URLs. By default obstore does, for s3, gs, az, abfss and https. "fsspec", or a filesystem
            of fsspec, reads those and others.
        listing: "eager" lists the files in this call. "names" lists the names of local files in this call, and no
            sizes: `size` and `version` of each `File` are None. It is for folders of many small files. Then no
            file is noticed that changes after this call, and a state does not notice files of another size.
            "streamed" lists the files in each run. Then they have no length, and `shuffle` needs a `buffer`.
        options: How an object store is reached: `endpoint`, `anonymous`, `verify` and more, see
            `asyncfeed.reading.ObjectStore`. With "fsspec" these are the options of its filesystem.

    Raises:
        PipelineError: A pattern matches nothing, a link leads outside, a URL is not allowed, a line of the
            manifest is wrong, or only the names are wanted of a store or a manifest.
        FileNotFoundError: A path does not exist.
        IsADirectoryError: A path is a directory.
        Unavailable: The store did not answer.

    Order:
        The files of a pattern are sorted. A list and a manifest keep their order. With "streamed", the epochs of a
        run see the same files.

    Memory:
        Each file takes 25 bytes beside its path, 9 with "names", and less than 60 while names are listed. Each
        object takes less than 200 bytes if its name has up to 100 characters. "streamed" asks for one page of
        1,000 names more than were delivered.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "b.txt").write_text("B"), (folder / "a.txt").write_text("A")
        >>> list(files(f"{folder}/*.txt").map(lambda file: file.size))
        [1, 1]
        >>> list(files(f"{folder}/*.txt", listing="names").map(lambda file: file.size))
        [None, None]
    """
    if listing not in ("eager", "names", "streamed"):
        raise PipelineError(f'files: listing must be "eager", "names" or "streamed", not {listing!r}')
    base = None if root is None else os.fspath(root)
    given: Any = None
    if manifest is not None:
        path, unlisted = _of_manifest(patterns, manifest, base, store, options)
    else:
        path = None
        if not isinstance(patterns, str | os.PathLike | Iterable):
            raise PipelineError(f"files: takes a path, a pattern, or a list of them, not {patterns!r}")
        given = patterns if isinstance(patterns, str | os.PathLike) else tuple(patterns)
        wanted = remote.wanted(given, store, options)
        if wanted is not None and base is not None:
            raise PipelineError("files: root is for local files; a store has no links")
        unlisted = Unlisted(expand, (given, base)) if wanted is None else Unlisted(remote.Wanted.listed, (wanted,))
    if listing == "names":
        if unlisted.expand is not expand:
            raise PipelineError(
                'files: listing="names" is for local paths and patterns; a store and a manifest tell the sizes '
                "with the names, so leave it out"
            )
        unlisted = Unlisted(expand_names, (given, base))
    found = unlisted if listing == "streamed" else unlisted.expand(*unlisted.args)
    return Pipeline(Files(given, path, base, listing, found))


def _of_manifest(
    patterns: object, manifest: Pattern, root: str | None, store: object, options: dict[str, Any]
) -> tuple[str, Unlisted]:
    if patterns is not None:
        raise PipelineError("files: give either patterns or a manifest; concat joins both")
    if not isinstance(manifest, str | os.PathLike):
        raise PipelineError(f"files: the manifest is a path or a URL, not {manifest!r}")
    if store is not None and not isinstance(store, ObjectStore):
        raise PipelineError("files: a manifest takes an ObjectStore as store=; fsspec does not read its files")
    path = os.fspath(manifest)
    if scheme_of(path) is not None:
        remote.Stores(store, options).add(path)  # what is wrong with the URL is said here
    return path, Unlisted(manifests.read, (path, root, store, options))
