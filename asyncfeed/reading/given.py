"""Paths and patterns as they are given: what cannot be one is refused, and literal paths are looked at."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from stat import S_ISDIR, S_ISREG
from typing import NamedTuple

from asyncfeed.errors import PipelineError
from asyncfeed.reading.glob import Boundary, Found, has_magic
from asyncfeed.reading.reader import not_a_file

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")

Pattern = str | os.PathLike[str]


class Given(NamedTuple):
    """Paths and patterns, told apart."""

    texts: list[str]
    magic: set[str]
    """Those of the texts that are patterns."""
    boundary: Boundary | None
    """What `root` says."""


def told_apart(patterns: Pattern | Iterable[Pattern], root: Pattern | None) -> Given:
    """Return paths and patterns, told apart. Raise for what cannot be one."""
    texts = [_checked(each) for each in ([patterns] if isinstance(patterns, str | os.PathLike) else patterns)]
    if not texts:
        raise PipelineError("files: the list of paths is empty")
    boundary = None if root is None else Boundary(_checked(root))
    # The literal name first, because real paths may hold brackets.
    magic = {text for text in texts if has_magic(text) and not os.path.exists(text)}  # noqa: PTH110
    return Given(texts, magic, boundary)


def literal(text: str, boundary: Boundary | None) -> Found:
    """Return the file of exactly this name."""
    try:
        status = os.stat(text)  # noqa: PTH116 - a Path object per file costs more than the call
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _missing(error, text) from error
    if S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "a directory: write it as '.../*' for the files in it", text)
    if not S_ISREG(status.st_mode):
        raise not_a_file(text, status.st_mode)
    if boundary is not None:
        boundary.check(text)
    return text, status.st_size, status.st_mtime_ns


def _checked(given: object) -> str:
    """Return a path as text. Raise if it cannot be the path of a local file."""
    text = os.fspath(given) if isinstance(given, str | os.PathLike) else given
    if not isinstance(text, str):
        raise PipelineError(f"files: a path must be a str or an os.PathLike of str, not {given!r}")
    if not text or "\0" in text:
        raise PipelineError(f"files: {text!r} cannot be a path: it is empty or holds a NUL character")
    url = _URL.match(text)
    if url:  # only the scheme is shown: the rest may hold a password
        scheme = url[1].lower()
        fix = (
            "write a plain path" if scheme == "file" else "files(...) reads it if all paths are URLs of one store"
        )
        raise PipelineError(f"files: {scheme}://... is not a local path: {fix}")
    return text


def _missing(error: OSError, text: str) -> OSError:
    hint = "; ~ is not expanded here, pass os.path.expanduser(...)" if text.startswith("~") else ""
    where = os.path.abspath(os.curdir)  # noqa: PTH100
    if not os.path.isabs(text):  # noqa: PTH117
        hint += f"; it is relative to {where!r}"
    return OSError(error.errno, f"{error.strerror}{hint}", text)  # Python makes it the type of the errno
