"""Reads manifests: text files that name one file on each line, with its size and etag if they are known.

A manifest is material from elsewhere. It may name files only where its reader lets it, see `Namer`.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from asyncfeed.errors import Corrupt, PipelineError
from asyncfeed.reading.file import File
from asyncfeed.reading.glob import has_magic
from asyncfeed.reading.keys import ObjectList
from asyncfeed.reading.listing import FileList, expand
from asyncfeed.reading.objects import ObjectStore
from asyncfeed.reading.remote import Stores
from asyncfeed.reading.urls import WEB, parse, scheme_of
from asyncfeed.reading.versioned import quoted

MAX_LINE_BYTES = 1 << 16
"""Length of the longest line. A longer one is no name, and packed zeros would fill the memory."""
BLOCK = 1 << 20
"""Number of bytes that are unpacked and taken apart at a time."""

Entry = tuple[int, str, int | None, str | None]
"""What names a file: the number of the line or row, the name, and the size and the etag if they are written."""
Where = Callable[[int], str]
"""Returns where an entry is written, for errors."""


def read(
    path: str, root: str | None, store: ObjectStore | None, options: Mapping[str, Any]
) -> FileList | ObjectList:
    """Return the files that a manifest names, in its order. This blocks.

    Raises `PipelineError` and `Corrupt` for a line that is wrong, and what reading the manifest raises.
    """

    def where(line: int) -> str:
        return f"line {line} of {path}"

    if scheme_of(path) is None:
        namer = Namer(os.path.dirname(path) or "." if root is None else root, store, options)  # noqa: PTH120
        with open(path, "rb") as source:  # noqa: PTH123
            return namer.files(_entries(iter(lambda: source.read(BLOCK), b""), path), where)
    base, key = parse(path)
    stores = Stores(store, options)
    namer = Namer(path.rpartition("/")[0] if root is None else root, store, options, within=root or base)
    held_by = stores.store(base)
    from asyncfeed.reading.obstore_listing import read_object  # noqa: PLC0415 - it knows the event loop

    body = read_object(File(path, store=held_by) if held_by.scheme in WEB else held_by.file(key))
    return namer.files(
        _entries((body[at : at + BLOCK].tobytes() for at in range(0, len(body), BLOCK)), path), where
    )


class Namer:
    """Makes files of names, which are URLs or are relative to a folder. The names may come from anywhere.

    Relative local names must not lead out of the folder, not even through links. A URL must be of an allowed
    scheme and hold no secret, see `urls.parse`. With `within` it must lie below that URL.

    Args:
        folder: A local folder, or the URL of one.
        store: The store of the URLs. None makes a store for each bucket and host.
        options: The options of these stores.
        within: The URL that all files must lie below. None is the folder, and any URL if the folder is local.
    """

    def __init__(
        self, folder: str, store: ObjectStore | None, options: Mapping[str, Any], within: str | None = None
    ) -> None:
        self._folder = folder.rstrip("/") or "/"
        self._is_local = scheme_of(folder) is None
        self._stores = Stores(store, options)
        inside = within or ("" if self._is_local else folder)
        self._within = f"{inside.rstrip('/')}/" if inside else ""

    def files(self, entries: Iterable[Entry], where: Where) -> FileList | ObjectList:
        """Return the files, in the order of their entries."""
        local: list[Entry] = []
        for entry in entries:
            line, name, size, etag = entry
            scheme = scheme_of(name)
            if self._is_local and scheme is None:
                local.append(entry)
                continue
            try:
                self._add(name if scheme is not None else f"{self._folder}/{name}", size, etag)
            except PipelineError as error:
                raise PipelineError(f"files: {where(line)}: {str(error).removeprefix('files: ')}") from None
        found = self._stores.found
        if found and local:
            raise PipelineError(
                f"files: {where(local[0][0])} names a local path, and others name URLs: concat joins both"
            )
        return found or self._local(local, where)

    def _add(self, url: str, size: int | None, etag: str | None) -> None:
        if not url.startswith(self._within):
            parse(url)  # it may hold a secret: then this raises, and shows nothing of it
            raise PipelineError(
                f"files: {url} is not below {self._within}, and this list may name nothing else; pass root= with "
                "the URL that the files are below, or use a local copy of the list if you trust it"
            )
        self._stores.add(url, size, quoted(etag))

    def _local(self, entries: Sequence[Entry], where: Where) -> FileList:
        if not entries:
            raise PipelineError("files: the manifest names no file")
        found = named_files([name for _, name, _, _ in entries], self._folder, lambda at: where(entries[at][0]))
        for (line, _, size, _), file in zip(entries, found, strict=True):
            if size not in (None, file.size):
                raise Corrupt(f"{file.path} has {file.size} bytes, but {size} are written in {where(line)}")
        return found


def named_files(names: Sequence[str], folder: str, where: Where) -> FileList:
    """Return local files by name. A name is no pattern.

    Raises what `listing.expand` raises, with a note that says which of the names it is.
    """
    paths = [os.path.join(folder, name) for name in names]  # noqa: PTH118
    try:
        for path in filter(has_magic, paths):  # it must exist as it is written
            os.stat(path)  # noqa: PTH116
        return expand(paths, folder)
    except (OSError, PipelineError):
        for at, path in enumerate(paths):
            try:
                os.stat(path)  # noqa: PTH116
                expand([path], folder)
            except (OSError, PipelineError) as error:
                error.add_note(f"asyncfeed: {where(at)}")
                raise
        raise


def _entries(blocks: Iterable[bytes], path: str) -> Iterator[Entry]:
    """Yield what each line of a manifest names. The ending of its name decides the format."""
    name = path.lower()
    if name.endswith(".gz"):
        blocks, name = _unpacked(blocks, path), name.removesuffix(".gz")
    parse_line: Callable[[str], tuple[Any, Any, Any]] | None = _of_text
    if name.endswith((".jsonl", ".ndjson", ".json")):
        parse_line = _of_json
    elif name.endswith(".csv"):
        parse_line = None  # its first line decides
    for number, line in enumerate(lines_of(blocks), 1):
        try:
            text = _decoded(line, number)
            if not text.strip():
                continue
            if parse_line is None:
                parse_line = _of_csv(text)
                continue
            made = parse_line(text)
            _check(*made)
            yield number, *made
        except ValueError as error:
            raise PipelineError(f"files: line {number} of {path}: {error}") from None


def _decoded(line: bytes, number: int) -> str:
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"it is longer than {MAX_LINE_BYTES:,} bytes")
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None


def lines_of(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a text, without their ends. A line without end is not collected."""
    rest = b""
    for block in blocks:
        *whole, rest = (rest + block).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r")
        if len(rest) > MAX_LINE_BYTES:
            break  # it is refused
    if rest:
        yield rest.removesuffix(b"\r")


