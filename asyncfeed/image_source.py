"""The source of labelled images: one folder for each class."""

from __future__ import annotations

import errno
import os
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from asyncfeed.errors import PipelineError
from asyncfeed.file_source import Files, Unlisted, files
from asyncfeed.numbered import Numbered
from asyncfeed.pipeline import Pipeline
from asyncfeed.reading.file import File
from asyncfeed.reading.given import Pattern
from asyncfeed.reading.keys import ObjectList
from asyncfeed.reading.listing import FileList
from asyncfeed.reading.urls import scheme_of
from asyncfeed.stages.base import Source
from asyncfeed.stages.steps import Indexed

SUFFIXES = frozenset({".jpg", ".jpeg", ".jpe", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".avif"})
"""The ends of the names of images, in small letters. Files with other names are left out."""
_SPECIAL = re.compile(r"[*?\[{]")


@dataclass(frozen=True)
class Labelled:
    """The images of a folder, and the number of the class of each: 12 bytes each beside the list of files."""

    found: FileList | ObjectList = field(default_factory=lambda: FileList([], [], []))
    """All files below the folder."""
    places: array[int] = field(default_factory=lambda: array("q"))
    """The places of the images in `found`."""
    labels: array[int] = field(default_factory=lambda: array("i"))

    def pick(self, places: Sequence[int]) -> list[tuple[File, int]]:
        """Return the images at these places with their labels."""
        picked = self.found.pick([self.places[place] for place in places])
        return list(zip(picked, [self.labels[place] for place in places], strict=True))

    def name(self, place: int) -> str:
        """Return the path of an image."""
        return self.found[self.places[place]].path


@dataclass(frozen=True)
class ImageFolder(Source):
    """Images with the number of their class."""

    root: Any
    classes: tuple[str, ...] | None = field(default=None)
    store: Any = field(default=None)
    labelled: Labelled = field(default_factory=Labelled, repr=False)
    names: tuple[str, ...] = field(default=(), repr=False)

    method: ClassVar[str] = "image_folder"
    positional: ClassVar[tuple[str, ...]] = ("root",)
    delivers_files: ClassVar[bool] = True

    def deciding(self) -> dict[str, object]:
        """Return the images and their classes."""
        labelled = self.labelled
        images = labelled.found.digest(labelled.places)
        return {"images": images, "labels": labelled.labels, "names": self.names}

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, by label."""
        return self.names

    @property
    def reads_on_loop(self) -> bool:
        """Whether the images are in a store that is read on the loop."""
        found = self.labelled.found
        return isinstance(found, ObjectList) and found.reads_on_loop

    def indexed(self) -> Indexed:
        """Return the images by number."""
        labelled = self.labelled
        return Numbered(len(labelled.places), labelled.pick, name=labelled.name)


def image_folder(
    root: Pattern, *, classes: Sequence[str] | None = None, store: object = None, **options: Any
) -> Pipeline[tuple[File, int]]:
    """Read the images below a folder that has one folder for each class, as pairs `(File, label)` to `load`.

    The folders directly below `root` are the classes. Their images may lie in further folders. The label of an
    image is the number of its class, in the order of the names. `.class_names` has the names, also after other
    stages. Files whose name does not end as that of an image does (`.jpg`, `.png`, ...) are left out. A folder
    without images is no class. So give `classes` if another folder must have the same labels.

    Like `files`, this lists the files here, once.

    Args:
        root: The folder, or the URL of one (`s3://bucket/train`).
        classes: The names of all classes, by label: `classes=train.class_names` for the images of the validation.
            Some may have no images.
        store: As for `files`.
        options: As for `files`.

    Raises:
        PipelineError: There is no image below the folder, one lies beside the class folders, or one is of a class
            that is not in `classes`.
        NotADirectoryError: `root` is a file.
        FileNotFoundError: There is no such folder.

    Order:
        The images are sorted by path. `shuffle` and `split` reach them by number.

    Memory:
        12 bytes for each image beside those of `files`.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> for name in ("cats/1.png", "dogs/1.png", "dogs/2.png"):
        ...     (folder / name).parent.mkdir(exist_ok=True)
        ...     _ = (folder / name).write_bytes(b"")
        >>> images = image_folder(folder)
        >>> images.class_names, [label for _, label in images]
        (('cats', 'dogs'), [0, 1, 1])
    """
    if not isinstance(root, str | os.PathLike) or not isinstance(os.fspath(root), str):
        raise PipelineError(f"image_folder: takes the path or the URL of one folder, not {root!r}")
    given = None if classes is None else _given(classes)
    top = os.fspath(root)
    start = top if top.endswith("/") else f"{top}/"
    found = _listed(top, start, store, options)
    places = array("q", (place for place, file in enumerate(found) if _is_image(file.path)))
    if not places:
        raise PipelineError(
            f"image_folder: none of the {len(found)} files below {top!r} has the name of an image "
            f"({', '.join(sorted(SUFFIXES))})"
        )
    names = [found[place].path[len(start) :].lstrip("/").partition("/") for place in places]
    for place, (_, slash, _) in zip(places, names, strict=True):
        if not slash:
            raise PipelineError(
                f"image_folder: {found[place].path!r} lies beside the class folders: move it into the folder of "
                "its class; for images without classes write files(...).load(image)"
            )
    present = {name for name, _, _ in names}
    if given is not None and not present.issubset(given):
        others = sorted(present.difference(given))
        raise PipelineError(f"image_folder: {top!r} has images of classes that are not in classes=: {others[:5]}")
    every = given or tuple(sorted(present))
    number = {name: label for label, name in enumerate(every)}
    labelled = Labelled(found, places, array("i", (number[name] for name, _, _ in names)))
    return Pipeline(ImageFolder(root, given, store, labelled, every))


def _given(classes: Sequence[str]) -> tuple[str, ...]:
    """Return the names of classes as a tuple, after a check."""
    names = () if isinstance(classes, str) else tuple(classes)
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise PipelineError(f"image_folder: classes must be different names, by label, not {classes!r}")
    return names


def _listed(top: str, start: str, store: object, options: dict[str, Any]) -> FileList | ObjectList:
    """Return all files below a folder."""
    if scheme_of(top) is None and not os.path.isdir(top):  # noqa: PTH112
        os.stat(top)  # noqa: PTH116 - it raises if there is nothing
        raise NotADirectoryError(errno.ENOTDIR, "image_folder takes the folder of the class folders", top)
    # A class folder may be a link, which `**` does not follow.
    pattern = _SPECIAL.sub(r"[\g<0>]", start) + "{*,*/**/*}"
    try:
        listed = cast("Files", files(pattern, store=store, **options).source).found
    except PipelineError as error:
        if "matches no" not in str(error):
            raise
        raise PipelineError(f"image_folder: there is no file below {top!r}") from None
    assert not isinstance(listed, Unlisted)
    return listed


def _is_image(path: str) -> bool:
    return os.path.splitext(path)[1].lower() in SUFFIXES  # noqa: PTH122