def _unpacked(blocks: Iterable[bytes], path: str) -> Iterator[bytes]:
    stream = zlib.decompressobj(31)  # 31 takes the format of gzip only
    try:
        for block in blocks:
            left = block
            while left:
                if stream.eof:  # gzip files may be joined
                    stream = zlib.decompressobj(31)
                yield stream.decompress(left, BLOCK)
                left = stream.unused_data if stream.eof else stream.unconsumed_tail
        yield stream.flush()
    except zlib.error:
        raise Corrupt(f"{path} is not a valid gzip file") from None
    if not stream.eof:
        raise Corrupt(f"{path} ends too early: the gzip file is not complete")


def _of_text(text: str) -> tuple[str, Any, Any]:
    return text, None, None


def _of_json(text: str) -> tuple[Any, Any, Any]:
    try:
        made = json.loads(text)
    except ValueError as error:
        raise ValueError(f"not valid JSON ({error})") from None
    except RecursionError:
        raise ValueError("not valid JSON (it is nested too deep)") from None
    if isinstance(made, str):
        return made, None, None
    if not isinstance(made, dict) or "path" not in made:
        raise ValueError(
            'a line is written as {"path": ..., "size": ..., "etag": ...}; size and etag may be left out'
        )
    return made["path"], made.get("size"), made.get("etag")


def _of_csv(header: str) -> Callable[[str], tuple[str, Any, Any]]:
    """Return what takes the lines of a CSV file with this header apart."""
    import csv  # noqa: PLC0415 - a program without such manifests does not wait for this import

    names = next(csv.reader([header]))
    if "path" not in names:
        raise ValueError("the header of a CSV manifest needs the column 'path'; 'size' and 'etag' are used, too")

    def parse_line(text: str) -> tuple[str, Any, Any]:
        try:
            cells = next(csv.reader([text], strict=True))
        except csv.Error as error:
            raise ValueError(f"not valid CSV ({error}); a value must not go over several lines") from None
        if len(cells) != len(names):
            raise ValueError(f"it has {len(cells)} fields, the header has {len(names)}")
        row = dict(zip(names, cells, strict=True))
        size = row.get("size")
        return row["path"], int(size) if size and size.isdecimal() else size or None, row.get("etag") or None

    return parse_line


def _check(name: object, size: object, etag: object) -> None:
    if not isinstance(name, str) or not name:
        raise ValueError("its path must be a text that is not empty")
    if "\0" in name:
        raise ValueError("its path holds a NUL character")
    if isinstance(size, bool) or not (size is None or (isinstance(size, int) and 0 <= size < 1 << 63)):
        raise ValueError("its size must be a whole number of bytes")
    if not (etag is None or isinstance(etag, str)):
        raise ValueError("its etag must be a text")
